"""Makes the Dagster asset of a stage."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import dagster as dg

from foxhunt_pipeline.errors import CodeChangedError, FoxhuntError, ViewUnavailableError
from foxhunt_pipeline.incremental.build import Outcome, Surroundings
from foxhunt_pipeline.incremental.stages import Stage
from resources.pipeline import Pipeline

SESSIONS = dg.DynamicPartitionsDefinition(name="session")
PLAN_TAG = "foxhunt/plan"
FORCE_TAG = "foxhunt/force"
SYNC_TAG = "foxhunt/sync"
"""On the runs of a sync that a run asked for: that run's id."""

Describe = Callable[[Pipeline, Outcome], Mapping[str, Any]]
Finish = Callable[[Pipeline, Outcome], Mapping[str, Any]]
Judge = Callable[[Outcome | Exception], Iterable[dg.AssetCheckResult]]
Value = Callable[[Pipeline, Outcome], Any]


def asset_key(stage: str) -> dg.AssetKey:
    """``tlob/training`` as a Dagster key."""
    return dg.AssetKey(stage.split("/"))


def stage_asset(
    pipeline: Pipeline,
    name: str,
    *,
    describe: Describe,
    finish: Finish | None = None,
    checks: Iterable[dg.AssetCheckSpec] = (),
    judge: Judge | None = None,
    value: Value | None = None,
) -> dg.AssetsDefinition:
    """The asset of a stage of the table.

    describe: metadata of an outcome. finish: what else belongs to the asset (publishing),
    done before it counts as built; its result is metadata too. judge: results of ``checks``.
    value: what the checkpoint IO manager is handed.
    """
    stage = pipeline.stages[name]
    version = pipeline.versions[name]

    @dg.asset(
        key=asset_key(name),
        deps=[asset_key(i) for i in stage.inputs],
        partitions_def=SESSIONS if stage.partitioned else None,
        code_version=version.digest[:16],
        group_name=stage.group,
        description=stage.description,
        kinds={"pytorch"} if stage.on_device else {"python"},
        pool="gpu" if stage.on_device else None,
        required_resource_keys={"device"} if stage.on_device else set(),
        io_manager_key="checkpoints" if value else None,
        output_required=False,
        check_specs=list(checks),
        metadata={"code_version": version.digest, "modules": "\n".join(sorted(stage.entry))},
    )
    def compute(context: dg.AssetExecutionContext) -> Iterator[Any]:
        partition = context.partition_key if stage.partitioned else None
        metadata: dict[str, Any] = {}

        def finish_and_describe(outcome: Outcome) -> None:
            metadata.update(describe(pipeline, outcome))
            if finish is not None:
                metadata.update(finish(pipeline, outcome))
            metadata.update(_summary(outcome))

        try:
            with _surroundings(context, pipeline, stage, partition) as surroundings:
                outcome = pipeline.builder.build(
                    name,
                    partition,
                    pipeline.sessions(),
                    surroundings,
                    force=FORCE_TAG in context.run.tags,
                    finish=finish_and_describe,
                )
        except ViewUnavailableError as skipped:
            context.log.warning(f"{name} is skipped: {skipped}")
            return
        except FoxhuntError as error:
            if judge is not None:
                yield from judge(error)
            raise _failure(error) from error
        if judge is not None:
            yield from judge(outcome)
        version = dg.DataVersion(outcome.artifact.data_version)
        result: dg.MaterializeResult[Any] = dg.MaterializeResult(
            metadata=metadata, data_version=version
        )
        yield result if value is None else result._replace(value=value(pipeline, outcome))
        pipeline.index.succeeded(outcome.manifest)

    return compute


@contextmanager
def _surroundings(
    context: dg.AssetExecutionContext,
    pipeline: Pipeline,
    stage: Stage,
    partition: str | None,
) -> Iterator[Surroundings]:
    """What the step may use; its device is claimed for as long."""
    listeners = pipeline.progress_of(stage.name, partition)

    def progress(message: str, figures: Mapping[str, float]) -> None:
        context.log.info(message)
        if figures:
            context.log_event(
                dg.AssetObservation(
                    asset_key=context.asset_key,
                    description=message,
                    metadata={key: float(value) for key, value in figures.items()},
                )
            )
        listeners(message, figures)

    reads_landing = not stage.inputs or "raw/dbn" in stage.inputs
    with ExitStack() as stack:
        device = "cpu"
        if stage.on_device:
            claimed = stack.enter_context(context.resources.device.claim())
            context.log.info(f"On {claimed.describe()}")
            device = str(claimed)
        yield Surroundings(
            device=device,
            source=pipeline.source() if reads_landing else None,
            champion=lambda: pipeline.champion_checkpoint(stage.model),
            champion_scores=lambda: pipeline.champion_scores(stage.model),
            progress=progress,
        )


def _summary(outcome: Outcome) -> dict[str, Any]:
    return {
        "reused": not outcome.computed,
        "items_computed": len(outcome.computed),
        "items_reused": len(outcome.reused),
        "computed": ", ".join(outcome.computed) or "none",
        "build_seconds": outcome.manifest.seconds,
    }


def _failure(error: FoxhuntError) -> dg.Failure:
    """A failure that Dagster shows with its category and remedy, retried only if transient."""
    return dg.Failure(
        description=str(error),
        metadata={"category": error.category, "remedy": error.remedy or "none"},
        allow_retries=error.transient or isinstance(error, CodeChangedError),
    )
