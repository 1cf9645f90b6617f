"""The command, run as a user runs it: a process of its own whose output is a pipe."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.tiny_project import environment, own_project, tiny_landing, tiny_project

__all__ = ["foxhunt", "own_project", "tiny_landing", "tiny_project"]

Foxhunt = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def foxhunt(tmp_path: Path) -> Foxhunt:
    """``foxhunt(*arguments, code=0, folder=tmp_path, **variables)``."""

    def run(
        *arguments: str | Path, code: int = 0, folder: Path = tmp_path, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "foxhunt_pipeline", *map(str, arguments)]
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment(variables),
            capture_output=True,
            text=True,
            timeout=120,
        )
        said = f"foxhunt {' '.join(command[3:])}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == code, said
        assert "Traceback" not in done.stderr, said
        assert "\x1b" not in done.stdout + done.stderr, said
        return done

    return run
