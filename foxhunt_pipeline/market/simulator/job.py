"""A simulated delivery: a batch job's folder with data files, support files and manifest."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from foxhunt_pipeline.errors import ConfigError
from foxhunt_pipeline.market.simulator.instruments import (
    Instrument,
    define,
    generator,
    make_instrument,
)
from foxhunt_pipeline.market.simulator.session import Dynamics, overnight, simulate_session
from foxhunt_pipeline.market.writing import write_dbn

DATASET = "FOX.SIMULATED"
"""Dataset code; DBN allows 15 characters."""
SCHEMAS = ("definition", "mbp-10", "ohlcv-1m", "trades")
_ZONE = ZoneInfo("America/New_York")
_CHUNK = 16_384
_DEFINED_AT = dt.time(4)
"""New York time at which the definitions of a session are published."""


@dataclass(frozen=True)
class _Day:
    date: dt.date
    open_ns: int
    close_ns: int

    def local_ns(self, time: dt.time, days: int = 0) -> int:
        """ns since the epoch of a New York time on this date, or so many days later."""
        moment = dt.datetime.combine(self.date + dt.timedelta(days), time, _ZONE)
        return int(moment.timestamp()) * 10**9


def simulate(
    folder: Path,
    *,
    sessions: int,
    symbols: Sequence[str],
    seed: int,
    first_date: str | dt.date = "2024-01-02",
    martingale: bool = False,
    events_per_session: int = 50_000,
    on_session: Callable[[dt.date], None] | None = None,
) -> list[Path]:
    """Write a simulated market as a Databento job folder ``SIM-…`` inside ``folder``.

    Sessions are New York Stock Exchange trading dates; half days are half days. Each has one file
    a schema (definition, mbp-10, ohlcv-1m, trades) with every symbol in it, covering New York
    midnight to midnight. The same arguments give the same bytes, and a job grows: asked again for
    more sessions, it gets them beside the same earlier files. Files appear whole and the manifest
    comes last.

    In the default market the hidden pressure (an Ornstein-Uhlenbeck process with a half-life of
    five minutes) leans on depth and trade signs and loads the coin that moves the mid. With
    ``martingale`` all of that stays, but the coin is fair: given everything visible the mid is as
    likely to rise as to fall by as much, and there is nothing to learn.

    Args:
        folder: landing folder; made if it is not there.
        sessions: trading dates to simulate, at least 1.
        symbols: raw symbols, each once.
        seed: non-negative; each (seed, symbol, date) has random numbers of its own.
        first_date: the first session is this date or the next trading date.
        martingale: simulate a market in which nothing foretells the mid.
        events_per_session: mean number of mbp-10 records of a symbol in a full session, 1,000 to
            1,000,000. Regimes and symbols move it by some 15 %.
        on_session: called with the date of each session once its files are there.

    Returns:
        The data files of the sessions asked for, by session, then schema.

    Raises:
        ConfigError: an argument is out of range, or ``folder`` holds another simulated job with
            one of the symbols, which would give the market twice.
    """
    start = _checked(sessions, symbols, seed, first_date, events_per_session)
    names = sorted(symbols)
    instruments = [make_instrument(seed, name) for name in names]
    identifiers = {item.symbol: item.identifier for item in instruments}
    if len(set(identifiers.values())) < len(names):
        raise ConfigError("Two symbols share an instrument id.", remedy="Rename one of them.")
    days = _trading_days(start, sessions)

    settings = {
        "seed": seed,
        "symbols": names,
        "first_date": days[0].date.isoformat(),
        "martingale": martingale,
        "events_per_session": events_per_session,
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).digest()
    identity = f"SIM-{days[0].date:%Y%m%d}-{base64.b32encode(digest).decode()[:10]}"
    job = folder / identity
    _refuse_twice(folder, job, names)
    job.mkdir(parents=True, exist_ok=True)

    dynamics = replace(Dynamics(), drift=0.0) if martingale else Dynamics()
    closes: dict[str, int] = {}
    paths: list[Path] = []
    for day in days:
        tables = _session_tables(seed, instruments, day, closes, events_per_session, dynamics)
        span = day.local_ns(dt.time()), day.local_ns(dt.time(), days=1)
        for schema in SCHEMAS:
            path = job / f"{DATASET.lower().replace('.', '-')}-{day.date:%Y%m%d}.{schema}.dbn.zst"
            key = "ts_event" if schema == "ohlcv-1m" else "ts_recv"
            chunks = _merged(tables.pop(schema), key)
            write_dbn(path, schema, DATASET, chunks, identifiers, *span)
            paths.append(path)
        if on_session is not None:
            on_session(day.date)
    _write_support(job, settings, identifiers, paths)
    return paths


def _checked(
    sessions: int,
    symbols: Sequence[str],
    seed: int,
    first_date: str | dt.date,
    events_per_session: int,
) -> dt.date:
    """The first date, once every argument is in range."""
    if sessions < 1:
        raise ConfigError(f"sessions is {sessions}.", remedy="Simulate at least one session.")
    if seed < 0:
        raise ConfigError(f"seed is {seed}.", remedy="Use a non-negative integer.")
    if not 1_000 <= events_per_session <= 1_000_000:
        raise ConfigError(
            f"events_per_session is {events_per_session}.", remedy="Use 1,000 to 1,000,000."
        )
    if isinstance(symbols, str) or not symbols or len(set(symbols)) < len(symbols):
        raise ConfigError(
            f"symbols is {symbols!r}.", remedy="Give a list of at least one symbol, each once."
        )
    for symbol in symbols:
        if not (0 < len(symbol) <= 70 and symbol.isascii() and symbol.isprintable()):
            raise ConfigError(
                f"{symbol!r} is not a symbol.", remedy="Use 1 to 70 printable ASCII characters."
            )
    try:
        return first_date if isinstance(first_date, dt.date) else dt.date.fromisoformat(first_date)
    except ValueError:
        raise ConfigError(
            f"first_date is {first_date!r}.", remedy="Use a date as 2024-01-02."
        ) from None


def _trading_days(first: dt.date, count: int) -> list[_Day]:
    """The first ``count`` New York Stock Exchange sessions from ``first`` on."""
    import exchange_calendars

    last = first + dt.timedelta(days=15 + count * 8 // 5)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Series.values returning an ndarray")
        try:
            calendar = exchange_calendars.get_calendar(
                "XNYS", start=first.isoformat(), end=last.isoformat()
            )
        except ValueError as error:
            raise ConfigError(
                f"There is no New York Stock Exchange calendar from {first} to {last}: {error}",
                remedy="Choose another first date, or fewer sessions.",
            ) from error
    return [
        _Day(session.date(), opens.value, closes.value)
        for session, opens, closes in zip(
            calendar.sessions[:count],
            calendar.schedule["open"][:count],
            calendar.schedule["close"][:count],
            strict=True,
        )
    ]


def _refuse_twice(folder: Path, job: Path, names: list[str]) -> None:
    for other in sorted(folder.glob("SIM-*/symbology.json")):
        shared = sorted(set(json.loads(other.read_text())["symbols"]) & set(names))
        if other.parent != job and shared:
            raise ConfigError(
                f"{folder} already holds a simulated market of {', '.join(shared)} "
                f"({other.parent.name}), of other settings.",
                remedy="Write to another folder, or remove that job.",
            )


def _session_tables(
    seed: int,
    instruments: list[Instrument],
    day: _Day,
    closes: dict[str, int],
    events_per_session: int,
    dynamics: Dynamics,
) -> dict[str, list[NDArray[np.void]]]:
    """Records of each schema, one array an instrument. ``closes`` has the last best bid of each
    symbol, in ticks, before and then after the session."""
    tables: dict[str, list[NDArray[np.void]]] = {schema: [] for schema in SCHEMAS}
    for instrument in instruments:
        symbol = instrument.symbol
        rng = generator(seed, symbol, day.date.toordinal())
        best_bid = (
            overnight(rng, closes[symbol], events_per_session)
            if symbol in closes
            else instrument.price
        )
        session = simulate_session(
            rng, instrument, best_bid, day.open_ns, day.close_ns, events_per_session, dynamics
        )
        closes[symbol] = session.close
        tables["definition"].append(define(instrument, day.local_ns(_DEFINED_AT)))
        tables["mbp-10"].append(session.mbp10)
        tables["ohlcv-1m"].append(session.bars)
        tables["trades"].append(session.trades)
    return tables


def _merged(tables: list[NDArray[np.void]], key: str) -> Iterator[NDArray[np.void]]:
    """Chunks of all records in order of ``key``; ties keep the order of the tables."""
    records = np.concatenate(tables)
    order = np.argsort(records[key], kind="stable")
    for at in range(0, len(order), _CHUNK):
        yield records[order[at : at + _CHUNK]]


def _write_support(
    job: Path, settings: dict[str, Any], identifiers: dict[str, int], paths: list[Path]
) -> None:
    """Write what comes with a job, the manifest last. Files of later sessions that the job already
    has stay listed."""
    entries = {path.name: _entry(path) for path in paths}
    manifest = job / "manifest.json"
    if manifest.exists():
        for entry in json.loads(manifest.read_text())["files"]:
            if entry["filename"].endswith(".dbn.zst"):
                entries.setdefault(entry["filename"], entry)
    dates = sorted({dt.datetime.strptime(_date(name), "%Y%m%d").date() for name in entries})
    first, after = dates[0].isoformat(), (dates[-1] + dt.timedelta(days=1)).isoformat()
    support: dict[str, Any] = {
        "condition.json": [
            {"date": str(date), "condition": "available", "last_modified_date": str(date)}
            for date in dates
        ],
        "metadata.json": {
            "version": 1,
            "job_id": job.name,
            "query": {
                "dataset": DATASET,
                "schema": list(SCHEMAS),
                "symbols": list(identifiers),
                "stype_in": "raw_symbol",
                "stype_out": "instrument_id",
                "start": first,
                "end": after,
                "limit": None,
            },
            "customizations": {
                "encoding": "dbn",
                "compression": "zstd",
                "split_duration": "day",
                "split_symbols": False,
                "split_size": None,
            },
            "simulation": settings,
        },
        "symbology.json": {
            "result": {
                symbol: [{"d0": first, "d1": after, "s": str(identifier)}]
                for symbol, identifier in identifiers.items()
            },
            "symbols": list(identifiers),
            "stype_in": "raw_symbol",
            "stype_out": "instrument_id",
            "start_date": first,
            "end_date": after,
            "partial": [],
            "not_found": [],
            "message": "OK",
            "status": 0,
        },
    }
    for name, content in support.items():
        _write_json(job / name, content)
        entries[name] = _entry(job / name)
    _write_json(
        manifest, {"job_id": job.name, "files": [entries[name] for name in sorted(entries)]}
    )


def _date(filename: str) -> str:
    return filename.split(".")[0].rsplit("-", 1)[1]


def _entry(path: Path) -> dict[str, Any]:
    """A file as a manifest lists it."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "filename": path.name,
        "size": path.stat().st_size,
        "hash": f"sha256:{digest}",
        "urls": {},
    }


def _write_json(path: Path, content: Any) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(content, indent=2) + "\n")
    partial.replace(path)
