"""A small project whose stages up to the baselines are built: no model is trained.

Built once a test run, in a process of its own; a test that changes it works on a copy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from foxhunt_pipeline.market.simulator import simulate

SESSIONS = ("2024-01-02", "2024-01-03", "2024-01-04")
CONFIG = """\
[landing]
url = "landing"
settle_seconds = 0.0

[clock]
book = "10s"
"""
BUILD = """
from foxhunt_pipeline.incremental.build import Surroundings
from resources.pipeline import open_pipeline

pipeline = open_pipeline()
around = Surroundings(source=pipeline.source())
sessions = pipeline.sessions()
for stage in pipeline.stages.values():
    if not stage.model:
        for session in sessions if stage.partitioned else [None]:
            outcome = pipeline.builder.build(stage.name, session, sessions, around)
            pipeline.index.succeeded(outcome.manifest)
"""


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """A clean set of variables for a process of the project."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return kept | {"OMP_NUM_THREADS": "1"} | dict(extra or {})


@pytest.fixture(scope="session")
def tiny_landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three simulated sessions of one symbol, as a job folder. Not to be changed."""
    landing = tmp_path_factory.getbasetemp() / "tiny-landing"
    if not landing.exists():
        count = len(SESSIONS)
        simulate(landing, sessions=count, symbols=["FOXA"], seed=3, events_per_session=2000)
    return landing


@pytest.fixture(scope="session")
def tiny_project(tmp_path_factory: pytest.TempPathFactory, tiny_landing: Path) -> Path:
    """The folder of the project. Not to be changed."""
    root = tmp_path_factory.getbasetemp() / "tiny-project"
    if not root.exists():
        root.mkdir()
        (root / "foxhunt.toml").write_text(CONFIG, encoding="utf-8")
        shutil.copytree(tiny_landing, root / "landing")
        command = [sys.executable, "-c", BUILD]
        subprocess.run(command, cwd=root, env=environment(), check=True, timeout=300)
    return root


@pytest.fixture
def own_project(tiny_project: Path, tmp_path: Path) -> Path:
    """A copy of the test's own."""
    return Path(shutil.copytree(tiny_project, tmp_path / "project"))
