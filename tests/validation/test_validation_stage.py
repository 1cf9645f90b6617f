"""The stage on real sessions, its gate, its memo and what its digest covers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from foxhunt_pipeline.artifacts import Artifact
from foxhunt_pipeline.config import Config
from foxhunt_pipeline.errors import ValidationError
from foxhunt_pipeline.market.reading import clean_table, read_table
from foxhunt_pipeline.validation import suites
from foxhunt_pipeline.validation.stage import SessionRefusedError, build
from support.market_tables import OPEN, UNIT, bars, dbn_tables, put, quotes, tables_artifact, trades
from support.task import FolderTask

SESSION = "2013-10-08"
EQUITY_SESSIONS = {
    # session: crossed IBM quotes, locked, flagged quotes, flagged SPY trades
    "2013-10-07": (89, 658, 1, 0),
    "2013-10-08": (79, 1040, 1, 0),
    "2013-10-09": (108, 608, 0, 0),
    "2013-10-10": (51, 242, 1, 10),
    "2013-10-11": (86, 573, 0, 0),
}
"""From the description of the data, counted in its source before it became DBN."""


def validation_of(
    folder: Path, tables: Artifact, config: Mapping[str, Any] | None = None
) -> FolderTask:
    settings = Config.model_validate(dict(config or {}))
    return FolderTask(
        folder, "market/validated", tables.partition, settings, {"market/tables": tables}
    )


def validated(
    folder: Path,
    tables: list[tuple[str, str, str, pl.DataFrame]],
    session: str = SESSION,
    config: Mapping[str, Any] | None = None,
) -> Artifact:
    artifact = tables_artifact(folder, session, tables)
    return validation_of(folder, artifact, config).build(build)


def equity(rows: pl.DataFrame, schema: str = "trades") -> tuple[str, str, str, pl.DataFrame]:
    return ("LEAN.EQUITY", "SPY", schema, rows)


def profile_of(artifact: Artifact, name: str) -> dict[str, Any]:
    return dict(artifact.items[name].figures["profile"])


@pytest.mark.parametrize("session", EQUITY_SESSIONS)
def test_real_equity_sessions_pass_whole(session: str, test_data: Path, tmp_path: Path) -> None:
    day = session.replace("-", "")
    files = sorted((test_data / "landing" / "equities").glob(f"lean-equity-{day}.*.dbn.zst"))
    tables = [table for file in files for table in dbn_tables(file)]
    assert len(tables) == 11
    artifact = validated(tmp_path, tables, session)

    summary = {row["table"]: row for row in artifact.figures["tables"]}
    assert all(row["passed"] and row["quarantined"] == 0 for row in summary.values())
    assert [row["warnings"] for row in summary.values() if row["warnings"]] == []
    assert sum(row["rows"] for row in summary.values()) == sum(t[3].height for t in tables)

    crossed, locked, flagged_quotes, flagged_trades = EQUITY_SESSIONS[session]
    ibm = profile_of(artifact, "LEAN.EQUITY/0/IBM/mbp-1")
    assert ibm["crossed_regular"] + ibm["crossed_outside"] == crossed
    assert ibm["locked_regular"] + ibm["locked_outside"] == locked
    assert ibm["publisher_flagged"] == flagged_quotes
    spy = profile_of(artifact, "LEAN.EQUITY/0/SPY/trades")
    assert spy["publisher_flagged"] == flagged_trades
    assert spy["duplicate"] == 0  # identical ticks differ in their sequence


@pytest.mark.parametrize("session", ["2024-08-08", "2024-08-09"])
def test_real_crypto_passes_whole_and_warns_of_its_silence(
    session: str, test_data: Path, tmp_path: Path
) -> None:
    day = session.replace("-", "")
    files = sorted((test_data / "landing" / "crypto").glob(f"binance-demo-{day}.*.dbn.zst"))
    tables = [table for file in files for table in dbn_tables(file)]
    artifact = validated(tmp_path, tables, session)
    for row in artifact.figures["tables"]:
        assert row["quarantined"] == 0
        assert row["warnings"] == ["No long silence in regular hours"]  # ten minutes of a day
    for name, item in artifact.items.items():
        assert -1280 < item.figures["profile"]["clock_skew_ms"] < -1050
        if name.endswith("mbp-10"):
            book = item.figures["profile"]
            assert book["crossed_regular"] == book["locked_regular"] == 0
            assert book["unordered_levels"] == 0
            assert book["books_regular"] == item.figures["rows"]


def test_real_futures_pass_whole_with_a_crossed_book_before_the_open(
    test_data: Path, tmp_path: Path
) -> None:
    files = sorted((test_data / "landing" / "futures").glob("glbx-mdp3-*.dbn.zst"))
    tables = [table for file in files for table in dbn_tables(file)]
    artifact = validated(tmp_path, tables, "2023-12-26")
    assert all(row["quarantined"] == 0 for row in artifact.figures["tables"])
    book = profile_of(artifact, "GLBX.MDP3/0/ESH4/mbp-10")
    assert (book["crossed_outside"], book["crossed_regular"]) == (142, 1)
    assert profile_of(artifact, "GLBX.MDP3/0/ESH4/trades")["duplicate"] == 15
    warned = {row["table"]: row["warnings"] for row in artifact.figures["tables"]}
    assert warned == {
        "GLBX.MDP3/0/ESH4/mbp-10": [
            "No long silence in regular hours",
            "Few books are crossed outside regular hours",
        ],
        "GLBX.MDP3/0/ESH4/trades": ["No long silence in regular hours"],
    }


def test_quarantined_rows_are_kept_with_their_reason_and_left_out_of_clean_tables(
    tmp_path: Path,
) -> None:
    rows = put(put(put(trades(), 7, price=None), 9, size=0), 300, price=900 * UNIT)
    task = validation_of(tmp_path, tables_artifact(tmp_path, SESSION, [equity(rows)]))
    artifact = task.build(build)
    (item,) = artifact.items.values()
    kept = pl.read_parquet(task.path(item, "quarantine.parquet"))
    assert kept.rows() == [(7, "undefined_price"), (9, "zero_size"), (300, "outlier")]
    assert kept.schema == {"row": pl.UInt32, "reason": pl.String}
    (table,) = task.input("market/tables").items.values()
    clean = clean_table(task, table, item)
    assert clean.equals(rows.with_row_index().filter(~pl.col("index").is_in([7, 9, 300]))[:, 1:])
    assert read_table(task, table).equals(rows)


def test_a_critical_failure_names_everything_after_all_tables_were_judged(tmp_path: Path) -> None:
    crossed = quotes().with_columns(bid_px_00=pl.col("ask_px_00") + 1)
    late = put(trades(), 40, ts_recv=OPEN)
    tables = [equity(crossed, "mbp-10"), equity(late), equity(bars(), "ohlcv-1m")]
    with pytest.raises(ValidationError) as failure:
        validated(tmp_path, tables)
    message = str(failure.value)
    for part in (
        "Session 2013-10-08 fails validation",
        'table LEAN.EQUITY/0/SPY/mbp-10: "Few books are crossed in regular hours" is 1, '
        "expected at most 0.01 (1170 of 1200 rows, first {'row': 0, 'ts_recv': "
        "'2013-10-08T13:30:00.000000000Z'",
        'table LEAN.EQUITY/0/SPY/trades: "Rows are in order" is 1, expected at most 0 '
        "(1 of 1200 rows, first {'row': 40,",
        "foxhunt.toml",
    ):
        assert part in message
    assert "ohlcv-1m" not in message
    assert isinstance(failure.value, SessionRefusedError)
    assert failure.value.category == "validation"
    judged = {row["table"]: row for row in failure.value.figures["tables"]}
    assert [row["passed"] for row in judged.values()] == [False, False, True]


def test_bounds_of_the_configuration_decide(tmp_path: Path) -> None:
    rows = put(trades(), range(1, 61), size=0)
    with pytest.raises(ValidationError, match=r"Few rows are quarantined.*0\.05.*at most 0\.02"):
        validated(tmp_path / "strict", [equity(rows)])
    allowed = {"validation": {"max_quarantined_share": 0.05}}
    artifact = validated(tmp_path / "lax", [equity(rows)], config=allowed)
    assert artifact.items["LEAN.EQUITY/0/SPY/trades"].figures["quarantined"] == 60


def test_prices_below_zero_are_sound_where_the_product_allows_them(tmp_path: Path) -> None:
    rows = put(trades(), 5, price=-UNIT)
    artifact = validated(tmp_path / "a", [equity(rows)])
    assert artifact.items["LEAN.EQUITY/0/SPY/trades"].figures["quarantined"] == 1
    spread = trades().with_columns(price=pl.col("price") - 101 * UNIT)
    tables = [("GLBX.MDP3", "ESH4-ESM4", "trades", spread)]
    artifact = validated(tmp_path / "b", tables)
    assert artifact.items["GLBX.MDP3/0/ESH4-ESM4/trades"].figures["quarantined"] == 0


def test_an_instrument_more_judges_only_its_own_table(tmp_path: Path) -> None:
    one = tables_artifact(tmp_path, SESSION, [equity(trades())])
    task = validation_of(tmp_path, one)
    task.build(build)
    more = [equity(trades()), ("LEAN.EQUITY", "IBM", "trades", trades(900))]
    task.inputs = {"market/tables": tables_artifact(tmp_path, SESSION, more)}
    task.build(build)
    assert task.reused == ["LEAN.EQUITY/0/SPY/trades"]
    assert task.computed == ["LEAN.EQUITY/0/IBM/trades"]


def test_the_digest_covers_quarantine_and_verdict_only(tmp_path: Path) -> None:
    name = "LEAN.EQUITY/0/SPY/trades"
    rows = trades()
    sound = validated(tmp_path / "a", [equity(rows)]).items[name]
    larger = validated(tmp_path / "b", [equity(put(rows, 5, size=9))]).items[name]
    silent = validated(tmp_path / "c", [equity(pl.concat([rows[:100], rows[400:]]))]).items[name]
    faulty = validated(tmp_path / "d", [equity(put(rows, 5, size=0))]).items[name]
    later = validated(tmp_path / "e", [equity(put(rows, 6, size=0))]).items[name]
    other = validated(tmp_path / "f", [equity(put(rows, 6, price=None))]).items[name]
    assert sound.digest == larger.digest == silent.digest
    assert silent.figures["expectations"] != sound.figures["expectations"]
    assert len({sound.digest, faulty.digest, later.digest, other.digest}) == 4


def test_checks_gather_every_expectation_over_its_tables(tmp_path: Path) -> None:
    silent = pl.concat([trades()[:100], trades()[400:]])
    tables = [
        equity(trades()),
        ("LEAN.EQUITY", "IBM", "trades", silent),
        equity(quotes(), "mbp-10"),
    ]
    figures = validated(tmp_path, tables).figures
    json.dumps(figures, allow_nan=False)
    by_name = {check["name"]: check for check in figures["checks"]}
    expected = {e.name for kind in ("trades", "quotes") for e in suites.SUITES[kind]}
    assert set(by_name) == expected
    rows = by_name["Rows looked at equal rows in the file"]
    assert [r["observed"] for r in rows["results"]] == [1200, 900, 1200]
    silence = by_name["No long silence in regular hours"]
    assert (silence["success"], silence["tables"], silence["severity"]) == (False, 3, "warning")
    assert silence["results"][0]["table"] == "LEAN.EQUITY/0/IBM/trades"
    assert silence["results"][0]["observed"] == pytest.approx(301 * 20 / 60)


def test_an_empty_table_is_legal_and_warned_of(tmp_path: Path) -> None:
    for schema, rows in (("trades", trades()), ("mbp-10", quotes()), ("ohlcv-1m", bars())):
        artifact = validated(tmp_path / schema, [equity(rows.clear(), schema)])
        (summary,) = artifact.figures["tables"]
        assert summary["passed"]
        assert "There are rows" in summary["warnings"]


def test_the_page_is_made_from_the_suites() -> None:
    page = Path(__file__).parents[2] / "docs" / "validation.md"
    assert page.read_text(encoding="utf-8") == suites.markdown()
