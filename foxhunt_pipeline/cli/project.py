"""init, config show and status."""

from __future__ import annotations

import json
import time
from pathlib import Path

from foxhunt_pipeline.cli.console import duration, say, show
from foxhunt_pipeline.config import CONFIG_FILE, describe
from foxhunt_pipeline.errors import ConfigError


def init(folder: Path, landing: str) -> None:
    """Write a commented ``foxhunt.toml`` with every key at its default."""
    from foxhunt_pipeline.cli.reference import template

    path = folder / CONFIG_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(template(landing))
    except FileExistsError:
        raise ConfigError(f"{path} is there already.", remedy="Edit it, or remove it.") from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}.", remedy="Choose another folder."
        ) from None
    say(f"Wrote {path}. Next: foxhunt doctor")


def show_config(as_json: bool) -> None:
    """Every value with its origin."""
    from foxhunt_pipeline.cli.families import model_values
    from resources.pipeline import open_pipeline

    pipeline = open_pipeline()
    settings = pipeline.settings
    values = {key: value for key, value, _ in settings.values()} | dict(model_values(pipeline))
    rows = [(key, value, settings.origin(key)) for key, value in values.items()]
    if as_json:
        print(json.dumps({k: {"value": v, "origin": o} for k, v, o in rows}, indent=2))
        return
    show(
        "Configuration",
        ("key", "value", "origin", "meaning"),
        [(key, json.dumps(value), origin, describe(key)) for key, value, origin in rows],
    )
    say(f"state folder: {settings.state}")


def status() -> int:
    """What is current and what is not. Returns 1 if anything is behind or failed."""
    from foxhunt_pipeline.cli.building import print_held
    from foxhunt_pipeline.cli.opening import nothing_landed, opened

    pipeline = opened()
    plan = pipeline.plan()
    rows, failures = pipeline.index.rows(), pipeline.index.failures()
    behind = {(entry.asset, entry.partition) for entry in plan.entries}
    broken = {place: f for place, f in failures.items() if f.category != "skipped"}
    lines = []
    for stage in pipeline.stages.values():
        mine = [place for place in rows if place[0] == stage.name]
        failed = [f for place, f in broken.items() if place[0] == stage.name]
        newest = max((rows[place].built_ns for place in mine), default=0)
        last = max(failed, key=lambda failure: failure.at_ns, default=None)
        lines.append(
            (
                stage.name,
                sum(place not in behind for place in mine),
                sum(asset == stage.name for asset, _ in behind),
                len(failed),
                _ago(newest),
                last.message if last else "",
            )
        )
    show("Status", ("asset", "current", "behind", "failed", "last built", "last failure"), lines)
    if nothing := nothing_landed(pipeline):
        say(nothing)
    else:
        print_held(plan.held)
    return 1 if behind or any(place[0] in pipeline.stages for place in broken) else 0


def _ago(built_ns: int) -> str:
    return f"{duration((time.time_ns() - built_ns) / 1e9)} ago" if built_ns else "never"
