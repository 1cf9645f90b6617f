"""Trading dates: which session an instant belongs to.

A session is a trading date of the dataset's calendar. Sessions tile time without holes: each
begins where the one before ended, so that what is recorded on a holiday or before an open
belongs to the next trading date. Day markets end at local midnight, CME at 16:00 Chicago
(where its trading date rolls), other overnight markets at their close, 24-hour markets at
midnight UTC. Trading dates, hours and early closes are those of ``exchange_calendars``.
"""

from __future__ import annotations

import datetime as dt
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zipfile import BadZipFile
from zoneinfo import ZoneInfo

import numpy as np

from foxhunt_pipeline.errors import ConfigError, DataError

ALWAYS_OPEN = "24/7"
CALENDARS: Mapping[str, str] = {
    "ARCX.PILLAR": "XNYS",
    "BATS.PITCH": "XNYS",
    "BATY.PITCH": "XNYS",
    "BINANCE.DEMO": ALWAYS_OPEN,
    "DBEQ.BASIC": "XNYS",
    "EDGA.PITCH": "XNYS",
    "EDGX.PITCH": "XNYS",
    "EPRL.DOM": "XNYS",
    "EQUS.ALL": "XNYS",
    "EQUS.MINI": "XNYS",
    "EQUS.PLUS": "XNYS",
    "EQUS.SUMMARY": "XNYS",
    "FOX.SIMULATED": "XNYS",
    "GLBX.MDP3": "CMES",
    "IEXG.TOPS": "XNYS",
    "IFEU.IMPACT": "24/5",
    "IFUS.IMPACT": "IEPA",
    "LEAN.EQUITY": "XNYS",
    "MEMX.MEMOIR": "XNYS",
    "NDEX.IMPACT": "24/5",
    "OPRA.PILLAR": "XNYS",
    "XASE.PILLAR": "XNYS",
    "XBOS.ITCH": "XNYS",
    "XCHI.PILLAR": "XNYS",
    "XCIS.TRADESBBO": "XNYS",
    "XEEE.EOBI": "XEEE",
    "XEUR.EOBI": "XEUR",
    "XNAS.BASIC": "XNYS",
    "XNAS.ITCH": "XNYS",
    "XNAS.QBBO": "XNYS",
    "XNYS.PILLAR": "XNYS",
    "XPSX.ITCH": "XNYS",
}
"""Calendar by dataset, where configuration says nothing else. ``exchange_calendars`` has none for
ICE Futures Europe and ICE Endex, which trade on most weekdays that their cities have off."""

_ROLLS: Mapping[str, dt.time] = {
    name: dt.time(16) for name in ("CMES", "CME", "CBOT", "COMEX", "NYMEX")
}
"""Local time at which an overnight market's trading date rolls, where it is not the close."""
_DAY_NS = 86_400 * 10**9
_EPOCH = dt.date(1970, 1, 1)

Dates = np.ndarray[Any, np.dtype[np.datetime64]]
Instants = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class _Sessions:
    """Consecutive sessions: ``dates[i]`` spans ``edges[i]`` to before ``edges[i + 1]``."""

    dates: Dates
    edges: Instants
    opens: Instants
    closes: Instants


