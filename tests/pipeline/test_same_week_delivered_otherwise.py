"""The same market delivered in other files gives the same digests downstream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foxhunt_pipeline.market.writing import write_dbn
from support.deliveries import read
from support.project import Project

DATASET = "LEAN.EQUITY"
SYMBOLS = {"AIG": 1, "BAC": 2, "IBM": 3, "SPY": 4}
DAYS = ("20131007", "20131008")
KEYS = {"ohlcv-1m": "ts_event", "mbp-1": "ts_recv"}
DOWNSTREAM = ("market/tables", "market/validated", "features", "labels", "dataset")
DAY = 86_400 * 10**9
MONDAY = 1_381_118_400 * 10**9
"""2013-10-07 00:00 in New York, in ns since the epoch."""
MIDNIGHT = MONDAY - 4 * 3600 * 10**9
"""The same date's midnight UTC."""
THIN = 25
"""Every so many quotes, and all after midnight UTC, which a session crosses."""

Market = Mapping[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def market(test_data: Path) -> Market:
    """Two days of real minute bars of four stocks and of quotes of one, thinned."""
    found = {}
    for schema in KEYS:
        days = []
        for day in DAYS:
            path = test_data / "landing" / "equities" / f"lean-equity-{day}.{schema}.dbn.zst"
            records = read(path)
            if schema == "mbp-1":
                late = records["ts_recv"] % DAY < 4 * 3600 * 10**9
                records = records[late | (np.arange(len(records)) % THIN == 0)]
                assert late.sum() == 4
            days.append(records)
        found[schema] = np.concatenate(days)
    return found


def weekly(market: Market) -> Iterator[tuple[str, str, np.ndarray[Any, Any], int, int]]:
    for schema, records in market.items():
        yield f"week/{schema}.dbn.zst", schema, records, MONDAY, MONDAY + 2 * DAY


def daily(market: Market) -> Iterator[tuple[str, str, np.ndarray[Any, Any], int, int]]:
    for schema, records in market.items():
        for i in range(2):
            start = MONDAY + i * DAY
            key = records[KEYS[schema]]
            some = records[(key >= start) & (key < start + DAY)]
            yield f"{schema}-{i}.dbn.zst", schema, some, start, start + DAY


def by_utc_date(market: Market) -> Iterator[tuple[str, str, np.ndarray[Any, Any], int, int]]:
    for schema, records in market.items():
        for i in range(3):
            start = MIDNIGHT + i * DAY
            key = records[KEYS[schema]]
            some = records[(key >= start) & (key < start + DAY)]
            yield f"{i}/{schema}.dbn.zst", schema, some, start, start + DAY


def by_symbol(market: Market) -> Iterator[tuple[str, str, np.ndarray[Any, Any], int, int]]:
    for schema, records in market.items():
        for symbol, number in SYMBOLS.items():
            some = records[records["instrument_id"] == number]
            if len(some):
                yield f"{symbol}.{schema}.dbn.zst", schema, some, MONDAY, MONDAY + 2 * DAY


def one_bar_less(market: Market) -> Iterator[tuple[str, str, np.ndarray[Any, Any], int, int]]:
    bars = market["ohlcv-1m"]
    second = np.flatnonzero(bars["ts_event"] >= MONDAY + DAY + 12 * 3600 * 10**9)[0]
    yield from daily({**market, "ohlcv-1m": np.delete(bars, second)})


def test_however_it_is_cut_the_week_is_the_same(
    market: Market, new_project: Callable[..., Project]
) -> None:
    project = new_project()
    project.env["FOXHUNT_STORES__ARTIFACTS__URL"] = "artifacts"
    project.env["FOXHUNT_WALK_FORWARD__TRAIN_SESSIONS"] = "1"
    layouts = (weekly, daily, by_utc_date, by_symbol, one_bar_less)
    found, computed = {}, {}
    for layout in layouts:
        landing = project.root / layout.__name__
        for name, schema, records, start, end in layout(market):
            path = landing / name
            path.parent.mkdir(parents=True, exist_ok=True)
            symbols = {s: n for s, n in SYMBOLS.items() if n in records["instrument_id"]}
            write_dbn(path, schema, DATASET, records, symbols, start, end)
        project.env["FOXHUNT_LANDING"] = str(landing)
        project.state = project.root / f"state-{layout.__name__}"
        project.sync("--select", "+dataset")
        assert project.plan("--select", "+dataset") == []
        found[layout] = project.versions(*DOWNSTREAM)
        computed[layout] = {
            stage: project.materialization(stage, "2013-10-08").metadata["items_computed"]
            for stage in ("market/tables", "features", "labels")
        }
    assert {day for _, day in found[weekly]} == {"2013-10-07", "2013-10-08", None}
    assert found[daily] == found[weekly]
    assert found[by_utc_date] == found[weekly]
    assert found[by_symbol] == found[weekly]
    # The layouts share an artifact store: tables are made anew from other files (the quotes of one
    # symbol are the week's file again), and since they come out the same nothing below them is.
    assert computed[by_symbol]["market/tables"] == 4
    assert computed[by_symbol]["features"] == computed[by_symbol]["labels"] == 0

    other = {
        place for place, version in found[one_bar_less].items() if version != found[weekly][place]
    }
    assert {day for _, day in other} == {"2013-10-08", None}
    assert ("market/tables", "2013-10-08") in other
    assert ("dataset", None) in other
