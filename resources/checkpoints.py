"""Dagster's IO manager for checkpoints.

An asset's output is a :class:`Checkpoint`, or a mapping from names (walk-forward windows) to
checkpoints or checkpoint files. Files are stored by content, then a manifest that names them, and
last a pointer is moved to the manifest, so a reader sees the old output or the new, whole.
Nothing is pickled. torch is imported with the first checkpoint, since every definition needs
this module.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from dagster import ConfigurableIOManager, InputContext, IOManager, MetadataValue, OutputContext
from pydantic import Field, PrivateAttr

from foxhunt_pipeline.artifacts import Blob, digest_of
from foxhunt_pipeline.config import StoreConfig
from foxhunt_pipeline.errors import (
    CheckpointError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
)
from foxhunt_pipeline.stores.base import ObjectStore
from resources.stores import open_store

if TYPE_CHECKING:
    from foxhunt_pipeline.checkpoints.format import Checkpoint, Header
    from resources.pipeline import Pipeline

_SCHEMA_VERSION = 1
_SINGLE = "checkpoint"
_SWAPS = 100


class StoredCheckpoints(Mapping[str, "Checkpoint"]):
    """The checkpoints of an output by name. Each is loaded and verified when it is asked for."""

    def __init__(self, store: ObjectStore, found: Mapping[str, Blob], cache: Path | None) -> None:
        self._store = store
        self._found = found
        self._cache = cache

    def __getitem__(self, name: str) -> Checkpoint:
        from foxhunt_pipeline.checkpoints import blobs

        return blobs.get(self._store, self._found[name], cache=self._cache)

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def blob(self, name: str) -> Blob:
        """SHA-256 and size of one checkpoint's file."""
        return self._found[name]


class CheckpointIOManager(ConfigurableIOManager):
    """Stores checkpoints in a folder or on S3, as ``stores`` of the configuration has it.

    ``blobs/<sha256>``, ``checkpoints/<asset>[/<partition>]/<digest>.json`` and
    ``checkpoints/<asset>[/<partition>]/current.json``. S3 credentials come from the default AWS
    chain and are no field of this object.
    """

    url: str = Field(description="Folder, or s3://bucket/prefix.")
    endpoint_url: str | None = Field(default=None, description="S3 endpoint; unset means AWS.")
    region: str = Field(default="us-east-1", description="S3 region.")
    addressing_style: Literal["auto", "path", "virtual"] = "auto"
    ca_bundle: str | None = Field(default=None, description="CA certificates, PEM.")
    checksum: Literal["when_supported", "when_required"] = "when_supported"
    cache: str | None = Field(default=None, description="Folder that keeps files read from S3.")
    _store: ObjectStore | None = PrivateAttr(default=None)

    @classmethod
    def of(cls, config: StoreConfig, cache: Path | None = None) -> CheckpointIOManager:
        """The IO manager of a configured store."""
        fields = set(StoreConfig.model_fields)
        return cls(**config.model_dump(include=fields), cache=str(cache) if cache else None)

    @property
    def store(self) -> ObjectStore:
        if self._store is None:
            fields = {name: getattr(self, name) for name in StoreConfig.model_fields}
            self._store = open_store(StoreConfig(**fields))
        return self._store

    def handle_output(self, context: OutputContext, obj: Any) -> None:
        """Store an output. Raises :class:`~foxhunt_pipeline.errors.CheckpointError` for anything
        but checkpoints, and for one that is empty, incomplete or not finite."""
        from foxhunt_pipeline.checkpoints.format import Checkpoint

        place = _output_place(context)
        single = isinstance(obj, Checkpoint)
        items: dict[str, Any] = {}
        for name, value in ({_SINGLE: obj} if single else _mapping(obj, place)).items():
            blob, header = self._put(value, f"{name!r} of {place}")
            items[name] = {
                "sha256": blob.sha256,
                "size": blob.size,
                "parameters": header.parameter_count,
            }
        document = {"schema_version": _SCHEMA_VERSION, "single": single, "items": items}
        manifest = f"{place}/{digest_of(document)}.json"
        try:
            self.store.put_new(manifest, _json(document))
        except PreconditionError:
            context.log.debug(f"{manifest} is stored already.")
        self._point(f"{place}/current.json", manifest)
        context.add_output_metadata(
            {
                "files": len(items),
                "bytes": sum(item["size"] for item in items.values()),
                "parameters": sum(item["parameters"] for item in items.values()),
                "sha256": MetadataValue.json({n: item["sha256"] for n, item in items.items()}),
                "manifest": manifest,
            }
        )

    def load_input(self, context: InputContext) -> Any:
        """The output: a checkpoint if it was one, else :class:`StoredCheckpoints`; where several
        partitions are asked for, a mapping from their keys.

        Raises :class:`~foxhunt_pipeline.errors.NotFoundError` if it was never stored.
        """
        path = context.asset_key.path
        if not context.has_asset_partitions:
            return self._load(_place(path, None))
        keys = context.asset_partition_keys
        loaded = {key: self._load(_place(path, key)) for key in keys}
        return loaded[keys[0]] if len(keys) == 1 else loaded

    def _put(self, value: Checkpoint | Path, origin: str) -> tuple[Blob, Header]:
        from foxhunt_pipeline.checkpoints import blobs
        from foxhunt_pipeline.checkpoints.format import Checkpoint, save

        if isinstance(value, Path):
            return blobs.put(self.store, value)
        if isinstance(value, Checkpoint):
            with tempfile.TemporaryDirectory(prefix="foxhunt-") as folder:
                path = Path(folder) / "checkpoint.safetensors"
                save(value, path)
                return blobs.put(self.store, path)
        raise CheckpointError(
            f"{origin} is a {type(value).__name__}, not a checkpoint.",
            remedy="Return a Checkpoint or the Path of a checkpoint file; nothing is pickled.",
        )

    def _point(self, key: str, manifest: str) -> None:
        data = _json({"schema_version": _SCHEMA_VERSION, "manifest": manifest})
        for _ in range(_SWAPS):
            try:
                now = self.store.get(key)
            except NotFoundError:
                now = None
            if now is not None and now.data == data:
                return
            try:
                self.store.replace(key, data, now.etag if now else None)
                return
            except PreconditionError:
                continue
        raise UnavailableError(
            f"{key} was moved {_SWAPS} times by others at once.", remedy="Run again."
        )

    def _load(self, place: str) -> Checkpoint | StoredCheckpoints:
        pointer = f"{place}/current.json"
        manifest = self._document(pointer, {"manifest"})["manifest"]
        document = self._document(manifest, {"single", "items"})
        if manifest != f"{place}/{digest_of(document)}.json":
            raise _damaged(manifest)
        items = {n: Blob(item["sha256"], item["size"]) for n, item in document["items"].items()}
        cache = Path(self.cache) if self.cache else None
        stored = StoredCheckpoints(self.store, items, cache)
        return stored[_SINGLE] if document["single"] else stored

    def _document(self, key: str, needed: set[str]) -> dict[str, Any]:
        try:
            document = json.loads(self.store.get(key).data)
        except ValueError:
            raise _damaged(key) from None
        if not isinstance(document, dict) or not needed <= document.keys():
            raise _damaged(key)
        return document


