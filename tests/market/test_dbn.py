"""The decoder against the official client, and against every way a file can be wrong."""

from __future__ import annotations

import datetime as dt
import tracemalloc
from pathlib import Path

import databento
import databento_dbn as dbn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foxhunt_pipeline.errors import DataError
from foxhunt_pipeline.market.dbn import open_dbn
from foxhunt_pipeline.market.schemas import SCHEMAS
from support.deliveries import Interval, Mapped, compress, decompress, metadata, read

START = 1381118400 * 10**9


def fixtures(test_data: Path) -> list[Path]:
    paths = sorted(
        path
        for path in (test_data / "fixtures").rglob("*.dbn*")
        if path.parent.name != "not_dbn" and open_dbn(path).metadata.schema in SCHEMAS
    )
    assert len(paths) == 88
    return paths


def trades(count: int) -> np.ndarray:
    records = np.zeros(count, SCHEMAS["trades"].layout)
    records["length"], records["rtype"], records["instrument_id"] = 12, 0, 3
    records["ts_recv"] = START + np.arange(count)
    records["sequence"] = np.arange(count)
    return records


def write(path: Path, *parts: bytes) -> Path:
    path.write_bytes(b"".join(parts))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as error:
        read(path)
    assert path.name in str(error.value)
    assert error.value.remedy
    return str(error.value)


def test_every_fixture_decodes_as_the_official_client_does(test_data: Path) -> None:
    for path in fixtures(test_data):
        ours = read(path)
        if ours.dtype == SCHEMAS["definition"].layout:
            decoder = dbn.DBNDecoder(upgrade_policy=dbn.VersionUpgradePolicy.UPGRADE_TO_V3)
            decoder.write(decompress(path.read_bytes()))
            upgraded = [bytes(r) for r in decoder.decode() if isinstance(r, dbn.InstrumentDefMsg)]
            theirs = np.frombuffer(b"".join(upgraded), ours.dtype)
        else:
            theirs = databento.DBNStore.from_bytes(path.read_bytes()).to_ndarray().reshape(-1)
        assert len(ours) == len(theirs), path
        for field in ours.dtype.names if len(ours) else ():
            np.testing.assert_array_equal(ours[field], theirs[field], f"{path} {field}")


def test_metadata_is_what_the_official_client_reads(test_data: Path) -> None:
    for path in [*fixtures(test_data), *(test_data / "landing").rglob("*1m.dbn.zst")]:
        ours = open_dbn(path).metadata
        assert_same_metadata(ours, official(decompress(path.read_bytes())))


def official(encoded: bytes) -> dbn.Metadata:
    return dbn.Metadata.decode(encoded, upgrade_policy=dbn.VersionUpgradePolicy.AS_IS)


def assert_same_metadata(ours, theirs: dbn.Metadata) -> None:
    def number(date: dt.date) -> int:
        return date.year * 10_000 + date.month * 100 + date.day

    assert ours.version == theirs.version
    assert (ours.dataset, ours.schema) == (
        theirs.dataset,
        str(theirs.schema) if theirs.schema is not None else None,
    )
    assert (ours.start, ours.end, ours.limit) == (theirs.start, theirs.end, theirs.limit)
    assert ours.stype_in == (str(theirs.stype_in) if theirs.stype_in is not None else None)
    assert (ours.stype_out, ours.ts_out) == (str(theirs.stype_out), theirs.ts_out)
    assert list(ours.symbols) == theirs.symbols
    assert list(ours.partial) == theirs.partial
    assert list(ours.not_found) == theirs.not_found
    mapped = {m.symbol: [(i.start, i.end, i.symbol) for i in m.intervals] for m in ours.mappings}
    assert mapped == {
        symbol: [(number(i["start_date"]), number(i["end_date"]), i["symbol"]) for i in of]
        for symbol, of in theirs.mappings.items()
    }


SYMBOL = st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=21)
DATE = st.dates(dt.date(1970, 1, 1), dt.date(2099, 12, 31))
MAPPING = st.builds(
    Mapped, SYMBOL, st.lists(st.builds(Interval, DATE, DATE, SYMBOL), max_size=4).map(tuple)
)


