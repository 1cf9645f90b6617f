"""Record layouts of DBN schemas and the table columns that they become.

Layouts are those of ``databento_dbn`` (https://databento.com/docs/standards-and-conventions).
Prices stay int64 in units of 1e-9 and timestamps int64 nanoseconds since the epoch; what DBN
marks as undefined (``INT64_MAX``, ``UINT64_MAX``) is null in a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import databento_dbn as dbn
import numpy as np
import pyarrow as pa

Records = np.ndarray[Any, np.dtype[np.void]]
Columns = dict[str, np.ndarray[Any, Any]]

UNDEFINED_I64 = 2**63 - 1
UNDEFINED_I32 = 2**31 - 1
NS_PER_DAY = 86_400 * 10**9

Kind = Literal["time", "price", "int32", "number", "code", "side", "text"]


@dataclass(frozen=True)
class Column:
    """One table column, made from the record field ``source``."""

    name: str
    source: str
    kind: Kind


@dataclass(frozen=True)
class Schema:
    """A supported DBN schema."""

    name: str
    rtype: int
    layout: np.dtype[np.void]
    """Layout of one record in DBN v3, without ``ts_out``."""
    key: Literal["ts_recv", "ts_event"]
    """The field that orders the records: what Databento indexes the schema by."""
    interval: int
    """Length of a bar in nanoseconds; 0 for events."""
    columns: tuple[Column, ...]

    def stored(self, version: int) -> np.dtype[np.void]:
        """Layout of a record in DBN ``version``, which differs for definitions only."""
        old: Mapping[int, Any] = {1: dbn.InstrumentDefMsgV1, 2: dbn.InstrumentDefMsgV2}
        if self.name == "definition" and version in old:
            return _layout(old[version])
        return self.layout

    def known(self, records: Records) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Nanoseconds that decide a record's session: its key, or a bar's last instant.

        A bar belongs to the session it ends in, so that no session holds a bar that was still
        open when the session ended.
        """
        key: np.ndarray[Any, np.dtype[np.int64]] = np.ascontiguousarray(records[self.key]).view(
            np.int64
        )
        return key + (self.interval - 1) if self.interval else key


_EVENT = (
    Column("ts_recv", "ts_recv", "time"),
    Column("ts_event", "ts_event", "time"),
)
_TRADES = (
    *_EVENT,
    Column("price", "price", "price"),
    Column("size", "size", "number"),
    Column("aggressor_side", "side", "side"),
    Column("flags", "flags", "number"),
    Column("sequence", "sequence", "number"),
)


def _book(levels: int) -> tuple[Column, ...]:
    return (
        *_EVENT,
        Column("action", "action", "code"),
        Column("side", "side", "side"),
        Column("price", "price", "price"),
        Column("size", "size", "number"),
        Column("flags", "flags", "number"),
        Column("sequence", "sequence", "number"),
        *_levels(levels),
    )


def _levels(levels: int) -> Iterator[Column]:
    kinds: tuple[tuple[str, Kind], ...] = (("px", "price"), ("sz", "number"), ("ct", "number"))
    for level in range(levels):
        for field, kind in kinds:
            for side in ("bid", "ask"):
                name = f"{side}_{field}_{level:02d}"
                yield Column(name, name, kind)


_BAR = (
    Column("ts_event", "ts_event", "time"),
    *(Column(name, name, "price") for name in ("open", "high", "low", "close")),
    Column("volume", "volume", "number"),
)
_DEFINITION = (
    *_EVENT,
    Column("raw_symbol", "raw_symbol", "text"),
    Column("instrument_id", "instrument_id", "number"),
    Column("min_price_increment", "min_price_increment", "price"),
    Column("display_factor", "display_factor", "price"),
    Column("expiration", "expiration", "time"),
    Column("activation", "activation", "time"),
    Column("currency", "currency", "text"),
    Column("instrument_class", "instrument_class", "text"),
    Column("unit_of_measure_qty", "unit_of_measure_qty", "price"),
    Column("contract_multiplier", "contract_multiplier", "int32"),
    Column("exchange", "exchange", "text"),
)


def _layout(message: Any) -> np.dtype[np.void]:
    layout: np.dtype[np.void] = np.dtype(message._dtypes)
    return layout


def _schema(
    name: str,
    rtype: int,
    message: Any,
    columns: tuple[Column, ...],
    key: Literal["ts_recv", "ts_event"] = "ts_recv",
    interval: int = 0,
) -> Schema:
    return Schema(name, rtype, _layout(message), key, interval, columns)


_SECOND = 10**9
SCHEMAS: Mapping[str, Schema] = {
    schema.name: schema
    for schema in (
        _schema("definition", 19, dbn.InstrumentDefMsg, _DEFINITION),
        _schema("trades", 0, dbn.TradeMsg, _TRADES),
        _schema("tbbo", 1, dbn.MBP1Msg, _book(1)),
        _schema("mbp-1", 1, dbn.MBP1Msg, _book(1)),
        _schema("mbp-10", 10, dbn.MBP10Msg, _book(10)),
        _schema("ohlcv-1s", 32, dbn.OHLCVMsg, _BAR, "ts_event", _SECOND),
        _schema("ohlcv-1m", 33, dbn.OHLCVMsg, _BAR, "ts_event", 60 * _SECOND),
        _schema("ohlcv-1h", 34, dbn.OHLCVMsg, _BAR, "ts_event", 3600 * _SECOND),
        _schema("ohlcv-1d", 35, dbn.OHLCVMsg, _BAR, "ts_event", NS_PER_DAY),
    )
}
"""The schemas that become tables, by name; definitions first, for others use them."""

RTYPE_NAMES: Mapping[int, str] = {int(rtype): str(rtype) for rtype in dbn.RType.variants()}
SCHEMA_CODES: Mapping[int, str] = {int(schema): str(schema) for schema in dbn.Schema.variants()}

_TIME = pa.timestamp("ns", tz="UTC")
_SIDES = np.zeros(256, np.int8)
_SIDES[ord("B")], _SIDES[ord("A")] = 1, -1


def columns_of(schema: Schema, records: Records) -> Columns:
    """Contiguous table columns of records of ``schema`` in the v3 layout.

    Undefined prices and times are ``INT64_MAX``; text is bytes padded with zeros. A bar's
    ``ts_close`` follows its ``ts_event``.
    """
    out: Columns = {}
    for column in schema.columns:
        values = np.ascontiguousarray(records[column.source])
        if column.kind == "time":
            values = np.minimum(values, np.uint64(UNDEFINED_I64)).view(np.int64)
        elif column.kind in ("code", "side"):
            values = values.view(np.uint8)
            values = _SIDES[values] if column.kind == "side" else values
        out[column.name] = values
        if schema.interval and column.name == "ts_event":
            out["ts_close"] = values + schema.interval
    return out


def batch_of(schema: Schema, columns: Columns) -> pa.RecordBatch:
    """Arrow record batch of the columns of :func:`columns_of`, undefined values being null."""
    kinds = {column.name: column.kind for column in schema.columns} | {"ts_close": "time"}
    return pa.record_batch({name: _arrow(kinds[name], values) for name, values in columns.items()})


def _arrow(kind: str, values: np.ndarray[Any, Any]) -> pa.Array:
    if kind == "text":
        return pa.array(np.char.decode(values, "utf-8", "backslashreplace"), pa.string())
    if kind in ("time", "price", "int32"):
        undefined = values == (UNDEFINED_I32 if kind == "int32" else UNDEFINED_I64)
        type_ = _TIME if kind == "time" else None
        return pa.array(values, type_, mask=undefined if undefined.any() else None)
    return pa.array(values)
