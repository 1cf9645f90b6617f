"""The stage ``labels``: what came after each feature row, and what trading at it would have met.

An item has the name and the rows of its feature item:

* ``ts.npy`` int64 [n], ns;
* ``y.npy`` float32 [n, horizon], log return of the mark from the row to the horizon, NaN where
  there is none;
* ``smooth.npy`` float32 [n, horizon], smoothed log return, from which trend classes are judged;
* ``end_ts.npy`` int64 [n, horizon], when the label is known, ns; -1 where it would lie beyond the
  session's last row;
* ``px.npy`` int64 [n, 6] of 1e-9: bid, ask, buy fill, sell fill, mark, next mark; -1 where none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foxhunt_pipeline.artifacts import Content, Result, Task, digest_arrays
from foxhunt_pipeline.labels.returns import end_times, forward_returns, smoothed_returns
from foxhunt_pipeline.market import clock
from foxhunt_pipeline.market.tape import Ints
from foxhunt_pipeline.market.views import ViewSource, view_sources

MARK = 4
"""Column of ``px`` that holds the mark."""


def build(task: Task) -> Result:
    """Labels of every instrument and view of the session that has feature rows."""
    settings = task.config("labels")
    items = []
    for source in view_sources(task):
        horizons = list(settings[f"{source.view}_horizons"])

        def write(
            folder: Path, source: ViewSource = source, horizons: Sequence[int] = horizons
        ) -> Content:
            return _write(task, source, horizons, folder)

        extra = {**source.facts, "horizons": horizons}
        items.append(task.item(source.name, source.inputs, write, extra=extra))
    return Result([item for item in items if item.figures["rows"]])


def _write(task: Task, source: ViewSource, horizons: Sequence[int], folder: Path) -> Content:
    ts, px = _prices(task, source)
    mark = px[:, MARK]
    y = forward_returns(mark, horizons).astype(np.float32)
    arrays: dict[str, NDArray[Any]] = {
        "ts": ts,
        "y": y,
        "smooth": smoothed_returns(mark, horizons).astype(np.float32),
        "end_ts": end_times(ts, horizons),
        "px": px,
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    has_quotes = source.sources.quotes is not None
    return Content(
        digest_arrays(arrays, source.view, list(horizons), has_quotes),
        {
            "view": source.view,
            "rows": len(ts),
            "horizons": list(horizons),
            "labelled": [int(n) for n in np.isfinite(y).sum(axis=0)],
            "has_quotes": has_quotes,
        },
    )


def _prices(task: Task, source: ViewSource) -> tuple[Ints, Ints]:
    prints, quotes = source.prints(task), source.quotes(task, levels=1)
    if source.view == "bars":
        bars = clock.bars(prints, quotes, source.hours, source.step_ns)
        return bars.ts, clock.bars_prices(bars, prints, quotes, source.step_ns)
    assert quotes is not None
    book = clock.book(quotes, prints, source.hours, source.step_ns)
    return book.ts, clock.book_prices(book)
