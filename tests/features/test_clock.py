"""The clock against brute force on real data: what a row knows, and what it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foxhunt_pipeline.market import clock
from foxhunt_pipeline.market.clock import Hours
from foxhunt_pipeline.market.tape import UNDEFINED, Prints, Quotes
from support import market_tables, real_market
from support.real_market import MINUTE, SECOND

HOURS = Hours(market_tables.OPEN, market_tables.OPEN + 390 * MINUTE)
BUY_FILL, SELL_FILL, MARK, NEXT_MARK = 2, 3, 4, 5


@given(
    opened=st.integers(-(10**15), 10**15),
    length=st.integers(1, 2000),
    step=st.integers(1, 50),
    first=st.integers(-500, 2500),
    duration=st.integers(0, 2500),
)
def test_grid_is_every_step_within_hours_and_records(
    opened: int, length: int, step: int, first: int, duration: int
) -> None:
    hours = Hours(opened, opened + length)
    first, last = opened + first, opened + first + duration
    expected = [
        t
        for t in range(opened + step, opened + length + 1, step)
        if t >= first and t - step <= last
    ]
    assert clock.grid(hours, step, first, last).tolist() == expected


@pytest.mark.parametrize("symbol", ["IBM", "SPY"])
def test_bars_equal_pandas_resampling(test_data: Path, symbol: str) -> None:
    table = real_market.tables(test_data, "equities")[symbol]["trades"]
    hours = real_market.hours("equities")
    bars = clock.bars(Prints.of_trades(table), None, hours, MINUTE)
    frame = table.select("price", "size").to_pandas()
    frame.index = pd.to_datetime(table["ts_recv"].to_physical().to_numpy())
    resampled = frame.resample("1min", closed="left", label="right")
    expected = resampled["price"].ohlc()
    expected["volume"] = resampled["size"].sum()
    expected["value"] = (
        (frame["price"] * 1e-9 * frame["size"]).resample("1min", closed="left", label="right").sum()
    )
    expected = expected.reindex(pd.to_datetime(bars.ts))
    assert len(bars.ts) == 390
    assert expected["open"].notna().all()
    for name in ("open", "high", "low", "close", "volume"):
        np.testing.assert_array_equal(getattr(bars, name), expected[name])
    np.testing.assert_allclose(bars.value, expected["value"], rtol=1e-12)


def test_bars_of_seconds_hold_only_bars_that_have_closed(test_data: Path) -> None:
    table = real_market.tables(test_data, "equities")["AIG"]["ohlcv-1s"]
    hours = real_market.hours("equities")
    bars = clock.bars(Prints.of_bars(table), None, hours, MINUTE)
    frame = table.with_columns(pl.col("ts_close").to_physical(), pl.col("volume").cast(pl.Int64))
    for i in (0, 7, 123, 388, 389):
        t = int(bars.ts[i])
        inside = frame.filter((pl.col("ts_close") > t - MINUTE) & (pl.col("ts_close") <= t))
        assert bars.open[i] == inside["open"][0]
        assert bars.high[i] == inside["high"].max()
        assert bars.low[i] == inside["low"].min()
        assert bars.close[i] == inside["close"][-1]
        assert bars.volume[i] == inside["volume"].sum()


def test_a_bar_is_known_at_its_close_and_not_a_nanosecond_before() -> None:
    table = market_tables.bars()
    at_close = clock.bars(Prints.of_bars(table), None, HOURS, MINUTE)
    late = table.with_columns(pl.col("ts_close") + pl.duration(nanoseconds=1))
    after_close = clock.bars(Prints.of_bars(late), None, HOURS, MINUTE)
    np.testing.assert_array_equal(at_close.close, table["close"])
    np.testing.assert_array_equal(after_close.close[1:], table["close"][:-1])


def test_a_step_without_trades_keeps_the_last_price() -> None:
    table = market_tables.trades().filter(
        ~pl.col("ts_recv")
        .to_physical()
        .is_between(HOURS.open_ns + MINUTE, HOURS.open_ns + 4 * MINUTE)
    )
    bars = clock.bars(Prints.of_trades(table), None, HOURS, MINUTE)
    for name in ("open", "high", "low", "close"):
        assert getattr(bars, name)[1:4].tolist() == [bars.close[0]] * 3
    assert bars.volume[:5].astype(bool).tolist() == [True, False, False, False, True]


@pytest.mark.parametrize(
    ("market", "symbol"), [("equities", "IBM"), ("futures", "ESH4"), ("crypto", "BTCUSDT")]
)
def test_book_equals_scanning_the_records(test_data: Path, market: str, symbol: str) -> None:
    found = real_market.tables(test_data, market)[symbol]
    table = found["mbp-10" if "mbp-10" in found else "mbp-1"]
    levels = 10 if "mbp-10" in found else 1
    hours = real_market.hours(market)
    prints = Prints.of_trades(found["trades"])
    book = clock.book(Quotes.of_book(table, 10), prints, hours, SECOND)
    ts = table["ts_recv"].to_physical().to_numpy()
    last = (table["flags"].to_numpy() & 128) != 0
    trades = found["trades"].with_columns(pl.col("ts_recv").to_physical())
    for i in np.random.default_rng(5).choice(len(book.ts), 60, replace=False):
        t = book.ts[i]
        state = table.row(int(np.flatnonzero((ts <= t) & last)[-1]), named=True)
        bid, ask = state["bid_px_00"], state["ask_px_00"]
        sound = bid is not None and ask is not None and bid < ask
        assert book.sound[i] == sound
        for level in range(levels if sound else 0):
            for side in ("bid", "ask"):
                for field in ("px", "sz"):
                    expected = state[f"{side}_{field}_{level:02d}"]
                    assert getattr(book, f"{side}_{field}")[i, level] == expected
        assert book.events[i] == ((ts > t - SECOND) & (ts <= t) & last).sum()
        step = trades.filter((pl.col("ts_recv") > t - SECOND) & (pl.col("ts_recv") <= t))
        assert book.buy_volume[i] == step.filter(pl.col("aggressor_side") == 1)["size"].sum()
        assert book.sell_volume[i] == step.filter(pl.col("aggressor_side") == -1)["size"].sum()


def test_the_book_inside_an_event_is_not_seen(test_data: Path) -> None:
    """On the real futures book, every record's state would show crossed books in trading hours
    that its events' ends do not have."""
    table = real_market.tables(test_data, "futures")["ESH4"]["mbp-10"]
    hours = real_market.hours("futures")
    crossed = table.filter(
        (pl.col("ts_recv").to_physical() > hours.open_ns + SECOND)
        & (pl.col("bid_px_00") >= pl.col("ask_px_00"))
    )
    assert len(crossed) > 50
    assert not ((crossed["flags"] & 128) != 0).any()
    prints = real_market.prints(test_data, "futures", "ESH4")
    assert clock.book(Quotes.of_book(table, 10), prints, hours, SECOND).sound.all()


