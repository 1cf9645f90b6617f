"""Jobs, the nightly schedule and the sensors.

All of them start the ``sync`` job, which plans in a process of its own: a plan made inside a
long-lived code server is made with the code that it loaded, not with the code on disk.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from assets.stage_asset import SYNC_TAG, asset_key
from foxhunt_pipeline.artifacts import digest_of
from foxhunt_pipeline.incremental.stages import LANDING, Stage
from foxhunt_pipeline.market.landing import LandedFile
from resources.pipeline import Pipeline

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import (
        UnresolvedAssetJobDefinition,
    )

SYNC = "sync"
TURN_TAG = "foxhunt/turn"
"""Runs with the same value are run one after the other (``dagster.yaml``)."""
LOOKS = 10
"""Looks at a landing that never holds still before what is whole in it is taken."""
LAST_LINES = 15
"""Of what a failed sync said, in the failure of its run."""
LINKS = 25
"""Most links from a sync's run to the runs that it made."""
GRACE_SECONDS = 20
"""That a sync told to end has to end its run, before it is killed."""
PLAN_SECONDS = 45
"""Longest that a sensor waits for a plan; Dagster gives a sensor 60 s."""

_UNDER_WAY = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
_YET_TO_PLAN = _UNDER_WAY[:3]


class SyncConfig(dg.Config):
    """select: selections as of ``foxhunt sync --select``; empty means everything."""

    select: list[str] = Field(default_factory=list)
    force: bool = False


@dg.op(description="Runs foxhunt sync with the code that is on disk now; its log is this log.")
def plan_and_build(context: dg.OpExecutionContext, config: SyncConfig) -> None:
    """Fails, with the last lines, if the sync does. The output links to the runs made."""
    arguments = ["sync", "--within", context.run_id]
    arguments += [part for expression in config.select for part in ("--select", expression)]
    arguments += ["--force"] if config.force else []
    said: deque[str] = deque(maxlen=LAST_LINES)
    with _child(arguments, context.instance) as child:
        assert child.stdout is not None
        for line in child.stdout:
            said.append(line.rstrip())
            context.log.info(said[-1])
    links = _links(context.instance, context.run_id)
    if child.returncode:
        raise dg.Failure(
            "\n".join([f"foxhunt sync ended with exit code {child.returncode}:", *said]),
            metadata=links,
            allow_retries=False,
        )
    context.add_output_metadata(links)


@dg.job(name=SYNC, tags={TURN_TAG: SYNC})
def sync_job() -> None:
    """Rebuild what is stale: a run for each stale session, then one run of the rest."""
    plan_and_build()


def automation(pipeline: Pipeline) -> dg.Definitions:
    """Jobs, schedules and sensors of a pipeline."""
    config = pipeline.config.automation
    hour, minute = config.nightly_time.split(":")
    nightly = dg.ScheduleDefinition(
        name="nightly_retrain",
        job=sync_job,
        cron_schedule=f"{int(minute)} {int(hour)} * * *",
        execution_timezone=config.nightly_timezone,
        default_status=(
            dg.DefaultScheduleStatus.RUNNING if config.enabled else dg.DefaultScheduleStatus.STOPPED
        ),
        description="Every night: whatever the day's data or code made stale.",
    )
    return dg.Definitions(
        jobs=[sync_job, *map(_stage_job, pipeline.stages.values())],
        schedules=[nightly],
        sensors=[_new_market_data(pipeline), _sync_when_stale(config.landing_interval_seconds)],
    )


def _stage_job(stage: Stage) -> "UnresolvedAssetJobDefinition":
    return dg.define_asset_job(
        name=f"{stage.name.replace('/', '_')}_job",
        selection=dg.AssetSelection.assets(asset_key(stage.name)),
        description=f"Materialize {stage.name}; what is unchanged is reused.",
    )


def _new_market_data(pipeline: Pipeline) -> dg.SensorDefinition:
    config = pipeline.config.automation
    settle_seconds = pipeline.config.landing.settle_seconds

    @dg.sensor(
        name="new_market_data",
        job=sync_job,
        minimum_interval_seconds=config.landing_interval_seconds,
        default_status=(
            dg.DefaultSensorStatus.RUNNING if config.enabled else dg.DefaultSensorStatus.STOPPED
        ),
        description="Starts a sync when files of the landing are new, changed or gone, and when "
        "a session has waited long enough for the rest of its files.",
    )
    def new_market_data(
        context: dg.SensorEvaluationContext,
    ) -> dg.SensorResult | dg.SkipReason:
        # The cursor names whole listings by digest, so it stays small and no arrival is lost:
        # not one in the same second as another, nor a late one, nor an old file put back.
        # acted: listing that a sync was started for. seen, looks: listing of the last look, and
        # looks since one was acted on. late, quiet: see below.
        cursor: dict[str, Any] = json.loads(context.cursor or "{}")
        files = pipeline.landing.list()
        listing = digest_of(sorted((file.name, file.size, file.version) for file in files))
        if not files and "acted" not in cursor:
            return dg.SkipReason(f"There are no files at {pipeline.settings.landing_url}.")
        if listing == cursor.get("acted"):
            nothing = dg.SkipReason(f"{len(files)} files, none of them new.")
            return _after_a_wait(context, pipeline, cursor, nothing)
        looks = int(cursor.get("looks", 0)) + 1
        settled = listing == cursor.get("seen") and not _any_young(files, settle_seconds)
        if not settled and looks < LOOKS:
            context.update_cursor(json.dumps(cursor | {"seen": listing, "looks": looks}))
            return dg.SkipReason("The landing changed; waiting for it to settle.")
        if about := _sync_run(context.instance, _YET_TO_PLAN):
            return dg.SkipReason(f"Run {about} is about to plan; looking again after that.")
        acted = listing if settled else cursor.get("acted")
        return dg.SensorResult(
            run_requests=[dg.RunRequest()],
            cursor=json.dumps({"seen": listing, "acted": acted}),
        )

    return new_market_data