@settings(max_examples=40, deadline=None)
@given(
    version=st.sampled_from([1, 2, 3]),
    symbols=st.lists(SYMBOL, max_size=5),
    partial=st.lists(SYMBOL, max_size=3),
    not_found=st.lists(SYMBOL, max_size=3),
    mappings=st.lists(MAPPING, max_size=5, unique_by=lambda m: m.raw_symbol),
    end=st.none() | st.integers(1, 2**62),
    limit=st.none() | st.integers(1, 2**40),
    stypes=st.tuples(*[st.sampled_from(["instrument_id", "raw_symbol", "parent"])] * 2),
)
def test_metadata_of_every_version_survives(
    tmp_path_factory, version, symbols, partial, not_found, mappings, end, limit, stypes
) -> None:
    encoded = metadata(
        "trades",
        end=end,
        limit=limit,
        version=version,
        partial=partial,
        not_found=not_found,
        mappings=mappings,
        stype_in=dbn.SType.from_str(stypes[0]),
        stype_out=dbn.SType.from_str(stypes[1]),
    )
    path = tmp_path_factory.getbasetemp() / "metadata.dbn"
    path.write_bytes(encoded)
    assert_same_metadata(open_dbn(path).metadata, official(encoded))
    assert len(read(path)) == 0


@pytest.mark.parametrize("kind", ["dbz", "frag", "frag.zst"])
def test_what_is_not_dbn_is_refused(test_data: Path, kind: str) -> None:
    paths = sorted((test_data / "fixtures" / "not_dbn").glob(f"*.{kind}"))
    assert paths
    for path in paths:
        reason = refusal(path)
        assert ("old DBZ format" if kind == "dbz" else "is not a DBN file") in reason


@pytest.mark.parametrize("content", [b"", b"D", b"\x28\xb5\x2f", b"PK\x03\x04zip", b"\0" * 5000])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    reason = refusal(write(tmp_path / "x.dbn.zst", content))
    assert "is empty" in reason if not content else "is not a DBN file" in reason


def test_live_captures_and_unsupported_schemas_say_so(test_data: Path) -> None:
    live = next((test_data / "fixtures").rglob("test_data.live.dbn.zst"))
    assert "mixed (live capture)" in refusal(live)
    assert "schema mbo is not supported" in refusal(
        test_data / "landing/futures/esh4-glbx-mdp3-20231225.mbo.dbn.zst"
    )


@pytest.mark.parametrize(
    "name", ["trades.v1.dbn.zst", "mbp-10.v3.dbn.zst", "definition.v2.dbn.zst", "tbbo.dbn"]
)
def test_a_file_cut_at_any_byte_is_refused(test_data: Path, tmp_path: Path, name: str) -> None:
    original = (test_data / "fixtures" / "dbn" / f"test_data.{name}").read_bytes()
    whole = read(write(tmp_path / "whole", original))
    path = tmp_path / "cut.dbn"
    boundaries = set()
    if name.endswith(".dbn"):  # Nothing in an uncompressed file tells where it should end.
        boundaries = {len(original) - n * whole.itemsize for n in range(len(whole) + 1)}
    for length in sorted(set(range(len(original))) - boundaries):
        path.write_bytes(original[:length])
        refusal(path)


def test_a_file_of_two_frames_cut_anywhere_inside_a_frame_is_refused(tmp_path: Path) -> None:
    head, body = compress(metadata("trades")), compress(trades(40_000).tobytes())
    path = tmp_path / "two.dbn.zst"
    assert len(read(write(path, head, body))) == 40_000
    whole = head + body
    cuts = {*range(1, len(head)), *range(len(head) + 1, len(whole), 997)}
    for length in cuts | {len(whole) - n for n in range(1, 9)}:
        reason = refusal(write(path, whole[:length]))
        assert length < 4 or "truncated" in reason or "metadata" in reason or "not a DBN" in reason


def test_real_files_without_their_last_bytes_are_refused(test_data: Path, tmp_path: Path) -> None:
    equity = test_data / "landing/equities/lean-equity-20131007.ohlcv-1m.dbn.zst"
    future = test_data / "landing/futures/esh4-glbx-mdp3-20231225.mbo.dbn.zst"
    open_dbn(future).drain()
    for n in range(1, 9):
        cut = write(tmp_path / "equity", equity.read_bytes()[:-n])
        assert "does not reach its end" in refusal(cut)
        cut = write(tmp_path / "future", future.read_bytes()[:-n])
        with pytest.raises(DataError, match="does not reach its end"):
            open_dbn(cut).drain()


def test_any_flipped_bit_is_refused_or_changes_nothing(test_data: Path, tmp_path: Path) -> None:
    original = compress(metadata("trades", symbols={"IBM": 3}), trades(3).tobytes())
    whole = read(write(tmp_path / "whole", original))
    path = tmp_path / "flipped.dbn.zst"
    refused = 0
    for at in range(len(original)):
        damaged = bytearray(original)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        try:
            np.testing.assert_array_equal(read(path), whole)
        except DataError:
            refused += 1
    assert refused > 0.95 * len(original)


