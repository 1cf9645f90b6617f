"""One configuration's pipeline: its stages and their versions, the engine and the landing.

Made once a process. The assets, the command line and the public API all work through it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foxhunt_pipeline.artifacts import Blob, Item
from foxhunt_pipeline.config import Settings, load
from foxhunt_pipeline.incremental.build import Builder, Progress
from foxhunt_pipeline.incremental.families import family_of
from foxhunt_pipeline.incremental.index import Index
from foxhunt_pipeline.incremental.memo import Memo
from foxhunt_pipeline.incremental.plan import Plan, SessionState, make_plan
from foxhunt_pipeline.incremental.records import Manifest
from foxhunt_pipeline.incremental.sources import recall, remember
from foxhunt_pipeline.incremental.stages import code_base, select, stage_table
from foxhunt_pipeline.incremental.versions import stage_versions
from foxhunt_pipeline.market.calendars import keep_in
from foxhunt_pipeline.market.inventory import Inventory
from foxhunt_pipeline.market.landing import Landing
from foxhunt_pipeline.market.sessions import Survey, SurveyedSource, survey
from foxhunt_pipeline.stores.base import ObjectStore
from resources.stores import open_store

if TYPE_CHECKING:
    from foxhunt_pipeline.checkpoints.publish import Release


class Pipeline:
    """Everything that one configuration comes to, opened as it is needed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.config = settings.config
        recall(self.cache)
        self.code = code_base(self.config)
        self.stages = stage_table(self.config, self.code)
        self.versions = stage_versions(self.config, self.code, self.stages)
        remember(self.cache)
        self.listeners: list[Callable[[str, str | None, str, Mapping[str, float]], None]] = []
        """Called with (asset, partition, message, figures) as a step reports progress."""
        self._survey: Survey | None = None
        keep_in(self.cache / "calendars")

    @cached_property
    def index(self) -> Index:
        return Index(self.settings.state / "index.sqlite")

    @cached_property
    def artifacts(self) -> ObjectStore:
        return open_store(self.settings.artifacts)

    @cached_property
    def releases(self) -> ObjectStore:
        return open_store(self.settings.releases)

    @cached_property
    def memo(self) -> Memo:
        return Memo(self.artifacts, self.cache)

    @cached_property
    def builder(self) -> Builder:
        return Builder(self.config, self.stages, self.versions, self.index, self.memo)

    @property
    def cache(self) -> Path:
        return self.settings.state / "cache"

    @cached_property
    def landing(self) -> Landing:
        from resources.landing import open_landing

        return open_landing(self.settings, self.cache / "landing")

    @cached_property
    def inventory(self) -> Inventory:
        return Inventory(
            self.settings.state,
            self.landing,
            calendars=self.config.market.calendars,
            settle_seconds=self.config.landing.settle_seconds,
        )

    def survey(self, *, fresh: bool = False) -> Survey:
        """The landing's sessions, looked at once unless ``fresh``."""
        if self._survey is None or fresh:
            now_ns = time.time_ns()
            self._survey = survey(
                self.inventory.facts(now_ns, self._reading),
                self.config.market.calendars,
                now_ns,
                self.config.landing.wait_hours,
            )
        return self._survey

    def source(self) -> SurveyedSource:
        """Where the stages find landed bytes."""
        return SurveyedSource(self.survey(), self.landing)

    def sessions(self, *, fresh: bool = False) -> dict[str, SessionState]:
        """What the engine needs to know of each session."""
        return {
            date: SessionState(session.digest, session.state, session.reason)
            for date, session in self.survey(fresh=fresh).sessions.items()
        }

    def plan(
        self, expressions: tuple[str, ...] = (), *, force: bool = False, fresh: bool = True
    ) -> Plan:
        """What would be rebuilt now, of the stages that the selections name (default: all)."""
        return make_plan(
            self.stages,
            self.versions,
            self.sessions(fresh=fresh),
            self.index,
            selected=select(self.stages, expressions),
            force=force,
        )

    def _reading(self, name: str) -> None:
        self.progress_of("landing", None)(f"reading {name}", {})

    def view_of(self, model: str) -> str:
        """The view of the market that a model reads."""
        return str(family_of(self.stages[f"{model}/training"]).view)

    def champion_checkpoint(self, model: str) -> Path | None:
        """A verified local copy of the champion's checkpoint, if the model has a champion."""
        from foxhunt_pipeline.checkpoints.blobs import blob_key
        from foxhunt_pipeline.checkpoints.format import verify
        from foxhunt_pipeline.checkpoints.publish import SUFFIX

        release = self._champion(model)
        if release is None:
            return None
        key = blob_key(release.sha256, SUFFIX)
        path = self.releases.local_path(key)
        if path is None:
            path = self.cache / "releases" / f"{release.sha256}{SUFFIX}"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                self.releases.fetch(key, path, sha256=release.sha256, size=release.size)
        verify(path, sha256=release.sha256, size=release.size)
        return path

    def champion_scores(self, model: str) -> Path | None:
        """The out-of-sample scores that the champion was released with, if still stored."""
        release = self._champion(model)
        scores = release and release.provenance.get("scores")
        if not scores:
            return None
        item = Item("scores", "", "", {"model.npz": Blob(**scores)})
        return self.memo.path(item, "model.npz") if self.memo.whole(item) else None

    def provenance(self, model: str, manifest: Manifest) -> dict[str, Any]:
        """Where a release comes from: code, configuration, data, seed and evaluation."""
        dataset = self.builder.artifact("dataset")
        walked = self.builder.artifact(f"{model}/walk_forward")
        return {
            "code_version": manifest.code_version,
            "components": dict(manifest.components),
            "inputs": dict(manifest.inputs),
            "seed": self.config.seed,
            "dataset": dataset.data_version,
            "left_out": dict(dataset.figures["left_out"]),
            "scores": asdict(walked.items["scorecard"].files["model.npz"]),
        }

    def _champion(self, model: str) -> Release | None:
        from foxhunt_pipeline.checkpoints.publish import champion, open_manifest

        pointer = champion(self.releases, model)
        return open_manifest(self.releases, model, pointer.version) if pointer else None

    def progress_of(self, asset: str, partition: str | None) -> Progress:
        """A callback that tells this pipeline's listeners how a step gets on."""

        def tell(message: str, figures: Mapping[str, float]) -> None:
            for listener in self.listeners:
                listener(asset, partition, message, figures)

        return tell


def open_pipeline(folder: Path | None = None) -> Pipeline:
    """The pipeline of the configuration found from ``folder``, the variables or here."""
    settings = load(folder)
    _importable(settings.root)
    return Pipeline(settings)


def _importable(folder: Path) -> None:
    """Let the configuration name modules that lie beside it."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
