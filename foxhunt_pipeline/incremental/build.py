"""Builds one asset (and partition): reuses what is known, computes what is not, writes it down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foxhunt_pipeline import STARTED_NS
from foxhunt_pipeline.artifacts import Artifact, Content, Item, Result, digest_of
from foxhunt_pipeline.config import Config
from foxhunt_pipeline.errors import CodeError, DataError, FoxhuntError
from foxhunt_pipeline.incremental.families import family_of, import_entry
from foxhunt_pipeline.incremental.index import Failure, Index
from foxhunt_pipeline.incremental.memo import Memo
from foxhunt_pipeline.incremental.plan import (
    SessionState,
    input_versions,
    left_out,
    step_key,
    usable_sessions,
)
from foxhunt_pipeline.incremental.records import Manifest
from foxhunt_pipeline.incremental.stages import Stage
from foxhunt_pipeline.incremental.versions import StageVersion, check_unchanged

Progress = Callable[[str, Mapping[str, float]], None]


@dataclass(frozen=True)
class Surroundings:
    """What a step may use besides its inputs."""

    device: str = "cpu"
    source: Any = None
    champion: Callable[[], Path | None] = lambda: None
    champion_scores: Callable[[], Path | None] = lambda: None
    progress: Progress = lambda message, figures: None


@dataclass(frozen=True)
class Outcome:
    """What building came to. ``computed`` and ``reused`` name items; an artifact that was known
    as a whole has computed none."""

    manifest: Manifest
    computed: tuple[str, ...]
    reused: tuple[str, ...]

    @property
    def artifact(self) -> Artifact:
        return self.manifest.artifact


class Builder:
    """The engine's hand on one configuration's stages, index and memo."""

    def __init__(
        self,
        config: Config,
        stages: Mapping[str, Stage],
        versions: Mapping[str, StageVersion],
        index: Index,
        memo: Memo,
    ) -> None:
        self.config = config
        self.stages = stages
        self.versions = versions
        self.index = index
        self.memo = memo

    def build(
        self,
        name: str,
        partition: str | None,
        sessions: Mapping[str, SessionState],
        surroundings: Surroundings,
        *,
        force: bool = False,
        finish: Callable[[Outcome], None] = lambda outcome: None,
    ) -> Outcome:
        """The artifact that (name, partition) should have now. It becomes the current one when
        the caller, once it is stored wherever else it belongs, calls ``index.succeeded``.

        finish: what else belongs to building it (publishing); its failure is the asset's.
        Raises what the computation or ``finish`` raises, after the failure is written down; what
        was current stays current. Raises :class:`~foxhunt_pipeline.errors.CodeChangedError` when
        the code on disk is not the code of ``versions``.
        """
        stage, version = self.stages[name], self.versions[name]
        rows = self.index.rows()
        used: list[str] = []
        if stage.needs_session:
            used = usable_sessions(stage.needs_session, rows, self.versions, sessions)
        inputs = input_versions(stage, partition, rows, sessions, used, self.stages)
        if inputs is None:
            missing = [
                i
                for i in stage.inputs
                if (i, partition if self.stages[i].partitioned else None) not in rows
            ]
            raise DataError(
                f"{name} needs {', '.join(missing)}, not built yet.", remedy="Run foxhunt sync."
            )
        key = step_key(stage, partition, version.digest, inputs)
        task = StepTask(self, stage, version, partition, sessions, used, surroundings, force)
        try:
            known = None if force else self.memo.manifest(name, partition, key)
            manifest = known or self._compute(task, key, inputs)
            reused = tuple(known.artifact.items) if known else tuple(task.reused)
            outcome = Outcome(manifest, tuple(task.computed), reused)
            finish(outcome)
        except Exception as error:
            self._failed(name, partition, key, error)
            raise
        return outcome

    def _failed(self, name: str, partition: str | None, key: str, error: Exception) -> None:
        known = isinstance(error, FoxhuntError)
        category = error.category if isinstance(error, FoxhuntError) else "code"
        message = str(error) if known else f"{type(error).__name__}: {error}"
        self.index.fail(Failure(name, partition, key, category, message, time.time_ns()))

    def artifact(self, name: str, partition: str | None = None) -> Artifact:
        """The current artifact of an asset.

        Raises :class:`DataError` if there is none.
        """
        manifest = self.index.manifest(name, partition)
        if manifest is None:
            where = f" of {partition}" if partition else ""
            raise DataError(f"{name}{where} was never built.", remedy="Run foxhunt sync.")
        return manifest.artifact

    def _compute(self, task: StepTask, key: str, inputs: Mapping[str, str]) -> Manifest:
        stage = task.step
        began = time.perf_counter()
        module = import_entry(stage)
        check_unchanged(stage.name, task.version, STARTED_NS)
        result: Result = module.build(task)
        items = {item.name: item for item in result.items}
        artifact = Artifact(
            stage=stage.name,
            partition=task.partition,
            items=items,
            figures=result.figures,
            data_version=digest_of({name: item.digest for name, item in items.items()}),
        )
        if task.force:
            self.memo.forget_artifact(stage.name, task.partition, key)
        return self.memo.record(
            Manifest(
                artifact=artifact,
                key=key,
                code_version=task.version.digest,
                components=task.version.components,
                inputs=inputs,
                built_ns=time.time_ns(),
                seconds=round(time.perf_counter() - began, 3),
            )
        )


@dataclass
class StepTask:
    """The :class:`~foxhunt_pipeline.artifacts.Task` that a stage's computation is given."""

    builder: Builder
    step: Stage
    version: StageVersion
    partition: str | None
    session_states: Mapping[str, SessionState]
    used: Sequence[str]
    surroundings: Surroundings
    force: bool
    computed: list[str] = field(default_factory=list)
    reused: list[str] = field(default_factory=list)

    @property
    def stage(self) -> str:
        return self.step.name

    @property
    def seed(self) -> int:
        return int(self.config("seed"))

    @property
    def code_version(self) -> str:
        return self.version.item_digest

    @property
    def device(self) -> str:
        return self.surroundings.device

    @property
    def source(self) -> Any:
        return self.surroundings.source

    @property
    def model(self) -> str:
        return self.step.model

    @property
    def family(self) -> Any:
        return family_of(self.step)

    @property
    def champion(self) -> Path | None:
        return self.surroundings.champion()

    @property
    def champion_scores(self) -> Path | None:
        return self.surroundings.champion_scores()

    def config(self, section: str) -> Any:
        declared = (*self.step.config, *self.step.selects)
        if not any(section == path or section.startswith(f"{path}.") for path in declared):
            raise CodeError(
                f"{self.stage} reads the configuration section {section}, which its stage does "
                f"not declare (it declares {', '.join(declared)}).",
                remedy="Add it to the stage's config in incremental/stages.py.",
            )
        return self.builder.config.section(section)

    def input(self, stage: str) -> Artifact:
        self._declared(stage)
        partition = self.partition if self.builder.stages[stage].partitioned else None
        return self.builder.artifact(stage, partition)

    def sessions(self, stage: str) -> Mapping[str, Artifact]:
        self._declared(stage)
        return {session: self.builder.artifact(stage, session) for session in self.used}

    def left_out(self) -> Mapping[str, str]:
        failures = self.builder.index.failures()
        reasons = {}
        for session in left_out(self.session_states, self.used):
            state = self.session_states[session]
            failed = [failures[key] for key in failures if key[1] == session]
            reasons[session] = (
                state.reason
                or "; ".join(failure.message for failure in failed)
                or "not built with the present code"
            )
        return reasons

    def item(
        self,
        name: str,
        inputs: Sequence[str],
        compute: Callable[[Path], Content],
        *,
        extra: Mapping[str, Any] | None = None,
    ) -> Item:
        key = digest_of(
            "item", self.stage, self.version.item_digest, name, list(inputs), dict(extra or {})
        )
        if self.force:
            self.builder.memo.forget(key)
        else:
            known = self.builder.memo.find(key)
            if known is not None:
                self.reused.append(name)
                return known
        item = self.builder.memo.compute(key, name, compute)
        self.computed.append(name)
        return item

    def path(self, item: Item, file: str) -> Path:
        return self.builder.memo.path(item, file)

    def progress(self, message: str, **figures: float) -> None:
        self.surroundings.progress(message, figures)

    def _declared(self, stage: str) -> None:
        if stage not in self.step.inputs:
            raise CodeError(
                f"{self.stage} reads {stage}, which is not among its inputs.",
                remedy="Add it to the stage's inputs in incremental/stages.py.",
            )
