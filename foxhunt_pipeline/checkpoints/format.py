"""The checkpoint file: safetensors with all that is needed to use it in its header.

A file holds named tensors and one metadata entry, ``foxhunt``: the :class:`Header` as JSON.
safetensors itself refuses truncated files, overlaps, holes, wrong shapes and headers above
100 MB, but accepts no tensors at all, NaN weights, names like ``../../x`` and damaged data;
those are refused here. Nothing is ever unpickled, and the same checkpoint gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import ConfigDict, TypeAdapter
from pydantic import ValidationError as PydanticError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from foxhunt_pipeline.artifacts import digest_of
from foxhunt_pipeline.errors import CheckpointError
from foxhunt_pipeline.stores import files

SCHEMA_VERSION = 1
_METADATA = "foxhunt"
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_LONGEST_NAME = 512
_RETRAIN = "Delete the file and train again; never release it."


@dataclass(frozen=True)
class Header:
    """What a checkpoint says of itself. Every value is plain JSON data.

    ``center`` and ``scale`` (one number a column; scale above 0) are the scaler: a model's
    input is ``(x - center) / scale``. ``horizons`` are rows of the view's clock.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    family: str
    config: Mapping[str, Any]
    view: str
    columns: tuple[str, ...]
    center: tuple[float, ...]
    scale: tuple[float, ...]
    horizons: tuple[int, ...]
    seed: int
    code_version: str
    data_versions: Mapping[str, str]
    libraries: Mapping[str, str]
    device: str
    precision: str
    parameter_count: int
    metrics: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


_HEADER = TypeAdapter(Header)


@dataclass(frozen=True)
class Checkpoint:
    """A state dict (buffers included) and its header."""

    tensors: Mapping[str, Tensor]
    header: Header

    def digest(self) -> str:
        """Content digest of what a consumer can see: tensors, configuration and input, but
        not provenance, library versions, device or metrics. 64 hex digits."""
        header = asdict(_HEADER.validate_python(asdict(self.header)))
        seen = ("family", "config", "view", "columns", "center", "scale", "horizons")
        tensors = [
            (name, str(tensor.dtype), list(tensor.shape), _tensor_sha256(tensor))
            for name, tensor in sorted(self.tensors.items())
        ]
        return digest_of({key: header[key] for key in seen}, tensors)


def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that decide a checkpoint's numbers."""
    names = ("torch", "numpy", "safetensors")
    return {"python": platform.python_version()} | {name: version(name) for name in names}


def save(checkpoint: Checkpoint, path: Path) -> None:
    """Write a checkpoint; the file appears whole or not at all, with the same bytes each time.

    Tensors may be on any device, non-contiguous or share memory (tied weights are stored
    once a name).

    Raises :class:`~foxhunt_pipeline.errors.CheckpointError` for an empty state dict, NaN or
    infinity, unsafe names, fewer numbers than ``parameter_count`` and a header that is wrong.
    """
    origin = f"the checkpoint for {path.name}"
    text = _header_json(checkpoint.header, origin)
    tensors = _own_memory(checkpoint.tensors, origin)
    for name, tensor in tensors.items():
        _check_tensor(name, tensor, origin)
    _check_covers(sum(t.numel() for t in tensors.values()), checkpoint.header, origin)
    files.make_folder(path.absolute().parent)
    with files.temporary(path.absolute().parent) as (file, part):
        save_file(tensors, part, metadata={_METADATA: text})
        files.settle(file)
        part.replace(path)
    files.sync_folder(path.absolute().parent)


def load(path: Path, *, sha256: str | None = None, size: int | None = None) -> Checkpoint:
    """Read and verify a checkpoint; its tensors are on the CPU.

    ``sha256`` and ``size`` (bytes) are those of the file as published; they are verified before
    anything is parsed. Raises :class:`~foxhunt_pipeline.errors.CheckpointError`.
    """
    tensors: dict[str, Tensor] = {}
    header = _read(path, sha256, size, tensors.__setitem__)
    return Checkpoint(tensors, header)


def verify(path: Path, *, sha256: str | None = None, size: int | None = None) -> Header:
    """Make every check of :func:`load`, holding one tensor at a time, and return the header."""
    return _read(path, sha256, size, lambda name, tensor: None)


def read_header(path: Path) -> Header:
    """The header alone, without reading tensors. The file's structure and length are checked,
    its data not. Raises :class:`~foxhunt_pipeline.errors.CheckpointError`."""
    with _opened(path) as opened:
        return _parse_header(opened.metadata(), str(path))


def _read(
    path: Path, sha256: str | None, size: int | None, take: Callable[[str, Tensor], None]
) -> Header:
    _check_bytes(path, sha256, size)
    numbers = 0
    with _opened(path) as opened:
        header = _parse_header(opened.metadata(), str(path))
        for name in sorted(opened.keys()):
            tensor = opened.get_tensor(name)
            _check_tensor(name, tensor, str(path))
            numbers += tensor.numel()
            take(name, tensor)
    _check_covers(numbers, header, str(path))
    return header


