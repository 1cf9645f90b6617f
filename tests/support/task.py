"""A task that keeps everything in a folder, for testing stage computations by themselves."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foxhunt_pipeline.artifacts import Artifact, Blob, Content, Item, Result, digest_of
from foxhunt_pipeline.config import Config


@dataclass
class FolderTask:
    """Keeps the contract of :class:`foxhunt_pipeline.artifacts.Task` over a plain folder.

    ``computed`` and ``reused`` name the items of the last build.
    """

    folder: Path
    stage: str
    partition: str | None = None
    settings: Config = field(default_factory=Config)
    inputs: Mapping[str, Artifact] = field(default_factory=dict)
    session_inputs: Mapping[str, Mapping[str, Artifact]] = field(default_factory=dict)
    excluded: Mapping[str, str] = field(default_factory=dict)
    source: Any = None
    device: str = "cpu"
    code_version: str = "0" * 64
    family: Any = None
    model: str = ""
    champion: Path | None = None
    champion_scores: Path | None = None
    computed: list[str] = field(default_factory=list)
    reused: list[str] = field(default_factory=list)
    messages: list[tuple[str, dict[str, float]]] = field(default_factory=list)
    known: dict[str, Item] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        return self.settings.seed

    def config(self, section: str) -> Any:
        return self.settings.section(section)

    def input(self, stage: str) -> Artifact:
        return self.inputs[stage]

    def sessions(self, stage: str) -> Mapping[str, Artifact]:
        return dict(sorted(self.session_inputs[stage].items()))

    def left_out(self) -> Mapping[str, str]:
        return self.excluded

    def item(
        self,
        name: str,
        inputs: Sequence[str],
        compute: Callable[[Path], Content],
        *,
        extra: Mapping[str, Any] | None = None,
    ) -> Item:
        key = digest_of(self.stage, name, list(inputs), dict(extra or {}))
        if key in self.known:
            self.reused.append(name)
            return self.known[key]
        scratch = self.folder / "scratch" / key
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        content = compute(scratch)
        files = {}
        for path in sorted(p for p in scratch.rglob("*") if p.is_file()):
            sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
            files[path.relative_to(scratch).as_posix()] = Blob(sha256, path.stat().st_size)
            blob = self.folder / "blobs" / sha256
            blob.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, blob)
        shutil.rmtree(scratch)
        self.computed.append(name)
        self.known[key] = Item(name, key, content.digest, files, content.figures)
        return self.known[key]

    def path(self, item: Item, file: str) -> Path:
        return self.folder / "blobs" / item.files[file].sha256

    def progress(self, message: str, **figures: float) -> None:
        self.messages.append((message, figures))

    def build(self, compute: Callable[[Any], Result]) -> Artifact:
        """Run a stage's computation and gather its artifact."""
        self.computed.clear()
        self.reused.clear()
        result = compute(self)
        items = {item.name: item for item in result.items}
        version = digest_of({name: item.digest for name, item in items.items()})
        return Artifact(self.stage, self.partition, items, result.figures, version)
