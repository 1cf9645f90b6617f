"""From forecasts to positions: one rule, the same for all.

A forecast trades its longest horizon, whose expected move is the likeliest to pay for a round
trip: take the side of the forecast once it exceeds the cost of going in and out again, and keep
it while the forecast stays on that side, since the way out costs the same whenever it is taken.
The cost is the one that can be known at the decision: the spread then quoted, slippage and fees
twice. It is the no-trade region of proportional costs (Davis and Norman 1990) for a position of
one lot.

Policies act directly (:mod:`foxhunt_pipeline.execution.rollout`). Either way a decision at row t
is filled after t, and every session ends flat (:mod:`foxhunt_pipeline.execution.fills`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foxhunt_pipeline.datasets.reader import ASK, BID, MARK
from foxhunt_pipeline.execution.costs import Costs

Floats = NDArray[np.float64]


def round_trip(px: NDArray[np.int64], costs: Costs, has_quotes: bool) -> Floats:
    """(row,): cost of buying and selling again, as a fraction of value, as known at the row;
    infinite where nothing is quoted. px: (row, 6) as in the labels."""
    beyond = 2 * costs.rate(has_quotes)
    if not has_quotes:
        return np.where(px[:, MARK] > 0, beyond, np.inf)
    bid, ask = px[:, BID].astype(np.float64), px[:, ASK].astype(np.float64)
    quoted = (bid > 0) & (ask > 0)
    middle = np.where(quoted, (bid + ask) / 2, 1.0)
    return np.where(quoted, np.maximum(ask - bid, 0.0) / middle + beyond, np.inf)


def targets_of(forecast: NDArray[np.floating], cost: Floats) -> Floats:
    """(row,) in {-1, 0, 1}: the rule above, over the consecutive rows of one session.

    forecast: (row,) expected log return; cost: (row,) of :func:`round_trip`.
    """
    return _latch(forecast, cost) - _latch(-forecast, cost)


def _latch(forecast: NDArray[np.floating], cost: Floats) -> Floats:
    """1 from where the forecast exceeds the cost until it is no longer positive."""
    enter, keep = forecast > cost, forecast > 0
    event = np.maximum.accumulate(np.where(enter | ~keep, np.arange(len(forecast)), -1))
    return np.where(event >= 0, enter[event], False).astype(np.float64)
