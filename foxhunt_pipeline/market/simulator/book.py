"""The limit order book, event by event.

The book has a level at every tick. Each event does one of three things:

1. *The touch moves*, at a rate that depends on the spread and the volatility regime alone. It
   widens (the queue on one side is swept by market orders, or cancelled) or narrows (a limit
   order improves on one side). A coin says on which side, and so whether the mid goes up or down.
2. A market order takes a part of the queue at the touch.
3. A limit order is added or cancelled at one of ten levels, so that depth reverts to a target
   that grows away from the touch and leans with a hidden pressure.

Nothing but the coin gives the mid a direction, and when and how far the mid moves is drawn
without regard to side. So with a fair coin the mid is a martingale given all that can be seen,
whatever the pressure does to depth and trade signs; a coin loaded with the pressure makes both
foretell the mid.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

LEVELS = 10
BID, ASK = 0, 1
ADD, CANCEL, TRADE = 65, 67, 84
"""DBN's actions A, C and T."""
UNIFORMS = 4
"""Uniform draws that an event takes."""

EVENT, ACTION, SIDE, TICK, SIZE, LEVEL, LAST, BEST, BOOK = 0, 1, 2, 3, 4, 5, 6, 7, 9
"""First columns of the rows of :func:`run_book`."""
COLUMNS = BOOK + 4 * LEVELS

