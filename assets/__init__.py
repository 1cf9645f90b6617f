"""Dagster assets: thin wrappers round the stages, one module a stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from assets.baselines import baselines
from assets.dataset import dataset
from assets.features import features
from assets.labels import labels
from assets.market import market_tables
from assets.models import model_assets
from assets.raw import raw_dbn
from assets.validated import market_validated

if TYPE_CHECKING:
    from resources.pipeline import Pipeline


def session_assets(pipeline: Pipeline) -> list[dg.AssetsDefinition]:
    """Assets partitioned by session, in the order of the graph."""
    makers = (raw_dbn, market_tables, market_validated, features, labels)
    return [make(pipeline) for make in makers]


def unpartitioned_assets(pipeline: Pipeline) -> list[dg.AssetsDefinition]:
    """The dataset, the baselines and every model's assets."""
    models = dict.fromkeys(stage.model for stage in pipeline.stages.values() if stage.model)
    return [
        dataset(pipeline),
        baselines(pipeline),
        *(asset for model in models for asset in model_assets(pipeline, model)),
    ]
