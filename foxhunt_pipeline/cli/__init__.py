"""The ``foxhunt`` command."""

from __future__ import annotations

import sys

from foxhunt_pipeline.errors import FoxhuntError


def main() -> None:
    """Run the command; an expected error is one message and exit code 2."""
    from foxhunt_pipeline.cli.app import app
    from foxhunt_pipeline.cli.console import errors

    try:
        app()
    except FoxhuntError as error:
        errors.print(f"[bold red]{error.category} error:[/] ", end="")
        errors.print(str(error), markup=False, highlight=False)
        sys.exit(2)
