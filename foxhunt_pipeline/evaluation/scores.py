"""What a contestant did out of sample, row by row, and how rows are paired and summed up.

Every contestant (a model, a baseline, a champion) is judged on the same rows: one row of one
instrument in one session, known by its stream and time. Two contestants are compared on the rows
on which both decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foxhunt_pipeline.artifacts import digest_arrays
from foxhunt_pipeline.evaluation import metrics

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """Rows in the order of the streams, ascending in time within each; n rows, h horizons."""

    streams: tuple[str, ...]
    """Stream ids, ``{session}/{view}/{dataset}/{publisher}/{symbol}``."""
    stream: NDArray[np.int32]
    """(n,): place in ``streams``."""
    ts: NDArray[np.int64]
    """(n,): time of the decision, ns."""
    decided: NDArray[np.bool_]
    """(n,): the contestant had its look-back and decided."""
    actual: NDArray[np.float32]
    """(n, h): log returns, NaN without a label."""
    trend: NDArray[np.int8]
    """(n, h): trend class, -1 without a label."""
    forecast: NDArray[np.float32]
    """(n, h): expected log returns, NaN where there is none."""
    probabilities: NDArray[np.float32]
    """(n, h, 3) of down, flat, up; NaN where there are none."""
    loss: NDArray[np.float32]
    """(n,): the primary loss, NaN without a label or forecast."""
    position: NDArray[np.float32]
    """(n,): exposure after the row's order, in lots."""
    gross: NDArray[np.float32]
    cost: NDArray[np.float32]
    """(n,): P&L before costs, and costs, as fractions of capital."""
    turnover: NDArray[np.float32]
    """(n,): lots traded."""

    @property
    def digest(self) -> str:
        return digest_arrays(_arrays(self), list(self.streams))

    def save(self, path: Path) -> None:
        """Write a compressed ``.npz``; no pickle."""
        _save(path, "streams", self)

    @classmethod
    def load(cls, path: Path) -> Scores:
        with np.load(path, allow_pickle=False) as data:
            arrays = {f.name: data[f.name] for f in fields(cls) if f.name != "streams"}
            return cls(streams=tuple(data["streams"].tolist()), **arrays)

    def take(self, rows: NDArray[Any]) -> Scores:
        """The rows selected by a mask or by numbers."""
        return Scores(self.streams, **{name: a[rows] for name, a in _arrays(self).items()})

    def of_sessions(self, sessions: Sequence[str]) -> Scores:
        """The rows of these sessions."""
        chosen = np.array([session_of(s) in set(sessions) for s in self.streams], bool)
        return self.take(chosen[self.stream])

    @property
    def sessions(self) -> tuple[str, ...]:
        """Sessions that have rows, ascending."""
        return tuple(sorted({session_of(self.streams[i]) for i in np.unique(self.stream)}))


def _save(path: Path, names: str, table: Scores | Portfolio) -> None:
    columns: dict[str, Any] = vars(table)
    np.savez_compressed(path, **{**columns, names: np.array(columns[names], "U")})


def _arrays(scores: Scores) -> dict[str, NDArray[Any]]:
    return {name: array for name, array in vars(scores).items() if name != "streams"}


def session_of(stream: str) -> str:
    """Session of a stream id."""
    return stream.partition("/")[0]


def concatenate(parts: Sequence[Scores]) -> Scores:
    """Stitch windows together, in time order. Where two windows test the same stream, the later
    window's rows count: its model is the one that would have been in use."""
    owner = {stream: number for number, part in enumerate(parts) for stream in part.streams}
    streams = tuple(
        stream
        for number, part in enumerate(parts)
        for stream in part.streams
        if owner[stream] == number
    )
    place = {stream: number for number, stream in enumerate(streams)}
    kept = []
    for number, part in enumerate(parts):
        mine = np.array([owner[stream] == number for stream in part.streams], bool)
        rows = part.take(mine[part.stream])
        to = np.array([place[stream] for stream in part.streams], np.int32)
        kept.append({**_arrays(rows), "stream": to[rows.stream]})
    return Scores(
        streams, **{name: np.concatenate([k[name] for k in kept]) for name in _arrays(parts[0])}
    )


