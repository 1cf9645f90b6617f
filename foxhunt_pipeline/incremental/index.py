"""What is current: one SQLite table in the state folder.

A step writes its row whoever launched it, so ``plan`` never reads Dagster's event log. The
index holds nothing that the manifests do not: lost, it is rebuilt from them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from foxhunt_pipeline.errors import StoreError
from foxhunt_pipeline.incremental.records import Manifest

FORMAT = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS current (
    asset TEXT, partition TEXT, key TEXT, code_version TEXT, data_version TEXT,
    inputs TEXT, built_ns INTEGER, seconds REAL, PRIMARY KEY (asset, partition)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS failed (
    asset TEXT, partition TEXT, key TEXT, category TEXT, message TEXT, at_ns INTEGER,
    PRIMARY KEY (asset, partition)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS components (code_version TEXT PRIMARY KEY, parts TEXT);
CREATE TABLE IF NOT EXISTS manifests (
    asset TEXT, partition TEXT, body TEXT, PRIMARY KEY (asset, partition)
);
"""


@dataclass(frozen=True)
class Row:
    """The current artifact of (asset, partition), without its contents."""

    asset: str
    partition: str | None
    key: str
    code_version: str
    data_version: str
    inputs: Mapping[str, str]
    built_ns: int
    seconds: float


@dataclass(frozen=True)
class Failure:
    """The last attempt, where it failed. ``key`` is what it tried to make."""

    asset: str
    partition: str | None
    key: str
    category: str
    message: str
    at_ns: int


class Index:
    """Safe for several processes: WAL, and a wait of 30 s for a writer."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        with self._connect() as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, FORMAT):
                raise StoreError(
                    f"{path} has format {version}; this version reads {FORMAT}.",
                    remedy="Remove the file: it is rebuilt from the artifacts.",
                )
            db.executescript(_SCHEMA)
            db.execute(f"PRAGMA user_version = {FORMAT}")

    def rows(self) -> dict[tuple[str, str | None], Row]:
        """Everything that is current."""
        with self._connect() as db:
            found = db.execute(
                "SELECT asset, partition, key, code_version, data_version, inputs, built_ns,"
                " seconds FROM current"
            ).fetchall()
        inputs: dict[str, Mapping[str, str]] = {}
        rows = {}
        for asset, partition, key, code, data, text, built_ns, seconds in found:
            if text not in inputs:
                inputs[text] = json.loads(text)
            rows[asset, partition or None] = Row(
                asset, partition or None, key, code, data, inputs[text], built_ns, seconds
            )
        return rows

    def row(self, asset: str, partition: str | None) -> Row | None:
        """What is current of one asset and partition."""
        with self._connect() as db:
            found = db.execute(
                "SELECT key, code_version, data_version, inputs, built_ns, seconds FROM current"
                " WHERE asset = ? AND partition = ?",
                (asset, partition or ""),
            ).fetchone()
        if found is None:
            return None
        key, code, data, inputs, built_ns, seconds = found
        return Row(asset, partition, key, code, data, json.loads(inputs), built_ns, seconds)

    def failures(self) -> dict[tuple[str, str | None], Failure]:
        """Last attempts that failed."""
        with self._connect() as db:
            found = db.execute(
                "SELECT asset, partition, key, category, message, at_ns FROM failed"
            ).fetchall()
        return {
            (asset, partition or None): Failure(asset, partition or None, *rest)
            for asset, partition, *rest in found
        }

    def components(self, code_version: str) -> dict[str, str] | None:
        """What a code version was made of."""
        with self._connect() as db:
            found = db.execute(
                "SELECT parts FROM components WHERE code_version = ?", (code_version,)
            ).fetchone()
        return None if found is None else dict(json.loads(found[0]))

    def manifest(self, asset: str, partition: str | None) -> Manifest | None:
        """The current artifact of (asset, partition)."""
        with self._connect() as db:
            found = db.execute(
                "SELECT body FROM manifests WHERE asset = ? AND partition = ?",
                (asset, partition or ""),
            ).fetchone()
        return None if found is None else Manifest.from_json(found[0])

    def succeeded(self, manifest: Manifest) -> None:
        """Make an artifact the current one."""
        artifact = manifest.artifact
        where = (artifact.stage, artifact.partition or "")
        with self._connect() as db:
            db.execute(
                "INSERT OR REPLACE INTO current VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *where,
                    manifest.key,
                    manifest.code_version,
                    artifact.data_version,
                    json.dumps(dict(manifest.inputs), sort_keys=True),
                    manifest.built_ns,
                    manifest.seconds,
                ),
            )
            db.execute(
                "INSERT OR REPLACE INTO manifests VALUES (?, ?, ?)", (*where, manifest.to_json())
            )
            db.execute(
                "INSERT OR IGNORE INTO components VALUES (?, ?)",
                (manifest.code_version, json.dumps(dict(manifest.components), sort_keys=True)),
            )
            db.execute("DELETE FROM failed WHERE asset = ? AND partition = ?", where)

    def fail(self, failure: Failure) -> None:
        """Remember a failed attempt; what was current stays current."""
        with self._connect() as db:
            db.execute(
                "INSERT OR REPLACE INTO failed VALUES (?, ?, ?, ?, ?, ?)",
                (
                    failure.asset,
                    failure.partition or "",
                    failure.key,
                    failure.category,
                    failure.message,
                    failure.at_ns,
                ),
            )

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        db = sqlite3.connect(self._path, timeout=30)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            with db:
                yield db
        finally:
            db.close()
