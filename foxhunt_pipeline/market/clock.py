"""The rows of a view: a regular grid of times, and what is known at each.

A row stands at time ``t``, the end of its step. Of ``bars`` it knows the trades in ``[t - step,
t)``, which is the interval of an OHLCV bar and is complete at ``t``; of the ``book`` the state
left by the last event with ``ts_recv <= t`` and the events in ``(t - step, t]``. Rows lie inside
trading hours, from the instrument's first record of the session to its last.

:class:`Bars` and :class:`Book` hold nothing later than their rows, so that no feature made of
them can. What a decision at a row leads to is kept apart, in :func:`bars_prices` and
:func:`book_prices`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foxhunt_pipeline.market.tape import UNDEFINED, Ints, Prints, Quotes

Floats = NDArray[np.float64]

_SECOND = 10**9
QUOTES = ("mbp-10", "mbp-1", "tbbo")
"""Schemas that hold a book, deepest first."""
TRADES = ("trades", "tbbo")
OHLCV = {"ohlcv-1s": _SECOND, "ohlcv-1m": 60 * _SECOND, "ohlcv-1h": 3600 * _SECOND}
"""Schemas of bars and their interval in ns, finest first."""


@dataclass(frozen=True)
class Sources:
    """The schemas that the rows of a view are made of."""

    prints: str
    quotes: str | None

    @property
    def schemas(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(s for s in (self.prints, self.quotes) if s is not None))


@dataclass(frozen=True)
class Hours:
    """Trading hours of a session, ns."""

    open_ns: int
    close_ns: int


@dataclass(frozen=True)
class Bars:
    """Bars on the grid. Arrays (n,); prices int64 of 1e-9, ``UNDEFINED`` where none.

    A step without trades has volume 0 and the last price known for all four prices.
    """

    ts: Ints
    hours: Hours
    open: Ints
    high: Ints
    low: Ints
    close: Ints
    volume: Ints
    buy_volume: Ints
    sell_volume: Ints
    value: Floats
    """Traded value in currency."""
    bid: Ints
    """Best bid and ask at the row; ``UNDEFINED`` without quotes or where the book is unsound."""
    ask: Ints


@dataclass(frozen=True)
class Book:
    """States of the book on the grid. Prices and sizes (n, level), the rest (n,).

    Where the book is unsound (crossed, locked, one-sided, or after a gap in the feed) every price
    is ``UNDEFINED`` and every size 0.
    """

    ts: Ints
    hours: Hours
    step_ns: int
    bid_px: Ints
    ask_px: Ints
    bid_sz: Ints
    ask_sz: Ints
    order_flow: Ints
    """Sum of :meth:`~foxhunt_pipeline.market.tape.Quotes.order_flow` over the step, in lots."""
    events: Ints
    """Events of the book in the step."""
    buy_volume: Ints
    sell_volume: Ints

    @property
    def n_levels(self) -> int:
        return int(self.bid_px.shape[1])

    @property
    def sound(self) -> NDArray[np.bool_]:
        """(n,): both best prices are defined."""
        return np.asarray(self.bid_px[:, 0] > 0)

    @property
    def mid(self) -> Floats:
        """(n,): mid price in 1e-9, NaN where the book is unsound."""
        return np.where(self.sound, (self.bid_px[:, 0] + self.ask_px[:, 0]) / 2, np.nan)


def sources(view: str, schemas: Collection[str], step_ns: int) -> Sources | None:
    """Where the rows of a view come from, of the schemas there are; None if they do not suffice.

    ``bars``: trades, else the finest bars whose interval divides the step, else the trades in the
    feed of the book; and quotes if any. ``book``: quotes, and trades, else those in the same feed.
    """
    quotes = next((schema for schema in QUOTES if schema in schemas), None)
    ohlcv = [name for name, ns in OHLCV.items() if step_ns % ns == 0] if view == "bars" else []
    prints = next((schema for schema in (*TRADES, *ohlcv) if schema in schemas), quotes)
    if prints is None or (view == "book" and quotes is None):
        return None
    return Sources(prints, quotes)


def grid(hours: Hours, step_ns: int, first: int, last: int) -> Ints:
    """Ascending row times ``open + k step``, k >= 1, up to the close, from the first record on
    until the step that holds the last one."""
    start = max(1, -(-(first - hours.open_ns) // step_ns))
    stop = min(hours.close_ns - hours.open_ns, last - hours.open_ns + step_ns) // step_ns
    return hours.open_ns + step_ns * np.arange(start, max(start, stop + 1), dtype=np.int64)


def bars(prints: Prints, quotes: Quotes | None, hours: Hours, step_ns: int) -> Bars:
    """Bars of an instrument's session."""
    if not len(prints.last):
        ts = np.empty(0, np.int64)
    else:
        ts = grid(hours, step_ns, int(prints.first[0]), int(prints.last[-1]))
    start, stop = (np.searchsorted(prints.last, t, side="left") for t in (ts - step_ns, ts))
    traded = stop > start
    before = _taken(prints.close, stop - 1)

    def reduced(ufunc: np.ufunc, values: Ints) -> Ints:
        out = before.copy()
        if traded.any():
            out[traded] = ufunc.reduceat(values[: stop[-1]], start[traded])
        return out

    def total(values: NDArray[np.int64]) -> Ints:
        return _sums(values, start, stop)

    bid = ask = np.full(len(ts), UNDEFINED, np.int64)
    if quotes is not None:
        bid, ask = _touch(quotes, np.searchsorted(quotes.ts, ts, side="right") - 1)
    return Bars(
        ts=ts,
        hours=hours,
        open=np.where(traded, _taken(prints.open, np.where(traded, start, -1)), before),
        high=reduced(np.maximum, prints.high),
        low=reduced(np.minimum, prints.low),
        close=before,
        volume=total(prints.volume),
        buy_volume=total(prints.buy_volume),
        sell_volume=total(prints.sell_volume),
        value=_reduced_sums(prints.value, start, stop),
        bid=bid,
        ask=ask,
    )


