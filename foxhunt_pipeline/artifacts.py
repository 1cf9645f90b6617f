"""What a stage makes and how it is asked to make it.

A stage's result is an :class:`Artifact`: named :class:`Item` s, each holding immutable files
and a content ``digest``. The digest covers what a consumer can see (numbers, columns, tensors)
and never provenance, time stamps or file bytes, so that an item rebuilt with the same result
counts as unchanged.

A stage's computation is a function ``build(task: Task) -> Result``. It is pure: everything it
reads comes through the task (inputs, declared configuration, device) and everything it makes
goes through :meth:`Task.item`, which computes an item only if nobody has computed it before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Figures = Mapping[str, Any]
"""JSON-serialisable facts about an item or artifact: counts, extremes, metrics."""


@dataclass(frozen=True)
class Blob:
    """An immutable file, named by its content."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Item:
    """One named piece of an artifact, computed and reused by itself."""

    name: str
    key: str
    digest: str
    files: Mapping[str, Blob] = field(default_factory=dict)
    figures: Figures = field(default_factory=dict)


@dataclass(frozen=True)
class Artifact:
    """The current result of a stage (and partition)."""

    stage: str
    partition: str | None
    items: Mapping[str, Item]
    figures: Figures
    data_version: str


@dataclass(frozen=True)
class Content:
    """What a computation wrote into its folder: the digest of what can be seen of it,
    and figures. Every file in the folder belongs to the item."""

    digest: str
    figures: Figures = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What a stage made: its items, in the order made, and figures about the whole."""

    items: Sequence[Item]
    figures: Figures = field(default_factory=dict)


class Task(Protocol):
    """The door between a stage's computation and the engine."""

    @property
    def stage(self) -> str:
        """Name of the stage, as ``features`` or ``tlob/training``."""
        ...

    @property
    def partition(self) -> str | None:
        """Session date ``YYYY-MM-DD``, or None for an unpartitioned stage."""
        ...

    @property
    def seed(self) -> int:
        """The configured seed."""
        ...

    @property
    def code_version(self) -> str:
        """Digest of the code and configuration that decide the stage's items."""
        ...

    @property
    def device(self) -> str:
        """Resolved torch device, as ``cpu`` or ``cuda:0``."""
        ...

    @property
    def source(self) -> Any:
        """The landed files (:class:`foxhunt_pipeline.market.landing.Source`)."""
        ...

    @property
    def model(self) -> str:
        """Configured name of the model, for a stage of a model."""
        ...

    @property
    def family(self) -> Any:
        """The model's family (:data:`foxhunt_pipeline.models.contract.Family`)."""
        ...

    @property
    def champion(self) -> Path | None:
        """Checkpoint of the model's present champion, for a release."""
        ...

    @property
    def champion_scores(self) -> Path | None:
        """The out-of-sample scores that the champion was released with, if still stored."""
        ...

    def config(self, section: str) -> Any:
        """The value of a configuration section that the stage has declared.

        Raises :class:`~foxhunt_pipeline.errors.CodeError` for an undeclared section.
        """
        ...

    def input(self, stage: str) -> Artifact:
        """The current artifact of an input stage (same partition, or unpartitioned)."""
        ...

    def sessions(self, stage: str) -> Mapping[str, Artifact]:
        """Every session's current artifact of a partitioned input, in date order."""
        ...

    def left_out(self) -> Mapping[str, str]:
        """Sessions that were delivered but are no data, each with its reason."""
        ...

    def item(
        self,
        name: str,
        inputs: Sequence[str],
        compute: Callable[[Path], Content],
        *,
        extra: Mapping[str, Any] | None = None,
    ) -> Item:
        """Compute an item, or reuse it where its key has been computed before.

        The key is made of the stage's code version and configuration, ``name``, ``inputs``
        (the digests of what the computation reads) and ``extra`` (other JSON values that
        decide the result). ``compute`` writes files into the empty folder that it is given;
        it runs only if the key is unknown.
        """
        ...

    def path(self, item: Item, file: str) -> Path:
        """A local, verified, read-only copy of one of an item's files."""
        ...

    def progress(self, message: str, **figures: float) -> None:
        """Report progress: shown on the console and as an observation in the UI."""
        ...


def digest_of(*parts: Any) -> str:
    """SHA-256 of JSON-serialisable parts, independent of key order. 64 hex digits."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def digest_arrays(arrays: Mapping[str, np.ndarray[Any, Any]], *parts: Any) -> str:
    """Content digest of named arrays: names, dtypes, shapes and values, in the given order.

    Every NaN counts as the same NaN and -0.0 as 0.0, so that equal numbers give equal digests.
    """
    h = hashlib.sha256(digest_of(*parts).encode())
    for name, array in arrays.items():
        h.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        if array.dtype.kind == "f":
            array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array + 0.0)
        h.update(np.ascontiguousarray(array).view(np.uint8).data)
    return h.hexdigest()
