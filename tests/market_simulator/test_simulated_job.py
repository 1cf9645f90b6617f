"""A simulated delivery is one that Databento could have sent."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from simulated_books import SESSIONS, SYMBOLS, decoded, files

import foxhunt_pipeline
from foxhunt_pipeline.errors import ConfigError
from foxhunt_pipeline.market.simulator import DATASET, SCHEMAS, simulate

SMALL = 2_000
NEW_YORK = ZoneInfo("America/New_York")


def hashes(folder: Path, pattern: str = "*") -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob(pattern))
        if path.is_file()
    }


def test_manifest_lists_every_file_with_its_size_and_hash(market: list[Path]) -> None:
    job = market[0].parent
    assert job.name.startswith("SIM-20240102-")
    manifest = json.loads((job / "manifest.json").read_text())
    listed = {entry["filename"]: entry for entry in manifest["files"]}
    assert manifest["job_id"] == job.name
    assert set(listed) == {path.name for path in job.iterdir()} - {"manifest.json"}
    assert len(market) == SESSIONS * len(SCHEMAS)
    assert {path.name for path in market} | {
        "condition.json",
        "metadata.json",
        "symbology.json",
    } == set(listed)
    for name, entry in listed.items():
        data = (job / name).read_bytes()
        assert entry["size"] == len(data)
        assert entry["hash"] == "sha256:" + hashlib.sha256(data).hexdigest()
    assert [path.name for path in market[:4]] == [
        f"fox-simulated-20240102.{schema}.dbn.zst" for schema in SCHEMAS
    ]


def test_support_files_say_what_the_data_files_say(market: list[Path]) -> None:
    job = market[0].parent
    symbology = json.loads((job / "symbology.json").read_text())
    metadata = json.loads((job / "metadata.json").read_text())
    condition = json.loads((job / "condition.json").read_text())
    assert [day["date"] for day in condition] == ["2024-01-02", "2024-01-03", "2024-01-04"]
    assert {day["condition"] for day in condition} == {"available"}
    assert metadata["query"]["dataset"] == DATASET
    assert "SIMULATED" in DATASET
    assert metadata["simulation"]["seed"] == 7
    for path in market:
        store, records = decoded(path)
        assert store.dataset == DATASET
        assert store.symbols == list(SYMBOLS) == symbology["symbols"]
        ids = {name: int(rows[0]["symbol"]) for name, rows in store.metadata.mappings.items()}
        assert ids == {name: int(rows[0]["s"]) for name, rows in symbology["result"].items()}
        assert set(records["instrument_id"]) == set(ids.values())


def test_files_cover_new_york_dates_and_records_regular_hours(market: list[Path]) -> None:
    for index, path in enumerate(files(market, "mbp-10")):
        store, records = decoded(path)
        midnight = dt.datetime(2024, 1, 2 + index, tzinfo=NEW_YORK)

        def ns(hour: int, minute: int = 0, start: dt.datetime = midnight) -> int:
            return round((start + dt.timedelta(hours=hour, minutes=minute)).timestamp()) * 10**9

        assert (store.metadata.start, store.metadata.end) == (ns(0), ns(24))
        assert records["ts_event"].min() == ns(9, 30)
        assert ns(15, 59) < records["ts_recv"].max() < ns(16)


def test_one_tick_size_and_currency_by_definition(market: list[Path]) -> None:
    for path in files(market, "definition"):
        store, _ = decoded(path)
        definitions = list(store)
        assert [record.raw_symbol for record in definitions] == list(SYMBOLS)
        for record in definitions:
            assert record.min_price_increment == 10**7
            assert (record.currency, record.exchange) == ("USD", "SIM")
            assert record.pretty_high_limit_price is None or np.isnan(
                record.pretty_high_limit_price
            )


def test_bars_are_those_that_trades_make(market: list[Path]) -> None:
    for bars_path, trades_path in zip(
        files(market, "ohlcv-1m"), files(market, "trades"), strict=True
    ):
        trades = pl.DataFrame(
            {
                name: decoded(trades_path)[1][name]
                for name in ("instrument_id", "ts_event", "ts_recv", "price", "size")
            }
        )
        bars = decoded(bars_path)[1]
        for stamp in ("ts_event", "ts_recv"):
            expected = (
                trades.group_by("instrument_id", minute=pl.col(stamp) // 60_000_000_000)
                .agg(
                    open=pl.col("price").first(),
                    high=pl.col("price").max(),
                    low=pl.col("price").min(),
                    close=pl.col("price").last(),
                    volume=pl.col("size").cast(pl.UInt64).sum(),
                )
                .sort("minute", "instrument_id")
            )
            built = pl.DataFrame(
                {name: bars[name] for name in expected.columns if name != "minute"}
            )
            built = built.with_columns(minute=bars["ts_event"] // 60_000_000_000)
            assert (bars["ts_event"] % 60_000_000_000 == 0).all()
            assert built.select(expected.columns).sort("minute", "instrument_id").equals(expected)


def test_trades_are_the_trades_of_the_book(market: list[Path]) -> None:
    for trades_path, book_path in zip(
        files(market, "trades"), files(market, "mbp-10"), strict=True
    ):
        trades, book = decoded(trades_path)[1], decoded(book_path)[1]
        traded = book[book["action"] == b"T"]
        assert len(trades) > 5_000
        for name in set(trades.dtype.names) - {"length", "rtype"}:
            np.testing.assert_array_equal(trades[name], traded[name])
        buys = traded["side"] == b"B"
        np.testing.assert_array_equal(traded["price"][buys], traded["ask_px_00"][buys])
        np.testing.assert_array_equal(traded["price"][~buys], traded["bid_px_00"][~buys])


def test_other_processes_and_read_only_installs_give_the_same_bytes(tmp_path: Path) -> None:
    """The second process has the package where nothing can be written beside it, and a home that
    is not a folder: the book is compiled anew and its machine code kept nowhere."""
    package = Path(foxhunt_pipeline.__file__).parent
    install = tmp_path / "install"
    shutil.copytree(
        package, install / package.name, ignore=shutil.ignore_patterns("__pycache__", "cli")
    )
    for folder in [install, *(path for path in install.rglob("*") if path.is_dir())]:
        (folder / "__pycache__").touch()
    (tmp_path / "home").touch()
    read_only = {
        "PYTHONPATH": str(install),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "home"),
    }
    code = (
        "import sys; from pathlib import Path; "
        "from foxhunt_pipeline.market import simulator; "
        "simulator.simulate(Path(sys.argv[1]), sessions=2, symbols=['B', 'A'], seed=3, "
        f"events_per_session={SMALL}); print(simulator.__file__)"
    )
    for name, changes in (("one", {}), ("two", read_only)):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / name)],
            check=True,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | changes,
        )
    assert done.stdout.startswith(str(install))
    assert hashes(tmp_path / "one") == hashes(tmp_path / "two")
    assert len(hashes(tmp_path / "one")) == 12


def test_another_seed_gives_another_market(tmp_path: Path) -> None:
    one, two = (
        simulate(
            tmp_path / str(seed), sessions=1, symbols=["A"], seed=seed, events_per_session=SMALL
        )
        for seed in (1, 2)
    )
    assert one[0].parent.name != two[0].parent.name
    assert (decoded(one[1])[1]["bid_px_00"][50:90] != decoded(two[1])[1]["bid_px_00"][50:90]).all()


def test_a_job_grows_and_its_earlier_files_stay(tmp_path: Path) -> None:
    dates: list[dt.date] = []

    def run(sessions: int) -> list[Path]:
        return simulate(
            tmp_path,
            sessions=sessions,
            symbols=["A", "B"],
            seed=3,
            events_per_session=SMALL,
            on_session=dates.append,
        )

    two = run(2)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in two}
    three = run(3)
    assert three[: len(two)] == two
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in two} == before
    assert dates[2:] == [dt.date(2024, 1, 2), dt.date(2024, 1, 3), dt.date(2024, 1, 4)]

    whole = hashes(tmp_path)
    assert run(1) == two[:4]
    assert hashes(tmp_path) == whole


def test_a_symbol_has_the_same_market_whatever_is_beside_it(tmp_path: Path) -> None:
    alone = simulate(tmp_path / "1", sessions=2, symbols=["A"], seed=3, events_per_session=SMALL)
    beside = simulate(
        tmp_path / "2", sessions=2, symbols=["B", "A"], seed=3, events_per_session=SMALL
    )
    for one, two in zip(alone, beside, strict=True):
        records, more = decoded(one)[1], decoded(two)[1]
        np.testing.assert_array_equal(records, more[more["instrument_id"] == records[0][3]])


def test_a_half_day_ends_early_and_holidays_are_skipped(tmp_path: Path) -> None:
    paths = simulate(
        tmp_path,
        sessions=2,
        symbols=["A"],
        seed=3,
        first_date="2024-07-03",
        events_per_session=SMALL,
    )
    half, full = (decoded(path)[1] for path in files(paths, "mbp-10"))
    open_ns = dt.datetime(2024, 7, 3, 9, 30, tzinfo=NEW_YORK).timestamp() * 10**9
    hours = [
        float(records["ts_event"].max() - records["ts_event"].min()) / 3.6e12
        for records in (half, full)
    ]
    assert half["ts_event"][0] == open_ns
    assert hours[0] < 3.5 and hours[0] > 3.4
    assert hours[1] < 6.5 and hours[1] > 6.4
    assert [path.name[14:22] for path in files(paths, "mbp-10")] == ["20240703", "20240705"]
    assert 0.3 < len(half) / len(full) < 0.85
    assert abs(int(full["price"][0]) / int(half["price"][-1]) - 1) < 0.03


def test_a_folder_holds_one_market_of_a_symbol(tmp_path: Path) -> None:
    simulate(tmp_path, sessions=1, symbols=["A", "B"], seed=3, events_per_session=SMALL)
    with pytest.raises(ConfigError, match=r"already holds a simulated market of B \(SIM-"):
        simulate(tmp_path, sessions=1, symbols=["B", "C"], seed=3, events_per_session=SMALL)
    simulate(tmp_path, sessions=1, symbols=["C"], seed=3, events_per_session=SMALL)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sessions": 0}, "sessions is 0"),
        ({"symbols": []}, "at least one symbol"),
        ({"symbols": ["A", "A"]}, "each once"),
        ({"symbols": "SPY"}, "Give a list"),
        ({"symbols": ["Ä"]}, "printable ASCII"),
        ({"seed": -1}, "non-negative"),
        ({"first_date": "2.1.2024"}, "as 2024-01-02"),
        ({"first_date": "1200-01-02"}, "New York Stock Exchange calendar"),
        ({"events_per_session": 10}, "1,000 to 1,000,000"),
    ],
)
def test_arguments_out_of_range_are_named(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    arguments: dict[str, object] = {"sessions": 1, "symbols": ["A"], "seed": 1} | changes
    with pytest.raises(ConfigError, match=message):
        simulate(tmp_path, **arguments)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
