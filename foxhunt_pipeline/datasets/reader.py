"""Rows of a walk-forward window, read in place from memory-mapped columns.

A :class:`Split` (train, validation or test) numbers the rows of its streams one after the other;
a row number stands for a decision time. ``rows`` says which may be used, ``gather`` cuts their
look-back. Look-back reaches behind the split's first row inside the same session, never into
another session: what happened before a decision is known, wherever the split begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foxhunt_pipeline.artifacts import Task
from foxhunt_pipeline.datasets.manifest import (
    DatasetManifest,
    Scaler,
    Span,
    Stream,
    ViewSpec,
    Window,
)
from foxhunt_pipeline.errors import ViewUnavailableError

BID, ASK, BUY_FILL, SELL_FILL, MARK, NEXT_MARK = range(6)
"""Columns of ``px``: int64 of 1e-9, -1 where there is none."""


@dataclass(frozen=True)
class Segment:
    """One stream's session, of which the rows ``[start, stop)`` belong to the split.

    Arrays cover the whole session, n rows; those named below are memory-mapped.
    """

    stream: Stream
    start: int
    stop: int
    scaler: Scaler
    thresholds: NDArray[np.float32]
    columns: slice | NDArray[np.intp]
    """Where the view's columns stand in ``raw``."""
    raw: NDArray[np.float32]
    """(n, columns of the stream): features as stored."""
    ts: NDArray[np.int64]
    """(n,): time at which the row is known, ns."""
    y: NDArray[np.float32]
    """(n, horizon): forward log return, NaN where there is none."""
    smooth: NDArray[np.float32]
    """(n, horizon): smoothed forward log return, from which the trend class is judged."""
    end_ts: NDArray[np.int64]
    """(n, horizon): time at which the label is known, ns."""
    px: NDArray[np.int64]
    """(n, 6): bid, ask, buy fill, sell fill, mark, next mark in 1e-9, -1 where none."""

    @property
    def x(self) -> NDArray[np.float32]:
        """(n, feature): scaled features of the whole session, computed at each call."""
        return self.scaler.apply(self.raw[:, self.columns])

    @property
    def trend(self) -> NDArray[np.int64]:
        """(n, horizon): 0 down, 1 flat, 2 up, -1 no label."""
        return trend_classes(self.smooth, self.thresholds)

    @property
    def weight(self) -> NDArray[np.float32]:
        """(n,): weight of the row in a loss."""
        return np.ones(len(self.ts), np.float32)

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """(n,): every label of the row is there."""
        defined = np.isfinite(self.y) & np.isfinite(self.smooth)
        return np.asarray(defined.all(axis=1))


@dataclass(frozen=True)
class Rows:
    """Training rows as arrays, in the order asked for. Shapes as in ``models.contract.Batch``."""

    x: NDArray[np.float32]
    y: NDArray[np.float32]
    trend: NDArray[np.int64]
    weight: NDArray[np.float32]


