"""Files mapped to sessions by what they cover, never by their names.

A file covers the interval of its metadata and what its records span. One file may feed many
sessions and a session needs every file that overlaps it, so a week delivered as one file, as
daily files, cut at midnight UTC or split by symbol is the same week.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from foxhunt_pipeline.artifacts import digest_of
from foxhunt_pipeline.errors import DataError, NotFoundError
from foxhunt_pipeline.market.calendars import ALWAYS_OPEN, Calendar, calendar_for
from foxhunt_pipeline.market.dbn import EARLIEST
from foxhunt_pipeline.market.facts import FileFacts
from foxhunt_pipeline.market.landing import LandedFile, Landing

State = Literal["ready", "waiting", "refused"]

_Calendars = Callable[[str], Calendar]
"""From a dataset to its calendar."""
_HOUR_NS = 3600 * 10**9
_DAY = dt.timedelta(days=1)
_NAMED_DATE = re.compile(r"(?<!\d)(\d{4})-?(\d\d)-?(\d\d)(?!\d)")


@dataclass(frozen=True)
class Session:
    """A trading date and the files that hold its records."""

    date: str
    files: tuple[FileFacts, ...]
    state: State
    reason: str = ""
    conditions: Mapping[str, str] = field(default_factory=dict)
    """Datasets of which ``condition.json`` says that the date is not ``available``."""

    @property
    def digest(self) -> str:
        """Changes when the bytes that feed the session do, or the calendar that cuts them."""
        return digest_of(self.date, sorted((f.sha256, f.calendar) for f in self.files))


@dataclass(frozen=True)
class Gap:
    """A trading date between two others of a dataset for which there is no data."""

    date: str
    dataset: str
    reason: str


@dataclass(frozen=True)
class Survey:
    """All that the landing holds, by session."""

    sessions: Mapping[str, Session]
    """By date ``YYYY-MM-DD``, in order."""
    refused: tuple[FileFacts, ...]
    arriving: tuple[FileFacts, ...]
    ignored: tuple[FileFacts, ...]
    gaps: tuple[Gap, ...]
    notes: tuple[str, ...] = ()
    """Facts worth telling: assumed calendars, repeated deliveries, files without records."""

    def ready(self) -> dict[str, Session]:
        return {date: s for date, s in self.sessions.items() if s.state == "ready"}


def survey(
    facts: Iterable[FileFacts], calendars: Mapping[str, str], now_ns: int, wait_hours: float
) -> Survey:
    """Group judged files by session.

    A refused file fails the sessions that it covers, an arriving one keeps them waiting. A
    session whose day is not covered by every schema delivered for it, or which
    ``condition.json`` calls pending, waits until ``wait_hours`` after its end.
    """
    by_status: dict[str, list[FileFacts]] = defaultdict(list)
    for each in sorted(facts, key=lambda f: f.name):
        by_status[each.status].append(each)
    good, notes = _distinct(by_status["ok"])

    def calendar(dataset: str) -> Calendar:
        return calendar_for(dataset, calendars)

    feeding: dict[str, list[FileFacts]] = defaultdict(list)
    for each in good:
        for date in each.spans:
            feeding[date].append(each)
    failing = _attributed(by_status["refused"], calendar, now_ns)
    delaying = _attributed(by_status["arriving"], calendar, now_ns)
    coverage = _Coverage(good, calendar, now_ns, int(wait_hours * _HOUR_NS))
    sessions = {}
    for date in sorted({*feeding, *failing, *delaying}):
        files = tuple(sorted(feeding[date], key=lambda f: (f.sha256, f.name)))
        conditions = {f.dataset: f.conditions[date] for f in files if date in f.conditions}
        state: State = "ready"
        reason = ""
        if failing[date]:
            state, reason = "refused", " ".join(f.reason for f in failing[date])
        elif delaying[date]:
            state = "waiting"
            reason = "; ".join(f"{f.name}: {f.reason}" for f in delaying[date])
        elif missing := coverage.missing(date, files):
            state, reason = "waiting", missing
        sessions[date] = Session(date, files, state, reason, conditions)
    for dataset in sorted({f.dataset for f in good}):
        if calendar(dataset).assumed:
            notes.append(
                f"{dataset}: no calendar is known, sessions are UTC dates ({ALWAYS_OPEN}); "
                f"set market.calendars to change that"
            )
    return Survey(
        sessions,
        tuple(by_status["refused"]),
        tuple(by_status["arriving"]),
        tuple(by_status["ignored"]),
        _gaps(good, calendar),
        tuple(notes),
    )


class SurveyedSource:
    """The landing as a stage sees it: files by session, bytes by SHA-256."""

    def __init__(self, surveyed: Survey, landing: Landing) -> None:
        self._survey = surveyed
        self._landing = landing
        self._by_sha256 = {f.sha256: f for s in surveyed.sessions.values() for f in s.files}

    def files(self, session: str) -> Sequence[FileFacts]:
        """Raises :class:`DataError` if the session is refused, waiting or unknown."""
        found = self._survey.sessions.get(session)
        if found is None:
            raise DataError(
                f"No file in the landing holds records of session {session}.",
                remedy="Deliver its files, or choose another session.",
            )
        if found.state == "refused":
            raise DataError(f"Session {session} is refused: {found.reason}")
        if found.state == "waiting":
            raise DataError(
                f"Session {session} is waiting: {found.reason}.",
                remedy="It will be taken once its files are there.",
            )
        return found.files

    def local(self, file: FileFacts | str) -> Path:
        """Raises :class:`NotFoundError` if the landing does not hold such a file any more."""
        facts = self._by_sha256.get(file) if isinstance(file, str) else file
        if facts is None:
            raise NotFoundError(
                f"The landing holds no file of SHA-256 {file}.",
                remedy="It was removed or replaced since: plan again.",
            )
        return self._landing.local(LandedFile(facts.name, facts.size, facts.version))


class _Coverage:
    """Which parts of a session's day the files cover, by dataset and schema."""

    def __init__(
        self, files: Sequence[FileFacts], calendar: _Calendars, now_ns: int, wait_ns: int
    ) -> None:
        self._calendar = calendar
        self._now = now_ns
        self._wait = wait_ns
        self._intervals: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        for f in files:
            if interval := _interval(f):
                self._intervals[f.dataset, f.schema].append(interval)

    def missing(self, date: str, files: Sequence[FileFacts]) -> str:
        """Why the session is not complete yet, or an empty string."""
        for dataset in sorted({f.dataset for f in files}):
            calendar = self._calendar(dataset)
            start, end = calendar.core(date)
            if self._now >= end + self._wait:
                continue
            if any(f.dataset == dataset and f.conditions.get(date) == "pending" for f in files):
                return f"condition.json calls {dataset} pending"
            for schema in sorted({f.schema for f in files if f.dataset == dataset}):
                reached = _reach(self._intervals[dataset, schema], start)
                if reached < end:
                    there, whole, left = (
                        f"{max(0, ns) / _HOUR_NS:.1f}"
                        for ns in (reached - start, end - start, end + self._wait - self._now)
                    )
                    return (
                        f"{there} of {whole} hours of {dataset} {schema} are covered; "
                        f"taken as it is in {left} hours"
                    )
        return ""


