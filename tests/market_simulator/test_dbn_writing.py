"""Files written are DBN as Databento's client reads it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_books import decoded

from foxhunt_pipeline.errors import DataError
from foxhunt_pipeline.market.writing import empty_records, record_dtype, write_dbn

START = 1_704_171_600_000_000_000  # 2024-01-02 05:00 UTC
END = START + 86_400 * 10**9
SCHEMAS = ["trades", "mbp-1", "tbbo", "mbp-10", "definition", "ohlcv-1s", "ohlcv-1d"]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_client_reads_back_every_schema(tmp_path: Path, schema: str) -> None:
    records = empty_records(schema, 40_000 if schema == "trades" else 3)
    records["instrument_id"] = 77
    records["ts_event"] = START + np.arange(len(records))
    path = tmp_path / f"x.{schema}.dbn.zst"
    assert write_dbn(path, schema, "TEST.SET", records, {"AAA": 77}, START, END) == len(records)
    store, read = decoded(path)
    assert read.dtype == record_dtype(schema)
    assert read.tobytes() == records.tobytes()
    assert (store.metadata.version, str(store.schema), store.dataset) == (3, schema, "TEST.SET")
    assert (store.metadata.start, store.metadata.end) == (START, END)
    interval = store.metadata.mappings["AAA"]
    assert interval == [
        {"start_date": dt.date(2024, 1, 2), "end_date": dt.date(2024, 1, 4), "symbol": "77"}
    ]
    assert sum(1 for _ in store) == len(records)


@given(st.lists(st.integers(0, 50), max_size=6))
@settings(max_examples=25, deadline=None)
def test_chunks_make_the_same_file_as_one_array(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("chunks")
    records = empty_records("trades", sum(lengths))
    records["price"] = np.arange(len(records))
    chunks = np.split(records, np.cumsum(lengths)[:-1]) if lengths else []
    whole, parts = folder / "whole.dbn.zst", folder / "parts.dbn.zst"
    write_dbn(whole, "trades", "TEST.SET", records, {}, START, END)
    assert write_dbn(parts, "trades", "TEST.SET", iter(chunks), {}, START, END) == len(records)
    with whole.open("rb") as a, parts.open("rb") as b:
        reader = zstandard.ZstdDecompressor()
        assert reader.stream_reader(a).read() == reader.stream_reader(b).read()


def test_a_flipped_byte_is_caught_by_the_checksum(tmp_path: Path) -> None:
    path = tmp_path / "x.dbn.zst"
    write_dbn(path, "trades", "TEST.SET", empty_records("trades", 10), {"A": 1}, START, END)
    data = bytearray(path.read_bytes())
    assert zstandard.get_frame_parameters(bytes(data)).has_checksum
    data[-1] ^= 1
    with pytest.raises(zstandard.ZstdError, match="checksum"):
        zstandard.ZstdDecompressor().stream_reader(bytes(data)).read()


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x.trades.dbn.zst"
    write_dbn(path, "trades", "TEST.SET", empty_records("trades", 2), {"A": 1}, START, END)
    before = path.read_bytes()
    chunks = [empty_records("trades", 5), empty_records("mbp-1", 5)]
    with pytest.raises(DataError, match=r"x\.trades\.dbn\.zst: records of 80 bytes .* have 48"):
        write_dbn(path, "trades", "TEST.SET", iter(chunks), {"A": 1}, START, END)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_same_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.dbn.zst"
    for _ in range(2):
        write_dbn(path, "trades", "TEST.SET", empty_records("trades", 2), {"A": 1}, START, END)
        inode = path.stat().st_ino
    assert path.stat().st_ino == inode
    write_dbn(path, "trades", "TEST.SET", empty_records("trades", 3), {"A": 1}, START, END)
    assert len(decoded(path)[1]) == 3


def test_an_unknown_schema_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'mbo' cannot be written.*trades"):
        empty_records("mbo", 1)
