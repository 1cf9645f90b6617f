"""Every feature against an independent formula on real data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import ta
from numpy.typing import NDArray

from foxhunt_pipeline.errors import ViewUnavailableError
from foxhunt_pipeline.features.catalogue import catalogue, compute
from foxhunt_pipeline.market import clock
from foxhunt_pipeline.market.clock import Bars, Book
from support import real_market
from support.real_market import MINUTE, SECOND


@pytest.fixture(scope="module")
def bars(test_data: Path) -> Bars:
    """SPY, with made-up sides: the feed has none."""
    table = real_market.tables(test_data, "equities")["SPY"]["trades"]
    prints = real_market.prints(test_data, "equities", "SPY")
    rows = clock.bars(prints, None, real_market.hours("equities"), MINUTE)
    assert len(table) > 400_000
    return rows


@pytest.fixture(scope="module")
def futures(test_data: Path) -> tuple[Bars, Book]:
    hours = real_market.hours("futures")
    prints = real_market.prints(test_data, "futures", "ESH4")
    quotes = real_market.quotes(test_data, "futures", "ESH4")
    return (
        clock.bars(prints, quotes, hours, MINUTE),
        clock.book(quotes, prints, hours, SECOND),
    )


def column(rows: Bars | Book, name: str) -> NDArray[np.float32]:
    levels = rows.n_levels if isinstance(rows, Book) else 0
    features = catalogue("book" if levels else "bars", levels)
    return compute(rows, [next(f for f in features if f.name == name)])[:, 0]


def close_to(actual: NDArray[np.float32], expected: object, atol: float = 1e-8) -> None:
    np.testing.assert_allclose(actual, np.asarray(expected, np.float64), rtol=2e-6, atol=atol)


def prices(bars: Bars) -> pd.DataFrame:
    return pd.DataFrame(
        {n: getattr(bars, n) * 1e-9 for n in ("open", "high", "low", "close")}
        | {"volume": bars.volume.astype(float), "value": bars.value}
    )


@pytest.mark.parametrize("lag", [1, 5, 15, 30])
def test_log_returns(bars: Bars, lag: int) -> None:
    close = prices(bars)["close"]
    close_to(column(bars, f"ret_{lag}"), np.log(close / close.shift(lag)))


def test_realised_volatility(bars: Bars) -> None:
    returns = np.log(prices(bars)["close"]).diff()
    close_to(column(bars, "realised_volatility_15"), np.sqrt((returns**2).rolling(15).sum()))


def test_parkinson_volatility(bars: Bars) -> None:
    frame = prices(bars)
    squares = np.log(frame["high"] / frame["low"]) ** 2
    expected = np.sqrt(squares.rolling(15).sum() / (15 * 4 * np.log(2)))
    close_to(column(bars, "parkinson_volatility_15"), expected)


def test_rsi_equals_ta(bars: Bars) -> None:
    expected = ta.momentum.RSIIndicator(prices(bars)["close"], window=14).rsi()
    close_to(column(bars, "rsi_14")[14:], expected[14:])


def test_stochastic_equals_ta(bars: Bars) -> None:
    frame = prices(bars)
    expected = ta.momentum.StochasticOscillator(
        frame["high"], frame["low"], frame["close"], window=15
    ).stoch()
    close_to(column(bars, "stochastic_15")[14:], expected[14:], atol=1e-4)


def test_vwap_distance_equals_trade_by_trade(bars: Bars, test_data: Path) -> None:
    table = real_market.tables(test_data, "equities")["SPY"]["trades"]
    ts = table["ts_recv"].to_physical().to_numpy()
    price, size = table["price"].to_numpy() * 1e-9, table["size"].to_numpy().astype(float)
    actual = column(bars, "vwap_distance")
    for i in (0, 10, 200, 389):
        inside = (ts >= bars.hours.open_ns) & (ts < bars.ts[i])
        vwap = np.average(price[inside], weights=size[inside])
        close_to(actual[i], np.log(price[inside][-1] / vwap))


def test_relative_volume(bars: Bars) -> None:
    volume = prices(bars)["volume"]
    before = volume.shift(1).rolling(15).mean()
    close_to(column(bars, "relative_volume_15"), np.log((1 + volume) / (1 + before)))


def test_trade_imbalance_equals_trade_by_trade(
    futures: tuple[Bars, Book], bars: Bars, test_data: Path
) -> None:
    table = real_market.tables(test_data, "futures")["ESH4"]["trades"]
    ts = table["ts_recv"].to_physical().to_numpy()
    size, side = table["size"].to_numpy().astype(float), table["aggressor_side"].to_numpy()
    actual = column(futures[0], "trade_imbalance")
    for i, t in enumerate(futures[0].ts):
        inside = (ts >= t - MINUTE) & (ts < t)
        total = size[inside].sum()
        close_to(actual[i], (size * side)[inside].sum() / total if total else 0.0)
    assert not column(bars, "trade_imbalance").any()  # a feed without sides


def test_range_spread_and_time_of_day(futures: tuple[Bars, Book], bars: Bars) -> None:
    frame = prices(bars)
    close_to(column(bars, "range"), np.log(frame["high"] / frame["low"]))
    assert np.isnan(column(bars, "spread_bps")).all()
    es = futures[0]
    close_to(column(es, "spread_bps"), (es.ask - es.bid) / ((es.ask + es.bid) / 2) * 1e4)
    hours = (bars.ts - bars.hours.open_ns) / 3600e9
    close_to(column(bars, "time_sin"), np.sin(hours * np.pi / 12))
    close_to(column(bars, "time_cos"), np.cos(hours * np.pi / 12), atol=1e-7)


def test_levels_in_order_and_relative_to_the_mid(futures: tuple[Bars, Book]) -> None:
    book = futures[1]
    features = catalogue("book", 10)
    names = [f.name for f in features[:40]]
    assert names[:4] == ["lob_ask_px_00", "lob_ask_sz_00", "lob_bid_px_00", "lob_bid_sz_00"]
    x = compute(book, features[:40]).reshape(len(book.ts), 10, 4)
    mid = (book.bid_px[:, :1] + book.ask_px[:, :1]) / 2
    close_to(x[..., 0], (book.ask_px / mid - 1) * 1e4, atol=1e-6)
    close_to(x[..., 2], (book.bid_px / mid - 1) * 1e4, atol=1e-6)
    close_to(x[..., 1], np.log(1 + book.ask_sz))
    close_to(x[..., 3], np.log(1 + book.bid_sz))
    assert (np.diff(x[..., 0], axis=1) > 0).all()
    assert (np.diff(x[..., 2], axis=1) < 0).all()


def test_top_of_book(futures: tuple[Bars, Book]) -> None:
    book = futures[1]
    bid, ask = (px[:, 0] * 1e-9 for px in (book.bid_px, book.ask_px))
    bid_sz, ask_sz = (sz[:, 0].astype(float) for sz in (book.bid_sz, book.ask_sz))
    mid = (bid + ask) / 2
    close_to(column(book, "spread_bps"), (ask - bid) / mid * 1e4)
    close_to(column(book, "queue_imbalance"), (bid_sz - ask_sz) / (bid_sz + ask_sz))
    micro = (bid_sz * ask + ask_sz * bid) / (bid_sz + ask_sz)
    close_to(column(book, "micro_price_bps"), (micro - mid) / mid * 1e4, atol=1e-6)
    bids, asks = book.bid_sz.sum(1).astype(float), book.ask_sz.sum(1).astype(float)
    close_to(column(book, "depth_imbalance"), (bids - asks) / (bids + asks))
    logs = pd.Series(np.log(mid))
    close_to(column(book, "mid_ret_1"), logs.diff(1), atol=1e-10)
    close_to(column(book, "mid_ret_10"), logs.diff(10), atol=1e-10)
    signed = (book.buy_volume - book.sell_volume).astype(float)
    close_to(column(book, "signed_volume"), np.sign(signed) * np.log(1 + np.abs(signed)))
    close_to(column(book, "event_rate"), np.log(1 + book.events))


def test_order_flow_equals_event_by_event(futures: tuple[Bars, Book], test_data: Path) -> None:
    """Cont, Kukanov and Stoikov as they put it: by what happened to each price."""
    table = real_market.tables(test_data, "futures")["ESH4"]["mbp-10"]
    states = table.filter((table["flags"] & 128) != 0).select(
        pl.col("ts_recv").to_physical(), "bid_px_00", "bid_sz_00", "ask_px_00", "ask_sz_00"
    )
    flow, times, previous = [], [], None
    for ts, bid, bid_sz, ask, ask_sz in states.iter_rows():
        if previous is not None:
            p_bid, p_bid_sz, p_ask, p_ask_sz = previous
            demand = bid_sz if bid > p_bid else -p_bid_sz if bid < p_bid else bid_sz - p_bid_sz
            supply = ask_sz if ask < p_ask else -p_ask_sz if ask > p_ask else ask_sz - p_ask_sz
            flow.append(demand - supply)
            times.append(ts)
        previous = (bid, bid_sz, ask, ask_sz)
    book = futures[1]
    step = np.zeros(len(book.ts) + 1)
    np.add.at(step, np.minimum(np.searchsorted(book.ts, times), len(book.ts)), flow)
    before = np.array(times) <= book.ts[0] - SECOND
    step[0] -= np.array(flow)[before].sum()
    for width in (1, 10):
        sums = pd.Series(step[:-1]).rolling(width).sum()
        expected = np.sign(sums) * np.log(1 + sums.abs())
        close_to(column(book, f"order_flow_imbalance_{width}"), expected)
    assert np.abs(step).max() > 100


def test_declarations_hold(futures: tuple[Bars, Book], bars: Bars) -> None:
    """Names are unique, texts are there, and each feature is defined from its warm-up on."""
    for rows, features in (
        (bars, catalogue("bars")),
        (futures[0], catalogue("bars")),
        (futures[1], catalogue("book", 10)),
    ):
        assert len({f.name for f in features}) == len(features)
        x = compute(rows, features)
        assert x.dtype == np.float32
        for number, feature in enumerate(features):
            assert feature.formula
            assert feature.source
            assert feature.unit
            if feature.name == "spread_bps" and rows is bars:
                continue
            assert np.isnan(x[: feature.warm_up, number]).all(), feature.name
            assert np.isfinite(x[feature.warm_up :, number]).all(), feature.name


def test_a_view_there_is_not_is_named() -> None:
    with pytest.raises(ViewUnavailableError, match="no view panel"):
        catalogue("panel")
