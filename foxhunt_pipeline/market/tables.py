"""Stage ``market/tables``: a session's records as Parquet, one table an instrument and schema.

A table is keyed by (dataset, publisher, instrument, schema) and holds exactly the session's
records in the order of their key timestamp, as traded. How the records were split into files
leaves no trace: files that overlap count once, and digests are over the columns.

Every file is decoded once a session: its records are spooled to one scratch file a table, from
which each table is then written in batches, so that memory is bounded by a batch. Only a table
whose records are out of order is sorted in memory.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from foxhunt_pipeline.artifacts import Content, Item, Result, digest_of
from foxhunt_pipeline.errors import DataError
from foxhunt_pipeline.market.calendars import calendar_for
from foxhunt_pipeline.market.dbn import open_dbn
from foxhunt_pipeline.market.routing import Router
from foxhunt_pipeline.market.schemas import (
    SCHEMAS,
    UNDEFINED_I64,
    Columns,
    Records,
    Schema,
    batch_of,
    columns_of,
)

if TYPE_CHECKING:
    from foxhunt_pipeline.market.landing import LandingTask

ROWS = "rows.parquet"
BATCH_ROWS = 131_072
SPOOL_BYTES = 64 << 20
"""Spooled records held in memory before they are written out."""

Key = tuple[int, int, str]
"""Publisher id, instrument id and symbol, as the files have it."""


@dataclass(frozen=True)
class _Part:
    """The share of a table that comes from one file: records after an instant."""

    item: Item
    first: int
    last: int
    after: int


@dataclass(frozen=True)
class _Table:
    dataset: str
    schema: Schema
    key: Key
    symbol: str
    """The key's symbol, made unique in the session."""
    parts: tuple[_Part, ...]

    @property
    def name(self) -> str:
        parts = (self.dataset, str(self.key[0]), self.symbol, self.schema.name)
        return "/".join(quote(part, safe="") for part in parts)


def build(task: LandingTask) -> Result:
    """Artifact of one session.

    Raises :class:`~foxhunt_pipeline.errors.DataError` if a file is not the one that was
    inspected, or no instrument of the universe was delivered.
    """
    session = str(task.partition)
    calendars = task.config("market")["calendars"]
    universe = frozenset(task.config("universe")["instruments"])
    files = list(task.input("raw/dbn").items.values())
    tables = [t for t in _tables(files) if not universe or t.key[2] in universe]
    if not tables:
        raise DataError(
            f"Session {session} holds none of the universe's instruments.",
            remedy=f"Delivered: {', '.join(sorted({t.key[2] for t in _tables(files)}))}.",
        )
    items: list[Item] = []
    ticks: dict[tuple[str, int], int | None] = {}
    for (dataset, schema), group in _grouped(tables).items():
        with tempfile.TemporaryDirectory(prefix="foxhunt-") as scratch:
            spool = _Spool(Path(scratch), task, session, calendars, group)
            for table in group:
                tick = ticks.get((dataset, table.key[1]))
                item = _item(task, table, session, spool, tick)
                items.append(item)
                if schema == "definition":
                    ticks[dataset, table.key[1]] = item.figures["min_price_increment"]
        task.progress(f"{dataset} {schema}", tables=len(group))
    rows: dict[str, int] = defaultdict(int)
    for item in items:
        rows[item.figures["schema"]] += item.figures["rows"]
    return Result(
        items,
        {
            "tables": len(items),
            "rows": dict(rows),
            "symbols": sorted({item.figures["symbol"] for item in items}),
            "publishers": sorted({item.figures["publisher_id"] for item in items}),
        },
    )


def _item(task: LandingTask, table: _Table, session: str, spool: _Spool, tick: int | None) -> Item:
    def write(folder: Path) -> Content:
        return _write(table, spool.records(table), folder / ROWS, tick)

    extra = {
        "session": session,
        "calendar": [part.item.figures["calendar"] for part in table.parts],
        "key": list(table.key),
        "after": [part.after for part in table.parts],
        "tick": tick,
    }
    return task.item(table.name, [part.item.digest for part in table.parts], write, extra=extra)


def _tables(files: Sequence[Item]) -> Iterator[_Table]:
    """What the session's files make, definitions first, then by name."""
    parts: dict[tuple[str, str, Key], list[_Part]] = defaultdict(list)
    for item in files:
        figures = item.figures
        for row in figures["tables"]:
            key = (row["publisher_id"], row["instrument_id"], row["symbol"])
            part = _Part(item, row["first"], row["last"], -1)
            parts[figures["dataset"], figures["schema"], key].append(part)
    ids: dict[tuple[str, str], set[int]] = defaultdict(set)
    for dataset, _, (_, instrument, symbol) in parts:
        ids[dataset, symbol].add(instrument)
    order = list(SCHEMAS)
    for dataset, schema, key in sorted(parts, key=lambda p: (order.index(p[1]), p)):
        # A continuous symbol that rolls, or a parent, means several instruments at once.
        unique = len(ids[dataset, key[2]]) == 1
        symbol = key[2] if unique else f"{key[2]}#{key[1]}"
        shares = tuple(_once(parts[dataset, schema, key]))
        yield _Table(dataset, SCHEMAS[schema], key, symbol, shares)


def _once(parts: Sequence[_Part]) -> Iterator[_Part]:
    """Parts in order of time, each without what an earlier one delivered already."""
    covered, before = -1, None
    for part in sorted(parts, key=lambda p: (p.first, -p.last, p.item.digest)):
        after = covered - 1 if before and _continues(before, part, covered) else covered
        if part.last > after:
            yield _Part(part.item, part.first, part.last, after)
        if part.last > covered:
            covered, before = part.last, part


