"""Whether everything that a sync needs is there, and what the sync will take."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from foxhunt_pipeline.cli.console import duration, show, size
from foxhunt_pipeline.errors import ConfigError, DataError, FoxhuntError

if TYPE_CHECKING:
    from foxhunt_pipeline.stores.base import ObjectStore
    from resources.pipeline import Pipeline

Check = Callable[["Pipeline"], str]


def doctor() -> int:
    """Make every check and print what it found. Returns the exit code: 1 if one fails.

    A check that rests on one that failed is not made: the first says what to mend.
    """
    from foxhunt_pipeline.cli.opening import opened

    pipeline = opened()
    failed: set[str] = set()
    lines = []
    for name, check, needs in _CHECKS:
        missing = [need for need in needs if need in failed]
        if missing:
            lines.append((name, "-", f"not checked: {missing[0]} first"))
            failed.add(name)
            continue
        try:
            lines.append((name, "yes", check(pipeline)))
        except FoxhuntError as error:
            lines.append((name, "no", str(error)))
            failed.add(name)
    show("Doctor", ("check", "ok", "found"), lines)
    return 1 if failed else 0


def _landing(pipeline: Pipeline) -> str:
    files = [file for file in pipeline.landing.list() if not file.is_document]
    if not files:
        raise ConfigError(
            f"{pipeline.settings.landing_url} holds no DBN files.",
            remedy="Set landing.url or FOXHUNT_LANDING, or run foxhunt simulate.",
        )
    total = size(sum(file.size for file in files))
    return f"{len(files)} files, {total}, at {pipeline.settings.landing_url}"


def _files(pipeline: Pipeline) -> str:
    survey = pipeline.survey()
    if survey.refused:
        more = len(survey.refused) - 1
        others = f" And {more} more." if more else ""
        raise DataError(
            f"{survey.refused[0].name} is refused: {survey.refused[0].reason}{others}",
            remedy="foxhunt data ls lists them; deliver them again, or remove them.",
        )
    arriving = f", {len(survey.arriving)} still arriving" if survey.arriving else ""
    ignored = f", {len(survey.ignored)} of schemas that are not used" if survey.ignored else ""
    return f"none is refused{arriving}{ignored}"


def _sessions(pipeline: Pipeline) -> str:
    survey = pipeline.survey()
    ready = survey.ready()
    if not ready:
        reasons = {session.reason for session in survey.sessions.values()}
        raise DataError(
            f"No session is complete. {'; '.join(sorted(reasons)[:3])}",
            remedy="foxhunt data ls shows what there is.",
        )
    schemas = sorted({f.schema for session in ready.values() for f in session.files})
    gaps = f", {len(survey.gaps)} gaps" if survey.gaps else ""
    return f"{len(ready)} ready, {min(ready)} to {max(ready)}{gaps}; {', '.join(schemas)}"


def _artifacts(pipeline: Pipeline) -> str:
    return _probed(pipeline.artifacts, pipeline.settings.artifacts.url)


def _releases(pipeline: Pipeline) -> str:
    return _probed(pipeline.releases, pipeline.settings.releases.url)


def _probed(store: ObjectStore, url: str) -> str:
    store.probe()
    return f"{url} can be written, conditionally too"


def _models(pipeline: Pipeline) -> str:
    from foxhunt_pipeline.cli.families import check_models

    return ", ".join(check_models(pipeline)) or "none is enabled"


def _device(pipeline: Pipeline) -> str:
    from foxhunt_pipeline.training.device import resolve

    training = pipeline.config.training
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        device = resolve(training.device, training.require_device, training.precision)
    fallback = f"; {device.fallback}" if device.fallback else ""
    return (
        f"{device}: {device.name}, {size(device.memory_total)}, capability {device.capability}, "
        f"{device.precision}{fallback}"
    )


def _disk(pipeline: Pipeline) -> str:
    from foxhunt_pipeline.cli.estimates import session_disk

    store = pipeline.settings.artifacts
    needed = session_disk(pipeline, _stale_sessions(pipeline))
    free = shutil.disk_usage(pipeline.settings.state).free
    place = f"{size(free)} free at {pipeline.settings.state}"
    text = f"about {size(needed.amount)} needed ({needed.basis}), {place}"
    if not store.is_s3 and needed.amount > free:
        raise ConfigError(f"{text}.", remedy="Set FOXHUNT_STATE to a larger disk.")
    return text


def _time(pipeline: Pipeline) -> str:
    from foxhunt_pipeline.cli.estimates import session_time, training_time

    sessions = _stale_sessions(pipeline)
    assets = pipeline.plan(fresh=False).unpartitioned
    stale = [asset for asset in assets if asset.endswith("/training")]
    told = []
    if sessions:
        estimate = session_time(pipeline, sessions)
        told.append(
            f"{len(sessions)} sessions about {duration(estimate.amount)} ({estimate.basis})"
        )
    if stale:
        training = training_time(pipeline, stale)
        told.append(
            f"{len(stale)} models at most {duration(training.amount)} ({training.basis})"
            if training
            else f"{len(stale)} models: not known before one was trained here"
        )
    return "; ".join(told) or "nothing is to be trained or read"


def _stale_sessions(pipeline: Pipeline) -> list[str]:
    ready = pipeline.survey().ready()
    return [session for session in pipeline.plan(fresh=False).sessions if session in ready]


_CHECKS: tuple[tuple[str, Check, tuple[str, ...]], ...] = (
    ("landing", _landing, ()),
    ("files", _files, ("landing",)),
    ("sessions", _sessions, ("landing",)),
    ("artifact store", _artifacts, ()),
    ("release store", _releases, ()),
    ("models", _models, ()),
    ("device", _device, ()),
    ("disk", _disk, ("sessions",)),
    ("time", _time, ("sessions", "models")),
)
