"""``dataset``: sessions used and left out, and the walk-forward windows."""

from __future__ import annotations

from typing import Any

import dagster as dg

from assets.shown import plot, table
from assets.stage_asset import stage_asset
from foxhunt_pipeline.incremental.build import Outcome
from resources.pipeline import Pipeline


def dataset(pipeline: Pipeline) -> dg.AssetsDefinition:
    """The asset of a pipeline."""
    return stage_asset(pipeline, "dataset", describe=_describe)


def _describe(pipeline: Pipeline, outcome: Outcome) -> dict[str, Any]:
    import json

    from foxhunt_pipeline.datasets.manifest import DatasetManifest
    from foxhunt_pipeline.evaluation.figures import window_bars, windows

    path = pipeline.memo.path(outcome.artifact.items["manifest"], "manifest.json")
    manifest = DatasetManifest.from_json(json.loads(path.read_text(encoding="utf-8")))
    metadata: dict[str, Any] = {
        "sessions": len(manifest.sessions),
        "left_out": table({"session": s, "reason": r} for s, r in manifest.left_out.items()),
        "windows": table(
            {"window": w.name, "view": view, **w.views[view].rows}
            for view in manifest.views
            for w in manifest.windows_of(view)
        ),
    }
    for view in manifest.views:
        picture = windows(
            manifest.sessions, window_bars(manifest, view), f"Walk-forward windows, {view} view"
        )
        metadata[f"windows_{view}"] = plot(picture, f"walk-forward windows of the {view} view")
    return metadata
