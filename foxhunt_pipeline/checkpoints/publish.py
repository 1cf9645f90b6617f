"""Releases: immutable versions of a model, and a pointer to its champion.

The protocol, on a folder as on S3 (after the commit protocols of Delta Lake and Apache
Iceberg):

1. ``blobs/<sha256>.safetensors`` is created, if absent: the checkpoint;
2. ``releases/<model>/v0007.json`` is created with ``If-None-Match: *``: the commit point. A
   publisher that loses the race reads the winner's and tries the next number, so versions are
   contiguous and none is lost;
3. ``releases/<model>/champion.json`` is moved by compare-and-swap.

A process killed between any two steps leaves at most an unused blob or a release that is not
champion, and the same call made again converges. A reader that sees a pointer finds its release,
and one that sees a release finds its blob.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter
from pydantic import ValidationError as PydanticError

from foxhunt_pipeline.artifacts import Blob, digest_of
from foxhunt_pipeline.checkpoints import blobs
from foxhunt_pipeline.checkpoints.format import Checkpoint
from foxhunt_pipeline.errors import (
    NotFoundError,
    PreconditionError,
    ReleaseError,
    StoreError,
    UnavailableError,
)
from foxhunt_pipeline.stores.base import ObjectStore

Stage = Literal["candidate", "champion"]
ANY = "*"
SUFFIX = ".safetensors"
_MODEL = re.compile(r"[a-z][a-z0-9_]*")
_VERSION = re.compile(r"v(\d{4,})")
_FORBID = ConfigDict(extra="forbid")
_READERS = 16
_SWAPS = 100
T = TypeVar("T")


@dataclass(frozen=True)
class Gate:
    """One condition of a release: the number found, the bound it is held to, the verdict."""

    __pydantic_config__: ClassVar[ConfigDict] = _FORBID

    gate: str
    number: float | None
    bound: float | None
    passed: bool
    detail: str = ""


@dataclass(frozen=True)
class Release:
    """One published version. ``stage`` is what the gates decided when it was published;
    :func:`champion` says which version is champion now. ``key`` identifies what was published:
    the checkpoint's bytes and its provenance."""

    __pydantic_config__: ClassVar[ConfigDict] = _FORBID

    model: str
    version: str
    stage: Stage
    sha256: str
    size: int
    key: str
    gates: tuple[Gate, ...]
    provenance: Mapping[str, Any]
    published_at: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    schema_version: int = 1

    @property
    def number(self) -> int:
        """The version as a number, from 1."""
        return _number(self.version)

    @property
    def blob(self) -> Blob:
        return Blob(self.sha256, self.size)


@dataclass(frozen=True)
class Champion:
    """The pointer: which version serves, why, and which did before. ``sequence`` counts the
    moves from 1."""

    __pydantic_config__: ClassVar[ConfigDict] = _FORBID

    model: str
    version: str
    sha256: str
    size: int
    reason: str
    previous: str | None
    sequence: int
    promoted_at: str
    schema_version: int = 1


@dataclass(frozen=True)
class _Manifest:
    """What a publisher says of a release."""

    __pydantic_config__: ClassVar[ConfigDict] = _FORBID

    stage: Stage
    gates: tuple[Gate, ...]
    provenance: Mapping[str, Any]
    figures: Mapping[str, Any] = field(default_factory=dict)


def publish(store: ObjectStore, model: str, path: Path, manifest: Mapping[str, Any]) -> Release:
    """Publish a checkpoint file as the model's next version.

    ``manifest`` holds ``stage`` (candidate or champion, as the gates decided), ``gates`` (a list
    of gate, number, bound, passed, detail), ``provenance`` and, optionally, ``figures``: plain
    JSON data. The same bytes with the same provenance are published once: calling again, also
    after a crash or from another process, gives the version that there is.

    Raises :class:`~foxhunt_pipeline.errors.CheckpointError` for a file that is not a whole,
    finite checkpoint, and :class:`~foxhunt_pipeline.errors.ReleaseError` for a wrong manifest.
    """
    _check_model(model)
    said = _said(model, manifest)
    blob, _ = blobs.put(store, path, SUFFIX)
    key = digest_of(model, blob.sha256, said.provenance)
    known = releases(store, model)
    number = known[-1].number if known else 0
    for release in known:
        if release.key == key:
            return release
    while True:
        number += 1
        release = Release(
            model=model,
            version=f"v{number:04}",
            stage=said.stage,
            sha256=blob.sha256,
            size=blob.size,
            key=key,
            gates=said.gates,
            provenance=said.provenance,
            published_at=_now(),
            figures=said.figures,
        )
        try:
            store.put_new(_release_key(model, release.version), _json(release))
            return release
        except PreconditionError:
            winner = open_manifest(store, model, release.version)
            if winner.key == key:
                return winner


