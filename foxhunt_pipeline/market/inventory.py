"""What the landing holds, each file read whole once and remembered.

A file is judged by its bytes: hashed, decompressed, every record header checked, its records
counted by session and instrument. The verdict is kept in a small SQLite file under (name, size,
version), so that a listing of known files costs milliseconds.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from foxhunt_pipeline.errors import DataError, FoxhuntError, NotFoundError
from foxhunt_pipeline.market.calendars import calendar_for
from foxhunt_pipeline.market.dbn import Metadata, open_dbn
from foxhunt_pipeline.market.facts import FileFacts, Span
from foxhunt_pipeline.market.landing import LandedFile, Landing
from foxhunt_pipeline.market.routing import Router
from foxhunt_pipeline.market.schemas import SCHEMAS

FORMAT = "1"
"""Changes when facts or their reading do: what is remembered is then read anew."""


@dataclass(frozen=True)
class Listed:
    """What ``manifest.json`` says of a file."""

    size: int
    sha256: str | None


class Inventory:
    """The judged files of a landing, remembered in ``folder``."""

    def __init__(
        self,
        folder: Path,
        landing: Landing,
        *,
        calendars: Mapping[str, str] | None = None,
        settle_seconds: float = 2.0,
    ) -> None:
        self.landing = landing
        self._calendars = dict(calendars or {})
        self._settle_ns = int(settle_seconds * 10**9)
        self._database = folder / "inventory.sqlite"
        folder.mkdir(parents=True, exist_ok=True)

    def facts(
        self, now_ns: int, progress: Callable[[str], None] | None = None
    ) -> tuple[FileFacts, ...]:
        """Facts of every data file, by name; new files are read whole. ``progress`` is told the
        name of each file before it is read.

        Files that a manifest lists and that are not there yet are among the ``arriving``.
        """
        listing = self.landing.list()
        documents = {file.name: file for file in listing if file.is_document}
        files = [file for file in listing if not file.is_document]
        manifests = {
            file.folder: read_manifest(self.landing.local(file))
            for name, file in documents.items()
            if name.endswith("manifest.json")
        }
        conditions = {
            file.folder: self._condition(file)
            for name, file in documents.items()
            if name.endswith("condition.json")
        }
        judged = []
        with self._open() as memory:
            for file in files:
                manifest = manifests.get(file.folder, {})
                try:
                    facts = self._judge(file, manifest, memory, now_ns, progress)
                except (OSError, NotFoundError) as error:
                    reason = f"cannot be read now: {error}"
                    facts = FileFacts(file.name, file.size, file.version, "arriving", reason)
                judged.append(replace(facts, conditions=conditions.get(file.folder, {})))
        there = {file.name for file in files}
        for folder, manifest in manifests.items():
            for base, listed in (manifest or {}).items():
                name = f"{folder}/{base}" if folder else base
                if name not in there and re.search(r"\.dbn(\.zst)?$", base):
                    reason = "manifest.json lists it; it is not there yet"
                    judged.append(FileFacts(name, listed.size, "", "arriving", reason))
        return tuple(sorted(judged, key=lambda facts: facts.name))

    def _judge(
        self,
        file: LandedFile,
        manifest: Mapping[str, Listed] | None,
        memory: sqlite3.Connection,
        now_ns: int,
        progress: Callable[[str], None] | None,
    ) -> FileFacts:
        def arriving(reason: str, known: FileFacts | None = None) -> FileFacts:
            known = known or FileFacts(file.name, file.size, file.version, "arriving")
            return replace(known, status="arriving", reason=reason)

        if not file.name.isprintable():
            name = file.name.encode("utf-8", "backslashreplace").decode()
            reason = f"{name!r}: the name cannot be printed. Rename the file."
            return FileFacts(name, file.size, file.version, "refused", reason)
        if manifest is None:
            return arriving("manifest.json beside it cannot be read yet")
        listed = manifest.get(file.name.rpartition("/")[2])
        if listed and listed.size != file.size:
            return arriving(
                f"{file.size} of the {listed.size} bytes that manifest.json lists are there",
                self._peek(file),
            )
        if not listed and file.modified_ns is not None:
            age = now_ns - file.modified_ns
            if 0 <= age < self._settle_ns:
                reason = f"written {age / 1e9:.1f} s ago: it may still be growing"
                return arriving(reason, self._peek(file))
        sha256, known = self._recall(memory, file)
        if listed and listed.sha256:
            if sha256 is None:
                sha256 = _hash(self.landing.local(file))
                self._remember(memory, file, sha256, None)
            if sha256 != listed.sha256:
                return arriving(
                    f"its SHA-256 is {sha256[:12]}…, manifest.json lists {listed.sha256[:12]}…",
                    self._peek(file),
                )
        if known is None:
            if progress:
                progress(file.name)
            known = inspect(self.landing.local(file), file, self._calendars)
            self._remember(memory, file, known.sha256, known)
        return known

    def _peek(self, file: LandedFile) -> FileFacts | None:
        """What the metadata of a file that is not whole says, if it is readable."""
        try:
            return _described(file, open_dbn(self.landing.local(file), file.name).metadata)
        except FoxhuntError:
            return None

    def _condition(self, file: LandedFile) -> dict[str, str]:
        try:
            entries = json.loads(self.landing.local(file).read_bytes())
            return {
                str(entry["date"]): str(entry["condition"])
                for entry in entries
                if entry["condition"] != "available"
            }
        except (ValueError, KeyError, TypeError):
            return {}

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        memory = sqlite3.connect(self._database, timeout=60)
        try:
            # What is lost in a power failure is read again: no commit need wait for the disk.
            memory.execute("PRAGMA journal_mode = WAL")
            memory.execute("PRAGMA synchronous = NORMAL")
            memory.execute(
                "CREATE TABLE IF NOT EXISTS files (name TEXT, size INTEGER, version TEXT,"
                " reading TEXT, sha256 TEXT, facts TEXT,"
                " PRIMARY KEY (name, size, version, reading)) WITHOUT ROWID"
            )
            yield memory
            memory.commit()
        finally:
            memory.close()

    def _recall(
        self, memory: sqlite3.Connection, file: LandedFile
    ) -> tuple[str | None, FileFacts | None]:
        row = memory.execute(
            "SELECT sha256, facts FROM files WHERE name = ? AND size = ? AND version = ?"
            " AND reading = ?",
            (file.name, file.size, file.version, self._reading),
        ).fetchone()
        sha256, text = row or (None, None)
        return sha256 or None, FileFacts.from_json(text) if text else None

    def _remember(
        self, memory: sqlite3.Connection, file: LandedFile, sha256: str, facts: FileFacts | None
    ) -> None:
        text = facts.to_json() if facts else None
        memory.execute(
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)",
            (file.name, file.size, file.version, self._reading, sha256, text),
        )
        memory.commit()

    @property
    def _reading(self) -> str:
        return FORMAT + json.dumps(self._calendars, sort_keys=True)


def inspect(path: Path, file: LandedFile, calendars: Mapping[str, str] | None = None) -> FileFacts:
    """Read a file whole and judge it; never raises for what is wrong with the file."""
    facts = FileFacts(file.name, file.size, file.version, "refused")
    try:
        opened = open_dbn(path, file.name)
        facts = _described(file, opened.metadata)
        if opened.metadata.schema not in SCHEMAS:
            schema = opened.metadata.schema or "mixed (live capture)"
            return replace(
                facts,
                status="ignored",
                reason=f"schema {schema} is not used; used: {', '.join(SCHEMAS)}",
                sha256=_hash(path),
            )
        calendar = calendar_for(opened.metadata.dataset, calendars)
        router = Router(opened.schema, calendar, opened.metadata)
        key, tally = opened.schema.key, _Tally()
        for chunk in opened.chunks():
            for route in router.routes(chunk):
                of = (route.session, route.publisher_id, route.instrument_id, route.symbol)
                tally.add(of, chunk[key][route.rows])
        if opened.path.stat().st_size != file.size:
            raise DataError(f"{file.name}: changed while it was read.", remedy="Wait, and retry.")
    except DataError as error:
        return replace(facts, status="refused", reason=str(error), sha256=_hash(path))
    rows = sorted(tally.spans.items())
    return replace(
        facts,
        status="ok",
        reason="" if rows else "holds metadata and no records",
        sha256=opened.sha256,
        calendar=calendar.name,
        records=opened.records,
        first=min((span.first for _, span in rows), default=None),
        last=max((span.last for _, span in rows), default=None),
        publishers=tuple(sorted({of[1] for of, _ in rows})),
        symbols=tuple(sorted({of[3] for of, _ in rows})),
        spans=_by_session(rows),
        tables_json=json.dumps([[*of, s.records, s.first, s.last] for of, s in rows]),
    )


class _Tally:
    """Counts and extremes of key timestamps by group."""

    def __init__(self) -> None:
        self.spans: dict[tuple[str, int, int, str], Span] = {}

    def add(self, of: tuple[str, int, int, str], key: np.ndarray[Any, Any]) -> None:
        first, last, count = int(key.min()), int(key.max()), len(key)
        if of in self.spans:
            old = self.spans[of]
            first, last = min(first, old.first), max(last, old.last)
            count += old.records
        self.spans[of] = Span(count, first, last)


def _by_session(rows: Sequence[tuple[tuple[str, int, int, str], Span]]) -> dict[str, Span]:
    spans: dict[str, Span] = {}
    for (session, *_), span in rows:
        old = spans.get(session, Span(0, span.first, span.last))
        spans[session] = Span(
            old.records + span.records, min(old.first, span.first), max(old.last, span.last)
        )
    return spans


def _described(file: LandedFile, metadata: Metadata) -> FileFacts:
    return FileFacts(
        file.name,
        file.size,
        file.version,
        "refused",
        dataset=metadata.dataset,
        schema=metadata.schema or "",
        dbn_version=metadata.version,
        start=metadata.start,
        end=metadata.end,
    )


def read_manifest(path: Path) -> dict[str, Listed] | None:
    """Sizes and hashes by file name, or None if the document cannot be read (yet)."""
    try:
        entries = json.loads(path.read_bytes())["files"]
        return {str(entry["filename"]): _listed(entry) for entry in entries}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _listed(entry: Mapping[str, Any]) -> Listed:
    kind, _, digest = str(entry.get("hash") or "").partition(":")
    return Listed(int(entry["size"]), digest.lower() if kind == "sha256" and digest else None)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
