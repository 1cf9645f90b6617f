"""The stage table: every step of the pipeline, declared once.

The Dagster assets and the plan are both made from this table. A family adds its stages by
being in the configuration; nothing here or in ``assets/`` knows any family by name.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from foxhunt_pipeline.config import Config, ModelConfig
from foxhunt_pipeline.errors import CodeError, ConfigError
from foxhunt_pipeline.incremental.closure import CodeBase, packages_of, static_value

LANDING = "landing"
"""Name under which a session's landed bytes count as an input."""

DYNAMIC = frozenset({"foxhunt_pipeline"})
"""Modules that import by name: the public package does, lazily, and no stage goes through it."""

_KINDS = {"ForecastFamily": "forecast", "PolicyFamily": "policy"}


@dataclass(frozen=True)
class Stage:
    """One step. ``module`` holds its ``build``; ``reached`` are modules found by name."""

    name: str
    module: str
    description: str
    group: str
    inputs: tuple[str, ...] = ()
    partitioned: bool = False
    config: tuple[str, ...] = ()
    """Configuration that the computation may read, as dotted paths."""
    selects: tuple[str, ...] = ()
    """Configuration that decides which items there are, but not what is in one."""
    reached: tuple[str, ...] = ()
    on_device: bool = False
    model: str = ""
    family: str = ""
    """``module:object`` of the model's family."""
    needs_session: tuple[str, ...] = ()
    """For the stage that gathers sessions: a session counts if it has all of these."""

    @property
    def entry(self) -> tuple[str, ...]:
        return (self.module, *self.reached)


def code_base(config: Config) -> CodeBase:
    """First-party code under this configuration."""
    families = [model.family for model in config.models.values() if model.family]
    return CodeBase(packages_of(config.first_party, families), DYNAMIC)


def stage_table(config: Config, code: CodeBase) -> dict[str, Stage]:
    """Every stage by name, inputs before the stages that read them."""
    stages = [*_SESSION_STAGES, _DATASET, _BASELINES]
    for name, model in config.models.items():
        if model.enabled:
            stages += _model_stages(name, model, code)
    return {stage.name: stage for stage in stages}


_SESSION_STAGES = (
    Stage(
        name="raw/dbn",
        module="foxhunt_pipeline.market.raw",
        description="The DBN files that cover the session, verified whole and named by content.",
        group="market_data",
        partitioned=True,
        config=("landing.immutable",),
    ),
    Stage(
        name="market/tables",
        module="foxhunt_pipeline.market.tables",
        description="Trades, quotes, books, bars and definitions by instrument, as delivered.",
        group="market_data",
        inputs=("raw/dbn",),
        partitioned=True,
        config=("market",),
        selects=("universe",),
    ),
    Stage(
        name="market/validated",
        module="foxhunt_pipeline.validation.stage",
        description="The verdict on the tables, and the rows that are quarantined.",
        group="market_data",
        inputs=("market/tables",),
        partitioned=True,
        config=("validation", "market"),
    ),
    Stage(
        name="features",
        module="foxhunt_pipeline.features.stage",
        description="What is known at each row of a view's clock.",
        group="research_data",
        inputs=("market/tables", "market/validated"),
        partitioned=True,
        config=("clock", "features", "market"),
    ),
    Stage(
        name="labels",
        module="foxhunt_pipeline.labels.stage",
        description="What came after each row: returns, trends, their end times, fill prices.",
        group="research_data",
        inputs=("market/tables", "market/validated"),
        partitioned=True,
        config=("clock", "labels", "market"),
    ),
)

_DATASET = Stage(
    name="dataset",
    module="foxhunt_pipeline.datasets.stage",
    description="Sessions used and left out, walk-forward windows, a scaler for each window.",
    group="research_data",
    inputs=("features", "labels"),
    config=("walk_forward", "labels.trend_quantile"),
    needs_session=("features", "labels"),
)

_BASELINES = Stage(
    name="baselines/walk_forward",
    module="foxhunt_pipeline.evaluation.baselines",
    description="Simple forecasts and policies on the same windows and costs.",
    group="baselines",
    inputs=("dataset",),
    config=("costs", "market.calendars"),
)


def _model_stages(name: str, model: ModelConfig, code: CodeBase) -> list[Stage]:
    module, _, attribute = (model.family or f"foxhunt_pipeline.models.{name}:FAMILY").partition(":")
    if not attribute:
        raise ConfigError(
            f"models.{name}.family = {model.family!r} names no object.",
            remedy='Write it as "module:object".',
        )
    kind = _KINDS.get(static_value(code.file(module), attribute) or "")
    if kind is None:
        raise CodeError(
            f"{module} does not assign a ForecastFamily(...) or PolicyFamily(...) to {attribute}.",
            remedy=f"Put {attribute} = ForecastFamily(...) at the top level of {module}.",
        )
    stage = Stage(
        name=name,
        module=module,
        description="",
        group=name,
        reached=(module,),
        on_device=True,
        model=name,
        family=f"{module}:{attribute}",
    )
    settings = f"models.{name}"
    loop = "supervised" if kind == "forecast" else "reinforcement"
    acts = () if kind == "forecast" else ("costs",)
    judged = ("seed", "costs", "training", "market.calendars", settings)
    return [
        replace(
            stage,
            name=f"{name}/training",
            module=f"foxhunt_pipeline.training.{loop}",
            description="One checkpoint for each walk-forward window and one for production.",
            inputs=("dataset",),
            config=("seed", "training", settings, *acts),
        ),
        replace(
            stage,
            name=f"{name}/walk_forward",
            module="foxhunt_pipeline.evaluation.walk_forward",
            description="Out-of-sample predictions, backtest and scorecard.",
            inputs=("dataset", f"{name}/training"),
            config=judged,
        ),
        replace(
            stage,
            name=f"{name}/release",
            module="foxhunt_pipeline.evaluation.release",
            description="The gated, immutable, published checkpoint.",
            inputs=(
                "dataset",
                f"{name}/training",
                f"{name}/walk_forward",
                "baselines/walk_forward",
            ),
            config=(*judged, "evaluation", "release"),
        ),
    ]


def descendants(stages: Mapping[str, Stage], names: Iterable[str]) -> set[str]:
    """The named stages and all that depend on them."""
    found = set(names)
    for stage in stages.values():
        if found.intersection(stage.inputs):
            found.add(stage.name)
    return found


def ancestors(stages: Mapping[str, Stage], names: Iterable[str]) -> set[str]:
    """The named stages and all that they depend on."""
    found = set(names)
    for stage in reversed(list(stages.values())):
        if stage.name in found:
            found.update(stage.inputs)
    return found


def select(stages: Mapping[str, Stage], expressions: Sequence[str]) -> set[str]:
    """Stages named by selections: a name or pattern (``tlob/*``), with ``+`` before it for
    everything upstream and after it for everything downstream.

    Raises :class:`ConfigError` for a selection that names nothing, listing the stages.
    """
    chosen: set[str] = set()
    for expression in expressions:
        pattern = expression.strip("+")
        found = {name for name in stages if fnmatch.fnmatchcase(name, pattern)}
        if not found:
            raise ConfigError(
                f"--select {expression} names no stage.",
                remedy=f"Stages: {', '.join(stages)}.",
            )
        chosen |= found
        if expression.startswith("+"):
            chosen |= ancestors(stages, found)
        if expression.endswith("+"):
            chosen |= descendants(stages, found)
    return chosen or set(stages)