def test_flipped_record_headers_are_refused_without_a_checksum(tmp_path: Path) -> None:
    head, body = metadata("trades"), trades(20_000).tobytes()
    for record in (0, 1, 16_383, 16_384, 19_999):
        for byte in (0, 1):
            damaged = bytearray(body)
            damaged[record * 48 + byte] ^= 0x40
            reason = refusal(write(tmp_path / "x.dbn", head, damaged))
            assert f"record {record} " in reason


def test_key_times_that_cannot_be_are_refused(tmp_path: Path) -> None:
    records = trades(5)
    records["ts_recv"][3] = 2**64 - 1
    reason = refusal(write(tmp_path / "x.dbn", metadata("trades"), records.tobytes()))
    assert "record 3 has ts_recv" in reason


def test_records_of_another_schema_are_refused(tmp_path: Path) -> None:
    bars = np.zeros(3, SCHEMAS["ohlcv-1s"].layout)
    bars["length"], bars["rtype"], bars["ts_event"] = 14, 32, START
    path = write(tmp_path / "x.dbn", metadata("ohlcv-1m"), bars.tobytes())
    assert "record 0 is of type ohlcv-1s, expected ohlcv-1m" in refusal(path)
    mixed = write(tmp_path / "y.dbn", metadata("trades"), trades(4).tobytes(), bars.tobytes())
    assert "record 4 is of type ohlcv-1s, expected mbp-0" in refusal(mixed)


@pytest.mark.parametrize("compressed", [True, False])
def test_concatenated_files_are_refused(tmp_path: Path, compressed: bool) -> None:
    one = metadata("trades") + trades(17_000).tobytes()
    one = compress(one) if compressed else one
    reason = refusal(write(tmp_path / "x", one, one))
    assert "record 17000 is the start of another DBN file" in reason


def test_what_is_appended_to_a_compressed_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x", compress(metadata("trades")), b"trailing garbage")
    assert "is not the start of a zstd frame" in refusal(path)


def test_metadata_alone_is_a_file_without_records(tmp_path: Path) -> None:
    for name, content in (("a", metadata("trades")), ("b", compress(metadata("trades")))):
        assert len(read(write(tmp_path / name, content))) == 0


def test_unknown_versions_and_lying_lengths_are_refused(tmp_path: Path) -> None:
    encoded = bytearray(metadata("trades", symbols={"IBM": 3}))
    newer = encoded.copy()
    newer[3] = 4
    assert "version 4 is unknown" in refusal(write(tmp_path / "x", newer))
    for claim in (2**32 - 1, 10**8, len(encoded)):
        lying = encoded.copy()
        lying[4:8] = claim.to_bytes(4, "little")
        refusal(write(tmp_path / "x", lying))
    count = encoded.index(b"IBM") - 4
    lying = encoded.copy()
    lying[count : count + 4] = (2**32 - 1).to_bytes(4, "little")
    assert "announces 4294967295 entries" in refusal(write(tmp_path / "x", lying))


def test_decompression_bombs_take_bounded_memory(tmp_path: Path) -> None:
    def frame(content: bytes, zeros: int) -> bytes:
        raw = (len(content) << 3).to_bytes(3, "little") + content
        run = (131_072 << 3 | 2).to_bytes(3, "little") + b"\0"
        end = (1 | 2 | 1 << 3).to_bytes(3, "little") + b"\0"
        return b"\x28\xb5\x2f\xfd\x00\x58" + raw + run * (zeros // 131_072) + end

    bomb = write(tmp_path / "x", frame(metadata("trades"), 1 << 34))
    assert bomb.stat().st_size < 2**20
    tracemalloc.start()
    assert "record 0 has length 0" in refusal(bomb)
    lying = frame(b"DBN\x03" + (2**29).to_bytes(4, "little"), 1 << 24)
    assert "ends inside its metadata" in refusal(write(tmp_path / "x", lying))
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


def test_send_times_after_the_records_are_left_out(tmp_path: Path) -> None:
    records = trades(20_000)
    layout = np.dtype([*records.dtype.descr, ("ts_out", "u8")])
    sent = np.zeros(len(records), layout)
    for field in records.dtype.names:
        sent[field] = records[field]
    sent["length"], sent["ts_out"] = 14, 7
    path = write(tmp_path / "x", metadata("trades", ts_out=True), sent.tobytes())
    np.testing.assert_array_equal(read(path), records)
