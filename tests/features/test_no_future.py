"""Nothing at t depends on what happens after t: everything after t is replaced by garbage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from foxhunt_pipeline.features.catalogue import Feature, catalogue, compute
from foxhunt_pipeline.labels.returns import forward_returns, smoothed_returns
from foxhunt_pipeline.market import clock
from foxhunt_pipeline.market.tape import Prints, Quotes
from support import real_market
from support.real_market import MINUTE, SECOND

Tables = dict[str, pl.DataFrame]
KEPT = ("ts_recv", "ts_event", "ts_close")


def garbage(table: pl.DataFrame, t: int, seed: int) -> pl.DataFrame:
    """The table with every value known after t drawn anew or shuffled, in another order, at
    other times after t, some of it missing or repeated."""
    rng = np.random.default_rng(seed)
    key = "ts_close" if "ts_close" in table.columns else "ts_recv"
    known = table[key].to_physical() <= t
    past, future = table.filter(known), table.filter(~known)
    future = future[rng.integers(0, len(future), len(future)).tolist()]
    end = int(table[key].to_physical().max())  # type: ignore[arg-type]
    times = pl.Series(rng.integers(t + 1, end + 1, len(future))).cast(pl.Int64)
    columns: dict[str, pl.Series] = {}
    for name in future.columns:
        if name in KEPT:
            columns[name] = times.cast(future.schema[name])
            continue
        values = future[name].shuffle(int(rng.integers(1 << 30)))
        if name == "flags":
            values = pl.Series(rng.choice([0, 4, 128, 132], len(future))).cast(pl.UInt8)
        elif values.dtype == pl.Int64:
            noise = pl.Series(rng.integers(-(10**12), 10**12, len(future)))
            values = pl.select(
                pl.when(noise % 5 == 0).then(None).otherwise(values + noise)
            ).to_series()
        columns[name] = values
    return pl.concat([past, pl.DataFrame(columns, schema=future.schema)])


def sides(table: pl.DataFrame) -> pl.DataFrame:
    """Trades with the sides that the equities feed does not have."""
    known = pl.int_range(pl.len()) * 7 % 3 - 1
    return table.with_columns(known.cast(pl.Int8).alias("aggressor_side"))


def rows_of(view: str, tables: Tables, market: str) -> tuple[Any, NDArray[np.int64]]:
    schemas = {"bars": ("trades", "ohlcv-1s"), "book": ("trades",)}[view]
    schema = next(s for s in schemas if s in tables)
    prints = (
        Prints.of_trades(tables[schema]) if schema == "trades" else Prints.of_bars(tables[schema])
    )
    book = next((tables[s] for s in ("mbp-10", "mbp-1") if s in tables), None)
    quotes = None if book is None else Quotes.of_book(book, 10)
    hours = real_market.hours(market)
    if view == "bars":
        bars = clock.bars(prints, quotes, hours, MINUTE)
        return bars, clock.bars_prices(bars, prints, quotes, MINUTE)
    assert quotes is not None
    rows = clock.book(quotes, prints, hours, SECOND)
    return rows, clock.book_prices(rows)


CASES = {
    "bars of trades and quotes": ("bars", "equities", "IBM", ("trades", "mbp-1")),
    "bars of trades": ("bars", "futures", "ESH4", ("trades",)),
    "bars of seconds": ("bars", "equities", "BAC", ("ohlcv-1s",)),
    "one level": ("book", "equities", "IBM", ("trades", "mbp-1")),
    "ten levels": ("book", "futures", "ESH4", ("trades", "mbp-10")),
    "ten levels, clocks askew": ("book", "crypto", "BTCUSDT", ("trades", "mbp-10")),
}


def check(
    data: Path, case: str, share: float, seed: int, features: Callable[[Any], list[Feature]]
) -> bool:
    """Garbage after one row's time: features of rows up to it stay, labels at it change with the
    marks that they look at. Returns whether those marks changed: garbage may leave a quiet market
    as it was."""
    view, market, symbol, schemas = CASES[case]
    tables = {s: real_market.tables(data, market)[symbol][s] for s in schemas}
    tables["trades"] = sides(tables["trades"]) if "trades" in tables else pl.DataFrame()
    tables = {s: table for s, table in tables.items() if len(table)}
    rows, px = rows_of(view, tables, market)
    horizon = 3 if view == "bars" else 30
    at = min(int(share * len(rows.ts)), len(rows.ts) - horizon - 2)
    t = int(rows.ts[at])
    ruined, ruined_px = rows_of(
        view, {s: garbage(table, t, seed) for s, table in tables.items()}, market
    )
    np.testing.assert_array_equal(rows.ts[: at + 1], ruined.ts[: at + 1])
    np.testing.assert_array_equal(
        compute(rows, features(rows))[: at + 1], compute(ruined, features(ruined))[: at + 1]
    )
    np.testing.assert_array_equal(px[: at + 1, [0, 1, 4]], ruined_px[: at + 1, [0, 1, 4]])
    np.testing.assert_array_equal(px[:at], ruined_px[:at])
    ahead = slice(at + 1, at + 1 + horizon)
    moved = not np.array_equal(px[ahead, 4], ruined_px[ahead, 4])
    for labels in (forward_returns, smoothed_returns):
        before, after = (labels(p[:, 4], (horizon,))[: at + 1, 0] for p in (px, ruined_px))
        reach = max(at - horizon + 1, 0)  # the first row whose label ends after t
        np.testing.assert_array_equal(before[:reach], after[:reach])
        assert moved != np.array_equal(before[reach:], after[reach:], equal_nan=True)
    return moved


@pytest.mark.parametrize("case", CASES)
@settings(
    max_examples=5,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(share=st.floats(0.05, 0.95), seed=st.integers(0, 2**31))
def test_garbage_after_t_leaves_features_at_t_unchanged(
    test_data: Path, case: str, share: float, seed: int
) -> None:
    check(test_data, case, share, seed, lambda rows: catalogue(CASES[case][0], _levels_of(rows)))


@pytest.mark.parametrize("case", CASES)
def test_labels_at_t_see_what_comes_after(test_data: Path, case: str) -> None:
    assert check(test_data, case, 0.5, 1, lambda rows: catalogue(CASES[case][0], _levels_of(rows)))


def test_a_feature_that_looks_one_row_ahead_is_caught(test_data: Path) -> None:
    ahead = Feature(
        name="ahead",
        view="bars",
        formula="close[i + 1]",
        source="none",
        unit="1e-9",
        warm_up=0,
        function=lambda bars: np.append(bars.close[1:], -1).astype(np.float64),
    )
    with pytest.raises(AssertionError):
        check(test_data, "bars of trades", 0.5, 1, lambda rows: [ahead])


def test_sessions_computed_alone_equal_their_beginning(test_data: Path) -> None:
    """Features of the first hour do not change when the rest of the session arrives."""
    tables = dict(real_market.tables(test_data, "equities")["IBM"])
    whole, _ = rows_of("book", tables, "equities")
    t = int(whole.ts[3600])
    early = {
        s: x.filter(x["ts_recv"].to_physical() <= t)
        for s, x in tables.items()
        if s in ("trades", "mbp-1")
    }
    part, _ = rows_of("book", early, "equities")
    n = len(part.ts) - 1
    assert n > 3590
    features = catalogue("book", 1)
    np.testing.assert_array_equal(compute(whole, features)[:n], compute(part, features)[:n])


def _levels_of(rows: Any) -> int:
    return rows.n_levels if isinstance(rows, clock.Book) else 0
