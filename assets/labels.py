"""``labels``: what came after each row of a view's clock."""

from __future__ import annotations

from typing import Any

import dagster as dg

from assets.shown import table
from assets.stage_asset import stage_asset
from foxhunt_pipeline.incremental.build import Outcome
from resources.pipeline import Pipeline


def labels(pipeline: Pipeline) -> dg.AssetsDefinition:
    """The asset of a pipeline."""
    return stage_asset(pipeline, "labels", describe=_describe)


def _describe(pipeline: Pipeline, outcome: Outcome) -> dict[str, Any]:
    items = outcome.artifact.items
    return {
        "rows": sum(int(item.figures["rows"]) for item in items.values()),
        "labels": table(
            {
                "item": name,
                "rows": item.figures["rows"],
                "horizons": item.figures["horizons"],
                "labelled": item.figures["labelled"],
                "fills": "at quotes" if item.figures["has_quotes"] else "at trades",
            }
            for name, item in items.items()
        ),
    }
