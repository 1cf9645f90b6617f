"""plan, releases, index, and how the command speaks."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from foxhunt_pipeline.checkpoints.format import save
from foxhunt_pipeline.checkpoints.publish import promote, publish
from foxhunt_pipeline.cli import console
from foxhunt_pipeline.cli.app import app
from foxhunt_pipeline.incremental.index import Failure, Index
from foxhunt_pipeline.stores.folder import FolderStore
from support.checkpoints import checkpoint
from support.command import message
from support.tiny_project import SESSIONS

Foxhunt = Callable[..., Any]

MODELS = [
    f"{model}/{stage}"
    for model in ("tlob", "ppo")
    for stage in ("training", "walk_forward", "release")
]
COMMANDS = [
    ["config"],
    ["config", "show"],
    ["data"],
    ["data", "ls"],
    ["demo"],
    ["doctor"],
    ["index"],
    ["index", "rebuild"],
    ["ingest"],
    ["init"],
    ["plan"],
    ["releases"],
    ["releases", "list"],
    ["releases", "why"],
    ["simulate"],
    ["status"],
    ["sync"],
]


def index_of(project: Path) -> Index:
    return Index(project / ".foxhunt" / "index.sqlite")


def test_plan_as_json_and_as_text(foxhunt: Foxhunt, tmp_path: Path, tiny_landing: Path) -> None:
    entries = json.loads(foxhunt("plan", "--json", FOXHUNT_LANDING=str(tiny_landing)).stdout)
    assert all(set(entry) >= {"asset", "partition", "action", "reason"} for entry in entries)
    assert {entry["action"] for entry in entries} == {"rebuild"}
    by_session = [e for e in entries if e["partition"]]
    assert len(by_session) == 5 * len(SESSIONS)
    assert {e["partition"] for e in by_session} == set(SESSIONS)
    assert [e["asset"] for e in entries if not e["partition"]] == [
        "dataset",
        "baselines/walk_forward",
        *MODELS,
    ]
    text = foxhunt("plan", FOXHUNT_LANDING=str(tiny_landing)).stdout.splitlines()
    assert text[0] == f"{len(entries)} to run"
    assert "features" in text[5]
    assert "2024-01-02 to 2024-01-04 (3)  rebuild" in text[5]
    assert text[5].endswith("the session is new")
    assert text[-1].split()[:2] == ["ppo/release", "rebuild"]


def test_plan_selects(foxhunt: Foxhunt, own_project: Path) -> None:
    def planned(*arguments: str) -> list[str]:
        done = foxhunt("plan", "--json", *arguments, folder=own_project)
        return [entry["asset"] for entry in json.loads(done.stdout)]

    assert planned() == MODELS
    assert planned("--select", "ppo/*", "--select", "dataset") == MODELS[3:]
    assert planned("--select", "dataset", "--force") == ["dataset"]
    assert planned("--select", "features") == []
    line = message(foxhunt("plan", "--select", "tlob/trainin", code=2, folder=own_project))
    assert line.startswith("configuration error: --select tlob/trainin names no stage. Stages: raw")
    assert line.endswith("ppo/release.")
    assert len(line) > 200


def test_a_lost_index_is_rebuilt_and_said_to_be(foxhunt: Foxhunt, own_project: Path) -> None:
    index = index_of(own_project)
    rows = {place: (row.key, row.data_version) for place, row in index.rows().items()}
    assert len(rows) == 5 * len(SESSIONS) + 2
    path = own_project / ".foxhunt" / "index.sqlite"
    path.unlink()
    done = foxhunt("plan", "--json", folder=own_project)
    assert done.stderr == (
        f"The index was lost: rebuilt from the artifacts, {len(rows)} entries.\n"
    )
    assert [entry["asset"] for entry in json.loads(done.stdout)] == MODELS
    assert {p: (r.key, r.data_version) for p, r in index_of(own_project).rows().items()} == rows
    assert foxhunt("plan", "--json", folder=own_project).stderr == ""

    path.write_bytes(b"no database " * 1000)
    line = message(foxhunt("plan", code=2, folder=own_project))
    assert f"{path} is damaged" in line and line.endswith("Run foxhunt index rebuild.")
    done = foxhunt("index", "rebuild", folder=own_project)
    assert done.stdout == f"Rebuilt {path} from the artifacts, {len(rows)} entries.\n"
    assert {p: (r.key, r.data_version) for p, r in index_of(own_project).rows().items()} == rows


def test_the_index_is_not_rebuilt_under_a_running_sync(foxhunt: Foxhunt, own_project: Path) -> None:
    import fcntl

    with (own_project / ".foxhunt" / "sync.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        line = message(foxhunt("index", "rebuild", code=2, folder=own_project))
    assert "is running. Run again when it is done." in line
    assert index_of(own_project).rows()


def test_a_state_folder_that_cannot_be_used_is_one_message(
    foxhunt: Foxhunt, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for command in (["plan"], ["status"], ["data", "ls"], ["index", "rebuild"]):
        line = message(foxhunt(*command, code=2, FOXHUNT_STATE="file"))
        assert f"The state folder {tmp_path}/file cannot be written" in line


def test_releases_before_there_are_any(foxhunt: Foxhunt, own_project: Path) -> None:
    assert (
        "No model has been released yet" in foxhunt("releases", "list", folder=own_project).stdout
    )
    said = foxhunt("releases", "why", "tlob", folder=own_project).stdout
    assert said == "tlob was not released yet: run foxhunt sync.\n"
    line = message(foxhunt("releases", "why", "tlo", code=2, folder=own_project))
    assert "There is no model tlo. Models: tlob, ppo." in line


def test_why_of_a_model_that_was_skipped_or_failed(foxhunt: Foxhunt, own_project: Path) -> None:
    index = index_of(own_project)
    reason = "tlob reads the book view, which the data does not hold." + " Really." * 20
    index.fail(Failure("tlob/training", None, "k", "skipped", reason, time.time_ns()))
    index.fail(Failure("ppo/training", None, "k", "training", "Loss is NaN.", time.time_ns()))
    said = foxhunt("releases", "why", "tlob", folder=own_project).stdout
    assert said == f"tlob/training was skipped when last tried: {reason}\n"
    said = foxhunt("releases", "why", "ppo", folder=own_project).stdout
    assert said == "ppo/training was failed when last tried: Loss is NaN.\n"
    status = foxhunt("status", code=1, folder=own_project).stdout
    rows = {line.split()[0]: line for line in status.splitlines()[2:]}
    assert rows["tlob/training"].split()[3] == "0"
    assert rows["ppo/training"].split()[3] == "1"
    assert rows["ppo/training"].endswith("Loss is NaN.")


def test_releases_are_listed_with_their_stage(foxhunt: Foxhunt, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / ".foxhunt" / "releases")
    for seed, passed in ((1, True), (2, False)):
        path = tmp_path / f"{seed}.safetensors"
        save(checkpoint(seed), path)
        gate = {"gate": "net_vs_flat", "number": 0.2, "bound": 0.05, "passed": passed}
        publish(store, "tlob", path, {"stage": "candidate", "gates": [gate], "provenance": {}})
    promote(store, "tlob", "v0001", reason="test")
    lines = foxhunt("releases", "list").stdout.splitlines()
    rows = [line.split() for line in lines[2:]]
    assert [row[:3] for row in rows] == [
        ["tlob", "v0001", "champion"],
        ["tlob", "v0002", "candidate"],
    ]
    assert lines[2].endswith("every gate passed")
    assert lines[3].endswith("net_vs_flat")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("command", [[], *COMMANDS], ids=" ".join)
def test_every_command_has_help(command: list[str]) -> None:
    done = run(*command, "--help")
    assert done.exit_code == 0
    assert done.output.startswith(f"Usage: root {' '.join(command)}".rstrip())
    below = [c[-1] for c in COMMANDS if c[:-1] == command]
    for name in below:
        assert f"\n  {name} " in done.output
    assert "--within" not in done.output


def test_every_command_is_documented_with_its_options() -> None:
    document = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
    text = document.read_text(encoding="utf-8")
    for command in COMMANDS:
        options = {
            word.rstrip(",")
            for line in run(*command, "--help").output.splitlines()
            for word in line.split()[:1]
            if word.startswith("--") and word != "--help"
        }
        lines = [t for t in text.splitlines() if t.startswith(f"| `foxhunt {' '.join(command)}")]
        assert lines, command
        for option in options:
            assert option in lines[0], (command, option)


def test_what_is_no_command_is_one_error(foxhunt: Foxhunt) -> None:
    done = foxhunt("plann", code=2)
    assert done.stderr.splitlines()[-1].startswith("Error: No such command 'plann'.")
    done = foxhunt("plan", "--selct", "x", code=2)
    assert "No such option: --selct" in done.stderr.splitlines()[-1]


def test_without_a_command_there_is_the_list_of_them() -> None:
    done = run()
    assert "Commands:" in done.output and "doctor" in done.output


def test_tables_in_a_pipe_are_a_line_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 100
    console.show("Title", ("a", "count", "text"), [("x", 12345, long), ("[red]", None, "a\nb")])
    assert capsys.readouterr().out.splitlines() == [
        "Title",
        "a       count  text",
        f"x      12,345  {long.strip()}",
        "[red]       -  a b",
    ]


def test_tables_on_a_terminal_fold_into_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    terminal = Console(force_terminal=True, width=60, highlight=False, color_system="truecolor")
    monkeypatch.setattr(console, "out", terminal)
    with terminal.capture() as captured:
        console.show("Title", ("a", "text"), [("[red]x", "word " * 40)])
        console.say("[bold]" + "word " * 40)
    lines = captured.get().splitlines()
    assert max(len(_plain(line)) for line in lines) <= 60
    assert any("[red]x" in line for line in lines)
    assert any("[bold]" in line for line in lines)


def _plain(text: str) -> str:
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2e9, "2.0 GB"), (3e15, "3000.0 TB")],
)
def test_sizes(count: float, said: str) -> None:
    assert console.size(count) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.04, "0.0 s"),
        (59.94, "59.9 s"),
        (59.99, "1 min 0 s"),
        (3599.7, "1 h 0 min"),
        (7260, "2 h 1 min"),
    ],
)
def test_durations(seconds: float, said: str) -> None:
    assert console.duration(seconds) == said


def test_a_copy_of_the_project_elsewhere_is_as_current(
    foxhunt: Foxhunt, own_project: Path, tmp_path: Path
) -> None:
    """Nothing in the state folder names a path."""
    moved = Path(shutil.copytree(own_project, tmp_path / "moved"))
    entries = json.loads(foxhunt("plan", "--json", folder=moved).stdout)
    assert [entry["asset"] for entry in entries] == MODELS
