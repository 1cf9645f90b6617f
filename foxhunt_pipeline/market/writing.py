"""Writing DBN files.

A file is the DBN v3 metadata followed by fixed-size records, in one zstd frame with a content
checksum. It appears under its name only when it is whole.
"""

from __future__ import annotations

import datetime as dt
import filecmp
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import databento_dbn as dbn
import numpy as np
import zstandard
from numpy.typing import NDArray

from foxhunt_pipeline.errors import DataError

_RECORDS: dict[str, tuple[Any, int]] = {
    "trades": (dbn.TradeMsg, 0),
    "mbp-1": (dbn.MBP1Msg, 1),
    "tbbo": (dbn.MBP1Msg, 1),
    "mbp-10": (dbn.MBP10Msg, 10),
    "definition": (dbn.InstrumentDefMsg, 19),
    "ohlcv-1s": (dbn.OHLCVMsg, 32),
    "ohlcv-1m": (dbn.OHLCVMsg, 33),
    "ohlcv-1h": (dbn.OHLCVMsg, 34),
    "ohlcv-1d": (dbn.OHLCVMsg, 35),
}
"""Record class and ``rtype`` by schema."""

_LENGTH_UNIT = 4
"""A record header counts its length in words of four bytes."""


@dataclass
class _Interval:
    start_date: dt.date
    end_date: dt.date
    symbol: str


@dataclass
class _Mapping:
    raw_symbol: str
    intervals: Sequence[Any]


def record_dtype(schema: str) -> np.dtype[np.void]:
    """Packed NumPy dtype of a schema's DBN v3 record.

    Raises:
        DataError: the schema is not one that this module writes.
    """
    if schema not in _RECORDS:
        raise DataError(
            f"Schema {schema!r} cannot be written.", remedy=f"Use one of {', '.join(_RECORDS)}."
        )
    dtype: np.dtype[np.void] = np.dtype(_RECORDS[schema][0]._dtypes)
    return dtype


def empty_records(schema: str, count: int) -> NDArray[np.void]:
    """``count`` zeroed records of ``schema`` with the ``length`` and ``rtype`` of its header."""
    records = np.zeros(count, record_dtype(schema))
    records["length"] = records.itemsize // _LENGTH_UNIT
    records["rtype"] = _RECORDS[schema][1]
    return records


def utc_dates(start: int, end: int) -> tuple[dt.date, dt.date]:
    """First UTC date of ``[start, end)``, in ns since the epoch, and the date after its last."""
    day = 86_400 * 10**9
    epoch = dt.date(1970, 1, 1).toordinal()
    return dt.date.fromordinal(epoch + start // day), dt.date.fromordinal(epoch - -end // day)


def write_dbn(
    path: Path,
    schema: str,
    dataset: str,
    records: NDArray[np.void] | Iterable[NDArray[np.void]],
    symbols: Mapping[str, int],
    start: int,
    end: int,
) -> int:
    """Write a ``.dbn.zst`` file and return the number of records in it.

    The same arguments give the same bytes. A file already there is replaced in one step, or left
    alone where it has these bytes.

    Args:
        path: the file; its folder must exist.
        schema: DBN schema of every record.
        dataset: dataset code of the metadata.
        records: one array of :func:`record_dtype`, or chunks of it to be written one after
            another, in file order.
        symbols: instrument id by raw symbol; the mapping covers every UTC date of the span.
        start: first ns since the epoch that the file covers.
        end: first ns since the epoch after it.

    Raises:
        DataError: a chunk is not of the schema's record type.
    """
    dtype = record_dtype(schema)
    first, after = utc_dates(start, end)
    metadata = dbn.Metadata(
        dataset=dataset,
        start=start,
        end=end,
        stype_in=dbn.SType.from_str("raw_symbol"),
        stype_out=dbn.SType.from_str("instrument_id"),
        schema=dbn.Schema.from_str(schema),
        symbols=list(symbols),
        mappings=[
            _Mapping(symbol, [_Interval(first, after, str(identifier))])
            for symbol, identifier in symbols.items()
        ],
        version=3,
    )
    chunks = (records,) if isinstance(records, np.ndarray) else records
    count = 0
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    try:
        with partial.open("wb") as file:
            with compressor.stream_writer(file, closefd=False) as stream:
                stream.write(metadata.encode())
                for chunk in chunks:
                    if chunk.dtype != dtype:
                        raise DataError(
                            f"{path.name}: records of {chunk.dtype.itemsize} bytes are not "
                            f"{schema} records, which have {dtype.itemsize}.",
                            remedy="Start from empty_records(schema, count).",
                        )
                    stream.write(np.ascontiguousarray(chunk).view(np.uint8).data)
                    count += len(chunk)
            file.flush()
            os.fsync(file.fileno())
        if not path.exists() or not filecmp.cmp(partial, path, shallow=False):
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return count
