"""ingest, simulate and data ls."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.command import message
from support.tiny_project import SESSIONS

Foxhunt = Callable[..., Any]


def tree(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder."""
    return {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in folder.rglob("*")
        if p.is_file()
    }


@pytest.fixture
def inbox(tmp_path: Path, tiny_landing: Path) -> Path:
    """Files to be taken in: one good, the others each wrong in a way of its own."""
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (job,) = tiny_landing.iterdir()
    stem = "fox-simulated-20240102"
    good = (job / f"{stem}.mbp-10.dbn.zst").read_bytes()
    (inbox / "good.mbp-10.dbn.zst").write_bytes(good)
    (inbox / "truncated.dbn.zst").write_bytes(good[:-20])
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 0xFF
    (inbox / "corrupt.dbn.zst").write_bytes(flipped)
    (inbox / "letter.dbn").write_text("Dear Sir or Madam")
    (inbox / "empty.dbn.zst").touch()
    (inbox / "symbology.json").write_text("{}")
    (inbox / "wrong-schema.dbn").write_bytes(_mislabelled(job, stem))
    return inbox


def _mislabelled(job: Path, stem: str) -> bytes:
    """Metadata that say trades before the records of bars."""
    import zstandard

    def plain(schema: str) -> bytes:
        with (job / f"{stem}.{schema}.dbn.zst").open("rb") as file:
            return zstandard.ZstdDecompressor().stream_reader(file).read()

    def records_at(data: bytes) -> int:
        return 8 + int.from_bytes(data[4:8], "little")

    trades, bars = plain("trades"), plain("ohlcv-1m")
    return trades[: records_at(trades)] + bars[records_at(bars) :]


def test_ingest_takes_the_good_and_leaves_nothing_of_the_others(
    foxhunt: Foxhunt, inbox: Path, tmp_path: Path
) -> None:
    good = inbox / "good.mbp-10.dbn.zst"
    files = [good, *sorted(inbox.glob("*.dbn*")), inbox / "symbology.json", inbox / "absent.dbn"]
    done = foxhunt("ingest", *dict.fromkeys(files), code=1, FOXHUNT_LANDING="landing")
    refused = {line.split()[1].rstrip(":"): line for line in done.stderr.splitlines()}
    assert set(refused) == {
        "truncated.dbn.zst",
        "corrupt.dbn.zst",
        "letter.dbn",
        "empty.dbn.zst",
        "wrong-schema.dbn",
        str(inbox / "absent.dbn"),
    }
    assert all(line.startswith("refused ") for line in refused.values())
    assert "is truncated" in refused["truncated.dbn.zst"]
    assert "is not a DBN file" in refused["letter.dbn"]
    assert "is empty" in refused["empty.dbn.zst"]
    assert "trades" in refused["wrong-schema.dbn"]
    assert "No such file" in refused[str(inbox / "absent.dbn")]
    assert f"accepted     {good.name}: " in done.stdout
    assert "passed over  symbology.json" in done.stdout
    assert tree(tmp_path / "landing") == {good.name: hashlib.sha256(good.read_bytes()).hexdigest()}


def test_ingest_is_0_when_nothing_is_refused_and_can_be_repeated(
    foxhunt: Foxhunt, inbox: Path, tmp_path: Path
) -> None:
    good = inbox / "good.mbp-10.dbn.zst"
    first = foxhunt("ingest", good)
    assert first.stdout.startswith("accepted") and "records of mbp-10" in first.stdout
    landing = tmp_path / ".foxhunt" / "landing"
    before = tree(landing)
    assert foxhunt("ingest", good).stdout.startswith("present")
    assert tree(landing) == before and len(before) == 1


def test_ingest_wants_a_folder(foxhunt: Foxhunt, inbox: Path) -> None:
    line = message(foxhunt("ingest", inbox / "letter.dbn", code=2, FOXHUNT_LANDING="s3://b/x"))
    assert "The landing is s3://b/x; ingest copies into a folder." in line
    assert "Missing argument 'files'" in foxhunt("ingest", code=2).stderr


