"""Does what the plan says: one run for each stale session, then one run of the rest.

Why not one run over a range of sessions: a range stamps one data version on all its partitions,
gives checks no partition and lets one bad session stop the good ones.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import dagster as dg
from dagster._core.events import RunFailureReason
from sqlalchemy.exc import DBAPIError

from assets.stage_asset import FORCE_TAG, PLAN_TAG, SESSIONS, SYNC_TAG, asset_key
from foxhunt_pipeline.errors import StoreError
from foxhunt_pipeline.incremental.plan import Entry, Held, Plan

if TYPE_CHECKING:
    from resources.pipeline import Pipeline

_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
"""The instance has every event; the console shows progress and failures."""


@dataclass(frozen=True)
class RunResult:
    """One Dagster run of a sync. ``failures`` holds a line for each step that failed."""

    run_id: str
    partition: str | None
    assets: tuple[str, ...]
    failures: tuple[str, ...]

    @property
    def success(self) -> bool:
        return not self.failures


@dataclass
class SyncReport:
    """What a sync planned and did."""

    planned: list[Entry] = field(default_factory=list)
    runs: list[RunResult] = field(default_factory=list)
    held: tuple[Held, ...] = ()

    @property
    def success(self) -> bool:
        return all(run.success for run in self.runs)


_PLACE_TAG = "foxhunt/state"
_UNFINISHED = [
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]

Watch = Callable[[Plan], None]
Done = Callable[[RunResult], None]


def sync(
    pipeline: Pipeline,
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    *,
    expressions: Sequence[str] = (),
    force: bool = False,
    on_plan: Watch = lambda plan: None,
    on_run: Done = lambda run: None,
    on_wait: Callable[[], None] = lambda: None,
    within: str = "",
) -> SyncReport:
    """Bring the selected stages up to date, in this process.

    Two syncs of one state folder take turns. A session that fails does not stop the others;
    what depends on all sessions is run over those that are good. ``within``: the Dagster run
    that asked for this, with which its runs are tagged.

    Raises :class:`KeyboardInterrupt` when the process is told to end; the run that it was at
    has then failed. Raises :class:`~foxhunt_pipeline.errors.StoreError` where the state folder
    cannot be written, as on a full disk.
    """
    place = {_PLACE_TAG: f"{socket.gethostname()}:{pipeline.settings.state}"}
    tags = ({FORCE_TAG: "true"} if force else {}) | ({SYNC_TAG: within} if within else {}) | place
    report = SyncReport()
    with _turn(pipeline, on_wait), _storage_explained(pipeline):
        _bury(instance, place)
        pipeline.memo.sweep()
        first = pipeline.plan(tuple(expressions), force=force)
        on_plan(first)
        report.planned += first.entries
        if first.sessions:
            instance.add_dynamic_partitions(str(SESSIONS.name), list(first.sessions))
        for session, assets in first.sessions.items():
            report.runs.append(_run(definitions, instance, first, session, assets, tags))
            on_run(report.runs[-1])
        second = first
        if first.sessions:
            second = pipeline.plan(tuple(expressions), force=force)
            on_plan(second)
            report.planned += [e for e in second.entries if e.asset not in first.unpartitioned]
        if second.unpartitioned:
            report.runs.append(
                _run(definitions, instance, second, None, second.unpartitioned, tags)
            )
            on_run(report.runs[-1])
        report.held = second.held
    return report


@contextmanager
def _storage_explained(pipeline: Pipeline) -> Iterator[None]:
    """Say plainly that the state folder failed, where people look: Dagster sends a step's output
    to files, and a storage that fails keeps it from giving the streams back."""
    streams = {number: os.dup(number) for number in (1, 2)}
    try:
        yield
    except (DBAPIError, sqlite3.Error, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        state = pipeline.settings.state
        cause = error.orig if isinstance(error, DBAPIError) else error
        raise StoreError(
            f"The state folder {state} could not be written: {cause}. "
            f"{shutil.disk_usage(state).free // 10**6} MB are free there.",
            remedy="If that is too little, make room or move it (FOXHUNT_STATE); then run foxhunt "
            "sync again.",
        ) from error
    finally:
        for number, stream in streams.items():
            os.dup2(stream, number)
            os.close(stream)


def _bury(instance: dg.DagsterInstance, place: dict[str, str]) -> None:
    """Fail the runs that a killed sync left, since it is our turn and they cannot be alive.

    They would seem to run for ever, and the slot that they hold in the gpu pool would keep the
    next training waiting as long.
    """
    for run in instance.get_runs(filters=dg.RunsFilter(tags=place, statuses=_UNFINISHED)):
        instance.report_run_failed(run, "The process that ran it was killed.")
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)


def _run(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    plan: Plan,
    partition: str | None,
    assets: tuple[str, ...],
    tags: dict[str, str],
) -> RunResult:
    keys = [asset_key(asset) for asset in assets]
    job = definitions.resolve_implicit_job_def_def_for_assets(keys)
    assert job is not None, "assets of one plan share a partitions definition"
    result = job.execute_in_process(
        instance=instance,
        asset_selection=keys,
        partition_key=partition,
        raise_on_error=False,
        tags={PLAN_TAG: plan.id} | tags,
        run_config=_QUIET,
    )
    if _interrupted(result):
        raise KeyboardInterrupt
    failures = [
        f"{event.step_key}: {_first_cause(event)}"
        for event in result.all_events
        if event.event_type == dg.DagsterEventType.STEP_FAILURE
    ]
    if not result.success and not failures:
        failures.append("the run failed before its first step; see its page in the UI")
    return RunResult(result.run_id, partition, assets, tuple(failures))


def _interrupted(result: dg.ExecuteInProcessResult) -> bool:
    """Whether the process was told to end meanwhile, which Dagster counts as a failed run."""
    return any(
        event.job_failure_data.failure_reason is RunFailureReason.UNEXPECTED_TERMINATION
        for event in result.all_events
        if event.event_type == dg.DagsterEventType.RUN_FAILURE
    )


def _first_cause(event: dg.DagsterEvent) -> str:
    data = event.step_failure_data
    if data.user_failure_data is not None and data.user_failure_data.description:
        return data.user_failure_data.description
    error = data.error
    while error is not None and error.cause is not None:
        error = error.cause
    return error.message.strip() if error is not None else "unknown"


@contextmanager
def _turn(pipeline: Pipeline, on_wait: Callable[[], None]) -> Iterator[None]:
    pipeline.settings.state.mkdir(parents=True, exist_ok=True)
    with (pipeline.settings.state / "sync.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
