"""Ingest: whole files come in, of the others nothing is left behind."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from foxhunt_pipeline.market.ingest import check_files


def test_good_files_come_in_and_bad_ones_leave_nothing(test_data: Path, tmp_path: Path) -> None:
    inbox, landing = tmp_path / "inbox", tmp_path / "landing"
    inbox.mkdir()
    equities = test_data / "landing/equities"
    names = [f"lean-equity-2013100{n}.ohlcv-1m.dbn.zst" for n in (7, 8, 9)]
    for name in names:
        shutil.copyfile(equities / name, inbox / name)
    (inbox / names[1]).write_bytes((equities / names[1]).read_bytes()[:-4])
    (inbox / "letter.dbn").write_text("Dear Sir or Madam")
    mbo = test_data / "landing/futures/esh4-glbx-mdp3-20231225.mbo.dbn.zst"
    (inbox / "cut-mbo.dbn.zst").write_bytes(mbo.read_bytes()[:-4])
    (inbox / "symbology.json").write_text("{}")
    paths = [*sorted(inbox.iterdir()), mbo, inbox / "missing.dbn"]
    reports = {report.path.name: report for report in check_files(paths, landing)}
    assert {name: report.outcome for name, report in reports.items()} == {
        names[0]: "accepted",
        names[1]: "refused",
        names[2]: "accepted",
        "letter.dbn": "refused",
        "cut-mbo.dbn.zst": "refused",
        "symbology.json": "passed over",
        mbo.name: "accepted",
        "missing.dbn": "refused",
    }
    assert "truncated" in reports[names[1]].reason
    assert "truncated" in reports["cut-mbo.dbn.zst"].reason
    assert "is not a DBN file" in reports["letter.dbn"].reason
    assert "2,309 records of ohlcv-1m" in reports[names[0]].reason
    assert "schema mbo is not used" in reports[mbo.name].reason
    assert {p.name for p in landing.iterdir()} == {names[0], names[2], mbo.name}
    for name in (names[0], names[2]):
        assert (landing / name).read_bytes() == (equities / name).read_bytes()


def test_refusing_everything_makes_no_landing(tmp_path: Path) -> None:
    (tmp_path / "x.dbn").write_bytes(b"")
    (report,) = check_files([tmp_path / "x.dbn"], tmp_path / "landing")
    assert report.outcome == "refused" and "is empty" in report.reason
    assert not (tmp_path / "landing").exists()


def test_what_is_there_stays_as_it_is(test_data: Path, tmp_path: Path) -> None:
    equities = test_data / "landing/equities"
    one = equities / "lean-equity-20131007.ohlcv-1m.dbn.zst"
    other = tmp_path / one.name
    shutil.copyfile(equities / "lean-equity-20131008.ohlcv-1m.dbn.zst", other)
    landing = tmp_path / "landing"
    outcomes = [check_files([path], landing)[0] for path in (one, one, other)]
    assert [report.outcome for report in outcomes] == ["accepted", "present", "refused"]
    assert "with other bytes" in outcomes[2].reason
    assert (landing / one.name).read_bytes() == one.read_bytes()


def test_a_manifest_beside_the_file_must_agree(test_data: Path, tmp_path: Path) -> None:
    one = test_data / "landing/equities/lean-equity-20131007.ohlcv-1m.dbn.zst"
    path = tmp_path / "job" / one.name
    path.parent.mkdir()
    shutil.copyfile(one, path)
    digest = hashlib.sha256(one.read_bytes()).hexdigest()
    for listed, outcome in [("0" * 64, "refused"), (digest, "accepted")]:
        entry = {
            "filename": path.name,
            "size": path.stat().st_size,
            "hash": f"sha256:{listed}",
        }
        (path.parent / "manifest.json").write_text(json.dumps({"files": [entry]}))
        (report,) = check_files([path], tmp_path / "landing")
        assert report.outcome == outcome, report.reason
