"""Local files that are whole or absent, also after a crash or on a full disk."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from foxhunt_pipeline.errors import StoreError

CHUNK = 1 << 20
"""Bytes read at a time."""


def hash_file(path: Path) -> str:
    """SHA-256 of a file, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_folder(folder: Path) -> None:
    """Create a folder and its parents so that they survive a power failure."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def temporary(folder: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A new file to write, and its path. What is not linked or renamed within the block, after
    :func:`settle`, is gone after it."""
    path = folder / f".{uuid.uuid4().hex}.tmp"
    try:
        with path.open("xb") as file:
            yield file, path
    finally:
        with suppress(FileNotFoundError):
            path.unlink()


def settle(file: BinaryIO) -> None:
    """Flush a file's bytes to the disk; only then may it be given its name."""
    file.flush()
    os.fsync(file.fileno())


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes: ...


def copy(source: Readable, target: BinaryIO) -> tuple[str, int]:
    """Copy a stream in chunks. Returns the SHA-256 and the number of bytes copied."""
    digest = hashlib.sha256()
    size = 0
    while chunk := source.read(CHUNK):
        target.write(chunk)
        digest.update(chunk)
        size += len(chunk)
    return digest.hexdigest(), size


def land(source: Readable, path: Path, *, sha256: str, size: int, origin: str) -> None:
    """Write a stream to ``path``, which appears only once size and SHA-256 are verified.

    Raises :class:`~foxhunt_pipeline.errors.StoreError` naming ``origin`` where they differ.
    """
    make_folder(path.parent)
    with temporary(path.parent) as (file, part):
        found, length = copy(source, file)
        check(found, length, sha256=sha256, size=size, origin=origin)
        settle(file)
        part.replace(path)
    sync_folder(path.parent)


def check(found: str, length: int, *, sha256: str, size: int, origin: str) -> None:
    """Raises :class:`~foxhunt_pipeline.errors.StoreError` unless SHA-256 and length agree."""
    if length != size:
        raise StoreError(
            f"{origin} has {length} bytes, not {size}: it is truncated or another file.",
            remedy="Restore the object from a copy, or delete it and build it again.",
        )
    if found != sha256:
        raise StoreError(
            f"{origin} has SHA-256 {found}, not {sha256}: its bytes are damaged or another file's.",
            remedy="Restore the object from a copy, or delete it and build it again.",
        )
