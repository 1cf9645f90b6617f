"""Kinds of tables: they decide which rules and which suite judge one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Kind = Literal["trades", "quotes", "bars", "definitions"]

KINDS: Mapping[str, Kind] = {
    "trades": "trades",
    "tbbo": "quotes",
    "mbp-1": "quotes",
    "mbp-10": "quotes",
    "ohlcv-1s": "bars",
    "ohlcv-1m": "bars",
    "ohlcv-1h": "bars",
    "ohlcv-1d": "bars",
    "definition": "definitions",
}
"""Kind of table by schema."""
