"""``raw/dbn``: the files that cover a session."""

from __future__ import annotations

from typing import Any

import dagster as dg

from assets.shown import table
from assets.stage_asset import stage_asset
from foxhunt_pipeline.incremental.build import Outcome
from resources.pipeline import Pipeline

_SHOWN = ("file", "schema", "dataset", "records", "sha256")


def raw_dbn(pipeline: Pipeline) -> dg.AssetsDefinition:
    """The asset of a pipeline."""
    return stage_asset(pipeline, "raw/dbn", describe=_describe)


def _describe(pipeline: Pipeline, outcome: Outcome) -> dict[str, Any]:
    files = [
        {"file": name, "sha256": item.digest[:16]}
        | {key: item.figures[key] for key in _SHOWN if key in item.figures}
        for name, item in outcome.artifact.items.items()
    ]
    return {"files": len(files), "manifest": table(files)}
