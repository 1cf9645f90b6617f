"""Releases under races, kills and damage, on a folder and on a real S3 server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from foxhunt_pipeline.checkpoints.format import Checkpoint, save
from foxhunt_pipeline.checkpoints.publish import (
    Champion,
    Gate,
    Release,
    champion,
    models,
    open_manifest,
    open_release,
    promote,
    publish,
    releases,
)
from foxhunt_pipeline.config import StoreConfig
from foxhunt_pipeline.errors import (
    AccessDeniedError,
    CheckpointError,
    FoxhuntError,
    NotFoundError,
    ReleaseError,
    StoreError,
)
from foxhunt_pipeline.stores.base import ObjectStore
from foxhunt_pipeline.stores.folder import FolderStore
from resources.stores import open_store
from support.checkpoints import checkpoint

ROOT = Path(__file__).parents[2]
GATES = [
    {"gate": "finite", "number": 0.0, "bound": 0.0, "passed": True, "detail": "no NaN"},
    {"gate": "beats baselines", "number": 1.2, "bound": 0.0, "passed": True},
]


def manifest(**provenance: Any) -> dict[str, Any]:
    return {"stage": "candidate", "gates": GATES, "provenance": provenance}


def made(folder: Path, seed: int) -> Path:
    path = folder / f"{seed}.safetensors"
    save(checkpoint(seed), path)
    return path


def run_publisher(mode: str, config: StoreConfig, *files: Path) -> Any:
    environ = os.environ | {"PYTHONPATH": f"{ROOT / 'tests'}{os.pathsep}{ROOT}"}
    script = str(ROOT / "tests" / "support" / "publisher.py")
    done = subprocess.run(
        [sys.executable, script, mode, config.model_dump_json(), *map(str, files)],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def whole(store: ObjectStore, model: str) -> list[Release]:
    """Every release, after checking that versions are contiguous and each one opens."""
    found = releases(store, model)
    assert [release.version for release in found] == [f"v{n + 1:04}" for n in range(len(found))]
    for release in found:
        open_release(store, model, release.version)
    return found


def test_a_release_is_published_once_and_opened(object_store: ObjectStore, tmp_path: Path) -> None:
    assert releases(object_store, "tlob") == [] and models(object_store) == []
    first = publish(object_store, "tlob", made(tmp_path, 1), manifest(code="a"))
    assert (first.version, first.number, first.stage) == ("v0001", 1, "candidate")
    assert first.gates[1] == Gate("beats baselines", 1.2, 0.0, True)
    assert publish(object_store, "tlob", made(tmp_path, 1), manifest(code="a")) == first
    second = publish(object_store, "tlob", made(tmp_path, 1), manifest(code="b"))
    third = publish(object_store, "tlob", made(tmp_path, 2), manifest(code="a"))
    assert [second.version, third.version] == ["v0002", "v0003"]
    publish(object_store, "ppo", made(tmp_path, 1), manifest(code="a"))
    assert models(object_store) == ["ppo", "tlob"]
    assert whole(object_store, "tlob") == [first, second, third]
    assert open_manifest(object_store, "tlob", "v0002") == second
    assert second.sha256 == first.sha256
    assert len([*object_store.list("blobs")]) == 2
    back = open_release(object_store, "tlob", "v0003")
    assert torch.equal(back.tensors["head.weight"], checkpoint(2).tensors["head.weight"])


def test_the_champion_moves_only_as_decided(object_store: ObjectStore, tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        publish(object_store, "tlob", made(tmp_path, seed), manifest())
    assert champion(object_store, "tlob") is None
    with pytest.raises(NotFoundError, match="no champion"):
        open_release(object_store, "tlob")
    first = promote(object_store, "tlob", "v0001", reason="beats the baselines", over=None)
    assert (first.version, first.previous, first.sequence) == ("v0001", None, 1)
    assert promote(object_store, "tlob", "v0001", reason="again") == first
    with pytest.raises(ReleaseError, match="succeed no champion, but the champion is v0001"):
        promote(object_store, "tlob", "v0002", reason="late", over=None)
    second = promote(object_store, "tlob", "v0002", reason="better", over="v0001")
    assert (second.previous, second.sequence) == ("v0001", 2)
    back = promote(object_store, "tlob", "v0001", reason="rolled back")
    assert (back.previous, back.sequence) == ("v0002", 3)
    assert champion(object_store, "tlob") == back
    opened = open_release(object_store, "tlob")
    assert int(opened.tensors["steps"]) == 1
    with pytest.raises(NotFoundError, match="no release v0009 of tlob"):
        promote(object_store, "tlob", "v0009", reason="typo")


def test_sixteen_processes_publish_at_once(store_config: StoreConfig, tmp_path: Path) -> None:
    files = [made(tmp_path, seed) for seed in range(14)]
    statuses = run_publisher("race", store_config, *files, *files[:2])
    assert statuses == [0] * 16
    store = open_store(store_config)
    found = whole(store, "raced")
    assert len(found) == 14, "two were published twice"
    assert {release.provenance["file"] for release in found} == {file.name for file in files}
    pointer = champion(store, "raced")
    assert pointer is not None
    # every move is counted: with no update lost, the chain of moves is as long as its number
    assert 14 <= pointer.sequence <= 16


class Meeting:
    """A store whose listings are given out only when every racer has one: the worst race."""

    def __init__(self, store: ObjectStore, racers: int) -> None:
        self._store = store
        self._all_listed = threading.Barrier(racers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def list(self, prefix: str) -> Any:
        listed = [*self._store.list(prefix)]
        self._all_listed.wait()
        return iter(listed)


def test_publishers_that_all_saw_the_same_releases_agree(
    object_store: ObjectStore, tmp_path: Path
) -> None:
    publish(object_store, "tlob", made(tmp_path, 99), manifest())
    files = [made(tmp_path, seed) for seed in range(4)] * 2
    meeting = Meeting(object_store, len(files))
    with ThreadPoolExecutor(len(files)) as pool:
        found = [*pool.map(lambda file: publish(meeting, "tlob", file, manifest()), files)]
    assert len(whole(object_store, "tlob")) == 5
    assert {release.number for release in found} == {2, 3, 4, 5}
    assert [release.version for release in found[:4]] == [r.version for r in found[4:]]


def test_sixteen_threads_promote_at_once(object_store: ObjectStore, tmp_path: Path) -> None:
    versions = [
        publish(object_store, "tlob", made(tmp_path, seed), manifest()).version
        for seed in range(16)
    ]
    start = threading.Barrier(16)

    def run(version: str) -> Champion | None:
        start.wait()
        try:
            return promote(object_store, "tlob", version, reason="first", over=None)
        except ReleaseError:
            return None

    with ThreadPoolExecutor(16) as pool:
        won = [pointer for pointer in pool.map(run, versions) if pointer]
    assert won == [champion(object_store, "tlob")]


def test_a_publisher_killed_at_any_step_is_run_again(
    store_config: StoreConfig, tmp_path: Path
) -> None:
    ends = run_publisher("kill", store_config, made(tmp_path, 1))
    assert ends == [-signal.SIGKILL] * 6 + [0], "blob, manifest, pointer: before and after each"
    store = open_store(store_config)
    for fuse in range(len(ends)):
        (release,) = whole(store, f"killed_{fuse}")
        pointer = champion(store, f"killed_{fuse}")
        assert pointer is not None
        assert (pointer.version, pointer.sequence) == (release.version, 1)
    assert len([*store.list("blobs")]) == 1


def test_readers_see_whole_releases_only(object_store: ObjectStore, tmp_path: Path) -> None:
    files = [made(tmp_path, seed) for seed in range(8)]
    done = threading.Event()

    def write() -> None:
        try:
            for file in files:
                version = publish(object_store, "tlob", file, manifest()).version
                promote(object_store, "tlob", version, reason="newer")
        finally:
            done.set()

    seen = []
    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write)
        while not done.is_set() or not seen:
            try:
                seen.append(int(open_release(object_store, "tlob").tensors["steps"]))
            except NotFoundError as error:
                assert "no champion" in str(error)
            whole(object_store, "tlob")
        writer.result()
    assert seen == sorted(seen)


def test_a_flipped_bit_in_the_store_is_caught(
    store_config: StoreConfig, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = open_store(store_config)
    release = publish(store, "tlob", made(tmp_path, 1), manifest())
    promote(store, "tlob", "v0001", reason="first")
    key = f"blobs/{release.sha256}.safetensors"
    flipped = bytearray(store.get(key).data)
    flipped[-5] ^= 16
    store.delete(key)
    store.put_new(key, bytes(flipped))
    with pytest.raises(FoxhuntError, match="SHA-256") as caught:
        open_release(store, "tlob")
    assert isinstance(caught.value, CheckpointError | StoreError) and caught.value.remedy
    if isinstance(store, FolderStore):
        with pytest.raises(StoreError, match="damaged"):
            publish(store, "tlob", made(tmp_path, 1), manifest(code="other"))
    store.delete(key)
    store.put_new(key, bytes(flipped[:-1]))
    with pytest.raises(FoxhuntError, match="bytes"):
        open_release(store, "tlob")
    with pytest.raises(StoreError, match=f"should have {release.size} bytes"):
        publish(store, "tlob", made(tmp_path, 1), manifest(code="other"))
    publish(store, "tlob", made(tmp_path, 2), manifest())
    with pytest.raises(ReleaseError, match="not whole"):
        promote(store, "tlob", "v0002", reason="x") and promote(store, "tlob", "v0001", reason="y")
    store.delete(key)
    with pytest.raises(NotFoundError):
        open_release(store, "tlob", "v0001")


def test_a_cache_serves_again_and_heals(s3_config: StoreConfig, tmp_path: Path) -> None:
    store = open_store(s3_config)
    release = publish(store, "tlob", made(tmp_path, 1), manifest())
    cache = tmp_path / "cache"
    open_release(store, "tlob", "v0001", cache=cache)
    (kept,) = cache.iterdir()
    store.delete(f"blobs/{release.sha256}.safetensors")
    open_release(store, "tlob", "v0001", cache=cache)
    kept.write_bytes(b"damaged")
    with pytest.raises(NotFoundError):
        open_release(store, "tlob", "v0001", cache=cache)
    publish(store, "tlob", made(tmp_path, 1), manifest(code="other"))
    assert int(open_release(store, "tlob", "v0001", cache=cache).tensors["steps"]) == 1


def test_a_damaged_manifest_is_named(object_store: ObjectStore, tmp_path: Path) -> None:
    publish(object_store, "tlob", made(tmp_path, 1), manifest())
    etag = object_store.get("releases/tlob/v0001.json").etag
    object_store.replace("releases/tlob/v0001.json", b'{"model": "tlob"}', etag)
    with pytest.raises(StoreError, match=r"releases/tlob/v0001\.json is damaged"):
        open_release(object_store, "tlob", "v0001")


def test_wrong_credentials_publish_nothing(
    s3_config: StoreConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = open_store(s3_config)
    publish(right, "tlob", made(tmp_path, 1), manifest())
    before = {head.key: head.etag for head in right.list("")}
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    wrong = open_store(s3_config)
    for use in (
        lambda: publish(wrong, "tlob", made(tmp_path, 2), manifest()),
        lambda: promote(wrong, "tlob", "v0001", reason="x"),
        lambda: open_release(wrong, "tlob", "v0001"),
    ):
        with pytest.raises(AccessDeniedError, match="403"):
            use()
    assert {head.key: head.etag for head in right.list("")} == before


def test_only_whole_checkpoints_and_true_manifests_are_published(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    good = made(tmp_path, 1)
    bad = tmp_path / "bad"
    bad.write_bytes(b"0123456789abcdef")
    with pytest.raises(CheckpointError, match="16 bytes"):
        publish(store, "tlob", bad, manifest())
    for wrong in (
        {},
        manifest() | {"stage": "prod"},
        manifest() | {"gates": [{"gate": "x"}]},
        manifest() | {"gates": [{**GATES[0], "number": float("nan")}]},
        manifest() | {"version": "v0007"},
        manifest(code=object()),
    ):
        with pytest.raises(ReleaseError, match="manifest for tlob"):
            publish(store, "tlob", good, wrong)
    for name in ("", "../tlob", "TLOB", "a/b", "7"):
        with pytest.raises(ReleaseError, match="not a model's name"):
            publish(store, name, good, manifest())
    with pytest.raises(ReleaseError, match="not a version"):
        open_manifest(store, "tlob", "../champion")
    assert [*store.list("")] == []


def test_a_checkpoint_that_only_torch_would_accept_is_refused(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    evil = tmp_path / "evil.safetensors"
    torch.save(dict(checkpoint(1).tensors), evil)
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        publish(store, "tlob", evil, manifest())
    with pytest.raises(CheckpointError, match="empty"):
        save(Checkpoint({}, checkpoint(1).header), tmp_path / "empty")
    assert releases(store, "tlob") == []
