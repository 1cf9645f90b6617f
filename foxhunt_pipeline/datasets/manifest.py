"""The dataset: which rows of which sessions each walk-forward window trains and is tested on.

The manifest holds no numbers of the market. It names feature and label items by digest, and per
window the spans of rows, the scaler and the trend thresholds, so that training reads the items in
place and a window's identity (:meth:`Window.digest`) is that of its own content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foxhunt_pipeline.artifacts import Blob, Item, Task, digest_of
from foxhunt_pipeline.errors import DataError, ViewUnavailableError

FORMAT = 1
PRODUCTION = "production"
"""Name of the window that trains on the newest sessions and has no test span."""
CLIP = 10.0
"""Scaled features are clipped to ± this."""


@dataclass(frozen=True)
class Stream:
    """One instrument's rows of one view in one session, in ascending time."""

    session: str
    view: str
    dataset: str
    publisher_id: int
    symbol: str
    rows: int
    features: Item
    """Files ``ts.npy``, ``x.npy``."""
    labels: Item
    """Files ``ts.npy``, ``y.npy``, ``smooth.npy``, ``end_ts.npy``, ``px.npy``."""

    @property
    def id(self) -> str:
        """Unique in the dataset: ``{session}/{view}/{dataset}/{publisher_id}/{symbol}``."""
        return f"{self.session}/{self.features.name}"

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of ``x.npy``, of which the view may use a part."""
        return tuple(self.features.figures["columns"])

    @property
    def has_quotes(self) -> bool:
        """Whether bid and ask in ``px.npy`` are quotes; otherwise both are the last price."""
        return bool(self.labels.figures["has_quotes"])


@dataclass(frozen=True)
class ViewSpec:
    """What every stream of a view has in common."""

    name: str
    columns: tuple[str, ...]
    """Feature columns in the order that models see them."""
    horizons: tuple[int, ...]
    """Label horizons in rows of the clock."""
    n_levels: int
    """Levels of the book in the ``lob_*`` columns; 0 where the view has no book."""
    step_ns: int
    """Step of the clock in nanoseconds."""
    missing: Mapping[str, str]
    """Used sessions in which the view has no stream, each with the reason."""


@dataclass(frozen=True)
class Scaler:
    """``clip((x - center) / scale)``, column by column; NaN becomes 0."""

    center: tuple[float, ...]
    scale: tuple[float, ...]

    def apply(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scaled copy of ``x`` (..., feature): float32, finite, within ±``CLIP``."""
        scaled = x - np.asarray(self.center, np.float32)
        scaled /= np.asarray(self.scale, np.float32)
        np.clip(scaled, -CLIP, CLIP, out=scaled)
        np.copyto(scaled, np.float32(0), where=np.isnan(scaled))
        return scaled


