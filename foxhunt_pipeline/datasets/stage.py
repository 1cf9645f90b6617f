"""The stage ``dataset``: the manifest of sessions, streams and walk-forward windows.

Items: ``manifest`` (``manifest.json``), and ``window/{window}/{view}`` for each part of a window,
computed from its own streams alone so that a new session fits no older window again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foxhunt_pipeline.artifacts import Artifact, Content, Item, Result, Task, digest_of
from foxhunt_pipeline.datasets.manifest import (
    DatasetManifest,
    Span,
    Stream,
    ViewSpec,
    Window,
    WindowView,
)
from foxhunt_pipeline.datasets.scaling import fit_scaler, trend_thresholds
from foxhunt_pipeline.datasets.windows import Plan, Timeline, cut, plan_windows
from foxhunt_pipeline.errors import DataError
from foxhunt_pipeline.intervals import interval_ns

_WHY_MISSING = {
    "bars": "no trades, ohlcv-1s or ohlcv-1m with records in trading hours",
    "book": "no mbp-10, mbp-1 or tbbo with records in trading hours",
}


@dataclass(frozen=True)
class _Settings:
    embargo_ns: int
    validation_share: float
    trend_quantile: float


def build(task: Task) -> Result:
    """Gather the sessions and cut the windows.

    Raises :class:`~foxhunt_pipeline.errors.DataError` if the sessions do not make one complete
    window, or if their features do not go together.
    """
    sessions, streams, left_out = _gather(task)
    walk = task.config("walk_forward")
    settings = _Settings(
        embargo_ns=interval_ns(walk["embargo"]),
        validation_share=walk["validation_share"],
        trend_quantile=task.config("labels.trend_quantile"),
    )
    plans = plan_windows(
        sessions,
        train=walk["train_sessions"],
        test=walk["test_sessions"],
        step=walk["step_sessions"],
        expanding=walk["expanding"],
    )
    views = {
        view: _spec(view, [s for s in streams if s.view == view], sessions)
        for view in sorted({stream.view for stream in streams})
    }
    windows, items = [], []
    for plan in plans:
        parts = {}
        for spec in views.values():
            item = _window_item(task, plan, spec, streams, settings)
            items.append(item)
            data = json.loads(task.path(item, "window.json").read_text(encoding="utf-8"))
            part = WindowView.from_json(data)
            if part.train and part.validation and (part.test or not plan.test):
                parts[spec.name] = part
        windows.append(Window(plan.name, plan.train, plan.test, parts))
    manifest = DatasetManifest(
        sessions=tuple(sessions),
        left_out=left_out,
        views=views,
        streams={stream.id: stream for stream in streams},
        windows=tuple(windows),
    )

    def write(folder: Path) -> Content:
        text = json.dumps(manifest.to_json(), indent=1, sort_keys=True)
        (folder / "manifest.json").write_text(text, encoding="utf-8")
        return Content(manifest.digest, _figures(manifest))

    places = digest_of([asdict(stream) for stream in streams])
    head = task.item("manifest", [manifest.digest], write, extra={"places": places})
    return Result([head, *items], head.figures)


def _gather(task: Task) -> tuple[list[str], list[Stream], dict[str, str]]:
    features, labels = task.sessions("features"), task.sessions("labels")
    left_out = dict(task.left_out())
    sessions, streams = [], []
    for session in sorted({*features, *labels}):
        if session not in features or session not in labels:
            there, lacking = (
                ("features", "labels") if session in features else ("labels", "features")
            )
            left_out[session] = f"has {there} but no {lacking}"
            continue
        found = _streams(session, features[session], labels[session])
        if not found:
            left_out[session] = "no instrument has a row in trading hours"
            continue
        sessions.append(session)
        streams += found
    return sessions, streams, dict(sorted(left_out.items()))


def _streams(session: str, features: Artifact, labels: Artifact) -> list[Stream]:
    streams = []
    for name, item in sorted(features.items.items()):
        label = labels.items.get(name)
        if label is None or label.figures["rows"] != item.figures["rows"]:
            raise DataError(
                f"Session {session}: features of {name} have {item.figures['rows']} rows, labels "
                f"{label.figures['rows'] if label else 'none'}.",
                remedy="Rebuild both for the session.",
            )
        facts = item.figures
        streams.append(
            Stream(
                session=session,
                view=facts["view"],
                dataset=facts["dataset"],
                publisher_id=facts["publisher_id"],
                symbol=facts["symbol"],
                rows=facts["rows"],
                features=item,
                labels=label,
            )
        )
    return streams


def _spec(view: str, streams: Sequence[Stream], sessions: Sequence[str]) -> ViewSpec:
    """What the streams of a view share. Of the book's levels, those that every stream has."""
    first = streams[0]
    shared = set(first.columns).intersection(*(stream.columns for stream in streams))
    horizons, step_ns = first.labels.figures["horizons"], first.features.figures["step_ns"]
    for stream in streams:
        odd = [c for c in stream.columns if c not in shared and not c.startswith("lob_")]
        odd += [c for c in first.columns if c not in shared and not c.startswith("lob_")]
        if (
            odd
            or stream.labels.figures["horizons"] != horizons
            or stream.features.figures["step_ns"] != step_ns
        ):
            raise DataError(
                f"{stream.id} was made with another catalogue, clock or horizons than {first.id}"
                f"{': ' + ', '.join(odd) if odd else ''}.",
                remedy="Rebuild features and labels of every session.",
            )
    have = {stream.session for stream in streams}
    return ViewSpec(
        name=view,
        columns=tuple(column for column in first.columns if column in shared),
        horizons=tuple(horizons),
        n_levels=min(stream.features.figures["n_levels"] for stream in streams),
        step_ns=step_ns,
        missing={s: _WHY_MISSING[view] for s in sessions if s not in have},
    )


