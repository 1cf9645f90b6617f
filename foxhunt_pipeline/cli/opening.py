"""The pipeline that a command works on, with an index that can be trusted."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

from foxhunt_pipeline.cli.console import say, warn
from foxhunt_pipeline.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from resources.pipeline import Pipeline


def opened() -> Pipeline:
    """The pipeline found from here. A lost index is rebuilt first, and said to be."""
    pipeline = _pipeline()
    try:
        lost = not pipeline.index.rows() and _has_artifacts(pipeline)
    except sqlite3.DatabaseError as error:
        raise StoreError(
            f"{_index_file(pipeline)} is damaged: {error}.", remedy="Run foxhunt index rebuild."
        ) from None
    if lost and (count := _fill(pipeline)):
        warn(f"The index was lost: rebuilt from the artifacts, {count} entries.")
    return pipeline


def rebuild_index() -> None:
    """Replace the index by what the artifact store holds; failed attempts are forgotten."""
    pipeline = _pipeline()
    state = pipeline.settings.state
    with (state / "sync.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                f"A sync of {state} is running.", remedy="Run again when it is done."
            ) from None
        for suffix in ("", "-wal", "-shm"):
            Path(f"{_index_file(pipeline)}{suffix}").unlink(missing_ok=True)
        count = _fill(pipeline)
    say(f"Rebuilt {_index_file(pipeline)} from the artifacts, {count} entries.")


def nothing_landed(pipeline: Pipeline) -> str:
    """What to say where the landing holds no session; empty where it does."""
    if pipeline.survey().sessions:
        return ""
    return (
        f"{pipeline.settings.landing_url} holds no market data. Set landing.url in foxhunt.toml "
        "(foxhunt init writes one) or FOXHUNT_LANDING, or try foxhunt demo."
    )


def _pipeline() -> Pipeline:
    """The pipeline found from here, once its state folder can be written."""
    from resources.pipeline import open_pipeline

    pipeline = open_pipeline()
    state = pipeline.settings.state
    try:
        state.mkdir(parents=True, exist_ok=True)
        if not os.access(state, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ConfigError(
            f"The state folder {state} cannot be written: {error.strerror}.",
            remedy="Set FOXHUNT_STATE to a folder that can.",
        ) from None
    return pipeline


def _fill(pipeline: Pipeline) -> int:
    from foxhunt_pipeline.incremental.recovery import rebuild_index as fill

    return fill(
        pipeline.index, pipeline.memo, pipeline.stages, pipeline.versions, pipeline.sessions()
    )


def _has_artifacts(pipeline: Pipeline) -> bool:
    """Whether this state folder's own artifact store has something to rebuild from."""
    store = pipeline.settings.artifacts
    return not store.is_s3 and any(Path(store.url, "artifacts").glob("*"))


def _index_file(pipeline: Pipeline) -> Path:
    return pipeline.settings.state / "index.sqlite"
