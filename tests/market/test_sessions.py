"""Sessions: what files cover decides; what is damaged fails its own sessions only."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from foxhunt_pipeline.errors import ConfigError, DataError
from foxhunt_pipeline.market.facts import FileFacts, Span
from foxhunt_pipeline.market.inventory import Inventory
from foxhunt_pipeline.market.landing import FolderLanding, LandedFile
from foxhunt_pipeline.market.sessions import Survey, SurveyedSource, survey
from foxhunt_pipeline.market.writing import empty_records
from support.deliveries import compress, look, metadata

HOUR = 3600 * 10**9
DAY = 24 * HOUR
MONDAY = 1381118400 * 10**9
"""2013-10-07 00:00 in New York."""
SESSIONS = ["2013-10-07", "2013-10-08", "2013-10-09", "2013-10-10", "2013-10-11"]
CRYPTO = 1723075200 * 10**9


def day(folder: Path, name: str, start: int, end: int, *keys: int, dataset: str = "LEAN.EQUITY"):
    """A trades file of [start, end) with a record at each key."""
    records = empty_records("trades", len(keys))
    records["instrument_id"], records["ts_recv"] = 7, keys
    head = metadata("trades", dataset, start, end, symbols={"X": 7})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(compress(head, records.tobytes()))
    return folder / name


def week(folder: Path) -> list[Path]:
    starts = [MONDAY + n * DAY for n in range(5)]
    return [day(folder, f"{n}.dbn.zst", s, s + DAY, s + 14 * HOUR) for n, s in enumerate(starts)]


def states(surveyed: Survey) -> dict[str, str]:
    return {date: session.state for date, session in surveyed.sessions.items()}


def test_a_corrupt_session_leaves_the_others_alone(test_data: Path, tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    for path in (test_data / "landing/equities").glob("*.ohlcv-1s.dbn.zst"):
        shutil.copyfile(path, landing / path.name)
    third = landing / "lean-equity-20131009.ohlcv-1s.dbn.zst"
    third.write_bytes(third.read_bytes()[:-1000])
    third = third.rename(landing / "no date in this name")
    _, surveyed = look(landing, tmp_path / "state")
    assert states(surveyed) == {
        date: "refused" if date == "2013-10-09" else "ready" for date in SESSIONS
    }
    reason = surveyed.sessions["2013-10-09"].reason
    assert "no date in this name" in reason and "truncated" in reason
    assert [facts.name for facts in surveyed.refused] == ["no date in this name"]
    assert [(gap.date, gap.reason) for gap in surveyed.gaps] == [
        ("2013-10-09", "no file covers it")
    ]
    source = SurveyedSource(surveyed, FolderLanding(landing))
    assert len(source.files("2013-10-08")) == 1
    with pytest.raises(DataError, match=r"2013-10-09 is refused: .*truncated"):
        source.files("2013-10-09")


def test_unreadable_metadata_fails_the_date_in_the_name_only(tmp_path: Path) -> None:
    week(tmp_path / "landing")
    (tmp_path / "landing" / "xnas-itch-20131008.trades.dbn.zst").write_bytes(b"not DBN at all")
    (tmp_path / "landing" / "notes.txt").write_bytes(b"not DBN either")
    _, surveyed = look(tmp_path / "landing", tmp_path / "state")
    assert [d for d, state in states(surveyed).items() if state == "refused"] == ["2013-10-08"]
    assert {facts.name for facts in surveyed.refused} == {
        "xnas-itch-20131008.trades.dbn.zst",
        "notes.txt",
    }


def test_a_corrupt_file_fails_every_session_that_it_covers(tmp_path: Path) -> None:
    paths = week(tmp_path / "landing")
    utc = MONDAY + 20 * HOUR
    bad = day(tmp_path / "landing", "utc.dbn.zst", utc, utc + DAY, utc)
    bad.write_bytes(bad.read_bytes()[:-1])
    _, surveyed = look(tmp_path / "landing", tmp_path / "state")
    refused = [d for d, state in states(surveyed).items() if state == "refused"]
    assert refused == ["2013-10-07", "2013-10-08"]
    assert len(paths) == len(surveyed.sessions)


def test_names_say_nothing_about_where_data_belongs(tmp_path: Path) -> None:
    day(tmp_path / "landing", "20200101.dbn.zst", MONDAY, MONDAY + DAY, MONDAY + HOUR)
    _, surveyed = look(tmp_path / "landing", tmp_path / "state")
    assert list(surveyed.sessions) == ["2013-10-07"]


def test_what_a_manifest_does_not_confirm_is_arriving(tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    job = landing / "GLBX-JOB"
    one, two, three, four, five = week(job)
    whole = {path.name: path.read_bytes() for path in (one, two, three, four)}
    import hashlib

    files = [
        {
            "filename": name,
            "size": len(data),
            "hash": f"sha256:{hashlib.sha256(data).hexdigest()}",
        }
        for name, data in whole.items()
    ]
    files.append({"filename": "later-2013-10-14.dbn.zst", "size": 5, "hash": "sha256:00"})
    (job / "manifest.json").write_text(json.dumps({"job_id": "JOB", "files": files}))
    for support in ("symbology.json", "metadata.json", ".hidden", "all.zip", "x.dbn.zst.part"):
        (job / support).write_text("{}")
    two.write_bytes(whole[two.name][:-7])
    flipped = bytearray(whole[three.name])
    flipped[-20] ^= 1
    three.write_bytes(flipped)
    facts, surveyed = look(landing, tmp_path / "state")
    assert states(surveyed) == {
        "2013-10-07": "ready",
        "2013-10-08": "waiting",
        "2013-10-09": "waiting",
        "2013-10-10": "ready",
        "2013-10-11": "ready",
        "2013-10-14": "waiting",
    }
    assert not surveyed.refused
    reasons = {f.name.split("/")[-1]: f.reason for f in surveyed.arriving}
    assert f"{len(whole[two.name]) - 7} of the {len(whole[two.name])} bytes" in reasons[two.name]
    assert "its SHA-256 is" in reasons[three.name]
    assert "not there yet" in reasons["later-2013-10-14.dbn.zst"]
    assert len(facts) == 6
    two.write_bytes(whole[two.name])
    three.write_bytes(whole[three.name])
    _, surveyed = look(landing, tmp_path / "state")
    assert list(surveyed.ready()) == SESSIONS
    assert five.name in {f.name.split("/")[-1] for f in surveyed.ready()["2013-10-11"].files}


def test_a_manifest_that_cannot_be_read_yet_keeps_its_job_waiting(tmp_path: Path) -> None:
    week(tmp_path / "landing" / "job")
    (tmp_path / "landing" / "job" / "manifest.json").write_text('{"files": [')
    _, surveyed = look(tmp_path / "landing", tmp_path / "state")
    assert {f.reason for f in surveyed.arriving} == {"manifest.json beside it cannot be read yet"}
    assert not surveyed.ready()


def test_a_file_just_written_may_still_grow(tmp_path: Path) -> None:
    path = week(tmp_path / "landing")[0]
    now = time.time_ns()
    old = now - 60 * 10**9
    for each in (tmp_path / "landing").iterdir():
        os.utime(each, ns=(old, old))
    os.utime(path, ns=(now - 10**9, now - 10**9))
    _, surveyed = look(tmp_path / "landing", tmp_path / "state", now_ns=now, settle=2.0)
    assert states(surveyed)["2013-10-07"] == "waiting"
    assert len(surveyed.ready()) == 4
    _, surveyed = look(tmp_path / "landing", tmp_path / "state", now_ns=now + 10**9, settle=2.0)
    assert list(surveyed.ready()) == SESSIONS


def test_a_session_waits_until_it_is_covered_or_long_over(tmp_path: Path) -> None:
    landing, state = tmp_path / "landing", tmp_path / "state"
    utc = MONDAY - 4 * HOUR
    day(landing, "a.dbn.zst", utc, utc + DAY, utc + 18 * HOUR)
    end = MONDAY + DAY
    for now, expected in [
        (utc + DAY, "waiting"),
        (end + 6 * HOUR - 1, "waiting"),
        (end + 6 * HOUR, "ready"),
    ]:
        _, surveyed = look(landing, state, now_ns=now)
        assert states(surveyed) == {"2013-10-07": expected}
    _, surveyed = look(landing, state, now_ns=utc + DAY)
    assert "20.0 of 24.0 hours of LEAN.EQUITY trades" in surveyed.sessions["2013-10-07"].reason
    day(landing, "b.dbn.zst", utc + DAY, utc + 2 * DAY, utc + DAY + HOUR, utc + DAY + 18 * HOUR)
    _, surveyed = look(landing, state, now_ns=utc + DAY)
    assert states(surveyed) == {"2013-10-07": "ready", "2013-10-08": "waiting"}
    assert len(surveyed.sessions["2013-10-07"].files) == 2


def test_a_pending_condition_keeps_a_session_waiting(tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    week(landing)
    conditions = [
        {"date": "2013-10-10", "condition": "degraded", "last_modified_date": "2013-10-11"},
        {"date": "2013-10-11", "condition": "pending", "last_modified_date": None},
    ]
    (landing / "condition.json").write_text(json.dumps(conditions))
    _, surveyed = look(landing, tmp_path / "state", now_ns=MONDAY + 5 * DAY)
    assert states(surveyed)["2013-10-11"] == "waiting"
    assert surveyed.sessions["2013-10-10"].conditions == {"LEAN.EQUITY": "degraded"}
    _, surveyed = look(landing, tmp_path / "state", now_ns=MONDAY + 6 * DAY)
    assert states(surveyed)["2013-10-11"] == "ready"


def test_gaps_are_trading_dates_without_data(tmp_path: Path) -> None:
    paths = week(tmp_path / "landing")
    paths[1].unlink()
    day(tmp_path / "landing", "empty.dbn.zst", MONDAY + 2 * DAY, MONDAY + 3 * DAY)
    paths[2].unlink()
    next_week = MONDAY + 7 * DAY
    day(tmp_path / "landing", "next.dbn.zst", next_week, next_week + DAY, next_week + HOUR)
    _, surveyed = look(tmp_path / "landing", tmp_path / "state")
    assert [(gap.date, gap.dataset, gap.reason) for gap in surveyed.gaps] == [
        ("2013-10-08", "LEAN.EQUITY", "no file covers it"),
        ("2013-10-09", "LEAN.EQUITY", "covered, but without records"),
    ]
    assert surveyed.notes == ("empty.dbn.zst holds metadata and no records",)


def test_an_unknown_dataset_is_taken_by_utc_date_and_said_so(tmp_path: Path) -> None:
    night = MONDAY + 21 * HOUR
    day(tmp_path / "landing", "x.dbn.zst", MONDAY, night + 1, MONDAY, night, dataset="NEW.FEED")
    _, surveyed = look(tmp_path / "landing", tmp_path / "state")
    assert list(surveyed.sessions) == ["2013-10-07", "2013-10-08"]
    assert "NEW.FEED: no calendar is known" in surveyed.notes[0]
    _, surveyed = look(tmp_path / "landing", tmp_path / "state", calendars={"NEW.FEED": "XNYS"})
    assert list(surveyed.sessions) == ["2013-10-07"]
    assert not surveyed.notes


def test_a_session_changes_with_the_bytes_that_feed_it_and_not_with_others(
    tmp_path: Path,
) -> None:
    landing, state = tmp_path / "landing", tmp_path / "state"
    paths = week(landing)
    before = {d: s.digest for d, s in look(landing, state)[1].sessions.items()}
    shutil.copytree(landing, tmp_path / "copy")
    shutil.move(tmp_path / "copy", landing / "delivered again")
    paths[0].rename(landing / "renamed.dbn.zst")
    after = {d: s.digest for d, s in look(landing, state)[1].sessions.items()}
    assert after == before
    day(landing, "late.dbn.zst", MONDAY + DAY, MONDAY + 2 * DAY, MONDAY + DAY + HOUR)
    after = {d: s.digest for d, s in look(landing, state)[1].sessions.items()}
    assert [d for d in SESSIONS if after[d] != before[d]] == ["2013-10-08"]


def test_schemas_that_are_not_used_are_passed_over(test_data: Path, tmp_path: Path) -> None:
    facts, surveyed = look(test_data / "landing/futures", tmp_path / "state")
    (ignored,) = surveyed.ignored
    assert ignored.name.startswith("esh4") and "schema mbo is not used" in ignored.reason
    assert len(facts) == 3


def test_what_is_known_is_not_read_again(
    test_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing = test_data / "landing/equities"
    read: list[str] = []
    inventory = Inventory(tmp_path, FolderLanding(landing), settle_seconds=0)
    first = inventory.facts(time.time_ns(), progress=read.append)
    assert len(read) == len(first) == 20
    again = Inventory(tmp_path, FolderLanding(landing), settle_seconds=0)
    assert again.facts(time.time_ns(), progress=read.append) == first
    assert len(read) == 20
    trades = next(f for f in first if f.name == "lean-equity-20131007.trades.dbn.zst")
    assert (trades.records, trades.symbols, trades.publishers) == (274_894, ("IBM", "SPY"), (0,))
    assert trades.sha256 == "0437d2d75be8d3b369cba747801846f2702ddaa6ecf91cbec333ea4644711049"
    assert trades.spans["2013-10-07"].records == 274_894
    assert [(t.symbol, t.records) for t in trades.tables] == [("IBM", 24_293), ("SPY", 250_601)]


def test_a_thousand_known_files_are_listed_in_no_time(tmp_path: Path) -> None:
    names = [f"{n:04}.dbn.zst" for n in range(1000)]
    folder = tmp_path / "landing"
    folder.mkdir()
    content = compress(metadata("trades"))
    for name in names:
        (folder / name).write_bytes(content)
    inventory = Inventory(tmp_path / "state", FolderLanding(folder), settle_seconds=0)
    inventory.facts(time.time_ns())
    started = time.process_time()
    assert len(inventory.facts(time.time_ns())) == 1000
    assert time.process_time() - started < 0.5


def test_ten_years_of_sessions_are_surveyed_quickly() -> None:
    dates = np.arange("2014-01-01", "2024-01-01", dtype="datetime64[D]")
    facts = [
        FileFacts(
            f"{date}.dbn.zst", 1, "v", "ok", sha256=str(date), dataset="BINANCE.DEMO",
            schema="trades", calendar="24/7", start=int(date.astype(int)) * DAY,
            end=(int(date.astype(int)) + 1) * DAY, first=int(date.astype(int)) * DAY,
            last=int(date.astype(int)) * DAY + 1, records=1,
            spans={str(date): Span(1, int(date.astype(int)) * DAY, 1)},
        )
        for date in dates
    ]  # fmt: skip
    started = time.process_time()
    surveyed = survey(facts, {}, CRYPTO, 6)
    assert len(surveyed.ready()) == len(dates)
    assert time.process_time() - started < 1.0


def test_a_read_only_landing_will_do(tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    week(landing)
    for path in [*landing.iterdir(), landing]:
        path.chmod(path.stat().st_mode & ~0o222)
    _, surveyed = look(landing, tmp_path / "state")
    assert list(surveyed.ready()) == SESSIONS
    landing.chmod(0o755)


def test_a_landing_that_is_not_there_is_an_error_of_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder"):
        look(tmp_path / "nowhere", tmp_path / "state")


def test_names_are_relative_and_support_files_are_left_out(tmp_path: Path) -> None:
    for name in ("a/b/c.dbn", "a/manifest.json", "a/symbology.json", ".git/x", "a/~x~", "a/z.ZIP"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    listed = FolderLanding(tmp_path).list()
    assert [file.name for file in listed] == ["a/b/c.dbn", "a/manifest.json"]
    assert [file.is_document for file in listed] == [False, True]
    assert FolderLanding(tmp_path).local(listed[0]) == tmp_path / "a/b/c.dbn"
    assert LandedFile("x.dbn", 1, "v").folder == ""


def test_unreadable_files_and_strange_names_stop_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing = tmp_path / "landing"
    week(landing)
    (landing / os.fsdecode(b"latin-\xe9.dbn")).write_bytes(b"x")
    (landing / "two\nlines.dbn").write_bytes(b"x")
    local = FolderLanding.local

    def gone(self: FolderLanding, file: LandedFile) -> Path:
        if file.name == "3.dbn.zst":
            (self.folder / file.name).unlink()
        return local(self, file)

    monkeypatch.setattr(FolderLanding, "local", gone)
    _, surveyed = look(landing, tmp_path / "state")
    assert list(surveyed.ready()) == [d for d in SESSIONS if d != "2013-10-10"]
    assert {f.name for f in surveyed.refused} == {"latin-\\udce9.dbn", "two\nlines.dbn"}
    (arriving,) = surveyed.arriving
    assert "3.dbn.zst is not in the landing" in arriving.reason
