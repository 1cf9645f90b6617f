"""Strict streaming decoder of Databento Binary Encoding (DBN) v1, v2 and v3.

The official client reads a truncated file as a shorter one and a corrupt record as a strange
one. Here a file is either whole or an error: every zstd frame must reach its end, every record
header must be that of the schema that the metadata names, and nothing may be left over. Memory
is bounded by the chunk, whatever lengths a file claims.

What no decoder can see from the file alone: an uncompressed file cut between two records, or a
compressed one cut between two zstd frames. Sizes and hashes of ``manifest.json`` tell those.

Format: https://databento.com/docs/standards-and-conventions/databento-binary-encoding and
https://github.com/databento/dbn; zstd frames: RFC 8878.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

import numpy as np
import zstandard

from foxhunt_pipeline.errors import DataError
from foxhunt_pipeline.market.schemas import RTYPE_NAMES, SCHEMA_CODES, SCHEMAS, Records, Schema

CHUNK_RECORDS = 16_384
"""Records a chunk: few enough to stay in the cache, which is twice as fast as 100,000."""
MAX_METADATA_BYTES = 512 << 20
EARLIEST, LATEST = 631_152_000 * 10**9, 4_102_444_800 * 10**9
"""1990 and 2100: a key timestamp outside is not market data."""

_ZSTD_MAGIC = 0xFD2FB528
_SKIPPABLE = 0x184D2A50
_PRELUDE = struct.Struct("<3sBI")
_FIXED_V1 = struct.Struct("<16sHQQQQBBB47x")
_FIXED = struct.Struct("<16sHQQQBBBH53x")
_SYMBOL_V1 = 22
_STYPES = (
    "instrument_id", "raw_symbol", "smart", "continuous", "parent", "nasdaq_symbol",
    "cms_symbol", "isin", "us_code", "bbg_comp_id", "bbg_comp_ticker", "figi", "figi_ticker",
)  # fmt: skip
_AGAIN = "Deliver the file again."


@dataclass(frozen=True)
class Interval:
    """A symbol's meaning from ``start`` to before ``end`` (UTC dates as YYYYMMDD)."""

    start: int
    end: int
    symbol: str


@dataclass(frozen=True)
class SymbolMapping:
    symbol: str
    intervals: tuple[Interval, ...]


@dataclass(frozen=True)
class Metadata:
    """Header of a DBN file. Times in ns since the epoch; None where the file does not say."""

    version: int
    dataset: str
    schema: str | None
    start: int
    end: int | None
    limit: int | None
    stype_in: str | None
    stype_out: str | None
    ts_out: bool
    symbols: tuple[str, ...]
    partial: tuple[str, ...]
    not_found: tuple[str, ...]
    mappings: tuple[SymbolMapping, ...]


