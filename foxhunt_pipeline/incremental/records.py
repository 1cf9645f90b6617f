"""How items and artifacts are written down."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from foxhunt_pipeline.artifacts import Artifact, Blob, Item

FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    """An artifact with what it was made from: enough to rebuild the index."""

    artifact: Artifact
    key: str
    code_version: str
    components: Mapping[str, str]
    inputs: Mapping[str, str]
    """Data version of each input at the time."""
    built_ns: int
    seconds: float

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT} | asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str | bytes) -> Manifest:
        fields: dict[str, Any] = json.loads(text)
        fields.pop("format")
        artifact = fields.pop("artifact")
        items = {name: item_from(item) for name, item in artifact.pop("items").items()}
        return Manifest(artifact=Artifact(items=items, **artifact), **fields)


def item_to_json(item: Item) -> bytes:
    """An item as JSON."""
    return json.dumps({"format": FORMAT} | asdict(item), sort_keys=True).encode()


def item_from(fields: Mapping[str, Any]) -> Item:
    """The item of a JSON object."""
    files = {name: Blob(**blob) for name, blob in fields["files"].items()}
    return Item(fields["name"], fields["key"], fields["digest"], files, fields["figures"])
