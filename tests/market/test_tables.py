"""Tables: the same records give the same tables however they were delivered."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import databento
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foxhunt_pipeline.artifacts import Artifact, Content, Item
from foxhunt_pipeline.config import Config
from foxhunt_pipeline.errors import DataError
from foxhunt_pipeline.market import raw, tables
from foxhunt_pipeline.market.landing import FolderLanding
from foxhunt_pipeline.market.reading import clean_table, instruments, read_table
from foxhunt_pipeline.market.schemas import SCHEMAS
from foxhunt_pipeline.market.sessions import SurveyedSource
from foxhunt_pipeline.market.writing import empty_records, write_dbn
from support.deliveries import Interval, Mapped, compress, look, make_tables, metadata, read
from support.task import FolderTask

HOUR = 3600 * 10**9
DAY = 24 * HOUR
MONDAY = 1381118400 * 10**9
"""2013-10-07 00:00 in New York, 04:00 UTC."""
SESSIONS = ["2013-10-07", "2013-10-08", "2013-10-09", "2013-10-10", "2013-10-11"]
UNIVERSE = Config.model_validate({"universe": {"instruments": ["IBM", "AIG"]}})
IDS = {"AIG": 1, "IBM": 3}


@pytest.fixture(scope="module")
def week(test_data: Path) -> dict[str, np.ndarray]:
    """IBM and AIG of the five equity sessions, by schema."""
    records = {}
    for schema in ("trades", "mbp-1", "ohlcv-1m"):
        paths = sorted((test_data / "landing/equities").glob(f"*.{schema}.dbn.zst"))
        whole = np.concatenate([read(path) for path in paths])
        records[schema] = whole[np.isin(whole["instrument_id"], list(IDS.values()))]
    return records


def put(folder: Path, name: str, schema: str, records: np.ndarray, start: int, end: int) -> None:
    key = records[SCHEMAS[schema].key]
    chosen = records[(key >= start) & (key < end)]
    symbols = {s: i for s, i in IDS.items() if i in records["instrument_id"]}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.{schema}.dbn.zst"
    write_dbn(path, schema, "LEAN.EQUITY", chosen, symbols, start, end)


def weekly(folder: Path, week: dict[str, np.ndarray]) -> None:
    for schema, records in week.items():
        put(folder, "week", schema, records, MONDAY, MONDAY + 5 * DAY)


def daily(folder: Path, week: dict[str, np.ndarray]) -> None:
    for schema, records in week.items():
        for n in range(5):
            put(folder / f"JOB-{n}", "d", schema, records, MONDAY + n * DAY, MONDAY + (n + 1) * DAY)


def midnight(folder: Path, week: dict[str, np.ndarray]) -> None:
    for schema, records in week.items():
        for n in range(6):
            start = MONDAY - 4 * HOUR + n * DAY
            put(folder, f"utc-{n}", schema, records, start, start + DAY)


def by_symbol(folder: Path, week: dict[str, np.ndarray]) -> None:
    for schema, records in week.items():
        for symbol, number in IDS.items():
            chosen = records[records["instrument_id"] == number]
            if len(chosen):
                put(folder, f"week.{symbol}", schema, chosen, MONDAY, MONDAY + 5 * DAY)


def twice(folder: Path, week: dict[str, np.ndarray]) -> None:
    """Everything weekly, and again daily, at midnight, and the weekly bytes once more."""
    weekly(folder, week)
    weekly(folder / "again", week)
    daily(folder, week)
    midnight(folder / "utc", week)


def by_size(folder: Path, week: dict[str, np.ndarray]) -> None:
    """Cut every 10,000 records, in the middle of an instant too; each file starts and ends with
    its own records, as Databento has it."""
    for schema, records in week.items():
        key = records[SCHEMAS[schema].key].astype(np.int64)
        starts = list(range(0, len(records), 10_000))
        assert schema != "trades" or any(key[s] == key[s - 1] for s in starts[1:])
        for start in starts:
            piece = records[start : start + 10_000]
            ends = key[start : start + 10_000]
            folder.mkdir(exist_ok=True)
            write_dbn(
                folder / f"part{start:07d}.{schema}.dbn.zst",
                schema, "LEAN.EQUITY", piece, IDS, int(ends[0]), int(ends[-1]),
            )  # fmt: skip


@pytest.fixture(scope="module")
def as_delivered(test_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    folder = tmp_path_factory.mktemp("original")
    landing = test_data / "landing/equities"
    return {date: make_tables(landing, folder, date, UNIVERSE)[0] for date in SESSIONS[:3]}


@pytest.mark.parametrize("split", [weekly, daily, midnight, by_symbol, twice, by_size])
def test_however_the_week_is_delivered_the_tables_are_the_same(
    split: Callable[[Path, dict[str, np.ndarray]], None],
    week: dict[str, np.ndarray],
    as_delivered: dict[str, Artifact],
    tmp_path: Path,
) -> None:
    split(tmp_path / "landing", week)
    _, surveyed = look(tmp_path / "landing", tmp_path / "state")
    assert list(surveyed.ready()) == list(surveyed.sessions) == SESSIONS
    for date in SESSIONS[:3]:
        made, _ = make_tables(tmp_path / "landing", tmp_path, date, UNIVERSE)
        originals = {
            name: item
            for name, item in as_delivered[date].items.items()
            if item.figures["schema"] in week
        }
        assert {n: i.digest for n, i in made.items.items()} == {
            n: i.digest for n, i in originals.items()
        }
        assert {n: i.files for n, i in made.items.items()} == {
            n: i.files for n, i in originals.items()
        }


def test_tables_hold_what_the_official_client_reads(test_data: Path, tmp_path: Path) -> None:
    """Every column of every schema, from files of one session each."""
    fixtures = test_data / "fixtures/databento-python"
    for path in sorted(fixtures.rglob("*.dbn.zst")):
        store = databento.DBNStore.from_bytes(path.read_bytes())
        schema = str(store.schema)
        if schema not in SCHEMAS or schema == "definition":
            continue
        landing = tmp_path / path.parent.name / schema
        landing.mkdir(parents=True)
        (landing / "delivered.dbn.zst").write_bytes(path.read_bytes())
        _, surveyed = look(landing, landing / "state")
        theirs = store.to_ndarray().reshape(-1)
        count = 0
        for date in surveyed.sessions:
            made, task = make_tables(landing, landing / "made", date)
            for item in made.items.values():
                table = read_table(task, item)
                of = item.figures
                chosen = theirs[
                    (theirs["publisher_id"] == of["publisher_id"])
                    & (theirs["instrument_id"] == of["instrument_id"])
                    & (theirs[SCHEMAS[schema].key] >= of["ts_min"])
                    & (theirs[SCHEMAS[schema].key] <= of["ts_max"])
                ]
                assert len(table) == of["rows"] == len(chosen)
                assert_columns(table, chosen, path)
                assert of["symbol"] in store.symbols
                count += len(table)
        assert count == len(theirs) > 0


def assert_columns(table: pl.DataFrame, records: np.ndarray, path: Path) -> None:
    sides = {b"A": -1, b"B": 1, b"N": 0}
    for column in table.columns:
        values = table[column]
        if column == "ts_close":
            step = {"1s": 1, "1m": 60, "1h": 3600, "1d": 86400}[path.name.split("-")[-1][:2]]
            expected = [int(t) + step * 10**9 for t in records["ts_event"]]
        elif column in ("side", "aggressor_side"):
            expected = [sides[s] for s in records["side"]]
        elif column == "action":
            expected = [s[0] for s in records["action"]]
        else:
            expected = [int(v) for v in records[column]]
            if "px" in column or column == "price":
                expected = [None if v == 2**63 - 1 else v for v in expected]
        if values.dtype == pl.Datetime:
            assert values.dtype == pl.Datetime("ns", "UTC")
            values = values.to_physical()
        assert values.to_list() == expected, (path, column)


def test_definitions_become_tables_and_give_tick_sizes(test_data: Path, tmp_path: Path) -> None:
    fixtures = test_data / "fixtures/databento-python/GLBX.MDP3"
    landing = tmp_path / "landing"
    landing.mkdir()
    for schema in ("definition", "trades"):
        name = f"test_data.{schema}.dbn.zst"
        (landing / name).write_bytes((fixtures / name).read_bytes())
    made, task = make_tables(landing, tmp_path, "2020-12-28")
    of = instruments(made)["GLBX.MDP3", 1, "ESH1"]
    assert of["trades"].figures["min_price_increment"] == 250_000_000
    row = read_table(task, of["definition"]).row(0, named=True)
    official = (fixtures / "test_data.definition.dbn.zst").read_bytes()
    definition = next(iter(databento.DBNStore.from_bytes(official)))
    assert row["raw_symbol"] == definition.raw_symbol == "ESH1"
    assert row["instrument_id"] == definition.instrument_id == 5482
    assert row["min_price_increment"] == definition.min_price_increment
    assert row["currency"] == definition.currency
    assert row["exchange"] == definition.exchange
    assert row["instrument_class"] == str(definition.instrument_class)
    assert row["unit_of_measure_qty"] == definition.unit_of_measure_qty
    assert row["contract_multiplier"] is None
    assert int(row["expiration"].timestamp()) * 10**9 == definition.expiration


def test_definitions_of_every_version_are_one_table(test_data: Path, tmp_path: Path) -> None:
    digests = set()
    for version in (1, 2, 3):
        landing = tmp_path / str(version)
        landing.mkdir()
        name = f"test_data.definition.v{version}.dbn.zst"
        (landing / name).write_bytes((test_data / "fixtures/dbn" / name).read_bytes())
        facts, _ = look(landing, landing / "state")
        session = next(iter(facts[0].spans))
        made, _ = make_tables(landing, landing / "made", session)
        digests.add(made.data_version)
    assert len(digests) == 1


def test_publishers_are_kept_apart(test_data: Path, tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    path = test_data / "fixtures/databento-python/OPRA.PILLAR/test_data.trades.dbn.zst"
    (landing / path.name).write_bytes(path.read_bytes())
    made, task = make_tables(landing, tmp_path, "2025-02-20")
    rows = {key: len(read_table(task, of["trades"])) for key, of in instruments(made).items()}
    symbol = "AAPL  250221C00250000"
    assert rows == {
        ("OPRA.PILLAR", 23, symbol): 1,
        ("OPRA.PILLAR", 26, symbol): 2,
        ("OPRA.PILLAR", 37, symbol): 1,
    }
    assert "OPRA.PILLAR/23/AAPL%20%20250221C00250000/trades" in made.items


def trades(keys: list[int], instrument: int = 7) -> np.ndarray:
    records = empty_records("trades", len(keys))
    records["instrument_id"], records["action"], records["side"] = instrument, b"T", b"B"
    records["ts_recv"] = records["ts_event"] = keys
    records["price"] = np.arange(len(keys)) + 1
    return records


def landed(folder: Path, *parts: bytes, name: str = "x.dbn.zst") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(compress(*parts))
    return folder


@pytest.mark.parametrize("symbol", ["../../etc/passwd", "a/b", ".", "..", "%2e%2e", "a b|:*?"])
def test_a_symbol_is_a_name_and_never_a_path(tmp_path: Path, symbol: str) -> None:
    head = metadata("trades", symbols={symbol: 7})
    landing = landed(tmp_path / "landing", head, trades([MONDAY]).tobytes())
    made, task = make_tables(landing, tmp_path / "work", "2013-10-07")
    (name,) = made.items
    assert len(name.split("/")) == 4
    assert instruments(made)["LEAN.EQUITY", 0, symbol]["trades"].figures["rows"] == 1
    assert {p.name for p in tmp_path.iterdir()} == {"landing", "work"}
    assert len(read_table(task, made.items[name])) == 1


def test_symbols_follow_the_mapping_by_date(tmp_path: Path) -> None:
    """An id that is reused names another instrument the next day; without mapping it is its own
    name. Ends are exclusive."""
    first = (Interval(dt.date(2013, 10, 7), dt.date(2013, 10, 8), "7"),)
    second = (Interval(dt.date(2013, 10, 8), dt.date(2013, 10, 9), "7"),)
    head = metadata("trades", mappings=[Mapped("OLD", first), Mapped("NEW", second)])
    midnight_utc = MONDAY + 20 * HOUR
    keys = [midnight_utc - 1, midnight_utc, midnight_utc + 1]
    records = np.concatenate([trades(keys), trades([midnight_utc + 2], 8)])
    landing = landed(tmp_path / "landing", head, records.tobytes())
    made, _ = make_tables(landing, tmp_path, "2013-10-07")
    rows = {key[2]: of["trades"].figures["rows"] for key, of in instruments(made).items()}
    assert rows == {"OLD": 1, "NEW": 2, "8": 1}


def test_one_symbol_of_two_instruments_makes_two_tables(tmp_path: Path) -> None:
    days = (dt.date(2013, 10, 7), dt.date(2013, 10, 9))
    head = metadata(
        "trades", mappings=[Mapped("ES.FUT", (Interval(*days, "7"), Interval(*days, "8")))]
    )
    records = np.concatenate([trades([MONDAY, MONDAY + 2]), trades([MONDAY + 3], 8)])
    landing = landed(tmp_path / "landing", head, records.tobytes())
    made, _ = make_tables(landing, tmp_path, "2013-10-07")
    rows = {key[2]: of["trades"].figures["rows"] for key, of in instruments(made).items()}
    assert rows == {"ES.FUT#7": 2, "ES.FUT#8": 1}


def test_records_out_of_order_are_put_in_order_and_ties_are_not(tmp_path: Path) -> None:
    keys = [MONDAY + k for k in (5, 3, 3, 9, 1, 3)]
    head = metadata("trades", symbols={"X": 7})
    landing = landed(tmp_path / "landing", head, trades(keys).tobytes())
    made, task = make_tables(landing, tmp_path, "2013-10-07")
    table = read_table(task, next(iter(made.items.values())))
    assert table["price"].to_list() == [5, 2, 3, 6, 1, 4]


def test_a_daily_bar_belongs_to_the_session_in_which_it_ends(tmp_path: Path) -> None:
    """The bar of the UTC day 2013-10-08 opens in New York's evening of the 7th."""
    records = empty_records("ohlcv-1d", 1)
    records["ts_event"] = MONDAY + 20 * HOUR
    head = metadata("ohlcv-1d", end=MONDAY + 3 * DAY, symbols={"X": 0})
    landing = landed(tmp_path / "landing", head, records.tobytes())
    _, surveyed = look(landing, tmp_path / "state")
    assert list(surveyed.sessions) == ["2013-10-08"]


