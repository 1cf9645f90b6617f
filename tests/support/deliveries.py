"""Deliveries of DBN files: whole, split, damaged; and the stages run over them."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import databento_dbn as dbn
import numpy as np
import zstandard

from foxhunt_pipeline.artifacts import Artifact
from foxhunt_pipeline.config import Config
from foxhunt_pipeline.market import raw, tables
from foxhunt_pipeline.market.dbn import open_dbn
from foxhunt_pipeline.market.facts import FileFacts
from foxhunt_pipeline.market.inventory import Inventory
from foxhunt_pipeline.market.landing import FolderLanding
from foxhunt_pipeline.market.sessions import Survey, SurveyedSource, survey
from support.task import FolderTask

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class Interval:
    start_date: dt.date
    end_date: dt.date
    symbol: str


@dataclass(frozen=True)
class Mapped:
    raw_symbol: str
    intervals: tuple[Interval, ...]


def metadata(
    schema: str | None,
    dataset: str = "LEAN.EQUITY",
    start: int = 1381118400 * 10**9,
    end: int | None = 1381204800 * 10**9,
    symbols: Mapping[str, int] | None = None,
    **more: Any,
) -> bytes:
    """Encoded metadata; ``symbols`` map over all dates."""
    always = (dt.date(1990, 1, 1), dt.date(2099, 1, 1))
    mappings = [
        Mapped(symbol, (Interval(*always, str(number)),))
        for symbol, number in (symbols or {}).items()
    ]
    arguments: dict[str, Any] = {
        "dataset": dataset,
        "start": start,
        "end": end,
        "stype_in": dbn.SType.RAW_SYMBOL,
        "stype_out": dbn.SType.INSTRUMENT_ID,
        "schema": dbn.Schema.from_str(schema) if schema else None,
        "symbols": list(symbols or {}),
        "mappings": mappings,
        "version": 3,
    }
    return bytes(dbn.Metadata(**(arguments | more)).encode())


def compress(*frames: bytes) -> bytes:
    """Each part in a zstd frame of its own, with checksum."""
    return b"".join(zstandard.ZstdCompressor(write_checksum=True).compress(f) for f in frames)


def decompress(data: bytes) -> bytes:
    if data[:4] != ZSTD_MAGIC:
        return data
    decompressor = zstandard.ZstdDecompressor()
    return decompressor.stream_reader(data, read_across_frames=True).read()


def read(path: Path) -> np.ndarray[Any, Any]:
    """All records of a file."""
    file = open_dbn(path)
    chunks = [chunk.copy() for chunk in file.chunks()]
    return np.concatenate(chunks) if chunks else np.zeros(0, file.schema.layout)


def look(
    landing: Path,
    state: Path,
    *,
    now_ns: int | None = None,
    settle: float = 0.0,
    wait_hours: float = 6.0,
    calendars: Mapping[str, str] | None = None,
) -> tuple[tuple[FileFacts, ...], Survey]:
    """Facts of a landing and their survey."""
    now = time.time_ns() if now_ns is None else now_ns
    inventory = Inventory(state, FolderLanding(landing), calendars=calendars, settle_seconds=settle)
    facts = inventory.facts(now)
    return facts, survey(facts, calendars or {}, now, wait_hours)


def make_tables(
    landing: Path, folder: Path, session: str, config: Config | None = None
) -> tuple[Artifact, FolderTask]:
    """``market/tables`` of one session of a landing, and its task."""
    _, surveyed = look(landing, folder / "state")
    source = SurveyedSource(surveyed, FolderLanding(landing))
    common: dict[str, Any] = {
        "partition": session,
        "source": source,
        "settings": config or Config(),
    }
    first = FolderTask(folder, stage="raw/dbn", **common).build(raw.build)
    task = FolderTask(folder, stage="market/tables", inputs={"raw/dbn": first}, **common)
    return task.build(tables.build), task
