"""Market tables for tests: real ones from DBN files, and sound synthetic ones to put faults into.

DBN is read by Databento's own client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import databento
import numpy as np
import polars as pl

from foxhunt_pipeline.artifacts import Artifact, Content, Item, Result, digest_of
from foxhunt_pipeline.market.schemas import SCHEMAS, batch_of, columns_of
from support.task import FolderTask

OPEN = 1_381_239_000 * 10**9
"""Regular open of LEAN.EQUITY on 2013-10-08: 09:30 in New York."""
SECOND = 10**9
UNIT = 10**9
"""One in the units of prices."""
TIME = pl.Datetime("ns", "UTC")


def dbn_tables(path: Path) -> Iterator[tuple[str, str, str, pl.DataFrame]]:
    """(dataset, symbol, schema, rows) of every instrument in a DBN file."""
    with path.open("rb") as file:
        store = databento.DBNStore.from_bytes(file.read())
    records = store.to_ndarray()
    schema = SCHEMAS[str(store.schema)]
    symbols = {
        int(interval["symbol"]): symbol
        for symbol, intervals in store.mappings.items()
        for interval in intervals
    }
    for instrument in np.unique(records["instrument_id"]):
        own = records[records["instrument_id"] == instrument]
        rows = pl.from_arrow(batch_of(schema, columns_of(schema, own)))
        assert isinstance(rows, pl.DataFrame)
        yield store.dataset, symbols[int(instrument)], schema.name, rows


def tables_artifact(
    folder: Path, session: str, tables: Sequence[tuple[str, str, str, pl.DataFrame]]
) -> Artifact:
    """Artifact of ``market/tables`` that holds the given tables."""
    task = FolderTask(folder, "market/tables", session)
    return task.build(lambda t: Result([_item(t, *table) for table in tables]))


def _item(task: Any, dataset: str, symbol: str, schema: str, rows: pl.DataFrame) -> Item:
    name = "/".join(quote(part, safe="") for part in (dataset, "0", symbol, schema))
    digest = digest_of(name, rows.hash_rows().to_list())
    figures = {
        "dataset": dataset,
        "publisher_id": 0,
        "instrument_id": 1,
        "symbol": symbol,
        "schema": schema,
        "rows": rows.height,
        "min_price_increment": None,
    }

    def compute(folder: Path) -> Content:
        rows.write_parquet(folder / "rows.parquet")
        return Content(digest, figures)

    item: Item = task.item(name, [digest], compute)
    return item


def put(rows: pl.DataFrame, row: int | Sequence[int], **values: Any) -> pl.DataFrame:
    """The table with other values in some rows."""
    at = pl.int_range(pl.len()).is_in([row] if isinstance(row, int) else list(row))
    return rows.with_columns(
        pl.when(at).then(pl.lit(value).cast(rows.schema[name])).otherwise(pl.col(name)).alias(name)
        for name, value in values.items()
    )


def trades(n: int = 1200) -> pl.DataFrame:
    """Sound trades, one every 20 s from the open to after the close, price 100 to 101."""
    ts = OPEN + 20 * SECOND * np.arange(n)
    return pl.DataFrame(
        {
            "ts_recv": pl.Series(ts).cast(TIME),
            "ts_event": pl.Series(ts - 1000).cast(TIME),
            "price": 100 * UNIT + (np.arange(n) * 7 % 101) * UNIT // 100,
            "size": pl.Series(1 + np.arange(n) % 5, dtype=pl.UInt32),
            "aggressor_side": pl.Series(np.arange(n) % 3 - 1, dtype=pl.Int8),
            "flags": pl.Series([128] * n, dtype=pl.UInt8),
            "sequence": pl.Series(np.arange(n), dtype=pl.UInt32),
        }
    )


def quotes(n: int = 1200, levels: int = 10) -> pl.DataFrame:
    """Sound book updates, every fourth a trade."""
    base = trades(n)
    bid = base["price"].to_numpy()
    book: Mapping[str, pl.Series] = {
        f"{side}_{field}_{level:02d}": pl.Series(
            bid + sign * UNIT // 100 * (level + (side == "ask")) if field == "px" else [5] * n,
            dtype=pl.Int64 if field == "px" else pl.UInt32,
        )
        for level in range(levels)
        for side, sign in (("bid", -1), ("ask", 1))
        for field in ("px", "sz", "ct")
    }
    action = np.where(np.arange(n) % 4 == 0, ord("T"), ord("M"))
    return base.select(
        "ts_recv",
        "ts_event",
        pl.Series("action", action, dtype=pl.UInt8),
        pl.col("aggressor_side").alias("side"),
        "price",
        "size",
        "flags",
        "sequence",
        **book,
    )


def bars(n: int = 390) -> pl.DataFrame:
    """Sound minute bars of regular hours."""
    ts = OPEN + 60 * SECOND * np.arange(n)
    close = 100 * UNIT + (np.arange(n) * 7 % 101) * UNIT // 100
    return pl.DataFrame(
        {
            "ts_event": pl.Series(ts).cast(TIME),
            "ts_close": pl.Series(ts + 60 * SECOND).cast(TIME),
            "open": close - UNIT // 100,
            "high": close + UNIT // 50,
            "low": close - UNIT // 50,
            "close": close,
            "volume": pl.Series([100] * n, dtype=pl.UInt64),
        }
    )


def definitions() -> pl.DataFrame:
    """One sound definition."""
    return pl.DataFrame(
        {
            "ts_recv": pl.Series([OPEN]).cast(TIME),
            "ts_event": pl.Series([OPEN]).cast(TIME),
            "raw_symbol": ["SPY"],
            "instrument_id": pl.Series([4], dtype=pl.UInt32),
            "min_price_increment": [UNIT // 100],
            "expiration": pl.Series([None], dtype=TIME),
        }
    )