def test_an_unknown_universe_says_what_was_delivered(test_data: Path, tmp_path: Path) -> None:
    config = Config.model_validate({"universe": {"instruments": ["MSFT"]}})
    with pytest.raises(DataError, match=r"none of the universe.*Delivered: ESH4"):
        make_tables(test_data / "landing/futures", tmp_path, "2023-12-26", config)


def test_christmas_trades_belong_to_the_next_session(test_data: Path, tmp_path: Path) -> None:
    _, surveyed = look(test_data / "landing/futures", tmp_path / "state")
    assert list(surveyed.ready()) == ["2023-12-26"]
    made, task = make_tables(test_data / "landing/futures", tmp_path, "2023-12-26")
    item = instruments(made)["GLBX.MDP3", 1, "ESH4"]["trades"]
    assert len(read_table(task, item)) == 2_973


def test_a_copied_landing_may_change_afterwards(tmp_path: Path) -> None:
    head = metadata("trades", symbols={"X": 7})
    landing = landed(tmp_path / "landing", head, trades([MONDAY]).tobytes())
    config = Config.model_validate({"landing": {"immutable": False}})
    first, _ = make_tables(landing, tmp_path, "2013-10-07", config)
    assert first.items
    _, surveyed = look(landing, tmp_path / "state")
    source = SurveyedSource(surveyed, FolderLanding(landing))
    (landing / "x.dbn.zst").write_bytes(compress(head, trades([MONDAY + 1]).tobytes()))
    task = FolderTask(tmp_path / "b", stage="raw/dbn", partition="2013-10-07", source=source)
    with pytest.raises(DataError, match=r"x.dbn.zst: has SHA-256 .* when inspected"):
        task.build(raw.build)