def _any_young(files: Sequence[LandedFile], settle_seconds: float) -> bool:
    """Whether a sync would leave out a file because it may still be growing."""
    now = time.time_ns()
    times = (file.modified_ns for file in files if file.modified_ns is not None)
    return any(0 <= now - time < settle_seconds * 1e9 for time in times)


def _after_a_wait(
    context: dg.SensorEvaluationContext,
    pipeline: Pipeline,
    cursor: Mapping[str, Any],
    nothing: dg.SkipReason,
) -> dg.SensorResult | dg.SkipReason:
    """Nothing in the landing changed, but a session's wait may be over, or a sync may have
    been killed: then sessions are ready whose bytes no one has taken."""
    if cursor.get("quiet"):
        return nothing
    if at_it := _sync_run(context.instance, _UNDER_WAY):
        return dg.SkipReason(f"Run {at_it} is at it.")
    # The sync has read every file by now, so this looks them up.
    sessions = pipeline.sessions(fresh=True)
    rows = pipeline.index.rows()
    taken = {row.partition: row.inputs[LANDING] for row in rows.values() if row.asset == "raw/dbn"}
    late = digest_of(
        [
            (date, session.digest)
            for date, session in sessions.items()
            if session.state == "ready" and taken.get(date) != session.digest
        ]
    )
    if late not in (digest_of([]), cursor.get("late")):
        later = json.dumps(dict(cursor) | {"late": late})
        return dg.SensorResult(run_requests=[dg.RunRequest()], cursor=later)
    quiet = all(session.state != "waiting" for session in sessions.values())
    context.update_cursor(json.dumps(dict(cursor) | {"late": late, "quiet": quiet}))
    return nothing


def _sync_when_stale(interval: int) -> dg.SensorDefinition:
    @dg.sensor(
        name="sync_when_stale",
        job=sync_job,
        minimum_interval_seconds=max(interval, 30),
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Starts a sync whenever the plan is not empty (off unless switched on).",
    )
    def sync_when_stale(
        context: dg.SensorEvaluationContext,
    ) -> dg.SensorResult | dg.SkipReason:
        if at_it := _sync_run(context.instance, _UNDER_WAY):
            return dg.SkipReason(f"Run {at_it} is at it.")
        try:
            planned = subprocess.run(
                [*_FOXHUNT, "plan", "--json"],
                capture_output=True,
                text=True,
                timeout=PLAN_SECONDS,
                env=_environment(context.instance),
            )
        except subprocess.TimeoutExpired:
            return dg.SkipReason(f"No plan within {PLAN_SECONDS} s: new files are being read.")
        if planned.returncode:
            raise RuntimeError(f"foxhunt plan failed: {planned.stderr.strip()}")
        entries = json.loads(planned.stdout)
        if not entries:
            return dg.SkipReason("Nothing is stale.")
        plan = digest_of([(e["asset"], e["partition"], e["wanted"]) for e in entries])
        if plan == context.cursor:
            return dg.SkipReason(
                "A sync of this very plan did not bring it to an end: see why with foxhunt status."
            )
        return dg.SensorResult(run_requests=[dg.RunRequest()], cursor=plan)

    return sync_when_stale


def _sync_run(instance: dg.DagsterInstance, statuses: Sequence[dg.DagsterRunStatus]) -> str | None:
    """Id of a run of the sync job in one of these states."""
    filters = dg.RunsFilter(job_name=SYNC, statuses=list(statuses))
    runs = instance.get_runs(filters=filters, limit=1)
    return runs[0].run_id if runs else None


def _links(instance: dg.DagsterInstance, run_id: str) -> dict[str, Any]:
    """The runs that a sync made, newest first, as metadata: the UI makes links of them."""
    runs = instance.get_runs(filters=dg.RunsFilter(tags={SYNC_TAG: run_id}))
    links = {
        run.tags.get("dagster/partition", "all sessions"): dg.MetadataValue.dagster_run(run.run_id)
        for run in runs[:LINKS]
    }
    return {"runs": len(runs), **links}


_FOXHUNT = (sys.executable, "-m", "foxhunt_pipeline")


def _environment(instance: dg.DagsterInstance) -> dict[str, str]:
    environment = dict(os.environ) | {"PYTHONUNBUFFERED": "1"}
    if instance.is_persistent:
        environment["DAGSTER_HOME"] = instance.root_directory
    return environment


@contextmanager
def _child(
    arguments: Sequence[str], instance: dg.DagsterInstance
) -> Iterator[subprocess.Popen[str]]:
    """``foxhunt …`` in a process group of its own, which ends with the step that started it."""
    process = subprocess.Popen(
        [*_FOXHUNT, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=_environment(instance),
    )
    with process:
        try:
            yield process
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            raise
