"""The ``foxhunt`` command."""

from __future__ import annotations

import sys

from foxhunt_pipeline.errors import FoxhuntError


def main() -> None:
    """Run the command; an expected error is one message and exit code 2."""
    from foxhunt_pipeline.cli.app import app
    from foxhunt_pipeline.cli.console import warn

    try:
        app()
    except FoxhuntError as error:
        warn(f"{error.category} error: {error}", style="red")
        sys.exit(2)