def _window_item(
    task: Task, plan: Plan, spec: ViewSpec, streams: Sequence[Stream], settings: _Settings
) -> Item:
    own = [s for s in streams if s.view == spec.name and s.session in {*plan.train, *plan.test}]

    def write(folder: Path) -> Content:
        part = _fit(task, plan, spec, own, settings)
        (folder / "window.json").write_text(json.dumps(asdict(part)), encoding="utf-8")
        return Content(part.digest, {"rows": part.rows})

    return task.item(
        f"window/{plan.name}/{spec.name}",
        [digest for s in own for digest in (s.features.digest, s.labels.digest)],
        write,
        extra={
            "streams": [s.id for s in own],
            "test": list(plan.test),
            "columns": list(spec.columns),
            **asdict(settings),
        },
    )


def _fit(
    task: Task, plan: Plan, spec: ViewSpec, streams: Sequence[Stream], settings: _Settings
) -> WindowView:
    def column(stream: Stream, file: str) -> NDArray[Any]:
        item = stream.features if file == "x.npy" else stream.labels
        return np.asarray(np.load(task.path(item, file), mmap_mode="r"))

    def timelines(sessions: Sequence[str]) -> list[Timeline]:
        return [
            Timeline.of(s.id, column(s, "ts.npy"), column(s, "end_ts.npy"))
            for s in streams
            if s.session in sessions
        ]

    spans = cut(
        timelines(plan.train),
        timelines(plan.test),
        embargo_ns=settings.embargo_ns,
        validation_share=settings.validation_share,
    )
    by_id = {stream.id: stream for stream in streams}

    def rows(file: str, span: Span) -> NDArray[np.float32]:
        return column(by_id[span.stream], file)[span.start : span.stop]

    scaler = fit_scaler(
        [
            (rows("x.npy", span), [by_id[span.stream].columns.index(c) for c in spec.columns])
            for span in spans.train
        ],
        len(spec.columns),
    )
    thresholds = trend_thresholds(
        [rows("smooth.npy", span) for span in spans.train],
        len(spec.horizons),
        settings.trend_quantile,
    )
    content = {"scaler": asdict(scaler), "trend_thresholds": thresholds, **asdict(spans)}
    digest = digest_of(
        content,
        [spec.columns, spec.horizons, spec.n_levels, spec.step_ns],
        {s.id: [s.features.digest, s.labels.digest] for s in streams},
    )
    return WindowView(
        scaler=scaler,
        trend_thresholds=thresholds,
        train=spans.train,
        validation=spans.validation,
        test=spans.test,
        purged=spans.purged,
        embargoed=spans.embargoed,
        digest=digest,
    )


def _figures(manifest: DatasetManifest) -> Mapping[str, Any]:
    return {
        "sessions": len(manifest.sessions),
        "left_out": dict(manifest.left_out),
        "windows": len(manifest.windows) - 1,
        "views": {
            name: {
                "columns": list(spec.columns),
                "horizons": list(spec.horizons),
                "n_levels": spec.n_levels,
                "missing": dict(spec.missing),
                "rows": sum(s.rows for s in manifest.streams.values() if s.view == name),
                "windows": {w.name: w.views[name].rows for w in manifest.windows_of(name)},
            }
            for name, spec in manifest.views.items()
        },
    }