@dataclass(frozen=True)
class Calendar:
    """The sessions of one market. Instants are nanoseconds since the epoch."""

    name: str
    assumed: bool = False
    """No calendar is known for the dataset, so that UTC dates are taken."""

    @property
    def tz(self) -> ZoneInfo:
        """Time zone of the market."""
        return _zone(self.name)

    def session_of(self, ts_ns: Any) -> Dates:
        """Trading date (``datetime64[D]``) of each instant.

        Raises :class:`DataError` for an instant that the calendar does not reach.
        """
        ts = np.asarray(ts_ns, np.int64)
        if self.name == ALWAYS_OPEN or not ts.size:
            return np.floor_divide(ts, _DAY_NS).astype("datetime64[D]")
        sessions = self._around(int(ts.min()), int(ts.max()))
        return sessions.dates[np.searchsorted(sessions.edges, ts, side="right") - 1]

    def bounds(self, date: dt.date | str) -> tuple[int, int]:
        """Start and (exclusive) end of a session.

        Raises :class:`DataError` if the date is not a trading date.
        """
        sessions, at = self._find(_date(date))
        return int(sessions.edges[at]), int(sessions.edges[at + 1])

    def regular_hours(self, date: dt.date | str) -> tuple[int, int]:
        """Open and close of regular trading, early closes included, within the session.

        Raises :class:`DataError` if the date is not a trading date.
        """
        sessions, at = self._find(_date(date))
        return int(sessions.opens[at]), int(sessions.closes[at])

    def core(self, date: dt.date | str) -> tuple[int, int]:
        """The trading date's own day: the session without the closed days before it."""
        start, end = self.bounds(date)
        return max(start, end - _DAY_NS), end

    def sessions(self, first: dt.date | str, last: dt.date | str) -> list[dt.date]:
        """Trading dates from ``first`` to ``last``, both included."""
        low, high = _date(first), _date(last)
        table = self._around(_ns(low), _ns(high))
        chosen = (table.dates >= np.datetime64(low)) & (table.dates <= np.datetime64(high))
        return [dt.date.fromisoformat(str(date)) for date in table.dates[chosen]]

    def _find(self, date: dt.date) -> tuple[_Sessions, int]:
        sessions = self._around(_ns(date), _ns(date))
        at = int(np.searchsorted(sessions.dates, np.datetime64(date)))
        if at == len(sessions.dates) or sessions.dates[at] != np.datetime64(date):
            raise DataError(
                f"{date} is not a trading date of the calendar {self.name}.",
                remedy="Set another calendar for the dataset in market.calendars.",
            )
        return sessions, at

    def _around(self, first_ns: int, last_ns: int) -> _Sessions:
        margin = 20 * _DAY_NS
        first, last = (
            (_EPOCH + dt.timedelta(days=ns // _DAY_NS)).year
            for ns in (first_ns - margin, last_ns + margin)
        )
        return _sessions(self.name, first, last)


def calendar_for(dataset: str, overrides: Mapping[str, str] | None = None) -> Calendar:
    """Calendar of a dataset: configured, else known, else UTC dates (``assumed``).

    Raises :class:`ConfigError` if ``market.calendars`` names a calendar that does not exist.
    """
    configured = (overrides or {}).get(dataset)
    if configured:
        return Calendar(_canonical(configured, dataset))
    if dataset in CALENDARS:
        return Calendar(CALENDARS[dataset])
    return Calendar(ALWAYS_OPEN, assumed=True)


@lru_cache(maxsize=64)
def _canonical(name: str, dataset: str) -> str:
    if name in {ALWAYS_OPEN, *CALENDARS.values()}:
        return name
    import exchange_calendars as ec

    if name not in ec.get_calendar_names(include_aliases=True):
        raise ConfigError(
            f"market.calendars: {dataset} = {name!r} is not a calendar.",
            remedy=f"Allowed: {', '.join(ec.get_calendar_names(include_aliases=False))}.",
        )
    return str(ec.resolve_alias(name))


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    if name == ALWAYS_OPEN:
        return ZoneInfo("UTC")
    return ZoneInfo(str(_exchange(name, "2020-01-01", "2020-02-01").tz))


def _exchange(name: str, start: str, end: str) -> Any:
    import exchange_calendars as ec

    with warnings.catch_warnings():
        # exchange_calendars 4.13 uses what pandas 3.1 deprecates.
        warnings.filterwarnings("ignore", "Series.values", DeprecationWarning)
        return ec.get_calendar(name, start=start, end=end)


_kept: list[Path] = []
"""The folder of :func:`keep_in`, once it is named."""


def keep_in(folder: Path) -> None:
    """Keep what exchange_calendars says in files of a folder, for processes to come: importing
    it takes a second."""
    _kept[:] = [folder]


@lru_cache(maxsize=64)
def _sessions(name: str, first_year: int, last_year: int) -> _Sessions:
    if name == ALWAYS_OPEN:
        return _utc_days(first_year, last_year)
    if not _kept:
        return _read_exchange(name, first_year, last_year)
    version = metadata.version("exchange_calendars")
    path = _kept[0] / f"{quote(name, safe='')}-{first_year}-{last_year}-{version}.npz"
    with suppress(OSError, EOFError, ValueError, KeyError, BadZipFile), np.load(path) as kept:
        return _Sessions(**{field.name: kept[field.name] for field in fields(_Sessions)})
    sessions = _read_exchange(name, first_year, last_year)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as part:
            np.savez(part, **vars(sessions))
        Path(part.name).replace(path)
    return sessions


def _read_exchange(name: str, first_year: int, last_year: int) -> _Sessions:
    try:
        calendar = _exchange(name, f"{first_year - 1}-12-01", f"{last_year + 1}-01-31")
    except ValueError as error:
        raise DataError(
            f"The calendar {name} does not reach from {first_year} to {last_year}: {error}.",
            remedy="Set another calendar for the dataset in market.calendars.",
        ) from None
    tz = _zone(name)
    days = [stamp.date() for stamp in calendar.sessions]
    roll = dt.time(0)
    if calendar.open_offset < 0:
        roll = _ROLLS.get(calendar.name, calendar.close_times[-1][1])
    after = 0 if calendar.open_offset < 0 else 1
    ends = np.array(
        [_local_ns(day + dt.timedelta(days=after), roll, tz) for day in days], dtype=np.int64
    )
    opens, closes = calendar.opens_nanos, calendar.closes_nanos
    return _Sessions(
        dates=np.array(days[1:], "datetime64[D]"),
        edges=ends,
        opens=np.maximum(opens[1:], ends[:-1]),
        closes=np.minimum(closes[1:], ends[1:]),
    )


def _utc_days(first_year: int, last_year: int) -> _Sessions:
    dates = np.arange(f"{first_year}-01-01", f"{last_year + 1}-01-01", dtype="datetime64[D]")
    edges = np.append(dates, dates[-1] + 1).astype("datetime64[ns]").view(np.int64)
    return _Sessions(dates, edges, edges[:-1], edges[1:])


def _local_ns(day: dt.date, time: dt.time, tz: ZoneInfo) -> int:
    return int(dt.datetime.combine(day, time, tz).timestamp()) * 10**9


def _date(value: dt.date | str) -> dt.date:
    return dt.date.fromisoformat(value) if isinstance(value, str) else value


def _ns(date: dt.date) -> int:
    return (date - _EPOCH).days * _DAY_NS
