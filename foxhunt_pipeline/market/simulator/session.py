"""One instrument through one session: latent paths, arrivals, the book, and its records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foxhunt_pipeline.market.simulator import book
from foxhunt_pipeline.market.simulator.instruments import ROUND_LOT, TICK, Instrument
from foxhunt_pipeline.market.writing import empty_records

UNDEF_PRICE = np.iinfo(np.int64).max
F_LAST, F_SNAPSHOT = 128, 32

_SECOND = 10**9
_MINUTE = 60 * _SECOND
_FULL_SESSION = 23_400
_RECORDS_PER_EVENT = 1.17
_LATENCY_MIN, _LATENCY_MEAN, _LATENCY_MAX = 25_000, 33_000, 80_000
_MARGIN = 200_000
"""ns before the end of a minute without events, so that ts_event and ts_recv fall into the same
minute and bars do not depend on which of the two they are built from."""

_LEVELS = np.arange(book.LEVELS)
_LEVEL = [
    ("bid_px", "i8"),
    ("ask_px", "i8"),
    ("bid_sz", "u4"),
    ("ask_sz", "u4"),
    ("bid_ct", "u4"),
    ("ask_ct", "u4"),
]
_LADDER = np.dtype([("header", "V48"), ("level", _LEVEL, (book.LEVELS,))])
"""An mbp-10 record with its levels as an array."""


@dataclass(frozen=True)
class Dynamics:
    """The laws of the simulated market. Times in seconds; rates and loads are probabilities."""

    pressure_half_life: float = 300.0
    drift: float = 0.25
    """Load of the mid's coin at full pressure. 0 makes the mid a martingale."""
    tilt: float = 0.6
    """Lean of the target depth at the touch, log, per standard deviation of pressure."""
    tilt_decay: float = 0.92
    """What is left of the lean one level further away."""
    depth_growth: float = 0.15
    """Growth of the target depth a level, relative to the touch."""
    flow: float = 0.8
    """Load of the sign of market orders at full pressure."""
    memory: float = 0.3
    """Chance that a market order repeats the sign of the last one."""
    widen_rate: float = 0.08
    """Chance that an event widens a spread of one tick, in the normal regime."""
    narrow_rate: float = 0.25
    """Chance that an event moves the touch where the spread is wider."""
    trade_rate: float = 0.10
    """Chance that an event is a market order that leaves the touch where it is."""
    sweep: tuple[float, ...] = (0.95, 0.04, 0.01)
    """Chances that a sweep takes one, two, … levels."""
    branching: float = 0.55
    """Events that an event excites, on average."""
    excitement: float = 0.25
    """Mean time until an excited event."""
    regimes: tuple[float, float, float] = (0.65, 1.0, 1.7)
    """Event rate of the calm, the normal and the stressed regime."""
    regime_dwell: float = 1800.0
    """Mean time that a regime lasts."""


@dataclass(frozen=True)
class Session:
    """Records of one instrument in one session, each schema in order of time."""

    mbp10: NDArray[np.void]
    trades: NDArray[np.void]
    bars: NDArray[np.void]
    close: int
    """Tick of the last best bid."""


def overnight(rng: np.random.Generator, close: int, events_per_session: int) -> int:
    """Tick of the best bid at the next open: the last one moved by a gap of mean zero, and kept
    several standard deviations of a session above zero."""
    gap = round(rng.normal(0.0, 0.004 * close))
    return max(close + gap, 500, int(3 * events_per_session**0.5))