@dataclass
class DbnFile:
    """A DBN file whose metadata has been read. ``records`` and ``sha256`` (of the file's bytes)
    are known once :meth:`chunks` has come to its end."""

    path: Path
    name: str
    metadata: Metadata
    records: int = 0
    sha256: str = ""

    @property
    def schema(self) -> Schema:
        """The supported schema of the records.

        Raises :class:`DataError` for one that is not supported, or a mixture (live capture).
        """
        name = self.metadata.schema
        if name and name in SCHEMAS:
            return SCHEMAS[name]
        raise DataError(
            f"{self.name}: schema {name or 'mixed (live capture)'} is not supported.",
            remedy=f"Supported: {', '.join(SCHEMAS)}.",
        )

    def chunks(self) -> Generator[Records, None, None]:
        """All records in file order, up to 16,384 at a time, in the v3 layout without ``ts_out``.

        A chunk is valid until the next one is asked for.

        Raises :class:`DataError` naming file, record and fault for anything that is not a whole,
        intact file of its schema.
        """
        schema = self.schema
        layout = schema.stored(self.metadata.version)
        size = layout.itemsize + (8 if self.metadata.ts_out else 0)
        stored = _padded(layout, size)
        self.records, self.sha256 = 0, ""
        with self.path.open("rb") as file:
            _check_frames(file, self.name)
            source = _Hashing(file)
            stream = _open_stream(self.path, self.name, source)
            stream.skip_metadata()
            buffer = bytearray(size * CHUNK_RECORDS)
            filled = len(buffer)
            while filled == len(buffer):
                filled = stream.fill(memoryview(buffer), f"after record {self.records}")
                count, rest = divmod(filled, size)
                self._check(np.frombuffer(buffer, stored, count), schema, size)
                if rest:
                    raise DataError(
                        f"{self.name}: ends inside record {self.records + count}: {rest} of "
                        f"{size} bytes are there.",
                        remedy=f"The file is truncated. {_AGAIN}",
                    )
                if count:
                    records = np.frombuffer(buffer, stored, count)
                    self.records += count
                    yield _to_v3(records, schema) if stored != schema.layout else records
            self.sha256 = source.hexdigest()

    def drain(self) -> None:
        """Read to the end without looking at records: what can be verified of any schema.

        Raises :class:`DataError` if the file is truncated or its compression is damaged.
        """
        with self.path.open("rb") as file:
            _check_frames(file, self.name)
            stream = _open_stream(self.path, self.name, _Hashing(file))
            stream.skip_metadata()
            buffer = memoryview(bytearray(1 << 20))
            while stream.fill(buffer, "among its records") == len(buffer):
                continue

    def _check(self, records: Records, schema: Schema, size: int) -> None:
        heads = np.ndarray(len(records), np.dtype("<u2"), records, strides=(size,))
        wrong = heads != (schema.rtype << 8 | size // 4)
        if wrong.any():
            self._wrong_header(records, int(wrong.argmax()), schema, size)
        key = records[schema.key]
        if len(key) and (key.min() < EARLIEST or key.max() >= LATEST):
            at = int(((key < EARLIEST) | (key >= LATEST)).argmax())
            raise DataError(
                f"{self.name}: record {self.records + at} has {schema.key} {int(key[at])}, "
                "expected nanoseconds between 1990 and 2100.",
                remedy=f"The file is corrupt. {_AGAIN}",
            )

    def _wrong_header(self, records: Records, at: int, schema: Schema, size: int) -> NoReturn:
        head = records[at : at + 1].tobytes()[:4]
        length, rtype = head[0] * 4, head[1]
        where = f"{self.name}: record {self.records + at}"
        if head[:3] == b"DBN":
            raise DataError(
                f"{where} is the start of another DBN file.",
                remedy="Files were concatenated: deliver them one by one.",
            )
        if rtype != schema.rtype and rtype in RTYPE_NAMES:
            raise DataError(
                f"{where} is of type {RTYPE_NAMES[rtype]}, expected {RTYPE_NAMES[schema.rtype]} "
                f"for the schema {schema.name} that the metadata names.",
                remedy="The file was put together wrongly, or is corrupt. " + _AGAIN,
            )
        raise DataError(
            f"{where} has length {length} and type {rtype}, expected length {size} and type "
            f"{schema.rtype} ({schema.name}).",
            remedy=f"The file is corrupt. {_AGAIN}",
        )


def open_dbn(path: Path, name: str | None = None) -> DbnFile:
    """Read the metadata of a DBN file, compressed or not, called ``name`` in errors. The rest of
    the file is judged by :meth:`DbnFile.chunks`.

    Raises :class:`DataError` if the file is empty, not DBN, of an unknown version, in the old
    DBZ format, a fragment without metadata, cut within the metadata, or its metadata contradicts
    itself.
    """
    name = name or path.name
    with path.open("rb") as file:
        metadata = _open_stream(path, name, _Hashing(file)).read_metadata()
    return DbnFile(path, name, metadata)


def _padded(layout: np.dtype[np.void], size: int) -> np.dtype[np.void]:
    """The layout in records of ``size`` bytes, which may carry ``ts_out`` at their end."""
    fields: Any = layout.fields
    names = list(fields)
    return np.dtype(
        {
            "names": names,
            "formats": [fields[name][0] for name in names],
            "offsets": [fields[name][1] for name in names],
            "itemsize": size,
        }
    )


class _Hashing:
    """A file that hashes what is read from it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.hexdigest = self._hash.hexdigest

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        return data

    def readinto(self, buffer: memoryview) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


@dataclass
class _Stream:
    """The decompressed bytes of a file."""

    name: str
    raw: Any

    def fill(self, view: memoryview, where: str) -> int:
        """Fill ``view``; fewer bytes only at the end."""
        filled = 0
        try:
            while filled < len(view):
                count = self.raw.readinto(view[filled:])
                if not count:
                    break
                filled += count
        except zstandard.ZstdError as error:
            reason = str(error).removeprefix("zstd decompress error: ")
            raise DataError(
                f"{self.name}: cannot be decompressed {where}: {reason}.",
                remedy=f"The file is corrupt. {_AGAIN}",
            ) from None
        return filled

    def skip_metadata(self) -> None:
        self._metadata_bytes()

    def read_metadata(self) -> Metadata:
        version, data = self._metadata_bytes()
        try:
            return _Parser(data, version).metadata()
        except (_LyingError, struct.error, UnicodeDecodeError) as error:
            raise DataError(
                f"{self.name}: the metadata is not what DBN v{version} prescribes: {error}.",
                remedy=f"The file is corrupt. {_AGAIN}",
            ) from None

    def _metadata_bytes(self) -> tuple[int, bytearray]:
        prelude = bytearray(_PRELUDE.size)
        filled = self.fill(memoryview(prelude), "at its start")
        if not filled:
            raise DataError(
                f"{self.name}: ends before its first record: its compressed data is cut within "
                "the first block.",
                remedy=f"The file is truncated. {_AGAIN}",
            )
        magic, version, length = _PRELUDE.unpack(prelude)
        if magic != b"DBN":
            raise DataError(
                f"{self.name}: is not a DBN file: begins with {bytes(prelude[:filled])!r}, "
                "expected b'DBN'.",
                remedy="Deliver DBN files with their metadata, as Databento writes them.",
            )
        if filled == _PRELUDE.size and version not in (1, 2, 3):
            raise DataError(
                f"{self.name}: DBN version {version} is unknown, expected 1, 2 or 3.",
                remedy="Ask for version 3, or update foxhunt_pipeline.",
            )
        if filled == _PRELUDE.size and length > MAX_METADATA_BYTES:
            raise DataError(
                f"{self.name}: claims {length} bytes of metadata, at most {MAX_METADATA_BYTES} are "
                "taken.",
                remedy=f"The file is corrupt. {_AGAIN}",
            )
        data = bytearray()
        while filled == _PRELUDE.size and len(data) < length:
            piece = bytearray(min(length - len(data), 1 << 20))
            count = self.fill(memoryview(piece), "in its metadata")
            if not count:
                break
            data += piece[:count]
        if filled < _PRELUDE.size or len(data) < length:
            raise DataError(
                f"{self.name}: ends inside its metadata: {len(data)} of {length} bytes are there.",
                remedy=f"The file is truncated or corrupt. {_AGAIN}",
            )
        return version, data


def _open_stream(path: Path, name: str, source: _Hashing) -> _Stream:
    if path.stat().st_size == 0:
        raise DataError(f"{name}: is empty.", remedy=_AGAIN)
    with path.open("rb") as file:
        magic = int.from_bytes(file.read(4), "little")
    if magic & 0xFFFFFFF0 == _SKIPPABLE:
        raise DataError(
            f"{name}: is in the old DBZ format, not DBN.",
            remedy="Convert it with the dbn command-line tool, or download it again.",
        )
    if magic != _ZSTD_MAGIC:
        return _Stream(name, source)
    reader = zstandard.ZstdDecompressor().stream_reader(
        cast("BinaryIO", source), read_across_frames=True
    )
    return _Stream(name, reader)


def _check_frames(file: BinaryIO, name: str) -> None:
    """Walk the blocks of every zstd frame of a compressed file: each frame must end inside the
    file, and the file must end with a frame. zstandard's reader takes a cut frame for the end."""
    size = os.fstat(file.fileno()).st_size
    if os.pread(file.fileno(), 4, 0) != _ZSTD_MAGIC.to_bytes(4, "little"):
        return
    position = 0
    while position < size:
        start = position
        header = os.pread(file.fileno(), 8, position)
        magic = int.from_bytes(header[:4], "little")
        if magic & 0xFFFFFFF0 == _SKIPPABLE and len(header) == 8:
            position += 8 + int.from_bytes(header[4:], "little")
        elif magic == _ZSTD_MAGIC and len(header) > 4:
            position = _frame_end(file.fileno(), position, header[4], size, name)
        elif len(header) < 5:
            position = size + 1
        else:
            raise DataError(
                f"{name}: byte {position} is not the start of a zstd frame.",
                remedy=f"Something was appended, or the file is corrupt. {_AGAIN}",
            )
        if position > size:
            raise DataError(
                f"{name}: is truncated: the zstd frame that starts at byte {start} does not reach "
                f"its end within the file's {size} bytes.",
                remedy=_AGAIN,
            )


def _frame_end(descriptor: int, position: int, flags: int, size: int, name: str) -> int:
    single = flags >> 5 & 1
    position += 5 + (not single) + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6]
    last = False
    while not last and position < size:
        block = int.from_bytes(os.pread(descriptor, 3, position), "little")
        last, kind, length = bool(block & 1), block >> 1 & 3, block >> 3
        if kind == 3:
            raise DataError(
                f"{name}: the zstd block at byte {position} is of no known kind.",
                remedy=f"The file is corrupt. {_AGAIN}",
            )
        position += 3 + (1 if kind == 1 else length)
    if not last:
        return size + 1
    return position + (4 if flags >> 2 & 1 else 0)


