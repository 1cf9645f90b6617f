"""Which session, publisher and instrument each record belongs to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foxhunt_pipeline.market.calendars import Calendar
from foxhunt_pipeline.market.dbn import Metadata
from foxhunt_pipeline.market.schemas import NS_PER_DAY, Records, Schema


@dataclass(frozen=True)
class Route:
    """Records of a chunk that belong together: positions in the chunk, and whose they are."""

    session: str
    publisher_id: int
    instrument_id: int
    symbol: str
    rows: Any
    """Index into the chunk: positions in file order, or a slice of everything."""


@dataclass
class Router:
    """Sorts the records of one file. Symbols come through the metadata's mapping intervals on
    the record's UTC date (ends exclusive), else they are the instrument id."""

    schema: Schema
    calendar: Calendar
    metadata: Metadata
    _names: dict[int, list[tuple[int, int, str]]] = field(init=False)
    _known: dict[tuple[int, int], str] = field(init=False, default_factory=dict)
    _session: tuple[int, int, str] = field(init=False, default=(0, 0, ""))

    def __post_init__(self) -> None:
        self._names = _names_by_id(self.metadata)

    def routes(self, records: Records) -> Iterator[Route]:
        """Partition a chunk by session, UTC date, publisher and instrument."""
        known = self.schema.known(records)
        key = np.ascontiguousarray(records[self.schema.key]).view(np.int64)
        days = key // NS_PER_DAY
        low, high, session = self._session
        if known.min() >= low and known.max() < high and days[0] == days.min() == days.max():
            yield from self._instruments(records, slice(None), session, int(days[0]))
            return
        sessions = self.calendar.session_of(known)
        parts = sessions.astype(np.int64) << 32 | days
        for part in np.unique(parts):
            rows = np.flatnonzero(parts == part)
            date = str(sessions[rows[0]])
            self._session = (*self.calendar.bounds(date), date)
            yield from self._instruments(records, rows, date, int(days[rows[0]]))

    def _instruments(self, records: Records, rows: Any, session: str, day: int) -> Iterator[Route]:
        publishers = records["publisher_id"][rows].astype(np.int64)
        keys = publishers << 32 | records["instrument_id"][rows]
        if (keys == keys[0]).all():
            yield self._route(int(keys[0]), rows, session, day)
            return
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
        positions = order if isinstance(rows, slice) else rows[order]
        for group in np.split(positions, starts[1:]):
            first = records[group[:1]]
            key = int(first["publisher_id"][0]) << 32 | int(first["instrument_id"][0])
            yield self._route(key, group, session, day)

    def _route(self, key: int, rows: Any, session: str, day: int) -> Route:
        publisher, instrument = key >> 32, key & 0xFFFFFFFF
        return Route(session, publisher, instrument, self._symbol(instrument, day), rows)

    def _symbol(self, instrument: int, day: int) -> str:
        if (instrument, day) not in self._known:
            date = int(str(np.datetime64(day, "D")).replace("-", ""))
            names = [s for a, b, s in self._names.get(instrument, ()) if a <= date < b]
            self._known[instrument, day] = min(names, default=str(instrument))
        return self._known[instrument, day]


def _names_by_id(metadata: Metadata) -> dict[int, list[tuple[int, int, str]]]:
    """(start, end, symbol) by instrument id, whichever way round the file maps them."""
    names: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for mapping in metadata.mappings:
        for interval in mapping.intervals:
            number, symbol = interval.symbol, mapping.symbol
            if metadata.stype_out != "instrument_id":
                number, symbol = symbol, number
            if number.isdigit() and symbol:
                names[int(number)].append((interval.start, interval.end, symbol))
    return names