def promote(
    store: ObjectStore, model: str, version: str, *, reason: str, over: str | None = ANY
) -> Champion:
    """Make a version the champion, and return the pointer.

    ``over`` is the version that must be champion for the decision to hold (None: there is none
    yet; ``"*"``: any). A version that is champion already stays so, and nothing is written.

    Raises :class:`~foxhunt_pipeline.errors.NotFoundError` if there is no such release, and
    :class:`~foxhunt_pipeline.errors.ReleaseError` if another version became champion first.
    """
    release = open_manifest(store, model, version)
    head = store.head(blobs.blob_key(release.sha256, SUFFIX))
    if head is None or head.size != release.size:
        raise ReleaseError(
            f"{model} {version} cannot be champion: its checkpoint is not whole in the store.",
            remedy="Restore blobs/ from a copy, or publish again.",
        )
    for _ in range(_SWAPS):
        now, etag = _pointer(store, model)
        if now is not None and now.version == version:
            return now
        previous = now.version if now else None
        if over not in (ANY, previous):
            raise ReleaseError(
                f"{model} {version} was to succeed {over or 'no champion'}, but the champion is "
                f"{previous or 'none'} now.",
                remedy="Evaluate it against the present champion and decide anew.",
            )
        pointer = Champion(
            model=model,
            version=version,
            sha256=release.sha256,
            size=release.size,
            reason=reason,
            previous=previous,
            sequence=now.sequence + 1 if now else 1,
            promoted_at=_now(),
        )
        try:
            store.replace(_pointer_key(model), _json(pointer), etag)
            return pointer
        except PreconditionError:
            continue
    raise UnavailableError(
        f"The champion pointer of {model} moved {_SWAPS} times while {version} was promoted.",
        remedy="Run again.",
    )


def champion(store: ObjectStore, model: str) -> Champion | None:
    """The model's champion, or None if it has none yet."""
    return _pointer(store, model)[0]


def releases(store: ObjectStore, model: str) -> list[Release]:
    """Every version, oldest first."""
    _check_model(model)
    heads = store.list(f"releases/{model}")
    names = [head.key.rpartition("/")[2].removesuffix(".json") for head in heads]
    versions = sorted(filter(_VERSION.fullmatch, names), key=_number)
    with ThreadPoolExecutor(_READERS) as pool:
        return [*pool.map(lambda version: open_manifest(store, model, version), versions)]


def open_manifest(store: ObjectStore, model: str, version: str) -> Release:
    """One version's manifest. Raises :class:`~foxhunt_pipeline.errors.NotFoundError`."""
    _check_model(model)
    if not _VERSION.fullmatch(version):
        raise ReleaseError(
            f"{version!r} is not a version.", remedy="Versions are v0001, v0002, … or champion."
        )
    try:
        data = store.get(_release_key(model, version)).data
    except NotFoundError as error:
        raise NotFoundError(
            f"There is no release {version} of {model}. {error.message}",
            remedy="List the releases there are.",
        ) from None
    return _parse(_RELEASE, data, _release_key(model, version))


def open_release(
    store: ObjectStore, model: str, version: str = "champion", *, cache: Path | None = None
) -> Checkpoint:
    """The checkpoint of a version or of the champion, verified before it is parsed.

    A remote file is kept in the folder ``cache``, if given.

    Raises :class:`~foxhunt_pipeline.errors.CheckpointError` for damaged bytes, and
    :class:`~foxhunt_pipeline.errors.NotFoundError` if there is no such release or champion.
    """
    if version == "champion":
        pointer = champion(store, model)
        if pointer is None:
            raise NotFoundError(
                f"{model} has no champion yet.",
                remedy="Open a version, or promote one that passes its gates.",
            )
        version = pointer.version
    return blobs.get(store, open_manifest(store, model, version).blob, SUFFIX, cache)


def models(store: ObjectStore) -> list[str]:
    """Names of the models that have releases."""
    return sorted({head.key.split("/")[1] for head in store.list("releases")})


def _said(model: str, manifest: Mapping[str, Any]) -> _Manifest:
    try:
        json.dumps(dict(manifest), allow_nan=False)
        return _MANIFEST.validate_python(dict(manifest))
    except (PydanticError, TypeError, ValueError) as error:
        raise ReleaseError(
            f"The manifest for {model} is wrong: {error}.",
            remedy="It holds stage (candidate or champion), gates, provenance and figures, as "
            "plain JSON data without NaN or infinity.",
        ) from None


def _pointer(store: ObjectStore, model: str) -> tuple[Champion | None, str | None]:
    key = _pointer_key(_check_model(model))
    try:
        found = store.get(key)
    except NotFoundError:
        return None, None
    return _parse(_CHAMPION, found.data, key), found.etag


def _check_model(model: str) -> str:
    if not _MODEL.fullmatch(model):
        raise ReleaseError(
            f"{model!r} is not a model's name.",
            remedy="Names are of lower-case letters, digits and _, and start with a letter.",
        )
    return model


def _number(version: str) -> int:
    return int(version[1:])


def _release_key(model: str, version: str) -> str:
    return f"releases/{model}/{version}.json"


def _pointer_key(model: str) -> str:
    return f"releases/{model}/champion.json"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _json(record: Release | Champion) -> bytes:
    return json.dumps(asdict(record), sort_keys=True, indent=1, allow_nan=False).encode()


def _parse(adapter: TypeAdapter[T], data: bytes, key: str) -> T:
    try:
        return adapter.validate_json(data)
    except PydanticError as error:
        first = error.errors()[0]
        raise StoreError(
            f"{key} is damaged: {'.'.join(map(str, first['loc']))}: {first['msg']}.",
            remedy="Restore it from a copy; it is never rewritten.",
        ) from None


_RELEASE = TypeAdapter(Release)
_CHAMPION = TypeAdapter(Champion)
_MANIFEST = TypeAdapter(_Manifest)