def _reach(intervals: Iterable[tuple[int, int]], start: int) -> int:
    """How far from ``start`` the intervals go without a hole."""
    for first, after in sorted(intervals):
        if first <= start < after:
            start = after
    return start


def _interval(facts: FileFacts) -> tuple[int, int] | None:
    """What the file covers: its metadata's interval and its records."""
    starts = [t for t in (facts.start, facts.first) if t]
    ends = [facts.end or 0, facts.last + 1 if facts.last is not None else 0]
    return (min(starts), max(ends)) if starts and max(ends) > min(starts) else None


def _distinct(files: Sequence[FileFacts]) -> tuple[list[FileFacts], list[str]]:
    """Files of different bytes, and what to say of the others."""
    by_sha256: dict[str, FileFacts] = {}
    notes = []
    for f in files:
        if f.sha256 in by_sha256:
            notes.append(f"{f.name} is {by_sha256[f.sha256].name} delivered again")
        elif not f.records:
            notes.append(f"{f.name} {f.reason}")
        by_sha256.setdefault(f.sha256, f)
    return list(by_sha256.values()), notes


def _attributed(
    files: Sequence[FileFacts], calendar: _Calendars, now_ns: int
) -> dict[str, list[FileFacts]]:
    """Files that are no data, by the sessions that they keep from being complete: those that
    their metadata covers, else those that their names speak of."""
    sessions: dict[str, list[FileFacts]] = defaultdict(list)
    for f in files:
        if f.dataset and (interval := _interval(f)) and interval[0] >= EARLIEST:
            of = calendar(f.dataset)
            first, last = of.session_of([interval[0], min(interval[1], now_ns) - 1])
            dates = [str(d) for d in of.sessions(str(first), str(last))]
        else:
            dates = _named_dates(f.name)
        for date in dates:
            sessions[date].append(f)
    return sessions


def _named_dates(name: str) -> list[str]:
    """The date in a file's name, or the weekdays from the first to the last of several."""
    found = []
    for match in _NAMED_DATE.findall(name.rpartition("/")[2]):
        try:
            found.append(dt.date(*map(int, match)))
        except ValueError:
            continue
    if len(found) < 2:
        return [str(date) for date in found]
    first, last = min(found), max(found)
    days = [first + _DAY * i for i in range((last - first).days + 1)]
    return [str(day) for day in days if day.weekday() < 5]


def _gaps(files: Sequence[FileFacts], calendar: _Calendars) -> tuple[Gap, ...]:
    gaps = []
    by_dataset: dict[str, list[FileFacts]] = defaultdict(list)
    for f in files:
        by_dataset[f.dataset].append(f)
    for dataset, delivered in sorted(by_dataset.items()):
        there = {date for f in delivered for date in f.spans}
        if not there:
            continue
        covered = [interval for f in delivered if (interval := _interval(f))]
        conditions = {d: c for f in delivered for d, c in f.conditions.items()}
        for day in calendar(dataset).sessions(min(there), max(there)):
            date = str(day)
            if date not in there:
                start, end = calendar(dataset).core(day)
                reason = "no file covers it"
                if _reach(covered, start) >= end:
                    reason = "covered, but without records"
                if date in conditions:
                    reason += f" (condition.json: {conditions[date]})"
                gaps.append(Gap(date, dataset, reason))
    return tuple(gaps)
