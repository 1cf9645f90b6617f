"""What a store of objects promises.

A store maps keys like ``blobs/ab12`` to bytes. An object appears whole or not at all, and a
write can be made conditional: :meth:`ObjectStore.put_new` on absence, and
:meth:`ObjectStore.replace` on the version that was read (compare-and-swap). Everything that
must survive races and crashes (memo, releases, pointers) is built on those two, as in the
commit protocols of Delta Lake and Apache Iceberg.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from foxhunt_pipeline.errors import NotFoundError, PreconditionError, StoreError

MAX_KEY_BYTES = 900
"""Longest key, leaving room for a bucket prefix within the 1,024 bytes of S3."""
MAX_SEGMENT_BYTES = 240
"""Longest part of a key: file systems end at 255."""


@dataclass(frozen=True)
class Object:
    """An object's bytes, and the version tag to pass to :meth:`ObjectStore.replace`."""

    data: bytes
    etag: str


@dataclass(frozen=True)
class Head:
    """An object without its bytes. ``size`` is in bytes."""

    key: str
    size: int
    etag: str


class ObjectStore(Protocol):
    """Keys are ``a/b/c``: see :func:`check_key`, whose refusal every method may raise.

    Besides the errors named at each method, any may raise
    :class:`~foxhunt_pipeline.errors.AccessDeniedError` (final),
    :class:`~foxhunt_pipeline.errors.UnavailableError` (after every retry) and
    :class:`~foxhunt_pipeline.errors.StoreError`.
    """

    def get(self, key: str) -> Object:
        """The object. Raises :class:`~foxhunt_pipeline.errors.NotFoundError`."""
        ...

    def put_new(self, key: str, data: bytes) -> str:
        """Create an object and return its etag.

        Raises :class:`~foxhunt_pipeline.errors.PreconditionError` if the key exists. Of any
        number of racers exactly one succeeds.
        """
        ...

    def replace(self, key: str, data: bytes, etag: str | None) -> str:
        """Compare-and-swap: write if the object still has ``etag`` (None: does not exist),
        and return the new etag.

        Raises :class:`~foxhunt_pipeline.errors.PreconditionError` if it has another.
        """
        ...

    def put_file_new(self, key: str, path: Path) -> bool:
        """Create an object from a file of any size, streamed. True: stored by this call;
        False: the key was there already.

        For keys that name their content only: the condition on an upload in parts is not atomic
        on every server (SeaweedFS 4.48), so racers may each store it, with the same bytes.
        """
        ...

    def fetch(self, key: str, path: Path, *, sha256: str, size: int) -> None:
        """Download to ``path``, which appears only once size and SHA-256 are verified.

        Raises :class:`~foxhunt_pipeline.errors.NotFoundError`, and
        :class:`~foxhunt_pipeline.errors.StoreError` where the bytes are not those expected.
        """
        ...

    def local_path(self, key: str) -> Path | None:
        """The object's own file, to be read only; None if absent or if the store is remote."""
        ...

    def head(self, key: str) -> Head | None:
        """Size and etag (weak on a folder, as in a listing: nothing is read), or None if there is
        no such object."""
        ...

    def list(self, prefix: str) -> Iterator[Head]:
        """Objects whose key starts with ``prefix`` (whole segments; "" for all), in the order
        of their keys. A file whose name is no key is not listed. An etag of a listing tells a
        change; a folder's is a weak one (RFC 9110, 8.8.1: size, inode and time), which
        :meth:`replace` does not accept."""
        ...

    def delete(self, key: str) -> None:
        """Remove the object, if it is there."""
        ...

    def probe(self) -> None:
        """Try reading, writing and both conditions, and leave nothing behind.

        Raises :class:`~foxhunt_pipeline.errors.StoreError` saying what does not hold.
        """
        ...


def is_key(key: str) -> bool:
    """Whether a name may be a key; :func:`check_key` says what may not."""
    segments = key.split("/")
    return (
        all(segment and not segment.startswith(".") for segment in segments)
        and all(ord(character) >= 32 and character not in "\\\x7f" for character in key)
        and len(key.encode("utf-8", "surrogatepass")) <= MAX_KEY_BYTES
        and all(len(s.encode("utf-8", "surrogatepass")) <= MAX_SEGMENT_BYTES for s in segments)
    )


def check_key(key: str) -> str:
    """The key itself, if it is one.

    Refused: empty keys and segments (so also a leading or trailing slash), segments that start
    with a dot (``..`` would leave the store; the rest is kept for a store's own files), control
    characters and backslashes, and names longer than a file system or S3 takes.
    """
    if not is_key(key):
        raise StoreError(
            f"{key!r} is not a key.",
            remedy="A key is parts joined by single slashes; no part is empty, starts with a dot, "
            f"holds control characters or is longer than {MAX_SEGMENT_BYTES} bytes.",
        )
    return key


def check_prefix(prefix: str) -> str:
    """The prefix without a trailing slash, if it is empty or a key."""
    prefix = prefix.removesuffix("/")
    return prefix and check_key(prefix)


def probe(store: ObjectStore, place: str) -> None:
    """Try the promises of :class:`ObjectStore` on a key of its own below ``probes/``.

    Raises :class:`~foxhunt_pipeline.errors.StoreError` naming ``place`` and the promise broken.
    """
    name = uuid.uuid4().hex
    key, absent = f"probes/{name}", f"probes/{name}-absent"
    try:
        first = store.put_new(key, b"first")
        _hold(store.get(key) == Object(b"first", first), place, "an object reads back as written")
        _refused(lambda: store.put_new(key, b"other"), place, "If-None-Match on an existing key")
        second = store.replace(key, b"second", first)
        _hold(first != second, place, "a new version has a new etag")
        _refused(lambda: store.replace(key, b"x", first), place, "If-Match on a stale etag")
        _refused(lambda: store.replace(absent, b"x", first), place, "If-Match on an absent key")
        _hold(store.get(key) == Object(b"second", second), place, "a refused write changes nothing")
        listed = [head.key for head in store.list("probes")]
        _hold(key in listed, place, "a listing shows what was written")
        store.delete(key)
        _hold(store.head(key) is None, place, "a deleted object is gone")
    finally:
        for leftover in (key, absent):
            with contextlib.suppress(StoreError):
                store.delete(leftover)


def _hold(held: bool, place: str, promise: str) -> None:
    if not held:
        raise StoreError(
            f"The store {place} breaks a promise: {promise}.",
            remedy="Releases would not be safe in it; use a store with S3 semantics.",
        )


def _refused(write: Callable[[], str], place: str, condition: str) -> None:
    try:
        write()
    except (PreconditionError, NotFoundError):
        return
    raise StoreError(
        f"The store {place} ignores conditions: it accepted a write with {condition}.",
        remedy="Racing publishers would overwrite one another; update the server or use a store "
        "with conditional writes.",
    )
