"""A dataset of planted sessions, as the stages before training would hand it over."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from foxhunt_pipeline.artifacts import Artifact, Content, Item, digest_arrays, digest_of
from foxhunt_pipeline.config import Config
from foxhunt_pipeline.datasets.manifest import (
    DatasetManifest,
    Scaler,
    Span,
    Stream,
    ViewSpec,
    Window,
    WindowView,
)
from foxhunt_pipeline.models.contract import Family
from support.planted import SPEC, THRESHOLD, Planted
from support.task import FolderTask

SIGMA = 2e-4
"""Standard deviation of a return."""
SESSIONS = ("2024-01-02", "2024-01-03", "2024-01-04")
SECOND = 10**9


def planted_task(
    folder: Path,
    family: Family,
    settings: dict[str, Any],
    *,
    rows: int = 600,
    shares: tuple[float, float] = (0.6, 0.3),
    training: dict[str, Any] | None = None,
) -> FolderTask:
    """A training task on three sessions of one instrument: windows w000 and production, each
    of two sessions with the last fifth of the rows for validation."""
    config = Config.model_validate(
        {"models": {family.name: settings}, "training": {"device": "cpu", **(training or {})}}
    )
    task = FolderTask(
        folder, f"{family.name}/training", settings=config, family=family, model=family.name
    )
    manifest = _manifest(task, rows, shares)
    item = task.item("manifest", [manifest.digest], lambda place: _write(place, manifest))
    artifact = Artifact("dataset", None, {"manifest": item}, {}, manifest.digest)
    return replace(task, inputs={"dataset": artifact})


def with_features(task: FolderTask, stream_id: str, x: np.ndarray) -> FolderTask:
    """The task with another feature matrix in one stream, and nothing else changed."""
    path = task.path(task.inputs["dataset"].items["manifest"], "manifest.json")
    manifest = DatasetManifest.from_json(json.loads(path.read_text()))
    stream = manifest.streams[stream_id]
    ts = np.load(task.path(stream.features, "ts.npy"))
    features = _item(task, stream.features.name, stream.features.figures, ts=ts, x=x)
    streams = {**manifest.streams, stream_id: replace(stream, features=features)}
    changed = replace(manifest, streams=streams)
    item = task.item("manifest", [changed.digest], lambda place: _write(place, changed))
    artifact = Artifact("dataset", None, {"manifest": item}, {}, changed.digest)
    return replace(task, inputs={"dataset": artifact})


def _manifest(task: FolderTask, rows: int, shares: tuple[float, float]) -> DatasetManifest:
    streams = {}
    for number, session in enumerate(SESSIONS):
        planted = Planted(rows, 1, shares, seed=number)
        ts = np.datetime64(f"{session}T14:30", "ns").astype(np.int64) + SECOND * np.arange(
            1, rows + 1
        )
        y = planted.y * np.float32(SIGMA)
        steps = np.array(SPEC.horizons)
        y[np.arange(rows)[:, None] + steps >= rows] = np.nan
        name = "book/TEST/1/AAA"
        figures = {"columns": list(SPEC.columns), "n_levels": SPEC.n_levels}
        features = _item(task, name, figures, ts=ts, x=planted.x)
        labels = _item(
            task,
            name,
            {"has_quotes": True},
            ts=ts,
            y=y,
            smooth=y,
            end_ts=ts[:, None] + steps * SECOND,
            px=np.full((rows, 6), 100 * 10**9, np.int64),
        )
        stream = Stream(session, "book", "TEST", 1, "AAA", rows, features, labels)
        streams[stream.id] = stream
    view = ViewSpec("book", SPEC.columns, SPEC.horizons, SPEC.n_levels, SECOND, {})
    first, second, third = streams
    cut = int(rows * 0.6)
    windows = []
    for window, a, b, test in (("w000", first, second, third), ("production", second, third, "")):
        train = (Span(a, 0, rows), Span(b, 0, cut - max(SPEC.horizons)))
        validation = (Span(b, cut, rows),)
        tested = (Span(test, 0, rows),) if test else ()
        part = WindowView(
            scaler=Scaler((0.0,) * SPEC.n_features, (1.0,) * SPEC.n_features),
            trend_thresholds=(THRESHOLD * SIGMA,) * len(SPEC.horizons),
            train=train,
            validation=validation,
            test=tested,
            purged=max(SPEC.horizons),
            embargoed=0,
            digest=digest_of(
                window,
                [[s.start, s.stop] for s in (*train, *validation, *tested)],
                [[streams[i].features.digest, streams[i].labels.digest] for i in (a, b, test) if i],
            ),
        )
        days = tuple(streams[i].session for i in (a, b))
        tests = (streams[test].session,) if test else ()
        windows.append(Window(window, days, tests, {"book": part}))
    return DatasetManifest(SESSIONS, {}, {"book": view}, streams, tuple(windows))


def _item(task: FolderTask, name: str, figures: Any, **arrays: np.ndarray) -> Item:
    digest = digest_arrays(arrays)

    def write(folder: Path) -> Content:
        for file, array in arrays.items():
            np.save(folder / f"{file}.npy", array)
        return Content(digest, figures)

    return task.item(name, [digest], write)


def _write(folder: Path, manifest: DatasetManifest) -> Content:
    (folder / "manifest.json").write_text(json.dumps(manifest.to_json()))
    return Content(manifest.digest)
