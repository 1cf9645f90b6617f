"""``market/tables``: decoded tables by instrument."""

from __future__ import annotations

from typing import Any

import dagster as dg

from assets.shown import table
from assets.stage_asset import stage_asset
from foxhunt_pipeline.incremental.build import Outcome
from resources.pipeline import Pipeline

_SHOWN = ("dataset", "publisher_id", "symbol", "schema", "rows")


def market_tables(pipeline: Pipeline) -> dg.AssetsDefinition:
    """The asset of a pipeline."""
    return stage_asset(pipeline, "market/tables", describe=_describe)


def _describe(pipeline: Pipeline, outcome: Outcome) -> dict[str, Any]:
    items = outcome.artifact.items.values()
    return {
        "rows": sum(int(item.figures["rows"]) for item in items),
        "tables": table({key: item.figures[key] for key in _SHOWN} for item in items),
    }
