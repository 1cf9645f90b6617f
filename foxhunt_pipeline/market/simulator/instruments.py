"""Simulated instruments and what the definition schema says of them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foxhunt_pipeline.market.writing import empty_records

TICK = 10_000_000
"""Tick size, $0.01, in units of 1e-9."""
ROUND_LOT = 100


@dataclass(frozen=True)
class Instrument:
    """What stays the same of an instrument from session to session."""

    symbol: str
    identifier: int
    """Instrument id. It depends on the symbol alone."""
    price: int
    """Ticks at which the first session opens."""
    depth: float
    """Shares that the touch reverts to."""
    activity: float
    """Records of a session, relative to those asked for."""


def generator(seed: int, symbol: str, day: int) -> np.random.Generator:
    """Random numbers of a symbol on a day (ordinal; 0 for the instrument itself), whatever else is
    simulated beside it."""
    return np.random.default_rng(np.random.SeedSequence([seed, zlib.crc32(symbol.encode()), day]))


def make_instrument(seed: int, symbol: str) -> Instrument:
    """An instrument at $30 to $90 with a depth and an activity of its own."""
    rng = generator(seed, symbol, 0)
    return Instrument(
        symbol=symbol,
        identifier=zlib.crc32(symbol.encode()),
        price=int(rng.integers(3_000, 9_000)),
        depth=float(rng.uniform(500, 1_200)),
        activity=float(rng.uniform(0.95, 1.05)),
    )


def define(instrument: Instrument, ts: int) -> NDArray[np.void]:
    """One definition record, stamped ``ts`` ns since the epoch. What does not apply to a share
    has the schema's undefined value."""
    record = empty_records("definition", 1)
    for name in ("expiration", "activation"):
        record[name] = np.iinfo(np.uint64).max
    for name in (
        "high_limit_price",
        "low_limit_price",
        "max_price_variation",
        "unit_of_measure_qty",
        "min_price_increment_amount",
        "price_ratio",
        "strike_price",
        "leg_price",
        "leg_delta",
    ):
        record[name] = np.iinfo(np.int64).max
    for name in (
        "inst_attrib_value",
        "market_depth_implied",
        "min_lot_size_block",
        "contract_multiplier",
        "decay_quantity",
        "original_contract_size",
    ):
        record[name] = np.iinfo(np.int32).max
    for name in ("market_segment_id", "max_trade_vol"):
        record[name] = np.iinfo(np.uint32).max
    for name in ("maturity_year", "decay_start_date"):
        record[name] = np.iinfo(np.uint16).max
    for name in (
        "main_fraction",
        "price_display_format",
        "sub_fraction",
        "underlying_product",
        "maturity_month",
        "maturity_day",
        "maturity_week",
        "tick_rule",
    ):
        record[name] = np.iinfo(np.uint8).max
    for name in ("contract_multiplier_unit", "flow_schedule_type"):
        record[name] = np.iinfo(np.int8).max
    values = {
        "instrument_id": instrument.identifier,
        "raw_instrument_id": instrument.identifier,
        "ts_event": ts,
        "ts_recv": ts,
        "min_price_increment": TICK,
        "display_factor": 10**9,
        "market_depth": 10,
        "min_lot_size": 1,
        "min_lot_size_round_lot": ROUND_LOT,
        "min_trade_vol": 1,
        "appl_id": np.iinfo(np.int16).max,
        "currency": b"USD",
        "settl_currency": b"USD",
        "raw_symbol": instrument.symbol.encode(),
        "group": b"SIMULATED",
        "exchange": b"SIM",
        "asset": b"SIMULATED",
        "instrument_class": b"K",
        "match_algorithm": b"F",
        "security_update_action": b"A",
        "user_defined_instrument": b"N",
        "leg_side": b"N",
    }
    for name, value in values.items():
        record[name] = value
    return record
