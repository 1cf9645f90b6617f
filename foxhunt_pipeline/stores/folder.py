"""A folder as an object store.

A new object is written to a temporary file, flushed, and given its name by ``link``, which
fails if the name is taken; a replacement is renamed into place under a lock of the operating
system. So the promises of :class:`~foxhunt_pipeline.stores.base.ObjectStore` hold between
processes, and after SIGKILL, a power failure or a full disk.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from foxhunt_pipeline.errors import (
    AccessDeniedError,
    NotFoundError,
    PreconditionError,
    StoreError,
)
from foxhunt_pipeline.stores import base, files
from foxhunt_pipeline.stores.base import Head, Object, check_key, check_prefix, is_key

_ABANDONED_AFTER = 24 * 3600.0
"""Seconds after which a temporary file is a killed process's and is swept."""


class FolderStore:
    """Objects are files below ``path``, named by their keys; an etag is the content's SHA-256.

    ``.tmp`` and ``.locks`` below it are the store's own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def __repr__(self) -> str:
        return f"FolderStore({str(self.path)!r})"

    def get(self, key: str) -> Object:
        with self._named(key):
            data = self._file(key).read_bytes()
        return Object(data, hashlib.sha256(data).hexdigest())

    def put_new(self, key: str, data: bytes) -> str:
        with self._named(key):
            if self._file(key).exists():
                raise self._taken(key)
            with self._temporary() as (file, part):
                file.write(data)
                files.settle(file)
                self._link(part, key)
        return hashlib.sha256(data).hexdigest()

    def replace(self, key: str, data: bytes, etag: str | None) -> str:
        if etag is None:
            return self.put_new(key, data)
        target = self._file(key)
        with self._named(key), self._temporary() as (file, part):
            file.write(data)
            files.settle(file)
            with self._lock(key):
                found = files.hash_file(target) if target.is_file() else None
                if found != etag:
                    raise PreconditionError(
                        f"{key} in {self.path} is at version {found}, not {etag}.",
                        remedy="Another writer was first: read it again and decide anew.",
                    )
                part.replace(target)
                files.sync_folder(target.parent)
        return hashlib.sha256(data).hexdigest()

    def put_file_new(self, key: str, path: Path) -> bool:
        with path.open("rb") as source, self._named(key):
            if self._file(key).exists():
                return False
            with self._temporary() as (file, part):
                files.copy(source, file)
                files.settle(file)
                try:
                    self._link(part, key)
                except PreconditionError:
                    return False
        return True

    def fetch(self, key: str, path: Path, *, sha256: str, size: int) -> None:
        with self._named(key), self._file(key).open("rb") as source:
            files.land(source, path, sha256=sha256, size=size, origin=f"{key} in {self.path}")

    def local_path(self, key: str) -> Path | None:
        path = self._file(key)
        return path if path.is_file() else None

    def head(self, key: str) -> Head | None:
        path = self._file(key)
        try:
            with self._named(key):
                return self._weak(key, path.stat())
        except NotFoundError:
            return None

    def list(self, prefix: str) -> Iterator[Head]:
        prefix = check_prefix(prefix)
        start = self.path / prefix
        with self._named(prefix):
            if start.is_file():
                yield self._weak(prefix, start.stat())
            elif start.is_dir():
                yield from self._walk(start, f"{prefix}/" if prefix else "")

    def delete(self, key: str) -> None:
        path = self._file(key)
        with self._named(key):
            if path.is_file():
                with self._lock(key):
                    path.unlink(missing_ok=True)
                    files.sync_folder(path.parent)

    def probe(self) -> None:
        """As the protocol has it; also sweeps temporary files that killed processes left."""
        base.probe(self, str(self.path))
        for part in (self.path / ".tmp").iterdir():
            if part.stat().st_mtime < time.time() - _ABANDONED_AFTER:
                part.unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        return self.path / check_key(key)

    @contextmanager
    def _temporary(self) -> Iterator[tuple[BinaryIO, Path]]:
        folder = self.path / ".tmp"
        files.make_folder(folder)
        with files.temporary(folder) as opened:
            yield opened

    def _link(self, part: Path, key: str) -> None:
        target = self._file(key)
        try:
            files.make_folder(target.parent)
        except (FileExistsError, NotADirectoryError):
            raise StoreError(
                f"{key} cannot be in {self.path}: a part of it is an object already.",
                remedy="Choose another key.",
            ) from None
        try:
            os.link(part, target)
        except FileExistsError:
            raise self._taken(key) from None
        files.sync_folder(target.parent)

    @contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        """Exclusive among all processes for keys of this hash; released if the process dies."""
        folder = self.path / ".locks"
        files.make_folder(folder)
        with (folder / hashlib.sha256(key.encode()).hexdigest()[:2]).open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _named(self, key: str) -> Iterator[None]:
        """Errors of the operating system, as errors that name key and folder."""
        try:
            yield
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise NotFoundError(
                f"There is no {key} in {self.path}.",
                remedy="Check that the store's folder is the right one, or build it again.",
            ) from None
        except PermissionError as error:
            raise AccessDeniedError(
                f"{key} in {self.path} is not allowed: {error.strerror}.",
                remedy="Give this user rights to the folder, or configure another one.",
            ) from None
        except OSError as error:
            if error.errno == errno.EROFS:
                raise AccessDeniedError(
                    f"{key} in {self.path} cannot be written: the file system is read-only.",
                    remedy="Configure a folder that can be written.",
                ) from None
            remedy = (
                "Free space there, then run again; nothing was half-written."
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
                else "Check the disk and the file system (it must have hard links and locks)."
            )
            raise StoreError(f"{key} in {self.path}: {error.strerror}.", remedy=remedy) from error

    def _walk(self, folder: Path, prefix: str) -> Iterator[Head]:
        # "a.x" sorts before "a/b", so folders are ordered by their name and the slash.
        entries = sorted(
            (entry.name + "/" * entry.is_dir(), entry)
            for entry in os.scandir(folder)
            if is_key(entry.name)
        )
        for name, entry in entries:
            if entry.is_dir():
                yield from self._walk(Path(entry.path), prefix + name)
            else:
                with suppress(FileNotFoundError):
                    yield self._weak(prefix + name, entry.stat())

    @staticmethod
    def _weak(key: str, stat: os.stat_result) -> Head:
        return Head(key, stat.st_size, f"W/{stat.st_size}-{stat.st_ino}-{stat.st_mtime_ns}")

    def _taken(self, key: str) -> PreconditionError:
        return PreconditionError(
            f"{key} is in {self.path} already.",
            remedy="Objects of that name never change: use the one there, or choose another name.",
        )
