"""``baselines/walk_forward``: what every model must beat."""

from __future__ import annotations

from typing import Any

import dagster as dg

from assets.shown import table
from assets.stage_asset import stage_asset
from foxhunt_pipeline.incremental.build import Outcome
from resources.pipeline import Pipeline


def baselines(pipeline: Pipeline) -> dg.AssetsDefinition:
    """The asset of a pipeline."""
    return stage_asset(pipeline, "baselines/walk_forward", describe=_describe)


def _describe(pipeline: Pipeline, outcome: Outcome) -> dict[str, Any]:
    cards = {
        name: item for name, item in outcome.artifact.items.items() if name.startswith("scorecard/")
    }
    return {
        "baselines": table(
            {"view": name.partition("/")[2], "baseline": who} | _flat(found["overall"])
            for name, item in cards.items()
            for who, found in item.figures.items()
        )
    }


def _flat(figures: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in figures.items() if not isinstance(value, dict | list)}
