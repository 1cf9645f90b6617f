"""The rules against a slow version that looks at one row at a time, and what they promise."""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foxhunt_pipeline.validation.rules import QUARANTINE, Hours, Prices, outliers, profile
from support.market_tables import OPEN, SECOND, TIME, UNIT, bars, put, quotes, trades

HOURS = Hours(OPEN - 2 * SECOND, OPEN + 16 * SECOND, OPEN, OPEN + 10 * SECOND)
LAST, DOUBTED, SPECIAL = 128, 4, 2

prices_known = st.sampled_from([Prices(True, 0.1, 20), Prices(False, 0.05, 3, tick=UNIT // 4)])
price = st.one_of(
    st.sampled_from([None, 0, -UNIT, 300 * UNIT, 50 * UNIT]),
    st.integers(98, 103).map(lambda p: p * UNIT),
    st.integers(100, 101).map(lambda p: p * UNIT),
)
step = st.sampled_from([0, 0, 1, 1, 2, 7, -1]).map(lambda s: s * SECOND)
flags = st.sampled_from([0, LAST, LAST, LAST | SPECIAL, LAST | DOUBTED])


@st.composite
def tick_tables(draw: st.DrawFn, book: bool) -> pl.DataFrame:
    """Small tables of trades or quotes in which everything can be wrong."""
    n = draw(st.integers(0, 40))
    ts, rows = OPEN - 3 * SECOND, []
    for _ in range(n):
        ts += draw(step)
        row: dict[str, Any] = {"ts_recv": ts, "ts_event": ts - draw(st.integers(-5, 5)) * 1000}
        if book:
            row |= {"action": draw(st.sampled_from(b"TTM")), "side": 0}
        row |= {"price": draw(price), "size": draw(st.integers(0, 3))}
        row |= {"aggressor_side": 0} if not book else {}
        row |= {"flags": draw(flags), "sequence": draw(st.integers(0, 1))}
        if book:
            for level in range(2):
                for side in ("bid", "ask"):
                    row[f"{side}_px_{level:02d}"] = draw(price)
        rows.append(row)
    empty = (quotes(1, 2) if book else trades(1)).clear()
    kept = {
        name: dtype
        for name, dtype in empty.schema.items()
        if not name.startswith(("bid_sz", "ask_sz", "bid_ct", "ask_ct"))
    }
    return pl.DataFrame(
        {name: pl.Series([r[name] for r in rows], dtype=_raw(d)) for name, d in kept.items()}
    ).cast({"ts_recv": TIME, "ts_event": TIME})


@st.composite
def bar_tables(draw: st.DrawFn) -> pl.DataFrame:
    n = draw(st.integers(0, 30))
    ts, rows = OPEN - 4 * SECOND, []
    for _ in range(n):
        ts += draw(step)
        opened = ts + draw(st.sampled_from([0, 0, 0, 1]))
        o, h, low, c = (draw(price) for _ in range(4))
        closed = opened + SECOND * draw(st.sampled_from([1, 1, 1, 3]))
        rows.append((opened, closed, o, h, low, c, 1))
    names = ["ts_event", "ts_close", "open", "high", "low", "close", "volume"]
    return pl.DataFrame(
        {
            name: pl.Series([row[i] for row in rows], dtype=pl.UInt64 if i == 6 else pl.Int64)
            for i, name in enumerate(names)
        }
    ).cast({"ts_event": TIME, "ts_close": TIME})


def _raw(dtype: pl.DataType) -> Any:
    return pl.Int64 if dtype == TIME else dtype


def slow_outliers(prints: list[tuple[int, int, list[int]]], prices: Prices) -> set[int]:
    """Rows of (row, reference, tested prices) that are outliers, by the rule's definition."""
    found, deviations = set(), []
    seen: list[float] = []
    for row, reference, tested in prints:
        if len(seen) >= 5:
            long, short = statistics.median(seen[-51:]), statistics.median(seen[-5:])
            moves = [abs(b - a) for a, b in pairwise(seen) if b != a]
            tick = prices.tick or min(moves, default=None)
            known = deviations[-501:]
            sigma = 1.4826 * statistics.median(known) if len(known) >= 5 else 0
            if tick is not None and any(
                abs(p - long) > prices.outlier_share * abs(long)
                and abs(p - short) > prices.outlier_share * abs(short)
                and abs(p - long) > prices.outlier_sigmas * max(sigma, tick)
                for p in tested
            ):
                found.add(row)
            deviations.append(abs(float(reference) - long))
        seen.append(float(reference))
    return found


def slow_profile(
    rows: pl.DataFrame, kind: str, hours: Hours, prices: Prices
) -> dict[str, set[int]]:
    """Rows at fault, by fault, found by looking at one row at a time."""
    table = rows.with_columns(pl.col(TIME).cast(pl.Int64)).to_dicts()
    bar = kind == "bars"
    key = "ts_event" if bar else "ts_recv"
    faults: dict[str, set[int]] = {}

    def note(fault: str, row: int, at_fault: bool) -> None:
        faults.setdefault(fault, set()).update({row} if at_fault else ())

    def bad(value: int | None) -> bool:
        return prices.positive and value is not None and value <= 0

    seen, prints, moves = set(), [], []
    for i, r in enumerate(table):
        known = r[key] + SECOND - 1 if bar else r[key]
        note("outside_session", i, not hours.start <= known < hours.end)
        before = table[i - 1][key] if i else -1
        note("out_of_order", i, r[key] < before or (bar and r[key] == before))
        note("duplicate", i, tuple(r.values()) in seen)
        seen.add(tuple(r.values()))
        if bar:
            values = [r["open"], r["high"], r["low"], r["close"]]
            undefined = None in values
            note("undefined_price", i, undefined)
            note("non_positive_price", i, bad(r["low"]))
            wrong = any(
                a is not None and b is not None and a > b
                for a, b in [
                    (r["low"], r["open"]),
                    (r["low"], r["close"]),
                    (r["open"], r["high"]),
                    (r["close"], r["high"]),
                ]
            )
            note("inconsistent_bar", i, wrong)
            note(
                "misaligned_bar",
                i,
                r["ts_event"] % SECOND != 0 or r["ts_close"] - r["ts_event"] != SECOND,
            )
            moves.append((i, r["close"]))
            if not (undefined or wrong or bad(r["low"])):
                prints.append((i, r["close"], [r["high"], r["low"]]))
            continue
        printed = kind == "trades" or r["action"] == ord("T")
        note("undefined_price", i, printed and r["price"] is None)
        quoted = kind == "quotes" and (bad(r["bid_px_00"]) or bad(r["ask_px_00"]))
        note("non_positive_price", i, (printed and bad(r["price"])) or quoted)
        note("zero_size", i, printed and r["size"] == 0)
        note("flagged", i, bool(r["flags"] & SPECIAL))
        if printed:
            moves.append((i, r["price"]))
        if printed and r["price"] is not None and not bad(r["price"]):
            prints.append((i, r["price"], [r["price"]]))
        if kind == "quotes":
            judged = bool(r["flags"] & LAST) and not r["flags"] & DOUBTED
            bid, ask = r["bid_px_00"], r["ask_px_00"]
            both = judged and bid is not None and ask is not None
            for phase, inside in (("regular", True), ("outside", False)):
                here = (hours.open <= r[key] < hours.close) is inside
                note(f"books_{phase}", i, judged and here)
                note(f"crossed_{phase}", i, both and here and bid > ask)
                note(f"locked_{phase}", i, both and here and bid == ask)
            deeper_bid, deeper_ask = r["bid_px_01"], r["ask_px_01"]
            unordered = (None not in (bid, deeper_bid) and bid <= deeper_bid) or (
                None not in (ask, deeper_ask) and ask >= deeper_ask
            )
            note("unordered_levels", i, judged and unordered)
    faults["outlier"] = slow_outliers(prints, prices)
    return faults


def slow_silence(rows: pl.DataFrame, bar: bool, hours: Hours) -> float:
    """Longest run of regular hours that no row touches, in minutes."""
    names = ("ts_event", "ts_close") if bar else ("ts_recv", "ts_recv")
    spans = sorted(
        zip(*(rows[name].cast(pl.Int64).to_list() for name in names), strict=True),
        key=lambda span: span[0],
    )
    quiet, longest = hours.open, 0
    for start, end in [*spans, (hours.close, hours.close)]:
        start, end = (min(max(t, hours.open), hours.close) for t in (start, end))
        longest, quiet = max(longest, start - quiet), max(quiet, end)
    return longest / (60 * SECOND)


def agree(rows: pl.DataFrame, kind: str, schema: str, prices: Prices) -> None:
    found = profile(rows, schema, HOURS, prices)
    slow = slow_profile(rows, kind, HOURS, prices)
    renamed = {"flagged": "publisher_flagged"}
    for fault, at in slow.items():
        name = renamed.get(fault, fault)
        assert found.figures[name] == len(at), fault
        if name in found.offenders:
            assert [o["row"] for o in found.offenders[name]] == sorted(at)[:5]
    expected = {}
    for fault in reversed(QUARANTINE):
        expected |= dict.fromkeys(slow.get(fault, ()), fault)
    assert found.quarantine.rows() == sorted(expected.items())
    assert found.figures["longest_silence_minutes"] == slow_silence(rows, kind == "bars", HOURS)
    assert found.figures["rows"] == rows.height


@settings(max_examples=80, deadline=None)
@given(rows=tick_tables(book=False), prices=prices_known)
def test_trades_profile_equals_the_slow_one(rows: pl.DataFrame, prices: Prices) -> None:
    agree(rows, "trades", "trades", prices)


@settings(max_examples=60, deadline=None)
@given(rows=tick_tables(book=True), prices=prices_known)
def test_quotes_profile_equals_the_slow_one(rows: pl.DataFrame, prices: Prices) -> None:
    agree(rows, "quotes", "mbp-10", prices)


@settings(max_examples=60, deadline=None)
@given(rows=bar_tables(), prices=prices_known)
def test_bars_profile_equals_the_slow_one(rows: pl.DataFrame, prices: Prices) -> None:
    agree(rows, "bars", "ohlcv-1s", prices)


@settings(max_examples=40, deadline=None)
@given(rows=tick_tables(book=True), future=tick_tables(book=True), prices=prices_known)
def test_quarantine_knows_nothing_of_later_rows(
    rows: pl.DataFrame, future: pl.DataFrame, prices: Prices
) -> None:
    alone = profile(rows, "mbp-10", HOURS, prices).quarantine
    followed = profile(pl.concat([rows, future]), "mbp-10", HOURS, prices).quarantine
    assert followed.filter(pl.col("row") < rows.height).equals(alone)


@settings(max_examples=60, deadline=None)
@given(rows=tick_tables(book=False), prices=prices_known)
def test_kept_and_quarantined_are_all_rows_and_disjoint(rows: pl.DataFrame, prices: Prices) -> None:
    quarantine = profile(rows, "trades", HOURS, prices).quarantine
    removed = quarantine["row"].to_list()
    assert removed == sorted(set(removed))
    assert quarantine["reason"].is_in(QUARANTINE).all()
    numbered = rows.with_row_index("row")
    kept = numbered.join(quarantine, on="row", how="anti")
    assert sorted(kept["row"].to_list() + removed) == list(range(rows.height))
    assert kept.filter((pl.col("size") == 0) | pl.col("price").is_null()).is_empty()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tick", [None, UNIT // 4])
def test_outliers_of_a_long_series_equal_the_slow_ones(seed: int, tick: int | None) -> None:
    rng = np.random.default_rng(seed)
    n = 900
    steps = rng.integers(-2, 3, n) * (1 + 9 * (rng.random(n) < 0.1))
    walk = 1000 + np.cumsum(steps)
    price = np.where(rng.random(n) < 0.1, walk * rng.uniform(0.6, 1.5, n), walk).astype(np.int64)
    prices = Prices(True, 0.02, 5, tick)
    series = pl.Series(price * (UNIT // 4))
    found = outliers(series.cast(pl.Float64), series.cast(pl.Float64), prices)
    slow = slow_outliers([(i, p, [p]) for i, p in enumerate(series.to_list())], prices)
    assert 20 < len(slow) < 200
    assert set(np.flatnonzero(found)) == slow


def test_a_wrong_first_move_is_no_measure_of_itself() -> None:
    steady = pl.Series([100.0] * 10 + [150.0] + [100.0] * 5) * UNIT
    assert not outliers(steady, steady, Prices(True, 0.1, 20)).any()
    moved = pl.Series([100.0] * 9 + [101.0] + [150.0] + [100.0] * 5) * UNIT
    assert np.flatnonzero(outliers(moved, moved, Prices(True, 0.1, 20))).tolist() == [10]


def test_a_true_jump_is_accepted_after_three_prints() -> None:
    rows = put(trades(), range(500, 1200), price=150 * UNIT)
    found = profile(rows, "trades", HOURS, Prices(True, 0.1, 20)).quarantine
    outliers = found.filter(pl.col("reason") == "outlier")["row"].to_list()
    within = Hours(OPEN - SECOND, OPEN + 86_400 * SECOND, OPEN, OPEN + SECOND)
    found = profile(rows, "trades", within, Prices(True, 0.1, 20)).quarantine
    assert found.rows() == [(row, "outlier") for row in (500, 501, 502)]
    assert outliers == []  # beyond the session there, and so reported as that


def test_a_burst_of_wrong_prints_costs_no_sound_one() -> None:
    within = Hours(OPEN - SECOND, OPEN + 86_400 * SECOND, OPEN, OPEN + SECOND)
    rows = put(trades(), range(500, 503), price=1000 * UNIT)
    found = profile(rows, "trades", within, Prices(True, 0.1, 20)).quarantine
    assert found["row"].to_list() == [500, 501, 502]


def test_a_volatile_or_coarse_instrument_keeps_its_prints() -> None:
    within = Hours(OPEN - SECOND, OPEN + 86_400 * SECOND, OPEN, OPEN + SECOND)
    n = 600
    cents = trades(n).with_columns(price=(1 + pl.int_range(n) * 7 % 3) * (UNIT // 100))
    assert profile(cents, "trades", within, Prices(True, 0.1, 20)).quarantine.is_empty()
    wild = trades(n).with_columns(price=(80 + pl.int_range(n) * 37 % 41) * UNIT)
    assert profile(wild, "trades", within, Prices(True, 0.1, 20)).quarantine.is_empty()


def test_a_day_bar_belongs_to_the_session_it_ends_in() -> None:
    day = 86_400 * SECOND
    midnight = OPEN // day * day
    new_york = Hours(midnight + 4 * 3600 * SECOND, midnight + 28 * 3600 * SECOND, OPEN, OPEN + 1)
    row = put(bars(1), 0, ts_event=midnight, ts_close=midnight + day)
    assert profile(row, "ohlcv-1d", new_york, Prices(True, 0.1, 20)).quarantine.is_empty()
    early = put(bars(1), 0, ts_event=midnight - day, ts_close=midnight)
    found = profile(early, "ohlcv-1d", new_york, Prices(True, 0.1, 20)).quarantine
    assert found["reason"].to_list() == ["outside_session"]


@pytest.mark.parametrize("wrong_print", [False, True])
def test_half_a_million_trades_take_well_under_a_second(
    wrong_print: bool, record_property: Any
) -> None:
    rows = put(trades(450_000), 1000, price=(1000 if wrong_print else 100) * UNIT)
    ended = []
    for _ in range(3):
        start = time.process_time()
        profile(rows, "trades", HOURS, Prices(True, 0.1, 20))
        ended.append(time.process_time() - start)
    record_property("million_rows_per_cpu_second", 0.45 / min(ended))
    print(f"{0.45 / min(ended):.1f} M rows per CPU-second, wrong_print={wrong_print}")
    assert min(ended) < 1.0


def test_silence_starts_where_the_last_of_overlapping_bars_ends() -> None:
    rows = bars(3).with_columns(
        ts_event=pl.Series([OPEN, OPEN + SECOND, OPEN + 9 * SECOND]).cast(TIME),
        ts_close=pl.Series([OPEN + 4 * SECOND, OPEN + 2 * SECOND, OPEN + 10 * SECOND]).cast(TIME),
    )
    found = profile(rows, "ohlcv-1s", HOURS, Prices(True, 0.1, 20))
    assert found.figures["longest_silence_minutes"] == 5 / 60


def test_bounds_include_their_start_and_exclude_their_end() -> None:
    at = [HOURS.start - 1, HOURS.start, HOURS.open, HOURS.close - 1, HOURS.close, HOURS.end - 1]
    rows = quotes(7).with_columns(
        ts_recv=pl.Series([*at, HOURS.end]).cast(TIME), ask_px_00=pl.col("bid_px_00")
    )
    found = profile(rows, "mbp-10", HOURS, Prices(True, 0.1, 20))
    assert found.quarantine.rows() == [(0, "outside_session"), (6, "outside_session")]
    assert [o["row"] for o in found.offenders["locked_regular"]] == [2, 3]


def test_a_low_far_below_is_an_outlier_and_equal_levels_are_out_of_order() -> None:
    within = Hours(OPEN - SECOND, OPEN + 86_400 * SECOND, OPEN, OPEN + SECOND)
    prices = Prices(True, 0.1, 20)
    low = put(bars(), 60, low=50 * UNIT)
    assert profile(low, "ohlcv-1m", within, prices).quarantine.rows() == [(60, "outlier")]
    book = quotes(20).with_columns(ask_px_01=pl.col("ask_px_00"))
    assert profile(book, "mbp-10", within, prices).figures["unordered_levels"] == 20
