"""Calendars kept in files say what exchange_calendars says, and no bad file is believed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from foxhunt_pipeline.market import calendars

LOOK = """
import sys
from pathlib import Path
from foxhunt_pipeline.market import calendars
calendars.keep_in(Path(sys.argv[1]))
calendar = calendars.calendar_for("GLBX.MDP3")
print(calendar.bounds("2023-12-26"), calendar.sessions("2023-12-20", "2024-01-05"))
print("exchange_calendars" in sys.modules)
"""


def look(folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(folder)], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_a_second_process_reads_the_file_and_says_the_same(tmp_path: Path) -> None:
    first, second = look(tmp_path), look(tmp_path)
    assert first[0] == second[0]
    assert (first[1], second[1]) == ("True", "False")


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 not an archive", b"\x00" * 100])
def test_a_damaged_file_is_read_anew(tmp_path: Path, damage: bytes) -> None:
    first = look(tmp_path)
    [kept] = tmp_path.iterdir()
    kept.write_bytes(damage)
    assert look(tmp_path)[0] == first[0]


def test_nothing_is_kept_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calendars, "_kept", [])
    calendars._sessions.cache_clear()
    calendars.calendar_for("XNAS.ITCH").bounds("2024-01-02")
    assert list(tmp_path.iterdir()) == []
