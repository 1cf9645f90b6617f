"""init, doctor, config show and status: the first hour, and every morning after."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from foxhunt_pipeline.cli.console import duration, out, show, size
from foxhunt_pipeline.config import CONFIG_FILE, Config, describe, leaves, load
from foxhunt_pipeline.errors import ConfigError, FoxhuntError

if TYPE_CHECKING:
    from foxhunt_pipeline.stores.base import ObjectStore
    from resources.pipeline import Pipeline

ARTIFACTS_PER_BYTE = 6.0
"""Disk that tables, features and checkpoints take, for each landed byte of .dbn.zst."""
SECONDS_PER_SESSION = 4.0
SECONDS_PER_TRAINING = 15.0

Check = tuple[str, bool, str]


def init(folder: Path, landing: str) -> None:
    """Write a commented ``foxhunt.toml`` with every key at its default."""
    path = folder / CONFIG_FILE
    if path.exists():
        raise ConfigError(f"{path} is there already.", remedy="Edit it, or remove it first.")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(_template(landing)) + "\n", encoding="utf-8")
    out.print(f"Wrote {path}. Next: foxhunt doctor", markup=False)


def _template(landing: str) -> Iterator[str]:
    yield "# foxhunt_pipeline. Every key is here with its default; uncomment what you change."
    yield "# Each may also be set as a variable: FOXHUNT_WALK_FORWARD__TRAIN_SESSIONS=4"
    section = ""
    for key, value in leaves(Config().model_dump(mode="json")):
        table, _, name = key.rpartition(".")
        if table != section:
            section = table
            yield f"\n[{table}]"
        if text := describe(key):
            yield f"# {text}"
        set_here = key == "landing.url" and landing
        shown = json.dumps(landing if set_here else value)
        yield f"{name} = {shown}" if set_here else f"# {name} = {_toml(value)}"
    yield "\n# Families by name; every other key is a setting of the family itself."
    yield "# [models.tlob]"
    yield "# hidden = 64"
    yield '# [models.mine]\n# family = "my_module:FAMILY"'


def _toml(value: object) -> str:
    return '""' if value is None else "{}" if value == {} else json.dumps(value)


def show_config(as_json: bool) -> None:
    """Every value with its origin."""
    from foxhunt_pipeline.cli.building import check_models
    from resources.pipeline import open_pipeline

    settings = load()
    check_models(open_pipeline())
    values = list(settings.values())
    if as_json:
        print(json.dumps({key: {"value": v, "origin": o} for key, v, o in values}, indent=2))
        return
    show(
        "Configuration",
        ("key", "value", "origin", "meaning"),
        [(key, json.dumps(value), origin, describe(key)) for key, value, origin in values],
    )
    out.print(f"state folder: {settings.state}", markup=False)


def doctor() -> int:
    """Check everything that a first sync needs. Returns the exit code."""
    from resources.pipeline import open_pipeline

    pipeline = open_pipeline()
    settings = pipeline.settings
    checks = [
        _try("landing", lambda: _landing(pipeline)),
        _try("schemas", lambda: _schemas(pipeline)),
        _try("artifact store", lambda: _store(pipeline.artifacts, settings.artifacts.url)),
        _try("release store", lambda: _store(pipeline.releases, settings.releases.url)),
        _try("models", lambda: _models(pipeline)),
        _try("device", lambda: _device(pipeline)),
        _try("disk", lambda: _disk(pipeline)),
        _try("time", lambda: _time(pipeline)),
    ]
    show("Doctor", ("check", "ok", "found"), checks)
    return 0 if all(ok for _, ok, _ in checks) else 1


def _try(name: str, check: Callable[[], str]) -> Check:
    try:
        return name, True, check()
    except FoxhuntError as error:
        return name, False, str(error)


def _landing(pipeline: Pipeline) -> str:
    files = [file for file in pipeline.landing.list() if not file.is_document]
    if not files:
        raise ConfigError(
            f"{pipeline.settings.landing_url} holds no DBN files.",
            remedy="Set landing.url or FOXHUNT_LANDING, or run foxhunt simulate.",
        )
    total = size(sum(file.size for file in files))
    return f"{len(files)} files, {total}, at {pipeline.settings.landing_url}"


def _schemas(pipeline: Pipeline) -> str:
    survey = pipeline.survey()
    ready = survey.ready()
    found = sorted({f.schema for session in ready.values() for f in session.files})
    problems = len(survey.refused) + len(survey.arriving)
    text = f"{', '.join(found) or 'none'} over {len(ready)} sessions"
    return f"{text}; {problems} files refused or arriving: foxhunt data ls" if problems else text


def _store(store: ObjectStore, url: str) -> str:
    store.probe()
    return f"{url} keeps conditional writes"


def _models(pipeline: Pipeline) -> str:
    from foxhunt_pipeline.cli.building import check_models

    check_models(pipeline)
    return ", ".join(dict.fromkeys(s.model for s in pipeline.stages.values() if s.model))


def _device(pipeline: Pipeline) -> str:
    from foxhunt_pipeline.training.device import resolve

    training = pipeline.config.training
    device = resolve(training.device, training.require_device, training.precision)
    return (
        f"{device}: {device.name}, {size(device.memory_total)}, capability {device.capability}, "
        f"{device.precision}{'; ' + device.fallback if device.fallback else ''}"
    )


def _disk(pipeline: Pipeline) -> str:
    landed = sum(file.size for file in pipeline.landing.list())
    pipeline.settings.state.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(pipeline.settings.state).free
    needed = landed * ARTIFACTS_PER_BYTE
    text = f"about {size(needed)} needed, {size(free)} free at {pipeline.settings.state}"
    if needed > free:
        raise ConfigError(text + ".", remedy="Set FOXHUNT_STATE to a larger disk.")
    return text


def _time(pipeline: Pipeline) -> str:
    plan = pipeline.plan(fresh=False)
    past = [row.seconds for row in pipeline.index.rows().values() if row.asset == "market/tables"]
    each = 2 * sum(past) / len(past) if past else SECONDS_PER_SESSION
    walk = pipeline.config.walk_forward
    sessions = len(pipeline.survey().ready())
    windows = max(0, (sessions - walk.train_sessions) // walk.step_sessions) + 1
    trainings = sum(asset.endswith("/training") for asset in plan.unpartitioned) * windows
    seconds = len(plan.sessions) * each + trainings * SECONDS_PER_TRAINING
    if not plan.entries:
        return "everything is up to date"
    return (
        f"about {duration(seconds)} for {len(plan.sessions)} sessions and {trainings} trainings "
        "(demo sizes)"
    )


def status() -> int:
    """What is current and what is not. Returns 1 if anything is behind or failed."""
    from foxhunt_pipeline.cli.building import print_held
    from resources.pipeline import open_pipeline

    pipeline = open_pipeline()
    plan = pipeline.plan()
    rows, failures = pipeline.index.rows(), pipeline.index.failures()
    behind = {(entry.asset, entry.partition) for entry in plan.entries}
    lines = []
    for stage in pipeline.stages.values():
        mine = [row for (asset, _), row in rows.items() if asset == stage.name]
        newest = max((row.built_ns for row in mine), default=0)
        failed = [failure for (asset, _), failure in failures.items() if asset == stage.name]
        lines.append(
            (
                stage.name,
                len(mine),
                sum(asset == stage.name for asset, _ in behind),
                len(failed),
                _ago(newest),
                failed[0].message if failed else "",
            )
        )
    show("Status", ("asset", "current", "behind", "failed", "last built", "last failure"), lines)
    print_held(plan.held)
    return 1 if behind or failures else 0


def _ago(built_ns: int) -> str:
    return f"{duration((time.time_ns() - built_ns) / 1e9)} ago" if built_ns else "never"
