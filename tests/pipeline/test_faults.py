"""Killed, doubled, out of disk, read-only, index lost: the next sync converges."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.editing import wrap_result
from support.project import Project

TLOB = ["tlob/training", "tlob/walk_forward", "tlob/release"]


def _edit(project: Project) -> None:
    wrap_result(project.root / "foxhunt_pipeline/models/tlob.py", "loss", "2.0 * ({})")


def _assert_whole(project: Project) -> None:
    """Every visible object is what its name says, and every manifest's files are there."""
    store = project.state / "artifacts"
    blobs = {path.name: path.stat().st_size for path in (store / "blobs").iterdir()}
    for name in blobs:
        data = (store / "blobs" / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == name
    for path in (store / "memo").iterdir():
        for blob in json.loads(path.read_bytes())["files"].values():
            assert blobs[blob["sha256"]] == blob["size"]
    for path in (store / "artifacts").rglob("*.json"):
        for item in json.loads(path.read_bytes())["artifact"]["items"].values():
            assert all(blobs[b["sha256"]] == b["size"] for b in item["files"].values())
    for path in (project.state / "releases").rglob("*.json"):
        json.loads(path.read_bytes())


def _wait(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def test_after_a_kill_in_training_the_next_sync_gives_the_same_bytes(
    project: Project, tmp_path: Path
) -> None:
    _edit(project)
    undisturbed = project.clone(tmp_path / "undisturbed")
    memo = project.state / "artifacts" / "memo"
    before, versions = len(list(memo.iterdir())), project.versions()

    process = project.popen("sync")
    scratch = project.state / "cache" / "scratch"
    _wait(lambda: len(list(memo.iterdir())) > before, process, 120)  # the first window is kept
    _wait(lambda: scratch.is_dir() and any(scratch.iterdir()), process, 60)  # the next is trained
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    _assert_whole(project)
    assert project.versions() == versions

    [killed] = [run for run in project.runs() if run.status == "STARTED"]

    undisturbed.sync()
    project.sync()
    assert {run.id: run.status for run in project.runs()}[killed.id] == "FAILURE"
    assert project.versions() == undisturbed.versions()
    assert project.versions() != versions
    assert project.checkpoints("tlob") == undisturbed.checkpoints("tlob")
    trained = project.materialization("tlob/training").metadata
    assert trained["windows_trained"] < 3
    assert trained["windows_trained"] + trained["windows_reused"] == 3
    assert [r.version for r in project.releases("tlob")] == ["v0001", "v0002"]
    _assert_whole(project)
    assert project.plan() == []


def test_two_syncs_at_once_take_turns(project: Project) -> None:
    _edit(project)
    count = len(project.runs())
    both = [project.popen("sync") for _ in range(2)]
    said = [process.communicate(timeout=240) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    [run] = project.runs()[count:]
    assert sorted(run.assets) == sorted(TLOB)
    assert project.plan() == []


@contextmanager
def _mounted(folder: Path, *options: str) -> Iterator[None]:
    """A mount for the time of a test; skips where this user may not mount."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root may mount a small or read-only file system")
    done = subprocess.run(
        ["mount", *options, str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"this system lets nobody mount: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_leaves_nothing_half_written(new_project: Callable[..., Project]) -> None:
    project = new_project()
    project.simulate(2)
    project.state.mkdir()
    with _mounted(project.state, "-t", "tmpfs", "-o", "size=2m", "tmpfs"):
        said = project.foxhunt("sync", "--select", "+features", code=None)
        assert said.returncode in (1, 2)
        assert "No space left on device" in said.stderr or "0 MB are free" in said.stderr
        _assert_whole(project)
        subprocess.run(["mount", "-o", "remount,size=300m", str(project.state)], check=True)
        project.sync("--select", "+features")
        assert len(project.rows()) == 2 * 4
        assert project.plan("--select", "+features") == []
        _assert_whole(project)


def test_a_read_only_landing_will_do(new_project: Callable[..., Project]) -> None:
    project = new_project()
    project.simulate(1)
    before = project.tree("landing")
    with _mounted(project.landing, "--bind", "-o", "ro", str(project.landing)):
        with pytest.raises(OSError, match="Read-only"):
            (project.landing / "new").touch()
        project.sync("--select", "raw/dbn", "--select", "market/tables")
        assert {asset for asset, _ in project.rows()} == {"raw/dbn", "market/tables"}
    assert project.tree("landing") == before


def test_a_lost_index_is_rebuilt_from_the_store(project: Project) -> None:
    before = project.rows()
    for path in project.state.glob("index.sqlite*"):
        path.unlink()
    rebuild = """
        from foxhunt_pipeline.incremental.recovery import rebuild_index
        from resources.pipeline import open_pipeline

        p = open_pipeline()
        print(rebuild_index(p.index, p.memo, p.stages, p.versions, p.sessions()))
        """
    assert int(project.python(rebuild)) == len(before)
    assert project.rows() == before
    assert project.plan() == []
