"""What is known of a landed file after it has been read whole once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

Status = Literal["ok", "arriving", "refused", "ignored"]


@dataclass(frozen=True)
class Span:
    """Records of one session in a file: how many, and the first and last key timestamp (ns)."""

    records: int
    first: int
    last: int


@dataclass(frozen=True)
class TableSpan:
    """Records of one instrument of one publisher in one session of a file."""

    session: str
    publisher_id: int
    instrument_id: int
    symbol: str
    records: int
    first: int
    last: int


@dataclass(frozen=True)
class FileFacts:
    """A landed file, judged.

    ``ok`` files are whole and hold what they say. ``arriving`` ones are not yet all there,
    ``refused`` ones never will be, ``ignored`` ones are of a schema that is not used; the
    ``reason`` says why. Times are ns since the epoch; ``start`` to before ``end`` is what the
    metadata says that the file covers (``end`` is None where it does not say).
    """

    name: str
    size: int
    version: str
    status: Status
    reason: str = ""
    sha256: str = ""
    dataset: str = ""
    schema: str = ""
    dbn_version: int = 0
    calendar: str = ""
    start: int | None = None
    end: int | None = None
    first: int | None = None
    last: int | None = None
    records: int = 0
    publishers: tuple[int, ...] = ()
    symbols: tuple[str, ...] = ()
    spans: Mapping[str, Span] = field(default_factory=dict)
    """By session date ``YYYY-MM-DD``."""
    tables_json: str = "[]"
    conditions: Mapping[str, str] = field(default_factory=dict)
    """What ``condition.json`` says of a date, where it is not ``available``."""

    @cached_property
    def tables(self) -> tuple[TableSpan, ...]:
        """Records by session, publisher and instrument; read only when asked for, since a file
        of a whole market has many."""
        return tuple(TableSpan(*row) for row in json.loads(self.tables_json))

    def to_json(self) -> str:
        """Everything but the conditions, which change without the file."""
        values = asdict(self)
        del values["conditions"]
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> FileFacts:
        values: dict[str, Any] = json.loads(text)
        values["publishers"] = tuple(values["publishers"])
        values["symbols"] = tuple(values["symbols"])
        values["spans"] = {date: Span(**span) for date, span in values["spans"].items()}
        return cls(**values)
