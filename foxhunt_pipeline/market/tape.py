"""An instrument's events as arrays, ordered by the time at which each was known.

Prices are int64 of 1e-9 and ``UNDEFINED`` where there is none. A price at or below zero (a
calendar spread, oil in April 2020) has no logarithm and counts as undefined. The order is that of
``ts_recv``: a clock set wrong at the exchange or the recorder cannot move an event across it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

UNDEFINED = -1

F_LAST = 1 << 7
F_SNAPSHOT = 1 << 5
F_MAYBE_BAD_BOOK = 1 << 2
TRADE, CLEAR = ord("T"), ord("R")


@dataclass(frozen=True)
class Prints:
    """Trades, or bars of trades, in ascending ``last``. All arrays (m,)."""

    first: Ints
    """Time of the first trade, ns; for a bar, the earliest that it can have been."""
    last: Ints
    """Time from which the print is known in full, less 1 ns for a bar (it ends before)."""
    open: Ints
    high: Ints
    low: Ints
    close: Ints
    volume: Ints
    buy_volume: Ints
    """Volume of trades whose aggressor bought; 0 where the feed does not say."""
    sell_volume: Ints
    value: Floats
    """Price in currency x volume; for a bar, with its typical price (high + low + close) / 3."""

    @classmethod
    def of_trades(cls, table: pl.DataFrame) -> Prints:
        """Prints of the trades in a ``trades``, ``tbbo`` or ``mbp-*`` table."""
        if "action" in table.columns:
            table = table.filter(pl.col("action") == TRADE)
        side = "aggressor_side" if "aggressor_side" in table.columns else "side"
        table = table.filter((pl.col("price") > 0) & (pl.col("size") > 0))
        table = table.sort("ts_recv", maintain_order=True)
        ts, price, size = (_ints(table, name) for name in ("ts_recv", "price", "size"))
        aggressor = _ints(table, side)
        return cls(
            first=ts,
            last=ts,
            open=price,
            high=price,
            low=price,
            close=price,
            volume=size,
            buy_volume=np.where(aggressor > 0, size, 0),
            sell_volume=np.where(aggressor < 0, size, 0),
            value=np.multiply(price * 1e-9, size, dtype=np.float64),
        )

    @classmethod
    def of_bars(cls, table: pl.DataFrame) -> Prints:
        """Prints of an ``ohlcv-*`` table: each bar is one print, known at its close."""
        prices = ("open", "high", "low", "close")
        table = table.filter(pl.all_horizontal(pl.col(name) > 0 for name in prices))
        table = table.sort("ts_close", maintain_order=True)
        open_, high, low, close = (_ints(table, name) for name in prices)
        volume = _ints(table, "volume")
        nothing = np.zeros_like(volume)
        return cls(
            first=_ints(table, "ts_event") + 1,
            last=_ints(table, "ts_close") - 1,
            open=open_,
            high=high,
            low=low,
            close=close,
            volume=volume,
            buy_volume=nothing,
            sell_volume=nothing,
            value=(high * 1e-9 + low * 1e-9 + close * 1e-9) / 3 * volume,
        )


@dataclass(frozen=True)
class Quotes:
    """States of the book at the ends of events (F_LAST), in ascending ``ts``.

    Prices and sizes are (m, level), best first; a level that is not there has price ``UNDEFINED``
    and size 0.
    """

    ts: Ints
    bid_px: Ints
    ask_px: Ints
    bid_sz: Ints
    ask_sz: Ints
    sound: NDArray[np.bool_]
    """(m,): bid below ask, both there, and no gap in the feed since the last snapshot or clear."""

    @classmethod
    def of_book(cls, table: pl.DataFrame, levels: int, *, every_record: bool = False) -> Quotes:
        """States of a ``mbp-10``, ``mbp-1`` or ``tbbo`` table, at most ``levels`` deep.

        Inside an event the book may be crossed on its way; only its end is a state. A feed that
        marks no ends at all is taken record by record, and so is one with ``every_record``: in
        ``tbbo`` each record holds the quote before a trade, which seldom ends an event.
        """
        table = table.sort("ts_recv", maintain_order=True)
        flags = _ints(table, "flags")
        bad = _ints_seen((flags & F_MAYBE_BAD_BOOK) != 0)
        mended = _ints_seen((_ints(table, "action") == CLEAR) | ((flags & F_SNAPSHOT) != 0))
        ends = (flags & F_LAST) != 0
        if every_record or not ends.any():
            ends = np.ones_like(ends)
        at = np.flatnonzero(ends)
        depth = min(levels, sum(name.startswith("bid_px_") for name in table.columns))

        def level_columns(name: str, absent: int) -> Ints:
            columns = [_ints(table, f"{name}_{i:02d}", absent)[at] for i in range(depth)]
            return np.stack(columns, axis=1)

        bid_px, ask_px = (level_columns(f"{s}_px", UNDEFINED) for s in ("bid", "ask"))
        bid_px, ask_px = (np.where(px > 0, px, UNDEFINED) for px in (bid_px, ask_px))
        bid, ask = bid_px[:, 0], ask_px[:, 0]
        return cls(
            ts=_ints(table, "ts_recv")[at],
            bid_px=bid_px,
            ask_px=ask_px,
            bid_sz=np.where(bid_px > 0, level_columns("bid_sz", 0), 0),
            ask_sz=np.where(ask_px > 0, level_columns("ask_sz", 0), 0),
            sound=(bid > 0) & (ask > bid) & ((bad < 0) | (mended > bad))[at],
        )

    def order_flow(self) -> Ints:
        """(m,): order flow of each event at the best prices, in lots.

        Cont, Kukanov and Stoikov (2014), equation 4: what was added to the best bid or taken from
        the best ask counts up, the contrary down. Where a side is missing before or after an
        event nothing can be said and the flow is 0.
        """
        flow = np.zeros(len(self.ts), np.int64)
        bid, ask = self.bid_px[:, 0], self.ask_px[:, 0]
        bid_sz, ask_sz = self.bid_sz[:, 0], self.ask_sz[:, 0]
        there = (bid > 0) & (ask > 0)
        flow[1:] = (
            np.where(bid[1:] >= bid[:-1], bid_sz[1:], 0)
            - np.where(bid[1:] <= bid[:-1], bid_sz[:-1], 0)
            - np.where(ask[1:] <= ask[:-1], ask_sz[1:], 0)
            + np.where(ask[1:] >= ask[:-1], ask_sz[:-1], 0)
        ) * (there[1:] & there[:-1])
        return flow


def _ints(table: pl.DataFrame, name: str, absent: int = UNDEFINED) -> Ints:
    """A column as int64, time stamps in ns, null as ``absent``."""
    column = table.get_column(name)
    return column.to_physical().cast(pl.Int64).fill_null(absent).to_numpy()


def _ints_seen(mark: NDArray[Any]) -> Ints:
    """(m,): index of the latest marked record so far, -1 before the first."""
    return np.maximum.accumulate(np.where(mark, np.arange(len(mark)), -1))