@dataclass(frozen=True)
class Split:
    """The rows of a window that serve one purpose. Row numbers count every row of every
    segment's session, so that neighbours in time are neighbours in number."""

    segments: tuple[Segment, ...]
    n_features: int
    n_horizons: int

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """(segments + 1,): row number of each segment's first row; the last is the end."""
        return np.cumsum([0, *(len(segment.ts) for segment in self.segments)], dtype=np.int64)

    def rows(self, context: int, *, labelled: bool = True) -> NDArray[np.int64]:
        """Ascending row numbers that lie in the split and have ``context`` rows of look-back
        (their own included) in their session and, if ``labelled``, every label."""
        parts = [np.empty(0, np.int64)]
        for offset, segment in zip(self.offsets, self.segments, strict=False):
            local = np.arange(max(segment.start, context - 1), segment.stop)
            if labelled:
                local = local[segment.labelled[local]]
            parts.append(local + offset)
        return np.concatenate(parts)

    def locate(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(segment number, row inside its session) of each row number."""
        segment = np.searchsorted(self.offsets, rows, side="right") - 1
        return segment, rows - self.offsets[segment]

    def gather(self, rows: NDArray[np.int64], context: int) -> NDArray[np.float32]:
        """Scaled look-back of each row, oldest first: float32 (len(rows), context, feature).

        Raises IndexError for a row without so much look-back in its own session.
        """
        steps = np.arange(1 - context, 1)
        out = np.empty((len(rows), context, self.n_features), np.float32)
        for places, segment, local in self._by_segment(rows):
            if local[0] < context - 1:
                raise IndexError(f"row {local[0]} of {segment.stream.id} lacks look-back {context}")
            out[places] = segment.raw[local[:, None] + steps][..., segment.columns]
        return self.segments[0].scaler.apply(out) if self.segments else out

    def batch(self, rows: NDArray[np.int64], context: int) -> Rows:
        """Look-back, labels and weights of each row."""
        return Rows(
            x=self.gather(rows, context),
            y=self.take("y", rows),
            trend=self.take("trend", rows),
            weight=self.take("weight", rows),
        )

    def take(self, field: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """A :class:`Segment` field (``ts``, ``y``, ``smooth``, ``trend``, ``end_ts``, ``px``,
        ``weight``) at each row: (len(rows), …)."""
        if field == "trend":
            thresholds = self.segments[0].thresholds if self.segments else np.empty(0, np.float32)
            return trend_classes(self.take("smooth", rows), thresholds)
        if field == "weight":
            return np.ones(len(rows), np.float32)
        shape, dtype = {
            "ts": ((), np.int64),
            "y": ((self.n_horizons,), np.float32),
            "smooth": ((self.n_horizons,), np.float32),
            "end_ts": ((self.n_horizons,), np.int64),
            "px": ((6,), np.int64),
        }[field]
        out: NDArray[Any] = np.empty((len(rows), *shape), dtype)
        for places, segment, local in self._by_segment(rows):
            out[places] = getattr(segment, field)[local]
        return out

    def _by_segment(
        self, rows: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.intp], Segment, NDArray[np.int64]]]:
        order = np.argsort(rows, kind="stable")
        number, local = self.locate(rows[order])
        edges = np.flatnonzero(np.diff(number, prepend=-1, append=-1))
        for start, stop in pairwise(edges):
            yield order[start:stop], self.segments[number[start]], local[start:stop]


@dataclass(frozen=True)
class WindowData:
    """A window in one view, open for reading. ``test`` is empty for production."""

    window: Window
    spec: ViewSpec
    scaler: Scaler
    trend_thresholds: tuple[float, ...]
    train: Split
    validation: Split
    test: Split


def open_window(task: Task, manifest: DatasetManifest, name: str, view: str) -> WindowData:
    """Open a window in one view.

    Raises :class:`~foxhunt_pipeline.errors.ViewUnavailableError` if the data or the window lacks
    the view, :class:`~foxhunt_pipeline.errors.DataError` if there is no window of that name.
    """
    spec = manifest.require_view(view)
    window = manifest.window(name)
    part = window.views.get(view)
    if part is None:
        raise ViewUnavailableError(
            f"Window {name} ({window.train_sessions[0]} to {window.train_sessions[-1]}) has no "
            f"rows of the {view} view.",
            remedy=f"Windows that have: {', '.join(w.name for w in manifest.windows_of(view))}.",
        )
    thresholds = np.asarray(part.trend_thresholds, np.float32)

    def segment(span: Span) -> Segment:
        stream = manifest.streams[span.stream]

        def column(item_file: str) -> NDArray[Any]:
            item = stream.features if item_file == "x.npy" else stream.labels
            return np.asarray(np.load(task.path(item, item_file), mmap_mode="r"))

        return Segment(
            stream=stream,
            start=span.start,
            stop=span.stop,
            scaler=part.scaler,
            thresholds=thresholds,
            columns=_columns(stream.columns, spec.columns),
            raw=column("x.npy"),
            ts=column("ts.npy"),
            y=column("y.npy"),
            smooth=column("smooth.npy"),
            end_ts=column("end_ts.npy"),
            px=column("px.npy"),
        )

    def split(spans: Sequence[Span]) -> Split:
        segments = tuple(segment(span) for span in spans)
        return Split(segments, len(spec.columns), len(spec.horizons))

    return WindowData(
        window=window,
        spec=spec,
        scaler=part.scaler,
        trend_thresholds=part.trend_thresholds,
        train=split(part.train),
        validation=split(part.validation),
        test=split(part.test),
    )


def trend_classes(
    smooth: NDArray[np.float32], thresholds: NDArray[np.float32]
) -> NDArray[np.int64]:
    """0 down, 1 flat, 2 up of smoothed returns (…, horizon); -1 where NaN."""
    classes = 1 + (smooth > thresholds).astype(np.int64) - (smooth < -thresholds)
    return np.where(np.isnan(smooth), -1, classes)


def _columns(have: tuple[str, ...], want: tuple[str, ...]) -> slice | NDArray[np.intp]:
    if have == want:
        return slice(None)
    place = {name: number for number, name in enumerate(have)}
    return np.array([place[name] for name in want], np.intp)