class _LyingError(Exception):
    """Metadata claims more than it holds."""


class _Parser:
    def __init__(self, data: bytes | bytearray, version: int) -> None:
        self._data = data
        self._at = 0
        self._version = version
        self._symbol = _SYMBOL_V1

    def metadata(self) -> Metadata:
        if self._version == 1:
            dataset, schema, start, end, limit, _, stype_in, stype_out, ts_out = self._take(
                _FIXED_V1
            )
        else:
            dataset, schema, start, end, limit, stype_in, stype_out, ts_out, self._symbol = (
                self._take(_FIXED)
            )
            if not self._symbol:
                raise _LyingError("symbols have no length")
        if schema != 0xFFFF and schema not in SCHEMA_CODES:
            raise _LyingError(f"schema code {schema} is unknown")
        if self._number():
            raise _LyingError("it announces a schema definition, which no version has")
        return Metadata(
            version=self._version,
            dataset=_text(dataset),
            schema=SCHEMA_CODES.get(schema),
            start=start,
            end=None if end in (0, 2**64 - 1) else end,
            limit=limit or None,
            stype_in=_stype(stype_in),
            stype_out=_stype(stype_out),
            ts_out=bool(ts_out),
            symbols=self._texts(),
            partial=self._texts(),
            not_found=self._texts(),
            mappings=tuple(self._mapping() for _ in range(self._count(self._symbol + 4))),
        )

    def _mapping(self) -> SymbolMapping:
        symbol = self._string()
        count = self._count(8 + self._symbol)
        return SymbolMapping(
            symbol,
            tuple(Interval(self._number(), self._number(), self._string()) for _ in range(count)),
        )

    def _texts(self) -> tuple[str, ...]:
        return tuple(self._string() for _ in range(self._count(self._symbol)))

    def _count(self, size: int) -> int:
        count = self._number()
        if count * size > len(self._data) - self._at:
            raise _LyingError(f"it announces {count} entries and has not the bytes for them")
        return count

    def _string(self) -> str:
        self._at += self._symbol
        if self._at > len(self._data):
            raise _LyingError("it ends inside a symbol")
        return _text(self._data[self._at - self._symbol : self._at])

    def _number(self) -> int:
        return int.from_bytes(self._take(struct.Struct("<4s"))[0], "little")

    def _take(self, layout: struct.Struct) -> tuple[Any, ...]:
        self._at += layout.size
        return layout.unpack_from(self._data, self._at - layout.size)


def _text(data: bytes | bytearray) -> str:
    return bytes(data).split(b"\0", 1)[0].decode("utf-8")


def _stype(code: int) -> str | None:
    return _STYPES[code] if code < len(_STYPES) else None


def _to_v3(records: Records, schema: Schema) -> Records:
    """Records without ``ts_out``, and definitions of v1 and v2 as v3 has them: shared fields
    copied, undefined where an older version has no such field."""
    out = np.zeros(len(records), schema.layout)
    for field in set(records.dtype.names or ()) & set(schema.layout.names or ()):
        out[field] = records[field]
    out["length"] = schema.layout.itemsize // 4
    if schema.name == "definition" and "leg_count" not in (records.dtype.names or ()):
        out["leg_price"] = out["leg_delta"] = 2**63 - 1
        out["leg_side"] = b"N"
        out["_reserved"] = b""
    return out