@dataclass(frozen=True)
class Span:
    """Rows ``[start, stop)`` of a stream."""

    stream: str
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class WindowView:
    """A view's part of a window. Scaler and thresholds come from the ``train`` spans alone."""

    scaler: Scaler
    trend_thresholds: tuple[float, ...]
    """Per horizon, > 0 or 0: the trend is up above it, down below its negative, else flat."""
    train: tuple[Span, ...]
    validation: tuple[Span, ...]
    test: tuple[Span, ...]
    purged: int
    """Rows dropped because their label ends inside the validation or test span."""
    embargoed: int
    """Rows dropped because their label ends less than the embargo before one."""
    digest: str

    @property
    def rows(self) -> dict[str, int]:
        """Rows by fate: train, validation, purged, embargoed, test."""
        return {
            "train": sum(span.rows for span in self.train),
            "validation": sum(span.rows for span in self.validation),
            "purged": self.purged,
            "embargoed": self.embargoed,
            "test": sum(span.rows for span in self.test),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WindowView:
        """The part of a window of its JSON data (``dataclasses.asdict``)."""
        scaler = data["scaler"]
        spans = {
            split: tuple(Span(**span) for span in data[split])
            for split in ("train", "validation", "test")
        }
        return cls(
            **{
                **data,
                **spans,
                "scaler": Scaler(tuple(scaler["center"]), tuple(scaler["scale"])),
                "trend_thresholds": tuple(data["trend_thresholds"]),
            }
        )


@dataclass(frozen=True)
class Window:
    """One step of the walk forward, or production."""

    name: str
    """``w000``, ``w001``, … in time order, or ``production``."""
    train_sessions: tuple[str, ...]
    test_sessions: tuple[str, ...]
    views: Mapping[str, WindowView]
    """Views that have training rows (and, but for production, test rows) in the window."""

    def digest(self, view: str) -> str:
        """Content of the window in one view: its streams, spans, columns, scaler, thresholds."""
        return self.views[view].digest


@dataclass(frozen=True)
class DatasetManifest:
    """The whole dataset."""

    sessions: tuple[str, ...]
    """Sessions used, in date order."""
    left_out: Mapping[str, str]
    """Sessions delivered but not used, each with the reason."""
    views: Mapping[str, ViewSpec]
    streams: Mapping[str, Stream]
    """By :attr:`Stream.id`."""
    windows: tuple[Window, ...]
    """The walk forward in time order, then production."""

    def window(self, name: str) -> Window:
        """The window of that name.

        Raises :class:`~foxhunt_pipeline.errors.DataError` naming the windows there are.
        """
        for window in self.windows:
            if window.name == name:
                return window
        raise DataError(
            f"The dataset has no window {name}.",
            remedy=f"It has {', '.join(window.name for window in self.windows)}.",
        )

    def windows_of(self, view: str) -> tuple[Window, ...]:
        """The windows that have rows of the view, walk forward first, production last."""
        return tuple(window for window in self.windows if view in window.views)

    def require_view(self, view: str, min_levels: int = 0) -> ViewSpec:
        """The view, if the data holds it with that many levels of the book.

        Raises :class:`~foxhunt_pipeline.errors.ViewUnavailableError` otherwise.
        """
        spec = self.views.get(view)
        if spec is None:
            raise ViewUnavailableError(
                f"The data has no {view} view: it has {', '.join(self.views) or 'none'}.",
                remedy=_NEEDS.get(view, "Enable a model that reads a view the data has."),
            )
        if spec.n_levels < min_levels:
            shallow = sorted(
                {
                    f"{s.dataset} {s.symbol}"
                    for s in self.streams.values()
                    if s.view == view and s.features.figures["n_levels"] < min_levels
                }
            )
            raise ViewUnavailableError(
                f"The {view} view has {spec.n_levels} levels of the book and {min_levels} are "
                f"needed ({', '.join(shallow[:5])}{', …' if len(shallow) > 5 else ''}).",
                remedy="Deliver mbp-10 for these instruments, or leave them out of "
                "universe.instruments.",
            )
        if not any(window.test_sessions for window in self.windows_of(view)):
            missing = ", ".join(f"{day} ({why})" for day, why in [*spec.missing.items()][:5])
            raise ViewUnavailableError(
                f"No walk-forward window has training, validation and test rows of the {view} "
                f"view (missing in {len(spec.missing)} of {len(self.sessions)} sessions).",
                remedy=f"Deliver what is missing: {missing}."
                if missing
                else "The sessions are too short for horizons and embargo: lower "
                f"labels.{view}_horizons or walk_forward.embargo, or deliver longer ones.",
            )
        return spec

    @property
    def digest(self) -> str:
        """Digest of what can be seen: sessions, streams by content, windows."""
        return digest_of(
            FORMAT,
            list(self.sessions),
            dict(self.left_out),
            {name: asdict(spec) for name, spec in self.views.items()},
            {id_: [s.features.digest, s.labels.digest] for id_, s in self.streams.items()},
            [
                [w.name, w.train_sessions, w.test_sessions, {v: w.digest(v) for v in w.views}]
                for w in self.windows
            ],
        )

    def to_json(self) -> dict[str, Any]:
        """JSON data from which :meth:`from_json` makes an equal manifest."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DatasetManifest:
        """The manifest of JSON data.

        Raises :class:`~foxhunt_pipeline.errors.DataError` for another format.
        """
        if data.get("format") != FORMAT:
            raise DataError(
                f"manifest.json has format {data.get('format')}, not {FORMAT}.",
                remedy="Rebuild the dataset.",
            )
        return cls(
            sessions=tuple(data["sessions"]),
            left_out=dict(data["left_out"]),
            views={name: _view(view) for name, view in data["views"].items()},
            streams={id_: _stream(stream) for id_, stream in data["streams"].items()},
            windows=tuple(_window(window) for window in data["windows"]),
        )


_NEEDS = {
    "book": "Deliver mbp-10 or mbp-1 for the sessions.",
    "bars": "Deliver trades or ohlcv-1s or ohlcv-1m for the sessions.",
}


def load(task: Task) -> DatasetManifest:
    """The manifest that a stage reads from its input ``dataset``."""
    path: Path = task.path(task.input("dataset").items["manifest"], "manifest.json")
    return DatasetManifest.from_json(json.loads(path.read_text(encoding="utf-8")))


def _item(data: Mapping[str, Any]) -> Item:
    files = {name: Blob(**blob) for name, blob in data["files"].items()}
    return Item(data["name"], data["key"], data["digest"], files, dict(data["figures"]))


def _stream(data: Mapping[str, Any]) -> Stream:
    return Stream(**{**data, "features": _item(data["features"]), "labels": _item(data["labels"])})


def _view(data: Mapping[str, Any]) -> ViewSpec:
    return ViewSpec(
        **{**data, "columns": tuple(data["columns"]), "horizons": tuple(data["horizons"])}
    )


def _window(data: Mapping[str, Any]) -> Window:
    return Window(
        name=data["name"],
        train_sessions=tuple(data["train_sessions"]),
        test_sessions=tuple(data["test_sessions"]),
        views={name: WindowView.from_json(view) for name, view in data["views"].items()},
    )