def test_quarantined_rows_are_left_out(tmp_path: Path) -> None:
    head = metadata("trades", symbols={"X": 7})
    landing = landed(tmp_path / "landing", head, trades([MONDAY + n for n in range(5)]).tobytes())
    made, task = make_tables(landing, tmp_path, "2013-10-07")
    (table,) = made.items.values()

    def quarantine(folder: Path):
        rows = pl.DataFrame(
            {"row": pl.Series([1, 3, 3], dtype=pl.UInt32), "reason": ["a", "a", "b"]}
        )
        rows.write_parquet(folder / "quarantine.parquet")
        return Content("0")

    validated: Item = task.item("validated", [], quarantine)
    assert clean_table(task, table, validated)["price"].to_list() == [1, 3, 5]
    assert clean_table(task, table, validated, ["price"]).columns == ["price"]
    assert read_table(task, table)["price"].to_list() == [1, 2, 3, 4, 5]


def test_only_tables_that_are_new_are_computed(tmp_path: Path) -> None:
    head = metadata("trades", symbols={"X": 7, "Y": 8})
    both = np.concatenate([trades([MONDAY, MONDAY + 1]), trades([MONDAY + 2], 8)])
    landing = landed(tmp_path / "landing", head, both.tobytes())
    _, task = make_tables(landing, tmp_path, "2013-10-07")
    assert len(task.computed) == 2
    again = task.build(tables.build)
    assert len(again.items) == len(task.reused) == 2
    assert task.computed == []


