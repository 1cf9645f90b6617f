"""The stages ``features`` and ``labels`` on real tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import polars as pl
import pytest

from foxhunt_pipeline.artifacts import Artifact, Content, Item, Result, digest_of
from foxhunt_pipeline.config import Config
from foxhunt_pipeline.features import stage as features
from foxhunt_pipeline.labels import stage as labels
from support import market_tables, real_market
from support.market_tables import tables_artifact
from support.task import FolderTask

Tables = Sequence[tuple[str, str, str, pl.DataFrame]]
SESSION = "2013-10-08"


def equities(data: Path, *symbols: str) -> Tables:
    found = real_market.tables(data, "equities")
    return [("LEAN.EQUITY", s, schema, found[s][schema]) for s in symbols for schema in found[s]]


def verdicts(folder: Path, tables: Artifact, bad: dict[str, list[int]]) -> Artifact:
    """Artifact of ``market/validated`` that quarantines these rows of tables, by name."""
    task = FolderTask(folder, "market/validated", SESSION)

    def verdict(table: Item) -> Item:
        rows = bad.get(table.name, [])

        def write(folder: Path) -> Content:
            frame = pl.DataFrame(
                {"row": pl.Series(rows, dtype=pl.UInt32), "reason": ["x"] * len(rows)}
            )
            frame.write_parquet(folder / "quarantine.parquet")
            return Content(digest_of(rows))

        return task.item(table.name, [table.digest, digest_of(rows)], write)

    return task.build(lambda _: Result([verdict(item) for item in tables.items.values()]))


def task_of(
    folder: Path,
    tables: Tables,
    stage: str,
    *,
    session: str = SESSION,
    bad: dict[str, list[int]] | None = None,
    config: dict[str, object] | None = None,
) -> FolderTask:
    market = tables_artifact(folder, session, tables)
    return FolderTask(
        folder,
        stage,
        session,
        settings=Config.model_validate(config or {}),
        inputs={"market/tables": market, "market/validated": verdicts(folder, market, bad or {})},
    )


def load(task: FolderTask, item: Item, name: str) -> np.ndarray:
    return np.load(task.path(item, f"{name}.npy"))


def test_views_of_the_real_equities(test_data: Path, tmp_path: Path) -> None:
    tables = equities(test_data, "IBM", "SPY", "AIG")
    task = task_of(tmp_path, tables, "features")
    made = task.build(features.build)
    rows = {name: item.figures["rows"] for name, item in made.items.items()}
    assert rows == {
        "bars/LEAN.EQUITY/0/AIG": 390,
        "bars/LEAN.EQUITY/0/IBM": 390,
        "book/LEAN.EQUITY/0/IBM": 23_400,
        "bars/LEAN.EQUITY/0/SPY": 390,
    }
    assert made.figures["rows"] == {"bars": 1170, "book": 23_400}
    sources = {name: item.figures["source"] for name, item in made.items.items()}
    assert sources["bars/LEAN.EQUITY/0/AIG"] == "ohlcv-1s"
    assert sources["book/LEAN.EQUITY/0/IBM"] == "trades, mbp-1"
    hours = real_market.hours("equities")
    for item in made.items.values():
        ts, x = load(task, item, "ts"), load(task, item, "x")
        assert ts.dtype == np.int64
        assert x.dtype == np.float32
        assert x.shape == (len(ts), len(item.figures["columns"]))
        assert not np.isinf(x).any()
        assert hours.open_ns < ts[0] < ts[-1] == hours.close_ns
        assert (np.diff(ts) > 0).all()
    assert made.items["book/LEAN.EQUITY/0/IBM"].figures["n_levels"] == 1
    assert made.items["bars/LEAN.EQUITY/0/SPY"].figures["n_levels"] == 0


def test_labels_have_the_rows_of_the_features(test_data: Path, tmp_path: Path) -> None:
    tables = equities(test_data, "IBM", "BAC")
    made = task_of(tmp_path, tables, "features").build(features.build)
    task = task_of(tmp_path, tables, "labels")
    labelled = task.build(labels.build)
    assert list(labelled.items) == list(made.items)
    for name, item in labelled.items.items():
        ts, y, px = (load(task, item, n) for n in ("ts", "y", "px"))
        np.testing.assert_array_equal(ts, load(task, made.items[name], "ts"))
        horizons = item.figures["horizons"]
        assert horizons == ([1, 5, 15] if name.startswith("bars") else [10, 30, 60])
        shape = (len(ts), len(horizons))
        assert y.shape == load(task, item, "smooth").shape == shape
        assert load(task, item, "end_ts").shape == shape
        assert px.shape == (len(ts), 6)
        assert px.dtype == np.int64
        assert item.figures["has_quotes"] == ("IBM" in name)
        mark = np.where(px[:, 4] > 0, px[:, 4], np.nan)
        expected = np.log(mark[horizons[0] :] / mark[: -horizons[0]])
        np.testing.assert_allclose(y[: -horizons[0], 0], expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("stage", [features, labels])
def test_quarantined_rows_count_for_nothing(
    test_data: Path, tmp_path: Path, stage: ModuleType
) -> None:
    tables = equities(test_data, "IBM")
    name = "LEAN.EQUITY/0/IBM/trades"
    trades = next(rows for *_, schema, rows in tables if schema == "trades")
    row = 9_000
    spoilt = [
        (d, s, schema, market_tables.put(rows, row, price=1) if schema == "trades" else rows)
        for d, s, schema, rows in tables
    ]
    without = [
        (d, s, schema, rows.filter(pl.int_range(pl.len()) != row) if schema == "trades" else rows)
        for d, s, schema, rows in tables
    ]
    assert len(trades) > row
    kind = stage.__name__.split(".")[1]
    clean = task_of(tmp_path / "a", without, kind).build(stage.build)
    held = task_of(tmp_path / "b", spoilt, kind, bad={name: [row]}).build(stage.build)
    loose = task_of(tmp_path / "c", spoilt, kind).build(stage.build)
    assert held.data_version == clean.data_version
    if stage is features:
        assert loose.data_version != clean.data_version


def test_an_instrument_more_computes_only_its_own(test_data: Path, tmp_path: Path) -> None:
    task = task_of(tmp_path, equities(test_data, "AIG", "IBM"), "features")
    first = task.build(features.build)
    more = task_of(tmp_path, equities(test_data, "AIG", "BAC", "IBM"), "features")
    more = replace(more, known=task.known)
    second = more.build(features.build)
    assert more.computed == ["bars/LEAN.EQUITY/0/BAC"]
    for name, item in first.items.items():
        assert second.items[name] == item


@pytest.mark.parametrize("stage", [features, labels])
def test_building_twice_gives_the_same_bytes(
    test_data: Path, tmp_path: Path, stage: ModuleType
) -> None:
    kind = stage.__name__.split(".")[1]
    one, two = (
        task_of(tmp_path / folder, equities(test_data, "IBM"), kind).build(stage.build)
        for folder in "ab"
    )
    assert {n: (i.digest, i.files) for n, i in one.items.items()} == {
        n: (i.digest, i.files) for n, i in two.items.items()
    }


def test_levels_clock_and_hours_are_configured(test_data: Path, tmp_path: Path) -> None:
    found = real_market.tables(test_data, "futures")["ESH4"]
    tables = [("GLBX.MDP3", "ESH4", schema, rows) for schema, rows in found.items()]
    config: dict[str, object] = {
        "features": {"book_levels": 3},
        "clock": {"book": "5s", "bars": "2m"},
        "market": {"hours": "all"},
    }
    task = task_of(tmp_path, tables, "features", session="2023-12-26", config=config)
    made = task.build(features.build)
    book = made.items["book/GLBX.MDP3/0/ESH4"]
    assert book.figures["n_levels"] == 3
    assert sum(c.startswith("lob_") for c in book.figures["columns"]) == 12
    ts = load(task, book, "ts")
    assert (np.diff(ts) == 5 * real_market.SECOND).all()
    pre_open = real_market.hours("futures").open_ns
    assert ts[0] < pre_open  # quotes from 22:00, trading from 23:00
    x = load(task, book, "x")
    assert np.isnan(x[ts < pre_open, 0]).any()  # crossed before the open
    assert not np.isnan(x[ts > pre_open + real_market.MINUTE, 0]).any()


def test_around_the_clock_rows_last_as_long_as_records(test_data: Path, tmp_path: Path) -> None:
    found = real_market.tables(test_data, "crypto")["BTCUSDT-PERP"]
    tables = [("BINANCE.DEMO", "BTCUSDT-PERP", schema, rows) for schema, rows in found.items()]
    task = task_of(tmp_path, tables, "features", session="2024-08-08")
    book = task.build(features.build).items["book/BINANCE.DEMO/0/BTCUSDT-PERP"]
    ts = load(task, book, "ts")
    records = found["mbp-10"]["ts_recv"].to_physical()
    assert 0 <= ts[0] - records[0] < real_market.SECOND
    assert 0 <= ts[-1] - records[-1] < real_market.SECOND
    assert len(ts) > 300


def test_an_instrument_without_records_in_trading_hours_has_no_item(tmp_path: Path) -> None:
    early = market_tables.trades().with_columns(pl.col("ts_recv") - pl.duration(hours=9))
    task = task_of(tmp_path, [("LEAN.EQUITY", "SPY", "trades", early)], "features")
    assert not task.build(features.build).items


def test_quotes_at_trades_are_states_though_they_end_no_event(tmp_path: Path) -> None:
    table = market_tables.quotes(levels=1).with_columns(
        pl.lit(ord("T"), pl.UInt8).alias("action"),
        pl.when(pl.int_range(pl.len()) % 50 == 0)
        .then(128)
        .otherwise(0)
        .cast(pl.UInt8)
        .alias("flags"),
    )
    task = task_of(tmp_path, [("LEAN.EQUITY", "SPY", "tbbo", table)], "labels")
    made = task.build(labels.build)
    px = load(task, made.items["book/LEAN.EQUITY/0/SPY"], "px")
    assert len(np.unique(px[:2000, 0])) > 90
    assert (load(task, made.items["bars/LEAN.EQUITY/0/SPY"], "px")[:-1] > 0).all()


def test_a_name_with_odd_letters(tmp_path: Path) -> None:
    tables = [("LEAN.EQUITY", "BRK/B é", "trades", market_tables.trades())]
    task = task_of(tmp_path, tables, "features")
    assert list(task.build(features.build).items) == ["bars/LEAN.EQUITY/0/BRK%2FB%20%C3%A9"]