LETTER = np.array([66, 65])
"""DBN's letter of a resting side: B for the bid, A for the ask. A taker has the other's."""
_AWAY = np.array([-1, 1])
_MAX_SPREAD = 3
"""Ticks from which on the spread only narrows."""
_WIDENS_AGAIN = 0.1
"""Share of moves of the touch that widen a spread of more than one tick."""
_SWEPT_BY_TRADES = 0.6
"""Share of widenings that begin with a trade; the others are cancellations alone."""
_LEVEL_DECAY = 0.7
"""Limit orders at a level, of those at the level before it."""
_STIFFNESS = 3
"""How sharply limit orders bring a level back to its target."""


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile with numba, keeping the machine code on disk where there is a place for it."""
    try:
        compiled: Callable[..., Any] = numba.njit(cache=True)(function)
    except RuntimeError:  # numba found no folder that it may write to
        compiled = numba.njit(function)
    return compiled


@_compiled
def _put(
    row: NDArray[np.int64],
    event: int,
    action: int,
    letter: int,
    tick: int,
    size: int,
    level: int,
    last: bool,
    best: NDArray[np.int64],
    depth: NDArray[np.int64],
    orders: NDArray[np.int64],
) -> None:
    row[EVENT] = event
    row[ACTION] = action
    row[SIDE] = letter
    row[TICK] = tick
    row[SIZE] = size
    row[LEVEL] = level
    row[LAST] = last
    for side in range(2):
        row[BEST + side] = best[side]
        for k in range(LEVELS):
            where = best[side] + k * _AWAY[side]
            row[BOOK + side * LEVELS + k] = depth[side, where]
            row[BOOK + (2 + side) * LEVELS + k] = orders[side, where]


@_compiled
def _wanted(
    target: NDArray[np.float64],
    reach: NDArray[np.float64],
    level: int,
    side: int,
    pressure: float,
) -> float:
    """Shares that a level reverts to: a rising price has deep bids and thin offers."""
    wanted: float = target[level] * math.exp(-_AWAY[side] * reach[level] * pressure)
    return wanted


@_compiled
def run_book(
    depth: NDArray[np.int64],
    orders: NDArray[np.int64],
    best_bid: int,
    draws: NDArray[np.float64],
    order_size: NDArray[np.int64],
    sweep: NDArray[np.int64],
    kept: NDArray[np.float64],
    shock: NDArray[np.float64],
    stress: NDArray[np.float64],
    target: NDArray[np.float64],
    reach: NDArray[np.float64],
    drift: float,
    flow: float,
    memory: float,
    widen_rate: float,
    narrow_rate: float,
    trade_rate: float,
) -> NDArray[np.int64]:
    """Run the book through its events and return one row a record.

    Args:
        depth: (2, tick) shares at every tick of the bid (0) and ask (1) side; changed in place.
        orders: (2, tick) number of orders there; changed in place.
        best_bid: tick of the best bid; the best ask starts one above it.
        draws: (event, UNIFORMS) uniforms on [0, 1).
        order_size: (event,) shares of the order that the event may bring.
        sweep: (event,) levels that a sweep takes.
        kept: (event,) share of the pressure kept since the event before.
        shock: (event,) what is added to it.
        stress: (event,) volatility regime, about 1.
        target: (LEVELS,) shares that a level reverts to.
        reach: (LEVELS,) lean of the target, log, per unit of pressure.
        drift: how far full pressure loads the coin; 0 is a fair coin.
        flow: how far full pressure loads the sign of market orders.
        memory: chance that a market order repeats the sign of the last one.
        widen_rate, narrow_rate: chance that an event moves a touch of one tick, or of more.
        trade_rate: chance that an event is another market order.

    Returns:
        (record, COLUMNS): index of the event, action, side, tick, size, level, whether the
        record ends its event; then, after the record, best bid and ask, and of LEVELS levels
        each bid depth, ask depth, bid orders and ask orders.
    """
    rows = np.empty((3 * sweep.sum(), COLUMNS), np.int64)
    count = 0
    best = np.array([best_bid, best_bid + 1])
    pressure = 0.0
    taken_side = BID

    for i in range(len(order_size)):
        kind, coin, choice, chance = draws[i]
        pressure = kept[i] * pressure + shock[i]
        lean = math.tanh(pressure)
        spread = best[ASK] - best[BID]
        moves = min(0.9, widen_rate * stress[i]) if spread == 1 else narrow_rate
        order = order_size[i]
        adds, trades, clears, level, steps = False, False, False, 0, 1

        if kind < moves:
            up = coin < 0.5 * (1.0 + drift * lean)
            clears = spread == 1 or (spread < _MAX_SPREAD and choice < _WIDENS_AGAIN)
            side = ASK if up == clears else BID
            if clears:
                trades = chance < _SWEPT_BY_TRADES
                steps = sweep[i] if trades else 1
            else:
                adds, level = True, -1
                order += 100 * int(chance * _wanted(target, reach, 0, side, pressure) / 100)
        elif kind < moves + trade_rate:
            trades = True
            side = taken_side
            if choice >= memory:
                side = ASK if coin < 0.5 * (1.0 + flow * lean) else BID
        else:
            side = BID if coin < 0.5 else ASK
            level = min(int(math.log(1.0 - choice) / math.log(_LEVEL_DECAY)), LEVELS - 1)
            wanted = _wanted(target, reach, level, side, pressure) ** _STIFFNESS
            present = depth[side, best[side] + level * _AWAY[side]] ** _STIFFNESS
            adds = chance * (wanted + present) < wanted

        letter, taker = LETTER[side], LETTER[1 - side]
        for step in range(steps):
            where = best[side] + level * _AWAY[side]
            here = depth[side, where]
            if here == 1 and not clears:  # nothing to take without emptying the level
                adds, trades = True, False
            if adds:
                depth[side, where] += order
                orders[side, where] += 1
                if level < 0:
                    best[side], level = where, 0
                _put(rows[count], i, ADD, letter, where, order, level, True, best, depth, orders)
                count += 1
                continue
            size = here if clears and not trades else min(order, here if clears else here - 1)
            if trades:
                taken_side = side
                _put(rows[count], i, TRADE, taker, where, size, 0, False, best, depth, orders)
                count += 1
            while size > 0:  # what was taken; then, where the level clears, what is pulled
                left = here - size
                queue = orders[side, where]
                remaining = queue * left // here if trades else queue - 1
                depth[side, where] = left
                orders[side, where] = min(max(remaining, 1), left)
                if left == 0:
                    best[side] += _AWAY[side]
                last = step == steps - 1 and (left == 0 or not clears)
                _put(rows[count], i, CANCEL, letter, where, size, level, last, best, depth, orders)
                count += 1
                here, size = left, left if clears else 0

    return rows[:count]
