"""What has been computed before, by anybody who shares the store.

``blobs/<sha256>`` holds files by content, ``memo/<key>.json`` says which files an item's key
gave, ``artifacts/<stage>/<partition>/<key>.json`` gathers a stage's items. Entries are written
conditionally and after the blobs that they name: a reader never sees half an entry, and the
loser of a race adopts the winner's.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from foxhunt_pipeline.artifacts import Blob, Content, Item
from foxhunt_pipeline.errors import NotFoundError, PreconditionError, StoreError
from foxhunt_pipeline.incremental.records import Manifest, item_from, item_to_json
from foxhunt_pipeline.stores.base import ObjectStore

UNPARTITIONED = "-"


class Memo:
    """The artifact store as the engine sees it.

    cache: folder for copies of a remote store's blobs and for work in progress.
    """

    def __init__(self, store: ObjectStore, cache: Path) -> None:
        self._store = store
        self._cache = cache
        self._verified: set[str] = set()

    def find(self, key: str) -> Item | None:
        """The item of a key, if it was computed before and its files are all there."""
        try:
            item = item_from(json.loads(self._store.get(_memo_key(key)).data))
        except NotFoundError:
            return None
        return item if self.whole(item) else None

    def whole(self, item: Item) -> bool:
        """Whether each of an item's files is there in its full size."""
        heads = ((blob, self._store.head(_blob_key(blob))) for blob in item.files.values())
        return all(head is not None and head.size == blob.size for blob, head in heads)

    def compute(self, key: str, name: str, compute: Callable[[Path], Content]) -> Item:
        """Run a computation in a folder of its own and store what it wrote.

        Nothing is stored if it raises. The winner's item is returned where another process
        stored the same key first.
        """
        scratch = self._cache / "scratch" / f"{os.getpid()}-{uuid.uuid4().hex}"
        scratch.mkdir(parents=True)
        try:
            content = compute(scratch)
            files = {
                path.relative_to(scratch).as_posix(): self._keep(path)
                for path in sorted(scratch.rglob("*"))
                if path.is_file()
            }
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return self._enter(Item(name, key, content.digest, files, content.figures))

    def sweep(self) -> None:
        """Remove the work in progress of processes that are no more."""
        for folder in (self._cache / "scratch").glob("*-*"):
            try:
                os.kill(int(folder.name.partition("-")[0]), 0)
            except ProcessLookupError:
                shutil.rmtree(folder, ignore_errors=True)
            except (PermissionError, ValueError):
                continue

    def path(self, item: Item, file: str) -> Path:
        """A local, verified copy of one of an item's files.

        A damaged blob is dropped, so that it is computed again, and raises :class:`StoreError`.
        """
        blob = item.files[file]
        key = _blob_key(blob)
        local = self._store.local_path(key)
        if local is None:
            local = self._cache / "blobs" / blob.sha256
            if not local.exists():
                local.parent.mkdir(parents=True, exist_ok=True)
                self._store.fetch(key, local, sha256=blob.sha256, size=blob.size)
                self._verified.add(blob.sha256)
        if blob.sha256 not in self._verified:
            with local.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found != blob.sha256:
                self._store.delete(key)
                local.unlink(missing_ok=True)
                raise StoreError(
                    f"{file} of {item.name} is damaged in the artifact store "
                    f"(SHA-256 {found[:12]}, expected {blob.sha256[:12]}); it was dropped.",
                    remedy="Run foxhunt sync --force for its stage to compute it again.",
                )
            self._verified.add(blob.sha256)
        return local

    def manifest(self, stage: str, partition: str | None, key: str) -> Manifest | None:
        """The artifact of a key, if it was built before and is whole."""
        try:
            data = self._store.get(_artifact_key(stage, partition, key)).data
        except NotFoundError:
            return None
        manifest = Manifest.from_json(data)
        return manifest if all(map(self.whole, manifest.artifact.items.values())) else None

    def manifests(self, stage: str, partition: str | None) -> Iterator[Manifest]:
        """Every artifact ever built of a stage and partition."""
        for head in self._store.list(f"{_folder(stage, partition)}/"):
            yield Manifest.from_json(self._store.get(head.key).data)

    def record(self, manifest: Manifest) -> Manifest:
        """Write an artifact down; the first writer's stands."""
        artifact = manifest.artifact
        key = _artifact_key(artifact.stage, artifact.partition, manifest.key)
        try:
            self._store.put_new(key, manifest.to_json().encode())
        except PreconditionError:
            stored = self._store.get(key)
            first = Manifest.from_json(stored.data)
            if all(map(self.whole, first.artifact.items.values())):
                return first
            self._store.replace(key, manifest.to_json().encode(), stored.etag)
        return manifest

    def forget(self, key: str) -> None:
        """Let an item be computed again, whatever is stored."""
        self._store.delete(_memo_key(key))

    def forget_artifact(self, stage: str, partition: str | None, key: str) -> None:
        """Let an artifact be gathered again, whatever is stored."""
        self._store.delete(_artifact_key(stage, partition, key))

    def _keep(self, path: Path) -> Blob:
        with path.open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        blob = Blob(sha256, path.stat().st_size)
        key = _blob_key(blob)
        if not self._store.put_file_new(key, path):
            head = self._store.head(key)
            if head is None or head.size != blob.size:
                self._store.delete(key)
                self._store.put_file_new(key, path)
        return blob

    def _enter(self, item: Item) -> Item:
        key = _memo_key(item.key)
        try:
            self._store.put_new(key, item_to_json(item))
        except PreconditionError:
            winner = self.find(item.key)
            if winner is not None:
                return winner
            self._store.replace(key, item_to_json(item), self._store.get(key).etag)
        return item


def _blob_key(blob: Blob) -> str:
    return f"blobs/{blob.sha256}"


def _memo_key(key: str) -> str:
    return f"memo/{key}.json"


def _folder(stage: str, partition: str | None) -> str:
    return f"artifacts/{quote(stage, safe='')}/{quote(partition or UNPARTITIONED, safe='')}"


def _artifact_key(stage: str, partition: str | None, key: str) -> str:
    return f"{_folder(stage, partition)}/{key}.json"
