"""Jobs, the nightly schedule and the sensors.

All of them start the ``sync`` job, which plans in a process of its own: a plan made inside a
long-lived code server is made with the code that it loaded, not with the code on disk.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from assets.stage_asset import asset_key
from foxhunt_pipeline.artifacts import digest_of
from resources.pipeline import Pipeline

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import (
        UnresolvedAssetJobDefinition,
    )

SYNC = "sync"
MAX_RUNTIME_SECONDS = 6 * 3600
LOOKS = 10
"""Looks at a landing that never holds still before what is whole in it is taken."""


class SyncConfig(dg.Config):
    """select: selections as of ``foxhunt sync --select``; empty means everything."""

    select: list[str] = Field(default_factory=list)
    force: bool = False


@dg.op
def plan_and_build(context: dg.OpExecutionContext, config: SyncConfig) -> None:
    """Run ``foxhunt sync`` with the code that is on disk now."""
    command = [sys.executable, "-m", "foxhunt_pipeline", "sync"]
    command += [part for expression in config.select for part in ("--select", expression)]
    command += ["--force"] if config.force else []
    with _child(command, context.instance) as child:
        assert child.stdout is not None
        for line in child.stdout:
            context.log.info(line.rstrip())
    if child.returncode:
        raise dg.Failure(
            f"foxhunt sync ended with exit code {child.returncode}; its last lines say why.",
            allow_retries=False,
        )


@dg.job(name=SYNC, tags={"dagster/max_runtime": MAX_RUNTIME_SECONDS})
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
        description="Every night: whatever the day's data or code made stale.",
    )
    groups = dict.fromkeys(stage.group for stage in pipeline.stages.values())
    return dg.Definitions(
        jobs=[sync_job, *(_group_job(pipeline, group) for group in groups)],
        schedules=[nightly],
        sensors=[_new_market_data(pipeline), _sync_sensor(config.landing_interval_seconds)],
    )


def _group_job(pipeline: Pipeline, group: str) -> "UnresolvedAssetJobDefinition":
    stages = [stage.name for stage in pipeline.stages.values() if stage.group == group]
    return dg.define_asset_job(
        name=f"{group}_job",
        selection=dg.AssetSelection.assets(*(asset_key(name) for name in stages)),
        description=f"Materialize {', '.join(stages)}, stale or not.",
    )


def _new_market_data(pipeline: Pipeline) -> dg.SensorDefinition:
    @dg.sensor(
        name="new_market_data",
        job=sync_job,
        minimum_interval_seconds=pipeline.config.automation.landing_interval_seconds,
        description="Starts a sync when files of the landing are new, changed or gone.",
    )
    def new_market_data(
        context: dg.SensorEvaluationContext,
    ) -> dg.SensorResult | dg.SkipReason:
        files = sorted((f.name, f.size, f.version) for f in pipeline.landing.list())
        listing = digest_of(files)
        cursor = json.loads(context.cursor or "{}")
        if not files and "acted" not in cursor:
            return dg.SkipReason(f"There are no files at {pipeline.settings.landing_url}.")
        if listing == cursor.get("acted"):
            return dg.SkipReason(f"{len(files)} files, none of them new.")
        looks = int(cursor.get("looks", 0)) + 1
        settled = listing == cursor.get("seen")
        if not settled and looks < LOOKS:
            # Files may still be arriving: act once two looks agree, or have long not agreed.
            context.update_cursor(json.dumps(cursor | {"seen": listing, "looks": looks}))
            return dg.SkipReason("The landing changed; waiting for it to settle.")
        count = int(cursor.get("count", 0)) + 1
        acted = listing if settled else cursor.get("acted")
        return dg.SensorResult(
            run_requests=[dg.RunRequest(run_key=f"{listing[:16]}-{count}")],
            cursor=json.dumps({"seen": listing, "acted": acted, "count": count}),
        )

    return new_market_data


def _sync_sensor(interval: int) -> dg.SensorDefinition:
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
        command = [sys.executable, "-m", "foxhunt_pipeline", "plan", "--json"]
        with _child(command, context.instance) as child:
            printed = child.stdout.read() if child.stdout else ""
        if child.returncode:
            raise RuntimeError(f"foxhunt plan failed: {printed.strip()}")
        entries = json.loads(printed[printed.index("[") :])
        if not entries:
            return dg.SkipReason("Nothing is stale.")
        plan = digest_of(entries)[:16]
        if plan == context.cursor:
            return dg.SkipReason("This plan was started already and did not come to an end.")
        runs = context.instance.get_runs(
            filters=dg.RunsFilter(
                job_name=SYNC,
                statuses=[dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.STARTED],
            )
        )
        if runs:
            return dg.SkipReason(f"Run {runs[0].run_id} is at it.")
        return dg.SensorResult(run_requests=[dg.RunRequest()], cursor=plan)

    return sync_when_stale


@contextmanager
def _child(command: Sequence[str], instance: dg.DagsterInstance) -> Iterator[subprocess.Popen[str]]:
    """A child process in a group of its own, which ends with the step that started it."""
    environment = dict(os.environ)
    if instance.is_persistent:
        environment["DAGSTER_HOME"] = instance.root_directory
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=environment,
    )
    try:
        yield process
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        raise
    finally:
        process.wait()
