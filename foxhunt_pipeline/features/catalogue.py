"""The catalogue of features: each declared once, read by the stage, the documents and the tests.

A feature is a function of :class:`~foxhunt_pipeline.market.clock.Bars` or
:class:`~foxhunt_pipeline.market.clock.Book`, which hold nothing later than their rows, to one
value a row; a value may use rows up to its own and no later one. NaN means not yet defined.
``log`` is natural; ``r_1`` is the log return of one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from foxhunt_pipeline.errors import ViewUnavailableError
from foxhunt_pipeline.market.clock import Bars, Book, Floats
from foxhunt_pipeline.market.tape import Ints

_DAY = 24 * 3600 * 10**9


@dataclass(frozen=True)
class Feature:
    """A declared feature: one column of a view."""

    name: str
    view: str
    formula: str
    source: str
    unit: str
    warm_up: int
    """Rows of a session before the first defined value."""
    function: Callable[[Any], Floats]
    """Rows of the view -> (n,) float64."""


def catalogue(view: str, n_levels: int = 0) -> list[Feature]:
    """The features of a view in column order; the book's begin with its raw levels.

    Raises :class:`~foxhunt_pipeline.errors.ViewUnavailableError` for a view there is not.
    """
    if view == "bars":
        return list(_BARS)
    if view == "book":
        return [*_levels(n_levels), *_BOOK]
    raise ViewUnavailableError(f"There is no view {view}.", remedy="Views are bars and book.")


def compute(rows: Bars | Book, features: list[Feature]) -> NDArray[np.float32]:
    """(n, feature) float32, NaN where not yet defined (infinities count as that)."""
    x = np.empty((len(rows.ts), len(features)), np.float32)
    for column, feature in enumerate(features if len(rows.ts) else ()):
        x[:, column] = feature.function(rows)
    x[~np.isfinite(x)] = np.nan
    return x


# Building blocks


def _log(px: Ints | Floats) -> Floats:
    """log of prices, NaN where undefined."""
    logs: Floats = np.log(np.where(px > 0, px, np.nan))
    return logs


def _change(values: Floats, lag: int) -> Floats:
    """values[i] - values[i - lag]; NaN in the first rows."""
    out = np.full(len(values), np.nan)
    out[lag:] = values[lag:] - values[:-lag]
    return out


def _past(values: Floats, width: int) -> Floats:
    """(n, width): the last values up to and with each row, NaN before the first."""
    padded = np.concatenate([np.full(width - 1, np.nan), values])
    return np.lib.stride_tricks.sliding_window_view(padded, width)


def _ratio(numerator: Floats | Ints, denominator: Floats | Ints, otherwise: float) -> Floats:
    out = np.full(len(numerator), otherwise)
    np.divide(numerator, denominator, out=out, where=denominator != 0)
    return out


def _compressed(values: Floats | Ints) -> Floats:
    """sign(v) log(1 + |v|): sizes of all instruments on one scale."""
    compressed: Floats = np.sign(values) * np.log1p(np.abs(values))
    return compressed


# Bars


def _bar_return(bars: Bars, lag: int) -> Floats:
    return _change(_log(bars.close), lag)


def _realised_volatility(bars: Bars, width: int) -> Floats:
    squares = _bar_return(bars, 1) ** 2
    volatility: Floats = np.sqrt(_past(squares, width).sum(axis=1))
    return volatility


def _range(bars: Bars) -> Floats:
    return _log(bars.high) - _log(bars.low)


def _parkinson(bars: Bars, width: int) -> Floats:
    variance = _past(_range(bars) ** 2, width).mean(axis=1) / (4 * np.log(2))
    volatility: Floats = np.sqrt(variance)
    return volatility


def _rsi(bars: Bars, width: int) -> Floats:
    change = np.diff(np.where(bars.close > 0, bars.close, np.nan) * 1e-9, prepend=np.nan)
    known = np.cumsum(bars.close > 0)
    change = np.nan_to_num(change)
    up, down = (
        lfilter([1 / width], [1, 1 / width - 1], part)
        for part in (np.maximum(change, 0), np.maximum(-change, 0))
    )
    return np.where(known > width, _ratio(100 * up, up + down, 50.0), np.nan)


def _stochastic(bars: Bars, width: int) -> Floats:
    high, low, close = (np.where(px > 0, px, np.nan) for px in (bars.high, bars.low, bars.close))
    lowest = _past(low, width).min(axis=1)
    return _ratio(100 * (close - lowest), _past(high, width).max(axis=1) - lowest, 50.0)


def _vwap_distance(bars: Bars) -> Floats:
    value, volume = np.cumsum(bars.value), np.cumsum(bars.volume)
    return _log(bars.close) - _log(_ratio(1e9 * value, volume, np.nan))


def _relative_volume(bars: Bars, width: int) -> Floats:
    before = np.full(len(bars.ts), np.nan)
    before[1:] = _past(bars.volume.astype(np.float64), width).mean(axis=1)[:-1]
    ratio: Floats = np.log1p(bars.volume) - np.log1p(before)
    return ratio


def _trade_imbalance(bars: Bars) -> Floats:
    return _ratio(bars.buy_volume - bars.sell_volume, bars.volume, 0.0)


def _clock_angle(rows: Bars | Book) -> Floats:
    return 2 * np.pi * (rows.ts - rows.hours.open_ns) / _DAY


def _time_sin(rows: Bars | Book) -> Floats:
    return np.sin(_clock_angle(rows))


def _time_cos(rows: Bars | Book) -> Floats:
    return np.cos(_clock_angle(rows))


def _bar_spread(bars: Bars) -> Floats:
    there = (bars.bid > 0) & (bars.ask > 0)
    return np.where(there, 2e4 * (bars.ask - bars.bid) / (bars.ask + bars.bid), np.nan)


_BARS = (
    *(
        Feature(
            name=f"ret_{lag}",
            view="bars",
            formula=f"log(close[i] / close[i - {lag}])",
            source="Campbell, Lo and MacKinlay (1997), 1.4",
            unit="log return",
            warm_up=lag,
            function=partial(_bar_return, lag=lag),
        )
        for lag in (1, 5, 15, 30)
    ),
    Feature(
        name="realised_volatility_15",
        view="bars",
        formula="sqrt(sum of r_1^2 over 15 rows)",
        source="Andersen and Bollerslev (1998)",
        unit="log return per 15 rows",
        warm_up=15,
        function=partial(_realised_volatility, width=15),
    ),
    Feature(
        name="parkinson_volatility_15",
        view="bars",
        formula="sqrt(mean of log(high / low)^2 over 15 rows / (4 log 2))",
        source="Parkinson (1980)",
        unit="log return per row",
        warm_up=14,
        function=partial(_parkinson, width=15),
    ),
    Feature(
        name="rsi_14",
        view="bars",
        formula="100 U / (U + D), where U and D are averages of the rises and falls of close, "
        "exponential with weight 1/14; 50 where there were none",
        source="Wilder (1978)",
        unit="percent",
        warm_up=14,
        function=partial(_rsi, width=14),
    ),
    Feature(
        name="stochastic_15",
        view="bars",
        formula="100 (close - lowest low) / (highest high - lowest low) over 15 rows; 50 where "
        "nothing moved",
        source="Lane (1984)",
        unit="percent",
        warm_up=14,
        function=partial(_stochastic, width=15),
    ),
    Feature(
        name="vwap_distance",
        view="bars",
        formula="log(close / VWAP), where VWAP is traded value / volume since the first row",
        source="Berkowitz, Logue and Noser (1988)",
        unit="log return",
        warm_up=0,
        function=_vwap_distance,
    ),
    Feature(
        name="relative_volume_15",
        view="bars",
        formula="log((1 + volume) / (1 + mean volume of the 15 rows before))",
        source="Karpoff (1987)",
        unit="log ratio",
        warm_up=15,
        function=partial(_relative_volume, width=15),
    ),
    Feature(
        name="trade_imbalance",
        view="bars",
        formula="(volume of buyers - volume of sellers) / volume, by aggressor; 0 where there "
        "were no trades or the feed gives no sides",
        source="Chordia, Roll and Subrahmanyam (2002)",
        unit="share",
        warm_up=0,
        function=_trade_imbalance,
    ),
    Feature(
        name="range",
        view="bars",
        formula="log(high / low)",
        source="Alizadeh, Brandt and Diebold (2002)",
        unit="log return",
        warm_up=0,
        function=_range,
    ),
    Feature(
        name="time_sin",
        view="bars",
        formula="sin(2 pi (t - open) / 24 h)",
        source="angle of the day",
        unit="1",
        warm_up=0,
        function=_time_sin,
    ),
    Feature(
        name="time_cos",
        view="bars",
        formula="cos(2 pi (t - open) / 24 h)",
        source="angle of the day",
        unit="1",
        warm_up=0,
        function=_time_cos,
    ),
    Feature(
        name="spread_bps",
        view="bars",
        formula="10^4 (ask - bid) / mid at the row; NaN without quotes",
        source="Huang and Stoll (1996), quoted spread",
        unit="basis points",
        warm_up=0,
        function=_bar_spread,
    ),
)


# Book


def _level_price(book: Book, side: str, level: int) -> Floats:
    px = (book.ask_px if side == "ask" else book.bid_px)[:, level]
    return np.where(px > 0, 1e4 * (px - book.mid) / book.mid, np.nan)


def _level_size(book: Book, side: str, level: int) -> Floats:
    sizes = (book.ask_sz if side == "ask" else book.bid_sz)[:, level]
    return np.where(book.sound, np.log1p(sizes), np.nan)


def _levels(n_levels: int) -> Iterator[Feature]:
    for level in range(n_levels):
        for side in ("ask", "bid"):
            yield Feature(
                name=f"lob_{side}_px_{level:02d}",
                view="book",
                formula=f"10^4 ({side} price of level {level} - mid) / mid",
                source="Zhang, Zohren and Roberts (2019), relative to the mid of the same row",
                unit="basis points",
                warm_up=0,
                function=partial(_level_price, side=side, level=level),
            )
            yield Feature(
                name=f"lob_{side}_sz_{level:02d}",
                view="book",
                formula=f"log(1 + {side} size of level {level})",
                source="Zhang, Zohren and Roberts (2019)",
                unit="log lots",
                warm_up=0,
                function=partial(_level_size, side=side, level=level),
            )


def _spread(book: Book) -> Floats:
    return np.where(book.sound, 1e4 * (book.ask_px[:, 0] - book.bid_px[:, 0]) / book.mid, np.nan)


def _imbalance(bids: Ints, asks: Ints) -> Floats:
    return _ratio(bids - asks, bids + asks, np.nan)


def _queue_imbalance(book: Book) -> Floats:
    return _imbalance(book.bid_sz[:, 0], book.ask_sz[:, 0])


def _depth_imbalance(book: Book) -> Floats:
    return _imbalance(book.bid_sz.sum(axis=1), book.ask_sz.sum(axis=1))


def _micro_price(book: Book) -> Floats:
    """With weights w = bid size / (bid size + ask size) the micro-price is w ask + (1 - w) bid,
    and its distance from the mid (2 w - 1) times half the spread."""
    return _queue_imbalance(book) * _spread(book) / 2


def _order_flow(book: Book, width: int) -> Floats:
    return _compressed(_past(book.order_flow.astype(np.float64), width).sum(axis=1))


def _mid_return(book: Book, lag: int) -> Floats:
    return _change(_log(book.mid), lag)


def _signed_volume(book: Book) -> Floats:
    return _compressed(book.buy_volume - book.sell_volume)


def _event_rate(book: Book) -> Floats:
    rate: Floats = np.log1p(book.events * (1e9 / book.step_ns))
    return rate


_BOOK = (
    Feature(
        name="spread_bps",
        view="book",
        formula="10^4 (ask - bid) / mid",
        source="Huang and Stoll (1996), quoted spread",
        unit="basis points",
        warm_up=0,
        function=_spread,
    ),
    Feature(
        name="queue_imbalance",
        view="book",
        formula="(bid size - ask size) / (bid size + ask size) at the best prices",
        source="Gould and Bonart (2016)",
        unit="share",
        warm_up=0,
        function=_queue_imbalance,
    ),
    Feature(
        name="micro_price_bps",
        view="book",
        formula="10^4 (micro-price - mid) / mid, where micro-price = (bid size x ask + ask size x "
        "bid) / (bid size + ask size)",
        source="Gatheral and Oomen (2010)",
        unit="basis points",
        warm_up=0,
        function=_micro_price,
    ),
    Feature(
        name="depth_imbalance",
        view="book",
        formula="(sum of bid sizes - sum of ask sizes) / (their sum) over all levels",
        source="Cao, Hansch and Wang (2009)",
        unit="share",
        warm_up=0,
        function=_depth_imbalance,
    ),
    *(
        Feature(
            name=f"order_flow_imbalance_{width}",
            view="book",
            formula=f"sign(f) log(1 + |f|), f = sum over every book event of {width} rows of the "
            "flow at the best prices",
            source="Cont, Kukanov and Stoikov (2014), equation 4",
            unit="log lots",
            warm_up=width - 1,
            function=partial(_order_flow, width=width),
        )
        for width in (1, 10)
    ),
    *(
        Feature(
            name=f"mid_ret_{lag}",
            view="book",
            formula=f"log(mid[i] / mid[i - {lag}])",
            source="Campbell, Lo and MacKinlay (1997), 1.4",
            unit="log return",
            warm_up=lag,
            function=partial(_mid_return, lag=lag),
        )
        for lag in (1, 10)
    ),
    Feature(
        name="signed_volume",
        view="book",
        formula="sign(v) log(1 + |v|), v = volume of buyers - volume of sellers in the step",
        source="Hasbrouck (1991)",
        unit="log lots",
        warm_up=0,
        function=_signed_volume,
    ),
    Feature(
        name="event_rate",
        view="book",
        formula="log(1 + book events per second in the step)",
        source="Engle (2000)",
        unit="log events per second",
        warm_up=0,
        function=_event_rate,
    ),
)
