"""Every expectation can fail, and says what failed, how often and where."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from foxhunt_pipeline.config import Config
from foxhunt_pipeline.errors import DataError
from foxhunt_pipeline.validation.expectations import judge
from foxhunt_pipeline.validation.rules import Hours, Prices, profile
from foxhunt_pipeline.validation.suites import SUITES, kind_of
from support.market_tables import OPEN, SECOND, TIME, UNIT, bars, definitions, put, quotes, trades

HOUR = 3600 * SECOND
HOURS = Hours(OPEN - 9 * HOUR, OPEN + 15 * HOUR, OPEN, OPEN + 13 * HOUR // 2)
PRICES = Prices(positive=True, outlier_share=0.1, outlier_sigmas=20)
SETTINGS = Config().section("validation")
SCHEMA = {"trades": "trades", "quotes": "mbp-10", "bars": "ohlcv-1m", "definitions": "definition"}
SOUND: dict[str, Callable[[], pl.DataFrame]] = {
    "trades": trades,
    "quotes": quotes,
    "bars": bars,
    "definitions": definitions,
}
LAST = 1199

Fault = tuple[Callable[[pl.DataFrame], pl.DataFrame], int, int | None]
"""What is done to a sound table, how many rows are then at fault, and the first of them."""


def _crossed(at: list[int], by: int) -> Callable[[pl.DataFrame], pl.DataFrame]:
    def make(rows: pl.DataFrame) -> pl.DataFrame:
        inside = pl.int_range(pl.len()).is_in(at)
        return rows.with_columns(
            bid_px_00=pl.when(inside).then(pl.col("ask_px_00") + by).otherwise("bid_px_00")
        )

    return make


def _repeated(rows: pl.DataFrame) -> pl.DataFrame:
    return pl.concat([rows, rows, rows.head(10)]).sort("ts_recv", maintain_order=True)


COMMON: dict[str, Fault] = {
    "There are rows": (lambda rows: rows.clear(), 1, None),
}
PRINTS: dict[str, Fault] = {
    "Rows are in order": (lambda rows: put(rows, 7, ts_recv=OPEN), 1, 7),
    "Rows lie within the session": (lambda rows: rows.pipe(_shifted, -10 * HOUR), 180, 0),
    "Few rows are quarantined": (lambda rows: put(rows, range(4, 1000, 4), size=0), 249, 4),
    "No long silence in regular hours": (lambda rows: pl.concat([rows[:101], rows[300:]]), 1, 100),
    "Prices are positive": (lambda rows: put(rows, [8, 40], price=-UNIT), 2, 8),
    "No price is far beyond those before it": (
        lambda rows: put(rows, [80, 120], price=120 * UNIT),
        2,
        80,
    ),
    "Moves between neighbouring prints are small": (
        lambda rows: put(rows, range(80, 1200), price=106 * UNIT),
        1,
        80,
    ),
    "Prices are defined": (lambda rows: put(rows, [12, 16, 20], price=None), 3, 12),
    "Trades have a size": (lambda rows: put(rows, [12, 16], size=0), 2, 12),
    "Few rows repeat another in every field": (_repeated, 1210, 1),
}


def _shifted(rows: pl.DataFrame, by: int) -> pl.DataFrame:
    ts = (pl.col("ts_recv").cast(pl.Int64) + by).cast(TIME)
    return rows.with_columns(ts_recv=ts)


FAULTS: dict[str, dict[str, Fault]] = {
    "trades": {
        **COMMON,
        **PRINTS,
        "Trades have a time": (lambda rows: put(rows, 5, ts_recv=None), 1, None),
        "Aggressor is buyer, seller or unknown": (
            lambda rows: put(rows, [5, 6], aggressor_side=7),
            2,
            None,
        ),
    },
    "quotes": {
        **COMMON,
        **PRINTS,
        "Quotes have a time": (lambda rows: put(rows, 5, ts_recv=None), 1, None),
        "Action is one of DBN's (A C F M N R T)": (lambda rows: put(rows, 5, action=0), 1, None),
        "Side is bid, ask or none": (lambda rows: put(rows, 5, side=2), 1, None),
        "Few books are crossed in regular hours": (_crossed(list(range(9, 40)), 1), 31, 9),
        "Few books are crossed outside regular hours": (_crossed([LAST - 1, LAST], 1), 2, LAST - 1),
        "Few books are locked in regular hours": (_crossed(list(range(9, 109)), 0), 100, 9),
        "Few books are locked outside regular hours": (
            _crossed(list(range(1180, 1200)), 0),
            20,
            1180,
        ),
        "Levels of the book are in order": (
            lambda rows: put(rows, [3, 4], bid_px_07=200 * UNIT),
            2,
            3,
        ),
    },
    "bars": {
        **COMMON,
        "Rows are in order": (lambda rows: pl.concat([rows[:9], rows[8:]]), 1, 9),
        "Rows lie within the session": (
            lambda rows: put(rows, 0, ts_event=OPEN - 10 * HOUR, ts_close=OPEN - 10 * HOUR + 60),
            1,
            0,
        ),
        "Few rows are quarantined": (lambda rows: put(rows, range(9), high=0), 9, 0),
        "No long silence in regular hours": (lambda rows: rows[:300], 1, 299),
        "Prices are positive": (lambda rows: put(rows, 9, low=0), 1, 9),
        "No price is far beyond those before it": (
            lambda rows: put(rows, [60, 61], low=80 * UNIT),
            2,
            60,
        ),
        "Moves between neighbouring prints are small": (
            lambda rows: put(rows, 60, close=106 * UNIT),
            1,
            60,
        ),
        "Prices are defined": (lambda rows: put(rows, [7, 9], open=None), 2, 7),
        "Bars have a time": (lambda rows: put(rows, 5, ts_event=None), 1, None),
        "Open and close lie between low and high": (
            lambda rows: put(put(rows, 7, low=200 * UNIT), 9, high=UNIT),
            2,
            7,
        ),
        "Bars start and end on their interval": (
            lambda rows: put(rows, 3, ts_event=OPEN + 181 * SECOND, ts_close=OPEN + 241 * SECOND),
            1,
            3,
        ),
    },
    "definitions": {
        **COMMON,
        "Rows are in order": (
            lambda rows: pl.concat([rows, put(rows, 0, ts_recv=OPEN - SECOND)]),
            1,
            1,
        ),
        "Definitions have a symbol": (lambda rows: put(rows, 0, raw_symbol=None), 1, None),
        "Instruments had not expired": (
            lambda rows: put(rows, 0, expiration=OPEN - 12 * HOUR),
            1,
            0,
        ),
    },
}
COUNTED = "Rows looked at equal rows in the file"


def judged(kind: str, rows: pl.DataFrame, missing: int = 0) -> dict[str, dict[str, Any]]:
    found = profile(rows, SCHEMA[kind], HOURS, PRICES)
    results = judge(kind_of(SCHEMA[kind]), rows, found, SETTINGS, rows.height + missing)
    return {result["name"]: result for result in results}


@pytest.mark.parametrize("kind", SUITES)
def test_a_sound_table_passes_every_expectation(kind: str) -> None:
    results = judged(kind, SOUND[kind]())
    assert list(results) == [e.name for e in SUITES[kind]]
    assert [name for name, result in results.items() if not result["success"]] == []


@pytest.mark.parametrize(
    ("kind", "name"), [(k, e.name) for k, suite in SUITES.items() for e in suite]
)
def test_each_expectation_fails_on_its_fault(kind: str, name: str) -> None:
    if name == COUNTED:
        result = judged(kind, SOUND[kind](), missing=1)[name]
        assert not result["success"]
        assert result["bound"] == f"equal to {result['observed'] + 1}"
        return
    break_, count, first = FAULTS[kind][name]
    result = judged(kind, break_(SOUND[kind]()))[name]
    assert not result["success"]
    assert result["unexpected_count"] == count
    assert result["severity"] in ("critical", "warning")
    assert result["bound"]
    if first is not None:
        assert result["examples"][0]["row"] == first
        assert len(result["examples"]) == min(count, 5)


def test_a_table_that_lacks_what_is_judged_is_an_error_and_no_verdict() -> None:
    rows = trades()
    found = profile(rows, "trades", HOURS, PRICES)
    without = type(found)(
        {k: v for k, v in found.figures.items() if k != "outlier"},
        found.offenders,
        found.quarantine,
    )
    with pytest.raises(DataError, match="No price is far beyond those before it"):
        judge("trades", rows, without, SETTINGS, rows.height)


def test_an_unknown_schema_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(DataError, match=r"statistics.*mbp-10"):
        kind_of("statistics")


def test_it_is_loaded_when_used_says_nothing_and_reaches_nothing() -> None:
    script = """
import os, socket, sys
import foxhunt_pipeline.validation.stage
assert "great_expectations" not in sys.modules and "torch" not in sys.modules
def refuse(*a, **k):
    os._exit(3)  # from whichever thread
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
from test_expectations import judged, trades
assert all(r["success"] for r in judged("trades", trades()).values())
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": ":".join(sys.path), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
