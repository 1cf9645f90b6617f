"""``features``: what is known at each row of a view's clock."""

from __future__ import annotations

from typing import Any

import dagster as dg
import numpy as np

from assets.shown import plot, table
from assets.stage_asset import stage_asset
from foxhunt_pipeline.artifacts import Item
from foxhunt_pipeline.incremental.build import Outcome
from resources.pipeline import Pipeline

_SAMPLE = 20_000


def features(pipeline: Pipeline) -> dg.AssetsDefinition:
    """The asset of a pipeline."""
    return stage_asset(pipeline, "features", describe=_describe)


def _describe(pipeline: Pipeline, outcome: Outcome) -> dict[str, Any]:
    items = list(outcome.artifact.items.values())
    metadata: dict[str, Any] = {
        "rows": sum(int(item.figures["rows"]) for item in items),
        "matrices": table(
            {
                "view": item.figures["view"],
                "symbol": item.figures["symbol"],
                "rows": item.figures["rows"],
                "columns": len(item.figures["columns"]),
                "source": item.figures["source"],
            }
            for item in items
        ),
    }
    for view in dict.fromkeys(item.figures["view"] for item in items):
        first = next(item for item in items if item.figures["view"] == view)
        metadata[f"distribution_{view}"] = plot(
            _distribution(pipeline, first, outcome.artifact.partition or ""),
            f"distribution of the {view} features",
        )
    return metadata


def _distribution(pipeline: Pipeline, item: Item, session: str) -> bytes:
    """Each feature of one instrument, scaled by its own spread so that all fit one axis: the
    interquartile range, or the standard deviation of one that hardly ever moves."""
    from foxhunt_pipeline.evaluation.figures import distributions

    x = np.load(pipeline.memo.path(item, "x.npy"), mmap_mode="r")
    x = np.asarray(x[:: max(1, len(x) // _SAMPLE)], dtype=np.float64)
    known = np.where(np.isfinite(x), x, np.nan)
    empty = np.isnan(known).all(axis=0)
    known[:, empty] = 0.0
    low, middle, high = np.nanquantile(known, [0.25, 0.5, 0.75], axis=0)
    deviation = np.nanstd(known, axis=0)
    spread = np.where(high - low > deviation / 4, high - low, deviation)
    scaled = (known - middle) / np.where(spread > 0, spread, 1.0)
    scaled[:, empty] = np.nan
    title = f"{item.figures['symbol']} {item.figures['view']} features, {session}"
    return distributions(item.figures["columns"], scaled, title, "in units of its spread")