def book(quotes: Quotes, prints: Prints, hours: Hours, step_ns: int) -> Book:
    """States of the book through an instrument's session."""
    if not len(quotes.ts):
        ts = np.empty(0, np.int64)
    else:
        ts = grid(hours, step_ns, int(quotes.ts[0]), int(quotes.ts[-1]))
    start, stop = (np.searchsorted(quotes.ts, t, side="right") for t in (ts - step_ns, ts))
    at = stop - 1
    sound = _sound(quotes, at)[:, None]
    edges = [np.searchsorted(prints.last, t, side="right") for t in (ts - step_ns, ts)]
    buys, sells = (_sums(v, *edges) for v in (prints.buy_volume, prints.sell_volume))
    return Book(
        ts=ts,
        hours=hours,
        step_ns=step_ns,
        bid_px=np.where(sound, _taken(quotes.bid_px, at), UNDEFINED),
        ask_px=np.where(sound, _taken(quotes.ask_px, at), UNDEFINED),
        bid_sz=np.where(sound, _taken(quotes.bid_sz, at), 0),
        ask_sz=np.where(sound, _taken(quotes.ask_sz, at), 0),
        order_flow=_sums(quotes.order_flow(), start, stop),
        events=(stop - start).astype(np.int64),
        buy_volume=buys,
        sell_volume=sells,
    )


def bars_prices(rows: Bars, prints: Prints, quotes: Quotes | None, step_ns: int) -> Ints:
    """(n, 6) of 1e-9: bid, ask, buy fill, sell fill, mark, next mark; ``UNDEFINED`` where none.

    An order decided at t is filled within the next step, at the first state of the book after t
    (the standing one if nothing happens), without quotes at the first trade after t. The mark
    is the mid, without quotes the last price.
    """
    if quotes is None:
        bid = ask = mark = rows.close
        at = np.searchsorted(prints.first, rows.ts, side="right")
        inside = np.append(prints.first, np.iinfo(np.int64).max)[at] <= rows.ts + step_ns
        buy = sell = _taken(prints.open, np.where(inside, at, -1))
    else:
        bid, ask = rows.bid, rows.ask
        mark = _mids(bid, ask)
        after = np.searchsorted(quotes.ts, rows.ts, side="right")
        inside = np.append(quotes.ts, np.iinfo(np.int64).max)[after] <= rows.ts + step_ns
        sell, buy = _touch(quotes, np.where(inside, after, after - 1))
    return _prices(bid, ask, buy, sell, mark)


def book_prices(rows: Book) -> Ints:
    """(n, 6) as :func:`bars_prices`: an order decided at a row is filled at the next row's ask or
    bid, one step later."""
    bid, ask = rows.bid_px[:, 0], rows.ask_px[:, 0]
    return _prices(bid, ask, _next(ask), _next(bid), _mids(bid, ask))


def _prices(bid: Ints, ask: Ints, buy: Ints, sell: Ints, mark: Ints) -> Ints:
    """What follows the last row lies outside the session's rows, and so do its fills."""
    px = np.stack([bid, ask, buy, sell, mark, _next(mark)], axis=1)
    px[-1:, 2:4] = UNDEFINED
    return px


def _next(values: Ints) -> Ints:
    return np.append(values[1:], np.full(min(len(values), 1), UNDEFINED, np.int64))


def _mids(bid: Ints, ask: Ints) -> Ints:
    return np.where((bid > 0) & (ask > 0), (bid + ask) // 2, UNDEFINED)


def _touch(quotes: Quotes, at: NDArray[np.intp]) -> tuple[Ints, Ints]:
    """Best bid and ask of the states at these indices; ``UNDEFINED`` at -1 or where unsound."""
    sound = _sound(quotes, at)
    bid, ask = (_taken(px[:, 0], at) for px in (quotes.bid_px, quotes.ask_px))
    return np.where(sound, bid, UNDEFINED), np.where(sound, ask, UNDEFINED)


def _sound(quotes: Quotes, at: NDArray[np.intp]) -> NDArray[np.bool_]:
    return np.append(quotes.sound, False)[at]


def _taken(values: Ints, at: NDArray[np.intp]) -> Ints:
    """Values at indices >= -1, where -1 is ``UNDEFINED``."""
    none = np.full((1, *values.shape[1:]), UNDEFINED, np.int64)
    taken: Ints = np.concatenate([values, none])[at]
    return taken


def _sums(values: Ints, start: NDArray[np.intp], stop: NDArray[np.intp]) -> Ints:
    """Sum of ``values[start:stop]`` for each pair: exact, in integers."""
    cumulated: Ints = np.concatenate([np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)])
    return cumulated[stop] - cumulated[start]


def _reduced_sums(values: Floats, start: NDArray[np.intp], stop: NDArray[np.intp]) -> Floats:
    """As :func:`_sums` for floats, each summed by itself so that no sum carries another's
    rounding. The pairs are contiguous."""
    out = np.zeros(len(start))
    some = stop > start
    if some.any():
        out[some] = np.add.reduceat(values[: stop[-1]], start[some])
    return out