def pair(a: Scores, b: Scores) -> tuple[Scores, Scores]:
    """The rows, by stream and time, on which both decided; both results in the order of a."""
    a, b = a.take(a.decided), b.take(b.decided)
    rows_a, rows_b = _common(a.streams, a.stream, a.ts, b.streams, b.stream, b.ts)
    return a.take(rows_a), b.take(rows_b)


@dataclass(frozen=True)
class Portfolio:
    """A contestant's rows summed over instruments: one row a time, in time order.

    The capital of a session is shared equally by its instruments, and P&L, exposure and turnover
    are those of the whole; the loss is the mean over the instruments that have one.
    """

    sessions: tuple[str, ...]
    session: NDArray[np.int64]
    """(m,): place in ``sessions``, ascending."""
    ts: NDArray[np.int64]
    count: NDArray[np.int64]
    """(m,): instruments in the row."""
    loss: Floats
    """(m,): primary loss, NaN without a label or forecast."""
    gross: Floats
    cost: Floats
    exposure: Floats
    turnover: Floats

    @property
    def net(self) -> Floats:
        """P&L after costs, as a fraction of capital."""
        return self.gross - self.cost

    def save(self, path: Path) -> None:
        """Write a compressed ``.npz``; no pickle."""
        _save(path, "sessions", self)

    @classmethod
    def load(cls, path: Path) -> Portfolio:
        with np.load(path, allow_pickle=False) as data:
            arrays = {f.name: data[f.name] for f in fields(cls) if f.name != "sessions"}
            return cls(sessions=tuple(data["sessions"].tolist()), **arrays)


def portfolio(scores: Scores) -> Portfolio:
    """Sum up over instruments."""
    sessions = scores.sessions
    place = {session: number for number, session in enumerate(sessions)}
    session_number = np.array([place.get(session_of(s), -1) for s in scores.streams], np.int64)
    row_session = session_number[scores.stream]
    present = np.unique(scores.stream)
    instruments = np.bincount(session_number[present], minlength=len(sessions))

    order = np.lexsort((scores.ts, row_session))
    session, ts = row_session[order], scores.ts[order]
    first = np.flatnonzero(
        np.diff(session, prepend=-1).astype(bool) | np.diff(ts, prepend=ts[:1] - 1).astype(bool)
    )
    share = 1 / instruments[session[first]]

    def total(values: NDArray[Any]) -> Floats:
        return np.add.reduceat(values.astype(np.float64)[order], first) if len(first) else _NONE

    known = np.isfinite(scores.loss)
    labelled = total(known)
    losses = total(np.where(known, scores.loss, 0))
    return Portfolio(
        sessions=sessions,
        session=session[first],
        ts=ts[first],
        count=total(np.ones(len(scores.ts))).astype(np.int64),
        loss=np.where(labelled > 0, losses / np.maximum(labelled, 1), np.nan),
        gross=total(scores.gross) * share,
        cost=total(scores.cost) * share,
        exposure=total(np.abs(scores.position)) * share,
        turnover=total(scores.turnover) * share,
    )


_NONE: Floats = np.empty(0)


@dataclass(frozen=True)
class Paired:
    """Two portfolios row by row, by session and time, in order; ``a`` minus ``b``."""

    session: NDArray[np.str_]
    ts: NDArray[np.int64]
    loss: Floats
    """(m,): difference of losses, NaN where either has none."""
    net: Floats
    """(m,): difference of net P&L."""

    def without(self, sessions: Sequence[str]) -> Paired:
        """The rows of other sessions."""
        keep = ~np.isin(self.session, list(sessions))
        return Paired(**{name: array[keep] for name, array in vars(self).items()})


