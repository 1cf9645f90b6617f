"""The place where market data arrives: a folder or an S3 prefix.

Any layout will do: flat, or job folders with Databento's support files beside the data. Those,
archives, hidden and temporary files are no market data and are passed over in silence.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from foxhunt_pipeline.artifacts import Task
from foxhunt_pipeline.errors import (
    AccessDeniedError,
    ConfigError,
    NotFoundError,
    StoreError,
    UnavailableError,
)
from foxhunt_pipeline.market.facts import FileFacts

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

DOCUMENTS = frozenset({"manifest.json", "condition.json"})
"""Support files that are read."""
SUPPORT = DOCUMENTS | {"symbology.json", "metadata.json"}
TEMPORARY = (".tmp", ".part", ".partial", ".filepart", ".crdownload", ".download", ".zip", "~")


@dataclass(frozen=True)
class LandedFile:
    """A file of the landing. ``version`` changes when its bytes do; ``modified_ns`` is when it
    was last written, or None where files appear whole (S3)."""

    name: str
    """Path relative to the landing, with ``/``."""
    size: int
    version: str
    modified_ns: int | None = None

    @property
    def folder(self) -> str:
        return self.name.rpartition("/")[0]

    @property
    def is_document(self) -> bool:
        """``manifest.json`` or ``condition.json`` of a job."""
        return PurePosixPath(self.name).name in DOCUMENTS


class Landing(Protocol):
    """Where DBN files arrive."""

    def list(self) -> Sequence[LandedFile]:
        """Data files and documents, by name. Support files that nobody reads, archives, hidden
        and temporary files are left out."""
        ...

    def local(self, file: LandedFile) -> Path:
        """A local path to the bytes of that version of the file.

        Raises :class:`~foxhunt_pipeline.errors.NotFoundError` if it is not there any more.
        """
        ...


class Source(Protocol):
    """The landing as a stage sees it."""

    def files(self, session: str) -> Sequence[FileFacts]:
        """The files that hold records of a session.

        Raises :class:`~foxhunt_pipeline.errors.DataError` if the session is refused or waiting.
        """
        ...

    def local(self, file: FileFacts | str) -> Path:
        """A local path to the landed bytes of a file, given by its facts or its SHA-256."""
        ...


class LandingTask(Task, Protocol):
    """The task of a stage that reads the landing."""

    @property
    def source(self) -> Source: ...


def is_data(name: str) -> bool:
    """Whether a file of that name is taken for market data."""
    return is_candidate(name) and PurePosixPath(name).name not in DOCUMENTS


def is_candidate(name: str) -> bool:
    """Whether a name in the landing is one of a data file or a document that is read."""
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") for part in path.parts)
    support = path.name in SUPPORT and path.name not in DOCUMENTS
    return not hidden and not support and not path.name.lower().endswith(TEMPORARY)


class FolderLanding:
    """A folder, which may be read-only. Links to files are followed, links to folders are not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def list(self) -> Sequence[LandedFile]:
        """Raises :class:`ConfigError` if the folder is not there or cannot be read."""
        if not self.folder.is_dir():
            raise ConfigError(
                f"The landing {self.folder} is not a folder.",
                remedy="Set landing.url or FOXHUNT_LANDING to where the DBN files are.",
            )
        try:
            return sorted(_walk(self.folder, ""), key=lambda file: file.name)
        except PermissionError as error:
            raise ConfigError(
                f"The landing cannot be read: {error.filename}: permission denied.",
                remedy="Give this user the right to read it.",
            ) from None

    def local(self, file: LandedFile) -> Path:
        path = self.folder / file.name
        if not path.is_file():
            raise NotFoundError(
                f"{file.name} is not in the landing {self.folder} any more.",
                remedy="Deliver it again, or let the sessions be planned anew.",
            )
        return path


def _walk(folder: Path, prefix: str) -> Iterator[LandedFile]:
    with os.scandir(folder) as entries:
        for entry in entries:
            name = prefix + entry.name
            if not is_candidate(name):
                continue
            # What is removed while one looks is not there.
            with suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    yield from _walk(folder / entry.name, f"{name}/")
                elif entry.is_file():
                    stat = entry.stat()
                    version = f"{stat.st_mtime_ns:x}-{stat.st_ino:x}"
                    yield LandedFile(name, stat.st_size, version, stat.st_mtime_ns)


class S3Landing:
    """An S3 prefix, read through ``client``; files are copied to the folder ``cache`` once."""

    def __init__(self, client: S3Client, bucket: str, prefix: str, cache: Path) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._cache = cache

    def list(self) -> Sequence[LandedFile]:
        """Raises :class:`StoreError` if the bucket cannot be listed."""
        return sorted(self._listed(), key=lambda file: file.name)

    def local(self, file: LandedFile) -> Path:
        key = self._prefix + file.name
        path = self._cache / hashlib.sha256(f"{key}\0{file.version}".encode()).hexdigest()
        if path.is_file() and path.stat().st_size == file.size:
            return path
        self._cache.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with self._explained(file.name), part.open("wb") as target:
                body = self._client.get_object(Bucket=self._bucket, Key=key, IfMatch=file.version)[
                    "Body"
                ]
                for chunk in body.iter_chunks(1 << 20):
                    target.write(chunk)
                target.flush()
                os.fsync(target.fileno())
            if part.stat().st_size != file.size:
                raise UnavailableError(
                    f"{file.name}: {part.stat().st_size} of {file.size} bytes came from "
                    f"s3://{self._bucket}.",
                    remedy="Try again.",
                )
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return path

    def _listed(self) -> Iterator[LandedFile]:
        with self._explained(self._prefix or "the bucket"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix
            )
            for page in pages:
                for entry in page.get("Contents", []):
                    name = entry["Key"][len(self._prefix) :]
                    if name and not name.endswith("/") and is_candidate(name):
                        yield LandedFile(name, entry["Size"], entry["ETag"])

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except ClientError as error:
            raise self._answer(what, error.response) from None
        except BotoCoreError as error:
            raise UnavailableError(
                f"{what} in s3://{self._bucket}: {error}",
                remedy="Check the endpoint, the network and the credentials.",
            ) from None

    def _answer(self, what: str, response: Any) -> StoreError:
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code = response.get("Error", {}).get("Code", "")
        where = f"{what} in s3://{self._bucket}: the landing answered {status} {code}."
        if status in (401, 403):
            return AccessDeniedError(where, remedy="Check credentials and bucket policy.")
        if status in (404, 412):
            return NotFoundError(where, remedy="It was removed or replaced: plan again.")
        return UnavailableError(where, remedy="Try again later.")