CUTS = st.lists(st.integers(1, 59), max_size=3, unique=True).map(sorted)
SPANS = st.tuples(st.integers(0, 59), st.integers(1, 60), st.sampled_from([(7,), (8,), (7, 8)]))


@settings(max_examples=30, deadline=None)
@given(
    seconds=st.lists(st.integers(0, 59), min_size=1, max_size=30).map(sorted),
    instruments_=st.randoms(use_true_random=False),
    cuts=CUTS,
    split_by_symbol=st.booleans(),
    again=st.lists(SPANS, max_size=3),
)
def test_any_split_and_any_overlap_give_the_same_tables(
    tmp_path_factory: pytest.TempPathFactory,
    seconds: list[int],
    instruments_: random.Random,
    cuts: list[int],
    split_by_symbol: bool,
    again: list[tuple[int, int, tuple[int, ...]]],
) -> None:
    records = trades([MONDAY + s * 10**9 for s in seconds])
    records["instrument_id"] = [instruments_.choice([7, 8]) for _ in seconds]
    groups = [(7,), (8,)] if split_by_symbol else [(7, 8)]
    edges = [0, *cuts, 60]
    spans = [(a, b, g) for a, b in pairwise(edges) for g in groups]
    folder = tmp_path_factory.mktemp("split")
    for name, deliveries in (("whole", [(0, 60, (7, 8))]), ("split", [*spans, *again])):
        (folder / name).mkdir()
        for n, (first, after, ids) in enumerate(deliveries):
            key = (records["ts_recv"].astype(np.int64) - MONDAY) // 10**9
            chosen = records[
                (key >= first) & (key < after) & np.isin(records["instrument_id"], ids)
            ]
            head = metadata(
                "trades",
                start=MONDAY + first * 10**9,
                end=MONDAY + max(after, first + 1) * 10**9,
                symbols={"X": 7, "Y": 8},
            )
            (folder / name / f"{n}.dbn").write_bytes(head + chosen.tobytes())
    made = [make_tables(folder / name, folder / f"of {name}", "2013-10-07")[0].items
            for name in ("whole", "split")]  # fmt: skip
    assert {n: i.digest for n, i in made[0].items()} == {n: i.digest for n, i in made[1].items()}