def difference(a: Portfolio, b: Portfolio) -> Paired:
    """Rows that both have, of as many instruments."""
    rows_a, rows_b = _common(a.sessions, a.session, a.ts, b.sessions, b.session, b.ts)
    alike = a.count[rows_a] == b.count[rows_b]
    rows_a, rows_b = rows_a[alike], rows_b[alike]
    return Paired(
        session=np.array(a.sessions, "U")[a.session[rows_a]],
        ts=a.ts[rows_a],
        loss=a.loss[rows_a] - b.loss[rows_b],
        net=a.net[rows_a] - b.net[rows_b],
    )


def join(parts: Sequence[Paired]) -> Paired:
    """Differences over disjoint sessions, in order of session."""
    whole = {name: np.concatenate([vars(p)[name] for p in parts]) for name in vars(parts[0])}
    order = np.lexsort((whole["ts"], whole["session"]))
    return Paired(**{name: array[order] for name, array in whole.items()})


def _common(
    names_a: Sequence[str],
    group_a: NDArray[Any],
    ts_a: NDArray[np.int64],
    names_b: Sequence[str],
    group_b: NDArray[Any],
    ts_b: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places of the rows that two tables share by name of group and time.

    Groups ascend, and times within a group; a group is known by its place in ``names``.
    """
    number_b = {name: number for number, name in enumerate(names_b)}
    places_a, places_b = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for number, name in enumerate(names_a):
        if name in number_b:
            start_a, stop_a = np.searchsorted(group_a, [number, number + 1])
            start_b, stop_b = np.searchsorted(group_b, [number_b[name], number_b[name] + 1])
            _, rows_a, rows_b = np.intersect1d(
                ts_a[start_a:stop_a], ts_b[start_b:stop_b], assume_unique=True, return_indices=True
            )
            places_a.append(rows_a + start_a)
            places_b.append(rows_b + start_b)
    return np.concatenate(places_a), np.concatenate(places_b)


def trading_figures(held: Portfolio, sessions_per_year: float) -> dict[str, Any]:
    """Trading metrics of a portfolio, as JSON. Turnover is in capital a session; exposure is the
    mean share of capital held; hit rate is over rows, before costs."""
    count = len(held.sessions)
    per_year = len(held.ts) / count * sessions_per_year if count else np.nan
    return metrics.plain(
        {
            "net_return_bps": metrics.net_return_bps(held.net),
            "gross_return_bps": metrics.net_return_bps(held.gross),
            "cost_bps": metrics.net_return_bps(held.cost),
            "sharpe": metrics.sharpe(held.net, per_year),
            "sortino": metrics.sortino(held.net, per_year),
            "max_drawdown_bps": metrics.max_drawdown_bps(held.net),
            "turnover": float(held.turnover.sum()) / count if count else np.nan,
            "exposure": float(held.exposure.mean()) if count else np.nan,
            "hit_rate": metrics.hit_rate(held.gross),
            "profit_factor": metrics.profit_factor(held.net),
        }
    )


def figures(scores: Scores, horizons: Sequence[int], sessions_per_year: float) -> dict[str, Any]:
    """Everything about a contestant's rows: counts, trading and, a horizon, forecast metrics."""
    scores = scores.take(scores.decided)
    held = portfolio(scores)
    known = np.isfinite(held.loss)
    result: dict[str, Any] = {
        "rows": len(scores.ts),
        "sessions": len(scores.sessions),
        "loss": float(held.loss[known].mean()) if known.any() else None,
        **trading_figures(held, sessions_per_year),
    }
    if np.isfinite(scores.forecast).any() or np.isfinite(scores.probabilities).any():
        result["horizons"] = {
            str(horizon): _horizon(scores, column) for column, horizon in enumerate(horizons)
        }
    return result


def _horizon(scores: Scores, column: int) -> dict[str, Any]:
    forecast = scores.forecast[:, column].astype(np.float64)
    found = metrics.return_figures(forecast, scores.actual[:, column].astype(np.float64))
    probabilities = scores.probabilities[:, column].astype(np.float64)
    given = np.isfinite(probabilities).all(axis=1)
    if given.any():
        actual = scores.trend[given, column].astype(np.int64)
        found |= metrics.class_figures(probabilities[given], actual)
    return found
