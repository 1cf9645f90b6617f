"""The stage ``features``: a session's feature matrices, one item per view and instrument.

An item ``{view}/{dataset}/{publisher_id}/{symbol}`` holds ``ts.npy`` (int64 [n], ns, when the row
is known) and ``x.npy`` (float32 [n, feature], NaN where not yet defined).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foxhunt_pipeline.artifacts import Content, Result, Task, digest_arrays
from foxhunt_pipeline.features.catalogue import catalogue, compute
from foxhunt_pipeline.market import clock
from foxhunt_pipeline.market.views import ViewSource, view_sources


def build(task: Task) -> Result:
    """Features of every instrument and view of the session. Instruments without a row (no record
    in trading hours) have no item."""
    levels = int(task.config("features")["book_levels"])
    items = []
    for source in view_sources(task):

        def write(folder: Path, source: ViewSource = source) -> Content:
            return _write(task, source, levels, folder)

        extra = {**source.facts, "levels": levels}
        items.append(task.item(source.name, source.inputs, write, extra=extra))
    items = [item for item in items if item.figures["rows"]]
    return Result(
        items,
        {
            "rows": {
                view: sum(i.figures["rows"] for i in items if i.figures["view"] == view)
                for view in dict.fromkeys(i.figures["view"] for i in items)
            }
        },
    )


def _write(task: Task, source: ViewSource, levels: int, folder: Path) -> Content:
    prints, quotes = source.prints(task), source.quotes(task, levels)
    rows: clock.Bars | clock.Book
    if source.view == "bars":
        rows = clock.bars(prints, quotes, source.hours, source.step_ns)
        n_levels = 0
    else:
        assert quotes is not None
        rows = clock.book(quotes, prints, source.hours, source.step_ns)
        n_levels = rows.n_levels
    features = catalogue(source.view, n_levels)
    x = compute(rows, features)
    arrays: dict[str, NDArray[Any]] = {"ts": rows.ts, "x": x}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    columns = [feature.name for feature in features]
    return Content(
        digest_arrays(arrays, source.view, columns, n_levels, source.step_ns),
        {
            "view": source.view,
            "dataset": source.dataset,
            "publisher_id": source.publisher_id,
            "symbol": source.symbol,
            "columns": columns,
            "rows": len(rows.ts),
            "n_levels": n_levels,
            "source": ", ".join(source.sources.schemas),
            "step_ns": source.step_ns,
            "undefined_rows": [int(n) for n in np.isnan(x).sum(axis=0)],
        },
    )