@pytest.mark.parametrize(
    ("bid", "ask"), [(101, 100), (100, 100), (None, 100), (100, None), (-5, 100), (0, 1)]
)
def test_an_unsound_book_has_no_prices(bid: int | None, ask: int | None) -> None:
    table = market_tables.quotes()
    unit = market_tables.UNIT
    values = {
        "bid_px_00": None if bid is None else bid * unit,
        "ask_px_00": None if ask is None else ask * unit,
    }
    wrong = market_tables.put(table, range(30, 33), **values)
    prints = Prints.of_trades(table)
    quotes = Quotes.of_book(wrong, 10)
    book = clock.book(quotes, prints, HOURS, 20 * SECOND)
    at = np.flatnonzero(~book.sound)
    assert at.tolist() == [29, 30, 31]
    assert (book.bid_px[at] == UNDEFINED).all()
    assert (book.ask_sz[at] == 0).all()
    px = clock.book_prices(book)
    assert (px[at][:, [0, 1, MARK]] == UNDEFINED).all()
    assert (px[at - 1][:, [BUY_FILL, SELL_FILL, NEXT_MARK]] == UNDEFINED).all()
    bars = clock.bars(prints, quotes, HOURS, 20 * SECOND)
    assert (clock.bars_prices(bars, prints, quotes, 20 * SECOND)[at][:, [0, 1, MARK]] < 0).all()


