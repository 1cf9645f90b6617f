"""Checkpoint files in an object store, named by their content and verified on every way."""

from __future__ import annotations

import tempfile
from pathlib import Path

from foxhunt_pipeline.artifacts import Blob
from foxhunt_pipeline.checkpoints import format as checkpoint_format
from foxhunt_pipeline.checkpoints.format import Checkpoint, Header
from foxhunt_pipeline.errors import StoreError
from foxhunt_pipeline.stores import files
from foxhunt_pipeline.stores.base import ObjectStore


def blob_key(sha256: str, suffix: str = "") -> str:
    """The key of the file with that content."""
    return f"blobs/{sha256}{suffix}"


def put(store: ObjectStore, path: Path, suffix: str = "") -> tuple[Blob, Header]:
    """Verify a checkpoint file and store it, unless the store has it already.

    Raises :class:`~foxhunt_pipeline.errors.CheckpointError` for a file that is not a whole,
    finite checkpoint, and :class:`~foxhunt_pipeline.errors.StoreError` where the store holds
    other bytes under its name.
    """
    header = checkpoint_format.verify(path)
    blob = Blob(files.hash_file(path), path.stat().st_size)
    key = blob_key(blob.sha256, suffix)
    if not store.put_file_new(key, path):
        _check_present(store, key, blob)
    return blob, header


def get(store: ObjectStore, blob: Blob, suffix: str = "", cache: Path | None = None) -> Checkpoint:
    """Load a checkpoint from the store, its size and SHA-256 verified before it is parsed.

    A remote file is kept in the folder ``cache``, if given; a damaged one there is replaced.

    Raises :class:`~foxhunt_pipeline.errors.CheckpointError` or
    :class:`~foxhunt_pipeline.errors.StoreError` for damaged bytes, and
    :class:`~foxhunt_pipeline.errors.NotFoundError`.
    """
    key = blob_key(blob.sha256, suffix)
    path = store.local_path(key)
    if path is not None:
        return checkpoint_format.load(path, sha256=blob.sha256, size=blob.size)
    with tempfile.TemporaryDirectory(prefix="foxhunt-") as folder:
        path = (cache or Path(folder)) / f"{blob.sha256}.safetensors"
        if not path.is_file() or files.hash_file(path) != blob.sha256:
            store.fetch(key, path, sha256=blob.sha256, size=blob.size)
        return checkpoint_format.load(path)


def _check_present(store: ObjectStore, key: str, blob: Blob) -> None:
    """The store says that it has the blob: its size must agree, and its bytes where they are
    at hand (a remote one's are verified by every reader)."""
    remedy = "Delete the object, or move it away, and run again."
    head = store.head(key)
    if head is None or head.size != blob.size:
        found = "nothing" if head is None else f"{head.size} bytes"
        raise StoreError(f"{key} should have {blob.size} bytes; there is {found}.", remedy=remedy)
    path = store.local_path(key)
    if path is not None and files.hash_file(path) != blob.sha256:
        raise StoreError(f"{key} is there, but its bytes are damaged.", remedy=remedy)
