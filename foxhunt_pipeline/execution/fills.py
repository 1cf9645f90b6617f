"""The one fill model: training, backtest and paper trading all book trades through it.

**Convention.** Exposure is counted in lots. A lot is what the capital buys at the *reference*,
the first mark of the segment, so that exposure 1 is long the whole capital, -1 short the whole
capital, and a held lot is a fixed number of shares: nothing is rebalanced behind the agent's
back, and cash plus position conserves exactly. P&L, gross and cost are fractions of that
capital (1e-4 is one basis point), additive over rows.

**Timing.** An order decided at row t is filled after t, at ``buy_fill``/``sell_fill`` of row t
(which the labels take from after t). What was held before row t earns the move of the mark
from row t to row t + 1; what is traded at row t earns from its fill to the mark at t + 1:

    P&L = held * (after - before) + traded * (after - fill) - fees and slippage

split into *gross*, with every fill at the middle of the two fill prices, and *cost*, which is
the distance of the fill from that middle, the half-spread where there are no quotes, slippage
and fees. A side whose price is -1 cannot be traded: the order stays unfilled, the position
unchanged. From the last row that can be traded both ways on, the target is forced to 0, so that
every segment (at most one session) ends flat.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from foxhunt_pipeline.datasets.reader import BUY_FILL, MARK, NEXT_MARK, SELL_FILL
from foxhunt_pipeline.execution.costs import Costs

Floats = NDArray[np.float64]
A = TypeVar("A", Floats, Tensor)


@dataclass(frozen=True)
class Rows(Generic[A]):
    """What holding and trading a lot is worth at each row, in fractions of capital.

    Every field has one shape, (row,) or (batch,).
    """

    move: A
    """Gain of a lot held through the row."""
    drift: A
    """Gain of a lot bought at the row, from the middle of the fill prices to the next mark."""
    buy_cost: A
    sell_cost: A
    """Cost of buying, of selling a lot: distance from the middle, slippage and fees."""
    buyable: A
    sellable: A
    """1 where there is somebody to buy from, to sell to; else 0."""
    open: A
    """1 where a position may be held; 0 from the row on where the segment must be flat."""


@dataclass(frozen=True)
class Fill(Generic[A]):
    """The outcome of a row. P&L is ``gross - cost``, a fraction of capital."""

    position: A
    """Exposure held after the row's order, in lots."""
    gross: A
    cost: A
    turnover: A
    """Lots traded, without sign."""

    @property
    def pnl(self) -> A:
        return self.gross - self.cost


def value(px: NDArray[np.int64], costs: Costs, has_quotes: bool) -> Rows[Floats]:
    """Value the rows of one segment: contiguous rows of one instrument in one session.

    px: (row, 6) int64 as in the labels: prices of 1e-9, -1 where there is none. A missing next
    mark counts as unchanged; until the first mark nothing can be valued, so nothing is traded.
    """
    n = len(px)
    marks = np.concatenate([px[:1, MARK], px[:, NEXT_MARK]])
    known = np.flatnonzero(marks > 0)
    if not len(known):
        return Rows(*np.zeros((len(fields(Rows)), n)))
    buy, sell = px[:, BUY_FILL], px[:, SELL_FILL]
    valued = np.arange(1, n + 1) >= known[0]
    buyable, sellable = valued & (buy > 0), valued & (sell > 0)
    both = buyable & sellable
    latest = known[np.maximum(np.searchsorted(known, np.arange(n + 1), side="right") - 1, 0)]
    marks = marks[latest]
    reference = float(marks[0])
    after = marks[1:]
    twice_middle = np.where(both, buy + sell, 2 * np.where(buyable, buy, sell))
    any_side = buyable | sellable
    rate = costs.rate(has_quotes)

    def lots(amount: NDArray[Any], where: NDArray[np.bool_]) -> Floats:
        return np.where(where, amount, 0) / reference

    last_two_sided = np.flatnonzero(both)[-1] if both.any() else 0
    return Rows(
        move=np.diff(marks) / reference,
        drift=lots(after - twice_middle / 2, any_side),
        buy_cost=lots(buy - twice_middle / 2 + buy * rate, buyable),
        sell_cost=lots(twice_middle / 2 - sell + sell * rate, sellable),
        buyable=buyable.astype(np.float64),
        sellable=sellable.astype(np.float64),
        open=(np.arange(n) < last_two_sided).astype(np.float64),
    )


def fill(rows: Rows[A], held: A, target: A) -> Fill[A]:
    """Fill orders that bring the exposure from ``held`` to ``target``, elementwise.

    The same arithmetic for numpy arrays and tensors of any device.
    """
    change = target * rows.open - held
    bought = change.clip(min=0) * rows.buyable
    sold = (-change).clip(min=0) * rows.sellable
    traded = bought - sold
    return Fill(
        position=held + traded,
        gross=held * rows.move + traded * rows.drift,
        cost=bought * rows.buy_cost + sold * rows.sell_cost,
        turnover=bought + sold,
    )


def backtest(rows: Rows[Floats], targets: Floats) -> Fill[Floats]:
    """Follow given targets through a segment from flat to flat. targets: (row,) in lots.

    A position after a row is the one before it, clamped: from below by the target where one can
    buy, from above where one can sell. Clamps compose to clamps, so the recursion over rows is
    a prefix scan in log2(rows) steps.
    """
    target = targets * rows.open
    low = np.where(rows.buyable > 0, target, -np.inf)
    high = np.where(rows.sellable > 0, target, np.inf)
    step = 1
    while step < len(target):
        earlier_low, earlier_high = low[:-step], high[:-step]
        later_low, later_high = low[step:].copy(), high[step:].copy()
        low[step:] = np.clip(earlier_low, later_low, later_high)
        high[step:] = np.clip(earlier_high, later_low, later_high)
        step *= 2
    position = np.clip(np.zeros_like(target), low, high)
    held = np.concatenate([np.zeros(1), position[:-1]])
    return fill(rows, held, targets)