class PipelineCheckpoints(IOManager):
    """The checkpoint IO manager of a pipeline: what the index counts as current is loaded.

    The pointer in the store says which output was stored last, by anybody who shares the store;
    the index says which one this state folder's plan is made from.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        settings = pipeline.settings
        self._stored = CheckpointIOManager.of(settings.artifacts, pipeline.cache / "checkpoints")

    def handle_output(self, context: OutputContext, obj: Any) -> None:
        self._stored.handle_output(context, obj)

    def load_input(self, context: InputContext) -> Any:
        name = "/".join(context.asset_key.path)
        if name not in self._pipeline.stages:
            return self._stored.load_input(context)
        items = self._pipeline.builder.artifact(name).items.values()
        found = {item.name: blob for item in items for blob in item.files.values()}
        cache = Path(self._stored.cache) if self._stored.cache else None
        return StoredCheckpoints(self._stored.store, found, cache)


def _damaged(key: str) -> CheckpointError:
    return CheckpointError(
        f"{key} is damaged: its content is not what was stored.",
        remedy="Materialize the asset again.",
    )


def _output_place(context: OutputContext) -> str:
    if not context.has_asset_key:
        raise CheckpointError(
            f"Output {context.name} of {context.step_key} is no asset's.",
            remedy="Checkpoints are stored for assets; give the op's output another IO manager.",
        )
    path = context.asset_key.path
    if not context.has_asset_partitions:
        return _place(path, None)
    keys = context.asset_partition_keys
    if len(keys) != 1:
        raise CheckpointError(
            f"{context.asset_key.to_user_string()} stores {len(keys)} partitions in one run.",
            remedy="Start one run a partition.",
        )
    return _place(path, keys[0])


def _place(path: Sequence[str], partition: str | None) -> str:
    """The key prefix of an output: no two assets or partitions share one.

    Parts are percent-encoded, dots too, so that a dot joins the parts of an asset's key, no
    partition is ``current.json``, and none starts with a dot.
    """
    asset = ".".join(map(_encode, path))
    return f"checkpoints/{asset}" + (f"/{_encode(partition)}" if partition is not None else "")


def _encode(part: str) -> str:
    return quote(part, safe="").replace(".", "%2E")


def _mapping(obj: Any, origin: str) -> Mapping[str, Any]:
    if not isinstance(obj, Mapping) or not all(isinstance(name, str) for name in obj):
        raise CheckpointError(
            f"The output {origin} is a {type(obj).__name__}, not a checkpoint or a mapping from "
            "names to checkpoints.",
            remedy="Return a Checkpoint, or a mapping to Checkpoints or Paths of checkpoint "
            "files; nothing is pickled.",
        )
    if not obj:
        raise CheckpointError(
            f"The output {origin} is empty: it maps no name to a checkpoint.",
            remedy="Train at least one window, or skip the asset.",
        )
    return obj


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, indent=1).encode()