def _continues(before: _Part, part: _Part, instant: int) -> bool:
    """Whether a file begins in the middle of the instant with which another ended, as where a
    job is split by size: then both hold records of that instant, and not the same ones. Such
    files cover the whole query each, or end and start with their own records."""
    one, two = before.item.figures, part.item.figures
    same = (one["start"], one["end"]) == (two["start"], two["end"])
    cut = two["start"] == instant and one["end"] is not None and one["end"] <= instant + 1
    meet = one["first"] < one["last"] == instant == two["first"] < two["last"]
    return bool(meet and (same or cut))


def _grouped(tables: Sequence[_Table]) -> dict[tuple[str, str], list[_Table]]:
    groups: dict[tuple[str, str], list[_Table]] = defaultdict(list)
    for table in tables:
        groups[table.dataset, table.schema.name].append(table)
    return groups


class _Spool:
    """Records of a group of tables of one dataset and schema, decoded when first asked for."""

    def __init__(
        self,
        folder: Path,
        task: LandingTask,
        session: str,
        calendars: Mapping[str, str],
        tables: Sequence[_Table],
    ) -> None:
        self._folder = folder
        self._task = task
        self._session = session
        self._schema = tables[0].schema
        self._calendar = calendar_for(tables[0].dataset, calendars)
        self._number = {table.key: number for number, table in enumerate(tables)}
        self._files: dict[str, Item] = {}
        self._after: dict[tuple[str, Key], int] = {}
        for table in tables:
            for part in table.parts:
                self._files[part.item.digest] = part.item
                self._after[part.item.digest, table.key] = part.after
        self._held: dict[Key, list[bytes]] = defaultdict(list)
        self._held_bytes = 0
        self._filled = False

    def records(self, table: _Table) -> Records:
        """A table's records by key timestamp, mapped from the scratch file."""
        if not self._filled:
            self._fill()
        records: Records = np.memmap(self._path(table.key), self._schema.layout, "r")
        key = records[self._schema.key]
        if (key[1:] < key[:-1]).any():
            records = records[np.argsort(key, kind="stable")]
        return records

    def _fill(self) -> None:
        files = sorted(
            self._files.values(),
            key=lambda f: (f.figures["session_first"], -f.figures["session_last"], f.digest),
        )
        for item in files:
            self._decode(item)
        self._flush()
        self._filled = True

    def _decode(self, item: Item) -> None:
        path = (
            self._task.path(item, next(iter(item.files)))
            if item.files
            else self._task.source.local(item.digest)
        )
        with path.open("rb") as whole:
            sha256 = hashlib.file_digest(whole, "sha256").hexdigest()
        if sha256 != item.digest:
            raise DataError(
                f"{item.name}: has SHA-256 {sha256}, and had {item.digest} when inspected.",
                remedy="The file was changed in place: set landing.immutable = false, run again.",
            )

        file = open_dbn(path, item.name)
        router = Router(self._schema, self._calendar, file.metadata)
        left = item.figures["session_records"]
        chunks = file.chunks()
        while left:
            chunk = next(chunks)
            for route in router.routes(chunk):
                if route.session != self._session:
                    continue
                records = chunk[route.rows]
                left -= len(records)
                key = (route.publisher_id, route.instrument_id, route.symbol)
                after = self._after.get((item.digest, key))
                if after is not None:
                    self._hold(key, records, after)
        chunks.close()

    def _hold(self, key: Key, records: Records, after: int) -> None:
        if after >= 0:
            records = records[records[self._schema.key] > after]
        data = records.tobytes()
        self._held[key].append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= SPOOL_BYTES:
            self._flush()

    def _flush(self) -> None:
        for key, pieces in self._held.items():
            with self._path(key).open("ab") as file:
                file.writelines(pieces)
        self._held.clear()
        self._held_bytes = 0

    def _path(self, key: Key) -> Path:
        return self._folder / f"{self._number[key]}.records"


def _write(table: _Table, records: Records, path: Path, tick: int | None) -> Content:
    """Parquet of a table, its content digest and its figures."""
    hashes: dict[str, Any] = {}
    writer: pq.ParquetWriter | None = None
    increment = tick
    for start in range(0, len(records), BATCH_ROWS):
        columns = columns_of(table.schema, records[start : start + BATCH_ROWS])
        for name, values in columns.items():
            hashes.setdefault(name, hashlib.sha256(values.dtype.str.encode())).update(values.data)
        batch = batch_of(table.schema, columns)
        writer = writer or _writer(path, batch.schema)
        writer.write_batch(batch)
        if table.schema.name == "definition":
            increment = _increment(columns, increment)
    if writer is None:
        raise DataError(
            f"{table.name}: {len(records)} records where the inspection counted some.",
            remedy="Remove the inventory from the state folder and run again.",
        )
    writer.close()
    key = records[table.schema.key]
    figures = {
        "dataset": table.dataset,
        "publisher_id": table.key[0],
        "instrument_id": table.key[1],
        "symbol": table.symbol,
        "schema": table.schema.name,
        "rows": len(records),
        "ts_min": int(key[0]),
        "ts_max": int(key[-1]),
        "min_price_increment": increment,
    }
    return Content(digest_of(figures, {name: h.hexdigest() for name, h in hashes.items()}), figures)


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    # On ticks plain values and zstd take half the space and time of dictionaries and zstd.
    return pq.ParquetWriter(
        path, schema, compression="zstd", compression_level=1, use_dictionary=False
    )


def _increment(columns: Columns, known: int | None) -> int | None:
    """The last defined, positive tick size of definitions."""
    ticks = columns["min_price_increment"]
    ticks = ticks[(ticks > 0) & (ticks != UNDEFINED_I64)]
    return int(ticks[-1]) if len(ticks) else known
