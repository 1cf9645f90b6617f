"""Assets as data frames: against the files that the market was simulated into."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import databento_dbn
import numpy as np
import pandas as pd
import polars as pl
import pytest

import foxhunt_pipeline as fx
from support.tiny_project import SESSIONS

UTC_NS = pl.Datetime("ns", "UTC")
TABLE = "FOX.SIMULATED/0/FOXA"


def records(landing: Path, session: str, schema: str) -> list[object]:
    """A file's records, by Databento's own decoder."""
    (path,) = landing.rglob(f"*{session.replace('-', '')}.{schema}.dbn.zst")
    decoder = databento_dbn.DBNDecoder(compression=databento_dbn.Compression.ZSTD)
    decoder.write(path.read_bytes())
    return [r for r in decoder.decode() if not isinstance(r, databento_dbn.Metadata)]


def test_tables_hold_what_was_delivered(tiny_project: Path, tiny_landing: Path) -> None:
    frames = fx.open_asset("market/tables", SESSIONS[0], folder=tiny_project)
    assert {key.rpartition("/")[2] for key in frames} == {
        "definition",
        "mbp-10",
        "ohlcv-1m",
        "trades",
    }
    trades = frames[f"{TABLE}/trades"]
    delivered = records(tiny_landing, SESSIONS[0], "trades")
    assert trades["price"].dtype == pl.Int64
    assert trades["price"].to_list() == [r.price for r in delivered]
    assert trades["size"].to_list() == [r.size for r in delivered]
    assert trades.schema["ts_recv"] == UTC_NS
    assert trades["ts_recv"].cast(pl.Int64).to_list() == [r.ts_recv for r in delivered]
    first = trades["ts_event"][0]
    assert first.utcoffset() == dt.timedelta(0)
    assert str(first.date()) == SESSIONS[0]


def test_prices_stay_exact_in_pandas(tiny_project: Path) -> None:
    """A float64 would round 1e-9 prices above nine million, and any with a null beside them."""
    book = fx.open_asset("market/tables", SESSIONS[0], folder=tiny_project, as_="pandas")
    frame = book[f"{TABLE}/mbp-10"]
    assert isinstance(frame, pd.DataFrame)
    assert frame["price"].dtype == pd.Int64Dtype()
    assert str(frame["ts_recv"].dtype) == "datetime64[ns, UTC]"
    polars = fx.open_asset("market/tables", SESSIONS[0], folder=tiny_project)[f"{TABLE}/mbp-10"]
    for column in ("price", "bid_px_00", "ask_px_09"):
        assert [None if v is pd.NA else v for v in frame[column]] == polars[column].to_list()
    labels = fx.open_asset("labels", SESSIONS[0], folder=tiny_project, as_="pandas")
    last = labels[f"bars/{TABLE}"].iloc[-1]
    assert last["px_buy_fill"] is pd.NA
    assert last["end_ts_15"] is pd.NaT


def test_features_and_labels_share_their_rows(tiny_project: Path) -> None:
    features = fx.open_asset("features", SESSIONS[1], folder=tiny_project)
    labels = fx.open_asset("labels", SESSIONS[1], folder=tiny_project)
    assert set(features) == set(labels) == {f"bars/{TABLE}", f"book/{TABLE}"}
    for key, frame in features.items():
        assert frame.schema["ts"] == UTC_NS
        assert frame["ts"].is_sorted()
        assert {frame.schema[c] for c in frame.columns[1:]} == {pl.Float32()}
        assert labels[key]["ts"].equals(frame["ts"])
    bars = labels[f"bars/{TABLE}"]
    assert bars.schema["end_ts_5"] == UTC_NS
    assert bars["end_ts_5"].null_count() == 5
    known = bars.filter(pl.col("y_1").is_finite())
    assert (known["end_ts_1"] - known["ts"]).unique().to_list() == [dt.timedelta(minutes=1)]
    expected = np.log(known["px_next_mark"].to_numpy() / known["px_mark"].to_numpy())
    np.testing.assert_allclose(known["y_1"].to_numpy(), expected, rtol=1e-4, atol=1e-7)


def test_a_verdict_lists_the_rows_in_quarantine(tiny_project: Path) -> None:
    frames = fx.open_asset("market/validated", SESSIONS[0], folder=tiny_project)
    assert set(frames) == set(fx.open_asset("market/tables", SESSIONS[0], folder=tiny_project))
    assert all(frame.columns == ["row", "reason"] for frame in frames.values())


def test_an_item_without_rows_gives_its_figures(tiny_project: Path, tiny_landing: Path) -> None:
    raw = fx.open_asset("raw/dbn", SESSIONS[0], folder=tiny_project)
    by_schema = {frame["schema"].item(): frame for frame in raw.values()}
    count = len(records(tiny_landing, SESSIONS[0], "mbp-10"))
    assert by_schema["mbp-10"]["session_records"].to_list() == [count]
    dataset = fx.open_asset("dataset", folder=tiny_project)
    assert dataset["manifest"]["sessions"].to_list() == [3]
    assert "window/w000/bars" in dataset


def test_predictions_are_a_row_a_decision(tiny_project: Path) -> None:
    frames = fx.open_asset("baselines/walk_forward", folder=tiny_project)
    frame = frames["predictions/bars/w000/ridge"]
    assert frame["stream"].unique().to_list() == [f"{SESSIONS[2]}/bars/{TABLE}"]
    assert frame.schema["ts"] == UTC_NS
    features = fx.open_asset("features", SESSIONS[2], folder=tiny_project)[f"bars/{TABLE}"]
    assert frame["ts"].equals(features["ts"])
    flat = frames["predictions/bars/w000/flat"]
    assert flat["position"].unique().to_list() == [0.0]
    assert {"forecast_0", "probabilities_2_1"} < set(frame.columns)


def test_the_folder_may_be_found_as_the_command_finds_it(
    tiny_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = fx.open_asset("dataset", folder=str(tiny_project))
    monkeypatch.chdir(tiny_project)
    assert fx.open_asset("dataset").keys() == there.keys()
    monkeypatch.chdir("/")
    monkeypatch.setenv("FOXHUNT_CONFIG", str(tiny_project / "foxhunt.toml"))
    assert fx.open_asset("dataset").keys() == there.keys()
    assert fx.load_config().root == tiny_project
    assert "tlob/release" in fx.open_pipeline().stages


def test_what_is_not_there_is_named_with_what_is(tiny_project: Path) -> None:
    def refused(*arguments: str) -> str:
        with pytest.raises(fx.DataError) as caught:
            fx.open_asset(*arguments, folder=tiny_project)
        return str(caught.value)

    assert "There is no asset market/table. Assets: raw/dbn, market/tables" in refused(
        "market/table"
    )
    assert f"by session. Name one. Built: {', '.join(SESSIONS)}." in refused("features")
    assert "features of 2024-02-30 was not built" in refused("features", "2024-02-30")
    assert "one asset over all sessions" in refused("dataset", SESSIONS[0])
    assert "tlob/training was not built yet. Run foxhunt sync." in refused("tlob/training")
    with pytest.raises(ValueError, match="'polars' or 'pandas'"):
        fx.open_asset("dataset", folder=tiny_project, as_="arrow")


def test_a_failed_attempt_is_told(own_project: Path) -> None:
    from foxhunt_pipeline.incremental.index import Failure

    failure = Failure("features", "2024-01-05", "k", "data", "a.dbn is truncated.", 1)
    fx.open_pipeline(own_project).index.fail(failure)
    with pytest.raises(fx.DataError, match=r"The last attempt failed: a\.dbn is truncated\."):
        fx.open_asset("features", "2024-01-05", folder=own_project)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(fx.ConfigError, match="absent is not a folder"):
        fx.open_asset("dataset", folder=tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
