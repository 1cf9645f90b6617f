"""Walk-forward windows, and the cut of their rows into training, validation and test.

Every training row lies before every test row, and so must the label of every training row: first
the rows are dropped whose label ends inside the test span (purge), then those whose label ends
less than the embargo before it, so that the embargo is a gap on top of the purge. See López de
Prado (2018), chapter 7; his embargo follows the test span, which matters only where training rows
come after it. The validation span is cut off the training rows in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foxhunt_pipeline.datasets.manifest import PRODUCTION, Span
from foxhunt_pipeline.errors import DataError

Ints = NDArray[np.int64]

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Plan:
    """The sessions of a window."""

    name: str
    train: tuple[str, ...]
    test: tuple[str, ...]


@dataclass(frozen=True)
class Timeline:
    """The times of a stream's rows, both (n,) and ascending."""

    stream: str
    ts: Ints
    known: Ints
    """When all labels of this row and the rows before it are known: a running maximum, so that
    what is dropped is always the end of a stream."""

    @classmethod
    def of(cls, stream: str, ts: Ints, end_ts: Ints) -> Timeline:
        """From row times (n,) and label ends (n, horizon), -1 where there is no label."""
        known = np.maximum(ts, end_ts.max(axis=1, initial=-1))
        return cls(stream, ts, np.maximum.accumulate(known))


@dataclass(frozen=True)
class Cut:
    """Spans of rows by purpose, and how many rows were dropped between them."""

    train: tuple[Span, ...]
    validation: tuple[Span, ...]
    test: tuple[Span, ...]
    purged: int
    embargoed: int


def plan_windows(
    sessions: Sequence[str], *, train: int, test: int, step: int, expanding: bool
) -> list[Plan]:
    """Windows over sessions in date order, anchored at the first, and production.

    Window i trains on ``train`` sessions from session ``i * step`` on (on all since the first if
    ``expanding``) and is tested on the next ``test``; it exists once these are complete.
    Production trains on the last ``train`` sessions, or on all.

    Raises :class:`~foxhunt_pipeline.errors.DataError` if not one window is complete.
    """
    if len(sessions) < train + test:
        raise DataError(
            f"Walk forward needs {train + test} sessions ({train} to train on, {test} to be "
            f"tested on) and there are {len(sessions)}: {', '.join(sessions) or 'none'}.",
            remedy="Deliver more sessions, or lower walk_forward.train_sessions or "
            "walk_forward.test_sessions.",
        )
    plans = []
    for number, start in enumerate(range(0, len(sessions) - train - test + 1, step)):
        middle = start + train
        plans.append(
            Plan(
                name=f"w{number:03d}",
                train=tuple(sessions[0 if expanding else start : middle]),
                test=tuple(sessions[middle : middle + test]),
            )
        )
    newest = tuple(sessions if expanding else sessions[-train:])
    return [*plans, Plan(PRODUCTION, newest, ())]


def cut(
    train: Sequence[Timeline],
    test: Sequence[Timeline],
    *,
    embargo_ns: int,
    validation_share: float,
) -> Cut:
    """Cut a window's streams into spans; ``test`` is empty for production.

    The test span begins at its first row of any stream, the validation span where the last
    ``validation_share`` of the rows left to train on begins.
    """
    test_start = min((int(t.ts[0]) for t in test if len(t.ts)), default=_NEVER)
    ends, purged, embargoed = _before(train, [len(t.ts) for t in train], test_start, embargo_ns)
    kept = [t.ts[:end] for t, end in zip(train, ends, strict=True)]
    times = np.concatenate([np.empty(0, np.int64), *kept])
    validated = round(len(times) * validation_share)
    first = len(times) - validated
    validation_start = int(np.partition(times, first)[first]) if validated else _NEVER
    starts = [int(np.searchsorted(ts, validation_start)) for ts in kept]
    stops, more_purged, more_embargoed = _before(train, starts, validation_start, embargo_ns)
    return Cut(
        train=_spans(train, [0] * len(train), stops),
        validation=_spans(train, starts, ends),
        test=_spans(test, [0] * len(test), [len(t.ts) for t in test]),
        purged=purged + more_purged,
        embargoed=embargoed + more_embargoed,
    )


def _before(
    timelines: Sequence[Timeline], rows: Sequence[int], start_ns: int, embargo_ns: int
) -> tuple[list[int], int, int]:
    """Of the first ``rows`` of each stream: how many to keep before a span that starts at
    ``start_ns``, and how many are purged and embargoed in all."""
    stops, purged, embargoed = [], 0, 0
    for timeline, n in zip(timelines, rows, strict=True):
        known = timeline.known[:n]
        clear = int(np.searchsorted(known, start_ns, side="left"))
        stop = min(clear, int(np.searchsorted(known, start_ns - embargo_ns, side="right")))
        stops.append(stop)
        purged += n - clear
        embargoed += clear - stop
    return stops, purged, embargoed


def _spans(
    timelines: Sequence[Timeline], starts: Sequence[int], stops: Sequence[int]
) -> tuple[Span, ...]:
    return tuple(
        Span(timeline.stream, start, stop)
        for timeline, start, stop in zip(timelines, starts, stops, strict=True)
        if stop > start
    )
