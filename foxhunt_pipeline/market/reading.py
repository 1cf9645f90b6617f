"""Reading tables: by instrument, with or without what validation quarantined."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from foxhunt_pipeline.artifacts import Artifact, Item, Task

Instrument = tuple[str, int, str]
"""Dataset, publisher id and symbol."""

ROWS = "rows.parquet"
QUARANTINE = "quarantine.parquet"


def instruments(artifact: Artifact) -> dict[Instrument, dict[str, Item]]:
    """Table items of ``market/tables`` by instrument and schema, in order of name."""
    found: dict[Instrument, dict[str, Item]] = {}
    for item in sorted(artifact.items.values(), key=lambda item: item.name):
        figures = item.figures
        key = (figures["dataset"], figures["publisher_id"], figures["symbol"])
        found.setdefault(key, {})[figures["schema"]] = item
    return found


def read_table(task: Task, item: Item, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """Rows of a table as delivered, in order of time."""
    return pl.read_parquet(task.path(item, ROWS), columns=list(columns) if columns else None)


def clean_table(
    task: Task, table: Item, validated: Item, columns: Sequence[str] | None = None
) -> pl.DataFrame:
    """Rows of a table without those that its validation quarantined."""
    rows = read_table(task, table, columns)
    bad = pl.read_parquet(task.path(validated, QUARANTINE), columns=["row"])["row"].unique()
    if bad.is_empty():
        return rows
    keep = ~pl.int_range(len(rows), dtype=pl.UInt32, eager=True).is_in(bad.implode())
    return rows.filter(keep)