def test_a_side_that_comes_or_goes_is_no_order_flow() -> None:
    table = market_tables.quotes()
    before = Quotes.of_book(table, 1).order_flow()
    assert before[29:33].all()
    wrong = market_tables.put(table, 30, ask_px_00=None)
    after = Quotes.of_book(wrong, 1).order_flow()
    assert after[29:33].tolist() == [before[29], 0, 0, before[32]]


def test_a_gap_in_the_feed_holds_until_the_book_is_cleared() -> None:
    table = market_tables.put(market_tables.quotes(), 40, flags=128 | 4)
    assert not Quotes.of_book(table, 1).sound[40:].any()
    mended = market_tables.put(table, 60, action=ord("R"))
    sound = Quotes.of_book(mended, 1).sound
    assert sound[:40].all()
    assert not sound[40:60].any()
    assert sound[60:].all()


def test_a_feed_that_marks_no_ends_is_taken_record_by_record() -> None:
    table = market_tables.quotes()
    unmarked = table.with_columns(pl.lit(0, pl.UInt8).alias("flags"))
    np.testing.assert_array_equal(
        Quotes.of_book(unmarked, 10).bid_px, Quotes.of_book(table, 10).bid_px
    )


def test_order_and_time_are_those_of_receipt(test_data: Path) -> None:
    """The crypto feed's exchange clock is a second ahead, so ts_event would look ahead."""
    table = real_market.tables(test_data, "crypto")["ETHUSDT"]["mbp-10"]
    assert (table["ts_event"] > table["ts_recv"]).all()
    prints = real_market.prints(test_data, "crypto", "ETHUSDT")
    hours = real_market.hours("crypto")
    book = clock.book(Quotes.of_book(table, 10), prints, hours, SECOND)
    other = table.with_columns(pl.col("ts_event") + pl.duration(hours=3))
    again = clock.book(Quotes.of_book(other, 10), prints, hours, SECOND)
    np.testing.assert_array_equal(book.bid_px, again.bid_px)
    swapped = Quotes.of_book(pl.concat([table[5000:], table[:5000]]), 10)
    np.testing.assert_array_equal(swapped.ts, Quotes.of_book(table, 10).ts)


@pytest.mark.parametrize(("symbol", "schema"), [("SPY", "trades"), ("BAC", "ohlcv-1s")])
def test_without_quotes_orders_are_filled_at_the_first_trade_after(
    test_data: Path, symbol: str, schema: str
) -> None:
    table = real_market.tables(test_data, "equities")[symbol][schema]
    prints = real_market.prints(test_data, "equities", symbol, schema)
    bars = clock.bars(prints, None, real_market.hours("equities"), MINUTE)
    px = clock.bars_prices(bars, prints, None, MINUTE)
    bar = schema.startswith("ohlcv")
    ts = table["ts_event" if bar else "ts_recv"].to_physical().to_numpy()
    price = table["open" if bar else "price"].to_numpy()
    for i, t in enumerate(bars.ts[:-1]):
        after = np.flatnonzero(ts >= t if bar else ts > t)[0]
        assert px[i, BUY_FILL] == px[i, SELL_FILL] == price[after]
    np.testing.assert_array_equal(px[:, MARK], bars.close)
    np.testing.assert_array_equal(px[:-1, NEXT_MARK], bars.close[1:])
    assert (px[-1, [BUY_FILL, SELL_FILL, NEXT_MARK]] == UNDEFINED).all()


def test_a_trade_at_the_very_time_of_the_row_is_neither_in_it_nor_its_fill() -> None:
    table = market_tables.trades()  # every 20 s from the open on
    prints = Prints.of_trades(table)
    bars = clock.bars(prints, None, HOURS, MINUTE)
    px = clock.bars_prices(bars, prints, None, MINUTE)
    assert (table["ts_recv"].to_physical() == int(bars.ts[4])).any()
    price = table["price"].to_numpy()
    assert bars.close[4] == price[5 * 3 - 1]
    assert px[4, BUY_FILL] == px[4, SELL_FILL] == price[5 * 3 + 1]