def simulate_session(
    rng: np.random.Generator,
    instrument: Instrument,
    best_bid: int,
    open_ns: int,
    close_ns: int,
    events_per_session: int,
    dynamics: Dynamics,
) -> Session:
    """Simulate the regular hours ``[open_ns, close_ns)``, in ns since the epoch, from a best bid
    in ticks. ``events_per_session`` is the mean number of mbp-10 records of 6.5 hours."""
    seconds = (close_ns - open_ns) // _SECOND
    through = (np.arange(seconds) + 0.5) / seconds
    smile = 1.0 + 1.6 * np.exp(-through / 0.08) + 0.9 * np.exp((through - 1.0) / 0.06)
    stress = _regimes(rng, dynamics, seconds)
    rate = instrument.activity * events_per_session / _FULL_SESSION / _RECORDS_PER_EVENT
    times = _arrivals(rng, rate * smile / smile.mean() * stress, dynamics)
    count = len(times)

    sweep = rng.choice(len(dynamics.sweep), count, p=dynamics.sweep) + 1
    reach = int(sweep.sum()) + book.LEVELS + 1  # the touch can go no further than that
    target = instrument.depth * (1.0 + dynamics.depth_growth * _LEVELS)
    depth = _opening_depth(rng, target, reach)
    orders = -(-depth // (2 * ROUND_LOT))
    opening = _opening_rows(depth, orders, reach)
    kept = np.exp2(-np.diff(times, prepend=-np.inf) / dynamics.pressure_half_life)
    rows = book.run_book(
        depth,
        orders,
        reach,
        rng.random((count, book.UNIFORMS)),
        _order_sizes(rng, count),
        sweep,
        kept,
        np.sqrt(1.0 - kept**2) * rng.standard_normal(count),
        np.sqrt(stress)[times.astype(np.int64)],
        target,
        dynamics.tilt * dynamics.tilt_decay**_LEVELS,
        dynamics.drift,
        dynamics.flow,
        dynamics.memory,
        dynamics.widen_rate,
        dynamics.narrow_rate,
        dynamics.trade_rate,
    )
    rows[:, book.EVENT] += 1
    rows = np.concatenate((opening, rows))
    rows[:, [book.TICK, book.BEST, book.BEST + 1]] += best_bid - reach

    mbp10 = _mbp10(rows, *_stamps(rng, times, open_ns, close_ns))
    mbp10["instrument_id"] = instrument.identifier
    _hide_unopened(mbp10[: len(opening)])
    trades = _trades(mbp10)
    return Session(mbp10, trades, _bars(trades), int(rows[-1, book.BEST]))


def _regimes(rng: np.random.Generator, dynamics: Dynamics, seconds: int) -> NDArray[np.float64]:
    """(seconds,) event rate by second, about 1: a Markov chain that starts at and reverts to the
    normal regime."""
    rates = np.array(dynamics.regimes)
    path = np.empty(seconds)
    at, state = 0, 1
    while at < seconds:
        dwell = 1 + int(rng.exponential(dynamics.regime_dwell))
        path[at : at + dwell] = rates[state]
        at += dwell
        state = int(rng.choice((0, 2))) if state == 1 else 1
    stationary = rates @ np.array([0.25, 0.5, 0.25])
    return path / float(stationary)


def _arrivals(
    rng: np.random.Generator, rate: NDArray[np.float64], dynamics: Dynamics
) -> NDArray[np.float64]:
    """Ascending times, in seconds, of a Hawkes process with exponential kernel and the mean rate
    given by second, through its clusters (Hawkes and Oakes 1974): immigrants and, generation by
    generation, their descendants."""
    seconds = len(rate)
    mean = np.concatenate(([0.0], np.cumsum(rate * (1.0 - dynamics.branching))))
    immigrants = rng.uniform(0.0, mean[-1], rng.poisson(mean[-1]))
    generation = np.interp(immigrants, mean, np.arange(seconds + 1.0))
    times = [generation]
    while len(generation):
        parents = np.repeat(generation, rng.poisson(dynamics.branching, len(generation)))
        generation = parents + rng.exponential(dynamics.excitement, len(parents))
        times.append(generation)
    every = np.sort(np.concatenate(times))
    return every[every < seconds]


def _order_sizes(rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    """(count,) shares of an order: four of five are round lots, mostly one; the others odd."""
    lots = rng.choice([1, 2, 3, 4, 5, 10, 20], count, p=[0.60, 0.18, 0.07, 0.04, 0.07, 0.03, 0.01])
    odd = rng.integers(1, ROUND_LOT, count)
    return np.where(rng.random(count) < 0.8, ROUND_LOT * lots, odd)


def _opening_depth(
    rng: np.random.Generator, target: NDArray[np.floating], reach: int
) -> NDArray[np.int64]:
    """(2, 2 * reach) shares by side and tick, with the best bid at tick ``reach``."""
    away = np.minimum(np.abs(np.arange(2 * reach) - reach), book.LEVELS - 1)
    lots = np.maximum(rng.poisson(target[away] / ROUND_LOT, (2, 2 * reach)), 1)
    lots[book.BID, reach + 1 :] = 0
    lots[book.ASK, : reach + 1] = 0
    return ROUND_LOT * lots


def _opening_rows(
    depth: NDArray[np.int64], orders: NDArray[np.int64], best_bid: int
) -> NDArray[np.int64]:
    """Rows, as of :func:`book.run_book`, that show the opening book level by level."""
    level = np.repeat(_LEVELS, 2)
    side = np.tile([book.BID, book.ASK], book.LEVELS)
    tick = np.where(side == book.BID, best_bid - level, best_bid + 1 + level)
    rows = np.zeros((len(level), book.COLUMNS), np.int64)
    rows[:, book.ACTION] = book.ADD
    rows[:, book.SIDE] = book.LETTER[side]
    rows[:, book.TICK] = tick
    rows[:, book.SIZE] = depth[side, tick]
    rows[:, book.LEVEL] = level
    rows[-1, book.LAST] = 1
    rows[:, book.BEST : book.BOOK] = best_bid, best_bid + 1
    bids, asks = best_bid - _LEVELS, best_bid + 1 + _LEVELS
    rows[:, book.BOOK :] = np.concatenate(
        (depth[0, bids], depth[1, asks], orders[0, bids], orders[1, asks])
    )
    return rows


def _stamps(
    rng: np.random.Generator, times: NDArray[np.float64], open_ns: int, close_ns: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """``ts_event`` and ``ts_recv`` of the opening and the events: ascending, the first strictly."""
    ns = np.concatenate(([0], (times * _SECOND).astype(np.int64)))
    ns[1:] = np.clip(ns[1:], _SECOND // 1000, close_ns - open_ns - _SECOND // 1000)
    ns -= np.where(ns % _MINUTE > _MINUTE - _MARGIN, _MARGIN, 0)
    ns.sort()
    order = np.arange(len(ns))
    ts_event = open_ns + np.maximum.accumulate(ns - order) + order
    wait = rng.exponential(_LATENCY_MEAN - _LATENCY_MIN, len(ns)).astype(np.int64)
    latency = np.minimum(_LATENCY_MIN + wait, _LATENCY_MAX)
    return ts_event, np.maximum.accumulate(ts_event + latency)


def _mbp10(
    rows: NDArray[np.int64], ts_event: NDArray[np.int64], ts_recv: NDArray[np.int64]
) -> NDArray[np.void]:
    records = empty_records("mbp-10", len(rows))
    event = rows[:, book.EVENT]
    records["ts_event"] = ts_event[event]
    records["ts_recv"] = ts_recv[event]
    records["ts_in_delta"] = (ts_recv - ts_event)[event] // 2
    records["price"] = rows[:, book.TICK] * TICK
    records["size"] = rows[:, book.SIZE]
    records["action"] = rows[:, book.ACTION].astype(np.uint8).view("S1")
    records["side"] = rows[:, book.SIDE].astype(np.uint8).view("S1")
    records["depth"] = rows[:, book.LEVEL]
    records["flags"] = rows[:, book.LAST] * F_LAST
    records["sequence"] = np.arange(1, len(rows) + 1)
    level = records.view(_LADDER)["level"]
    level["bid_px"] = (rows[:, [book.BEST]] - _LEVELS) * TICK
    level["ask_px"] = (rows[:, [book.BEST + 1]] + _LEVELS) * TICK
    columns = np.split(rows[:, book.BOOK :], 4, axis=1)
    for name, values in zip(("bid_sz", "ask_sz", "bid_ct", "ask_ct"), columns, strict=True):
        level[name] = values
    return records


def _hide_unopened(opening: NDArray[np.void]) -> None:
    """Mark the opening records as a snapshot and show in each only the levels put in so far."""
    opening["flags"] |= F_SNAPSHOT
    level = opening.view(_LADDER)["level"]
    rows = np.arange(len(opening))
    for side, built in (("bid", rows // 2 + 1), ("ask", (rows + 1) // 2)):
        absent = built[:, None] <= _LEVELS
        level[f"{side}_px"][absent] = UNDEF_PRICE
        level[f"{side}_sz"][absent] = 0
        level[f"{side}_ct"][absent] = 0


def _trades(mbp10: NDArray[np.void]) -> NDArray[np.void]:
    traded = mbp10[mbp10["action"] == b"T"]
    trades = empty_records("trades", len(traded))
    for name in trades.dtype.names or ():
        if name not in ("length", "rtype"):
            trades[name] = traded[name]
    return trades


def _bars(trades: NDArray[np.void]) -> NDArray[np.void]:
    """One-minute bars, stamped at their open; a minute without trades has none."""
    minute, first = np.unique(trades["ts_event"] // _MINUTE * _MINUTE, return_index=True)
    bars = empty_records("ohlcv-1m", len(minute))
    if len(minute):
        price = trades["price"]
        bars["instrument_id"] = trades["instrument_id"][first]
        bars["ts_event"] = minute
        bars["open"] = price[first]
        bars["high"] = np.maximum.reduceat(price, first)
        bars["low"] = np.minimum.reduceat(price, first)
        bars["close"] = price[np.append(first[1:], len(price)) - 1]
        bars["volume"] = np.add.reduceat(trades["size"].astype(np.uint64), first)
    return bars
