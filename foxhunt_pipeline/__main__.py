"""``python -m foxhunt_pipeline`` is ``foxhunt``."""

from foxhunt_pipeline.cli import main

main()
