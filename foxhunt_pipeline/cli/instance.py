"""The Dagster instance of a state folder."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

from foxhunt_pipeline.config import Settings


def prepare_home(settings: Settings) -> Path:
    """``$DAGSTER_HOME``, or the state folder's own, holding the project's ``dagster.yaml``."""
    home = Path(os.environ.get("DAGSTER_HOME") or settings.state / "dagster").absolute()
    home.mkdir(parents=True, exist_ok=True)
    target = home / "dagster.yaml"
    if not target.exists():
        target.write_text(_template(), encoding="utf-8")
    os.environ["DAGSTER_HOME"] = str(home)
    return home


def _template() -> str:
    root = Path(__file__).resolve().parents[2] / "dagster.yaml"
    if root.is_file():
        return root.read_text(encoding="utf-8")
    return (resources.files("foxhunt_pipeline") / "dagster.yaml").read_text(encoding="utf-8")
