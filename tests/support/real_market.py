"""Instruments of the real market data, as tables and on the clock."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import polars as pl

from foxhunt_pipeline.market.calendars import calendar_for
from foxhunt_pipeline.market.clock import Hours
from foxhunt_pipeline.market.tape import Prints, Quotes
from support.market_tables import dbn_tables

SECOND = 10**9
MINUTE = 60 * SECOND


@lru_cache(maxsize=8)
def tables(data: Path, market: str) -> Mapping[str, Mapping[str, pl.DataFrame]]:
    """By symbol and schema: ``equities`` (2013-10-08), ``crypto`` (2024-08-08) or ``futures``."""
    pattern = {"equities": "*20131008*", "crypto": "*20240808*", "futures": "glbx*"}[market]
    found: dict[str, dict[str, pl.DataFrame]] = {}
    for path in sorted((data / "landing" / market).glob(pattern)):
        for _, symbol, schema, rows in dbn_tables(path):
            found.setdefault(symbol, {})[schema] = rows
    return found


def hours(market: str) -> Hours:
    """Regular hours of the session that :func:`tables` gives."""
    dataset, session = {
        "equities": ("LEAN.EQUITY", "2013-10-08"),
        "crypto": ("BINANCE.DEMO", "2024-08-08"),
        "futures": ("GLBX.MDP3", "2023-12-26"),
    }[market]
    return Hours(*calendar_for(dataset).regular_hours(session))


def prints(data: Path, market: str, symbol: str, schema: str = "trades") -> Prints:
    table = tables(data, market)[symbol][schema]
    return Prints.of_bars(table) if schema.startswith("ohlcv") else Prints.of_trades(table)


def quotes(data: Path, market: str, symbol: str, levels: int = 10) -> Quotes:
    found = tables(data, market)[symbol]
    return Quotes.of_book(found["mbp-10" if "mbp-10" in found else "mbp-1"], levels)