def test_without_a_trade_in_the_next_step_nothing_is_filled() -> None:
    table = market_tables.trades().filter(
        ~pl.col("ts_recv")
        .to_physical()
        .is_between(HOURS.open_ns + MINUTE, HOURS.open_ns + 4 * MINUTE)
    )
    prints = Prints.of_trades(table)
    px = clock.bars_prices(clock.bars(prints, None, HOURS, MINUTE), prints, None, MINUTE)
    assert (px[:5, BUY_FILL] > 0).tolist() == [False, False, False, True, True]


def test_with_quotes_bars_are_filled_at_the_first_state_after(test_data: Path) -> None:
    quotes = real_market.quotes(test_data, "equities", "IBM")
    prints = real_market.prints(test_data, "equities", "IBM")
    bars = clock.bars(prints, quotes, real_market.hours("equities"), MINUTE)
    px = clock.bars_prices(bars, prints, quotes, MINUTE)
    for i, t in enumerate(bars.ts[:-1]):
        after = np.flatnonzero(quotes.ts > t)[0]
        assert t < quotes.ts[after] <= t + MINUTE
        expected = (quotes.ask_px[after, 0], quotes.bid_px[after, 0])
        assert tuple(px[i, [BUY_FILL, SELL_FILL]]) == (
            expected if quotes.sound[after] else (UNDEFINED, UNDEFINED)
        )
        now = np.flatnonzero(quotes.ts <= t)[-1]
        assert tuple(px[i, :2]) == (quotes.bid_px[now, 0], quotes.ask_px[now, 0])


def test_a_quiet_book_fills_at_the_standing_quote() -> None:
    table = market_tables.quotes()[:30]
    quotes, prints = Quotes.of_book(table, 1), Prints.of_trades(market_tables.trades())
    bars = clock.bars(prints, quotes, HOURS, MINUTE)
    px = clock.bars_prices(bars, prints, quotes, MINUTE)
    np.testing.assert_array_equal(px[20:-1, BUY_FILL], px[20:-1, 1])
    np.testing.assert_array_equal(px[20:-1, SELL_FILL], px[20:-1, 0])


def test_book_orders_are_filled_at_the_next_row(test_data: Path) -> None:
    quotes = real_market.quotes(test_data, "futures", "ESH4")
    prints = real_market.prints(test_data, "futures", "ESH4")
    book = clock.book(quotes, prints, real_market.hours("futures"), SECOND)
    px = clock.book_prices(book)
    np.testing.assert_array_equal(px[:-1, BUY_FILL], book.ask_px[1:, 0])
    np.testing.assert_array_equal(px[:-1, SELL_FILL], book.bid_px[1:, 0])
    np.testing.assert_array_equal(px[:, MARK], (book.bid_px[:, 0] + book.ask_px[:, 0]) // 2)


@pytest.mark.parametrize(
    ("view", "schemas", "step", "expected"),
    [
        ("bars", {"trades", "ohlcv-1s", "mbp-1"}, MINUTE, ("trades", "mbp-1")),
        ("bars", {"ohlcv-1s", "ohlcv-1m"}, MINUTE, ("ohlcv-1s",)),
        ("bars", {"ohlcv-1m", "ohlcv-1h"}, MINUTE, ("ohlcv-1m",)),
        ("bars", {"ohlcv-1m"}, SECOND, None),
        ("bars", {"mbp-10"}, MINUTE, ("mbp-10",)),
        ("bars", {"tbbo"}, MINUTE, ("tbbo",)),
        ("book", {"mbp-1", "mbp-10", "trades"}, SECOND, ("trades", "mbp-10")),
        ("book", {"mbp-1"}, SECOND, ("mbp-1",)),
        ("book", {"trades", "ohlcv-1s", "definition"}, SECOND, None),
    ],
)
def test_sources_of_a_view(
    view: str, schemas: set[str], step: int, expected: tuple[str, ...] | None
) -> None:
    found = clock.sources(view, schemas, step)
    assert (found.schemas if found else None) == expected


def test_trades_in_the_feed_of_the_book_are_the_trades(test_data: Path) -> None:
    """In the futures data both schemas were made from the same messages."""
    found = real_market.tables(test_data, "futures")["ESH4"]
    inside, apart = Prints.of_trades(found["mbp-10"]), Prints.of_trades(found["trades"])
    for name in ("last", "close", "volume", "buy_volume", "sell_volume"):
        np.testing.assert_array_equal(getattr(inside, name), getattr(apart, name))