def _check_bytes(path: Path, sha256: str | None, size: int | None) -> None:
    if not path.is_file():
        raise CheckpointError(
            f"There is no checkpoint file {path}.", remedy="Train, or fetch it from the store."
        )
    found = path.stat().st_size
    if size is not None and found != size:
        raise CheckpointError(
            f"{path} has {found} bytes, not the {size} of its manifest: it is truncated or "
            "another file.",
            remedy="Fetch it again from the store.",
        )
    if sha256 is not None and (digest := files.hash_file(path)) != sha256:
        raise CheckpointError(
            f"{path} has SHA-256 {digest}, not {sha256} of its manifest: its bytes are damaged.",
            remedy="Restore the object from a copy, or train and publish again.",
        )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.is_file():
        _check_bytes(path, None, None)
    try:
        with safe_open(path, framework="pt") as opened:
            yield opened
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} ({path.stat().st_size} bytes) is not a whole safetensors file: {error}.",
            remedy="Fetch it again from the store, or train again.",
        ) from None


def _header_json(header: Header, origin: str) -> str:
    try:
        typed = _HEADER.validate_python(asdict(header))
        _check_header(typed, origin)
        return json.dumps(asdict(typed), sort_keys=True, allow_nan=False)
    except (PydanticError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"The header of {origin} is not of its schema: {_first(error)}.",
            remedy="Give plain numbers, strings, lists and tables; NaN and infinity are refused.",
        ) from None


def _parse_header(metadata: Mapping[str, str] | None, origin: str) -> Header:
    text = (metadata or {}).get(_METADATA)
    if text is None:
        raise CheckpointError(
            f"{origin} is safetensors, but without the header of a foxhunt checkpoint.",
            remedy="Use a file that foxhunt trained.",
        )
    try:
        written = json.loads(text).get("schema_version")
        if written != SCHEMA_VERSION:
            raise CheckpointError(
                f"{origin} has checkpoint schema {written}; this version reads {SCHEMA_VERSION}.",
                remedy="Use the version of foxhunt_pipeline that wrote it, or train again.",
            )
        header = _HEADER.validate_json(text)
    except (PydanticError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"The header of {origin} is damaged: {_first(error)}.", remedy=_RETRAIN
        ) from None
    _check_header(header, origin)
    return header


def _first(error: Exception) -> str:
    if isinstance(error, PydanticError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)


def _check_header(header: Header, origin: str) -> None:
    n = len(header.columns)
    faults = {
        "it names no input columns": n == 0,
        "an input column is named twice": len(set(header.columns)) != n,
        f"{len(header.center)} centers and {len(header.scale)} scales for {n} columns": not (
            len(header.center) == len(header.scale) == n
        ),
        "the scaler holds NaN, infinity or a scale that is not above 0": not (
            all(map(isfinite, (*header.center, *header.scale))) and all(s > 0 for s in header.scale)
        ),
        f"it counts {header.parameter_count} parameters": header.parameter_count < 1,
    }
    for fault, present in faults.items():
        if present:
            raise CheckpointError(f"The header of {origin} is wrong: {fault}.", remedy=_RETRAIN)


def _own_memory(tensors: Mapping[str, Tensor], origin: str) -> dict[str, Tensor]:
    """The tensors on the CPU, contiguous, none sharing memory with another, in sorted order."""
    owned: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in sorted(tensors.items()):
        if tensor.is_meta or tensor.layout is not torch.strided:
            raise CheckpointError(
                f"{name} of {origin} has no dense data (device {tensor.device}, {tensor.layout}).",
                remedy="Materialise the module before saving it.",
            )
        tensor = tensor.detach().cpu().contiguous()
        storage = tensor.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != tensor.numel() * tensor.itemsize:
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        seen.add(storage.data_ptr())
        owned[name] = tensor
    return owned


def _check_tensor(name: str, tensor: Tensor, origin: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME or name == "__metadata__":
        raise CheckpointError(
            f"{origin} holds a tensor with the unsafe name {name!r}.",
            remedy="Names are parts of letters, digits, _ and -, joined by dots.",
        )
    if (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel():
        numbers = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        # float8 has no arithmetic; the extremes carry any NaN or infinity in one pass
        low, high = torch.aminmax(numbers.float() if tensor.itemsize == 1 else numbers)
        if not (isfinite(low) and isfinite(high)):
            raise CheckpointError(
                f"{name} of {origin} holds NaN or infinity (from {low} to {high}).",
                remedy="Training diverged: lower the learning rate or clip gradients. "
                "Nothing was released.",
            )


def _check_covers(numbers: int, header: Header, origin: str) -> None:
    if numbers == 0:
        raise CheckpointError(f"{origin} is empty: it holds no parameters.", remedy=_RETRAIN)
    if numbers < header.parameter_count:
        raise CheckpointError(
            f"{origin} holds {numbers} numbers and cannot cover its {header.parameter_count} "
            "parameters.",
            remedy=_RETRAIN,
        )


def _tensor_sha256(tensor: Tensor) -> str:
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(data.numpy().data).hexdigest()