def test_simulate_writes_the_same_bytes_for_the_same_seed(foxhunt: Foxhunt, tmp_path: Path) -> None:
    arguments = ("--sessions", "1", "--symbols", " AA")
    said = foxhunt("simulate", "a", *arguments, "--seed", "5").stdout
    foxhunt("simulate", "b", *arguments, "--seed", "5")
    foxhunt("simulate", "c", *arguments, "--seed", "5", "--martingale")
    first, again, other = (tree(tmp_path / name) for name in "abc")
    assert first == again
    assert not set(first.values()) & {d for n, d in other.items() if "mbp-10" in n}
    assert said.startswith("4 simulated files, ")
    listed = json.loads(foxhunt("data", "ls", "--json", FOXHUNT_LANDING="a").stdout)
    (session,) = listed["sessions"]
    assert {table["instrument"] for table in session["tables"]} == {"AA"}
    assert session["state"] == "ready"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--symbols", ""), "symbol"),
        (("--symbols", "A,A"), "A"),
        (("--seed", "-1"), "seed"),
        (("--sessions", "0"), "--sessions"),
        (("--sessions", "many"), "--sessions"),
    ],
)
def test_simulate_refuses_bad_arguments(
    foxhunt: Foxhunt, tmp_path: Path, arguments: tuple[str, str], said: str
) -> None:
    done = foxhunt("simulate", "x", *arguments, code=2)
    assert said in done.stderr.splitlines()[-1]
    assert not tree(tmp_path)


@pytest.fixture
def patchy(tmp_path: Path, tiny_landing: Path) -> Path:
    """A landing with a session missing, one refused, and a file still arriving."""
    landing = tmp_path / "patchy"
    landing.mkdir()
    for path in tiny_landing.rglob("*.dbn.zst"):
        day = path.name.split("-")[2][:8]
        if day == "20240103":
            continue
        data = path.read_bytes()
        if day == "20240104" and ".mbp-10." in path.name:
            data = data[:-20]
        (landing / path.name).write_bytes(data)
    late = landing / "late"
    late.mkdir()
    entry = {"filename": "fox-simulated-20240105.trades.dbn.zst", "size": 10, "hash": None}
    (late / "manifest.json").write_text(json.dumps({"files": [entry]}))
    return landing


def test_data_ls_shows_sessions_gaps_and_what_is_no_data(foxhunt: Foxhunt, patchy: Path) -> None:
    variables = {"FOXHUNT_LANDING": str(patchy), "FOXHUNT_LANDING__SETTLE_SECONDS": "0"}
    listed = json.loads(foxhunt("data", "ls", "--json", **variables).stdout)
    assert listed["landing"] == str(patchy)
    states = {s["session"]: s["state"] for s in listed["sessions"]}
    assert states == {SESSIONS[0]: "ready", SESSIONS[2]: "refused", "2024-01-05": "waiting"}
    tables = listed["sessions"][0]["tables"]
    assert [(t["dataset"], t["schema"], t["instrument"]) for t in tables] == [
        ("FOX.SIMULATED", schema, "FOXA")
        for schema in ("definition", "mbp-10", "ohlcv-1m", "trades")
    ]
    assert tables[0]["records"] == 1
    assert [(g["date"], g["dataset"]) for g in listed["gaps"]] == [(SESSIONS[1], "FOX.SIMULATED")]
    (refused,) = listed["refused"]
    assert refused["name"] == "fox-simulated-20240104.mbp-10.dbn.zst"
    assert "is truncated" in refused["reason"]
    (arriving,) = listed["arriving"]
    assert arriving["name"] == "late/fox-simulated-20240105.trades.dbn.zst"

    lines = foxhunt("data", "ls", **variables).stdout.splitlines()
    table = [line.split() for line in lines[2:]]
    assert [SESSIONS[0], "ready", "FOX.SIMULATED", "definition", "1", "FOXA", "1"] in table
    assert any(row[:3] == [SESSIONS[1], "gap", "FOX.SIMULATED"] for row in table)
    assert any(
        row[:2] == [SESSIONS[2], "refused"] and f"{refused['name']}:" in row for row in table
    )
    (said,) = [line for line in lines if line.startswith("refused: ")]
    assert said.count(refused["name"]) == 1 and len(said) > 100
    assert any(line.startswith(f"arriving: {arriving['name']}: ") for line in lines)


def test_what_is_there_already_is_not_read_again(foxhunt: Foxhunt, own_project: Path) -> None:
    """The same listing from the inventory, also of files that were taken away and put back."""
    first = foxhunt("data", "ls", "--json", folder=own_project).stdout
    shutil.rmtree(own_project / ".foxhunt")
    assert foxhunt("data", "ls", "--json", folder=own_project).stdout == first


def test_nothing_landed_is_said_with_what_to_do(foxhunt: Foxhunt, tmp_path: Path) -> None:
    for command in (["plan"], ["data", "ls"], ["sync"]):
        said = foxhunt(*command).stdout.splitlines()[-1]
        assert said.startswith(f"{tmp_path}/.foxhunt/landing holds no market data.")
        assert "foxhunt init" in said and "FOXHUNT_LANDING" in said
    line = message(foxhunt("plan", code=2, FOXHUNT_LANDING="absent"))
    assert f"The landing {tmp_path}/absent is not a folder." in line
