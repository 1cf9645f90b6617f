"""What the command said."""

from __future__ import annotations

import subprocess


def message(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that an error is."""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert done.stdout == ""
    return lines[0]
