"""The promises of a store, kept by a folder and by a real S3 server alike."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foxhunt_pipeline.errors import NotFoundError, PreconditionError, StoreError
from foxhunt_pipeline.stores.base import Head, Object, ObjectStore, check_key
from foxhunt_pipeline.stores.folder import FolderStore
from foxhunt_pipeline.stores.s3 import PART_BYTES

RACERS = 16
T = TypeVar("T")


def race(work: Callable[[int], T], racers: Iterable[int] = range(RACERS)) -> list[T]:
    """Run ``work`` in as many threads at once, started together."""
    racers = list(racers)
    start = threading.Barrier(len(racers))

    def run(racer: int) -> T:
        start.wait()
        return work(racer)

    with ThreadPoolExecutor(len(racers)) as pool:
        return [*pool.map(run, racers)]


def test_objects_are_read_back_listed_and_deleted(object_store: ObjectStore) -> None:
    data = {"a/b": b"1", "a/b.x": b"", "a/bc/d": b"333", "z": os.urandom(1000), "a/b-1": b"22"}
    etags = {key: object_store.put_new(key, value) for key, value in data.items()}
    for key, value in data.items():
        assert object_store.get(key) == Object(value, etags[key])
        head = object_store.head(key)
        assert head is not None
        assert head == Head(key, len(value), head.etag)
    before = object_store.head("z")
    object_store.replace("z", data["z"][::-1], etags["z"])
    assert before != object_store.head("z"), "an etag tells a change of equal size"
    sizes = {key: len(data[key]) for key in sorted(data)}
    assert {head.key: head.size for head in object_store.list("")} == sizes
    assert [head.key for head in object_store.list("")] == sorted(data)
    assert [head.key for head in object_store.list("a/b")] == ["a/b"]
    assert [head.key for head in object_store.list("a/bc/")] == ["a/bc/d"]
    assert [*object_store.list("nothing")] == []
    object_store.delete("a/b")
    object_store.delete("a/b")
    assert object_store.head("a/b") is None
    with pytest.raises(NotFoundError, match="a/b"):
        object_store.get("a/b")
    with pytest.raises(NotFoundError):
        object_store.fetch("a/b", Path("never"), sha256="0" * 64, size=1)


def test_conditions_are_kept(object_store: ObjectStore) -> None:
    first = object_store.put_new("k", b"first")
    with pytest.raises(PreconditionError, match="k "):
        object_store.put_new("k", b"other")
    with pytest.raises(PreconditionError):
        object_store.replace("k", b"other", None)
    second = object_store.replace("k", b"second", first)
    with pytest.raises(PreconditionError):
        object_store.replace("k", b"third", first)
    with pytest.raises(PreconditionError):
        object_store.replace("absent", b"x", second)
    assert object_store.get("k") == Object(b"second", second)
    assert object_store.head("absent") is None


def test_one_of_many_creators_wins(object_store: ObjectStore) -> None:
    for round_ in range(5):
        key = f"races/{round_}"

        def create(racer: int, key: str = key) -> bool:
            try:
                object_store.put_new(key, str(racer).encode())
            except PreconditionError:
                return False
            return True

        won = race(create)
        assert sum(won) == 1
        assert object_store.get(key).data == str(won.index(True)).encode()


def test_no_update_is_lost(object_store: ObjectStore) -> None:
    object_store.put_new("counter", b"0")
    adds = 20 if isinstance(object_store, FolderStore) else 1

    def add(racer: int) -> int:
        done = lost = 0
        while done < adds:
            now = object_store.get("counter")
            try:
                object_store.replace("counter", str(int(now.data) + 1).encode(), now.etag)
                done += 1
            except PreconditionError:
                lost += 1
        return lost

    assert sum(race(add)) > 0, "nobody raced"
    assert object_store.get("counter").data == str(RACERS * adds).encode()


@pytest.mark.parametrize("size", [0, 1000, 2 * PART_BYTES + 12345])
def test_files_of_any_size_go_up_once_and_come_back_whole(
    object_store: ObjectStore, tmp_path: Path, size: int
) -> None:
    path = tmp_path / "up"
    data = os.urandom(size)
    path.write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    stored = race(lambda _: object_store.put_file_new("big", path), range(4))
    # the server's condition on an upload in parts is not atomic
    assert stored.count(True) == 1 or (size > PART_BYTES and True in stored)
    assert object_store.put_file_new("big", path) is False
    object_store.fetch("big", tmp_path / "new" / "down", sha256=sha256, size=size)
    assert (tmp_path / "new" / "down").read_bytes() == data
    local = object_store.local_path("big")
    if isinstance(object_store, FolderStore):
        assert local is not None and local.read_bytes() == data
    else:
        assert local is None
    assert object_store.local_path("absent") is None


def test_a_file_that_is_not_the_expected_one_never_becomes_visible(
    object_store: ObjectStore, tmp_path: Path
) -> None:
    object_store.put_new("k", b"12345678")
    right = hashlib.sha256(b"12345678").hexdigest()
    target = tmp_path / "down" / "file"
    with pytest.raises(StoreError, match="SHA-256"):
        object_store.fetch("k", target, sha256="0" * 64, size=8)
    with pytest.raises(StoreError, match="8 bytes, not 9"):
        object_store.fetch("k", target, sha256=right, size=9)
    assert not target.exists()
    assert [*tmp_path.rglob("?*.tmp")] == []
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(b"old")
    with pytest.raises(StoreError):
        object_store.fetch("k", target, sha256="0" * 64, size=8)
    assert target.read_bytes() == b"old"
    object_store.fetch("k", target, sha256=right, size=8)
    assert target.read_bytes() == b"12345678"


def test_the_probe_passes_and_leaves_nothing(object_store: ObjectStore) -> None:
    object_store.probe()
    assert [*object_store.list("")] == []


def test_an_etag_of_a_folders_listing_tells_a_change_and_is_no_condition(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    etag = store.put_new("k", b"1")
    (before,) = store.list("")
    with pytest.raises(PreconditionError):
        store.replace("k", b"2", before.etag)
    store.replace("k", b"2", etag)
    (after,) = store.list("")
    assert after.etag != before.etag


NO_KEYS = ["", "/", "a/", "/a", "a//b", "..", "a/../b", "a/.b", "./a", "a\\b", "a\nb"]


def test_what_is_no_key_is_refused(object_store: ObjectStore) -> None:
    for key in NO_KEYS:
        for use in (
            object_store.get,
            object_store.head,
            object_store.delete,
            object_store.local_path,
            lambda key: object_store.put_new(key, b""),
            lambda key: object_store.replace(key, b"", "etag"),
            lambda key: object_store.put_file_new(key, Path(__file__)),
        ):
            with pytest.raises(StoreError, match="not a key"):
                use(key)


def test_a_name_too_long_for_a_file_or_for_s3_is_no_key() -> None:
    assert check_key("a/" + "é" * 120) and check_key("/".join(["x" * 100] * 8))
    for key in ("a/" + "é" * 121, "/".join(["x" * 100] * 9)):
        with pytest.raises(StoreError, match="not a key"):
            check_key(key)


@given(st.text(max_size=30))
def test_a_key_never_leaves_its_folder(key: str) -> None:
    folder = Path("/folder/of/store")
    try:
        check_key(key)
    except StoreError:
        return
    path = Path(os.path.normpath(folder / key))
    assert path.is_relative_to(folder) and path != folder
    assert path == folder / key


def test_an_object_cannot_be_below_another(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put_new("a", b"1")
    with pytest.raises(StoreError, match="a part of it is an object"):
        store.put_new("a/b", b"2")
    with pytest.raises(NotFoundError):
        store.get("a/b")
    assert [head.key for head in store.list("")] == ["a"]
