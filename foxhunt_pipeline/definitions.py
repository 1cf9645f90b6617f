"""Composition root: what Dagster loads.

``build`` makes the definitions of any pipeline; ``defs`` are those of the configuration found
from here. Importing this imports neither torch nor great_expectations.
"""

from __future__ import annotations

import dagster as dg

from assets import session_assets, unpartitioned_assets
from foxhunt_pipeline.automation import automation
from resources.checkpoints import PipelineCheckpoints
from resources.device import TorchDeviceResource
from resources.pipeline import Pipeline, open_pipeline


def build(pipeline: Pipeline) -> dg.Definitions:
    """The definitions of a pipeline."""
    training = pipeline.config.training
    assets = [*session_assets(pipeline), *unpartitioned_assets(pipeline)]
    built = dg.Definitions(
        assets=assets,
        resources={
            "device": TorchDeviceResource(
                device=training.device,
                require=training.require_device,
                precision=training.precision,
            ),
            "checkpoints": PipelineCheckpoints(pipeline),
        },
        executor=dg.in_process_executor,
    )
    return dg.Definitions.merge(built, automation(pipeline))


pipeline = open_pipeline()
defs = build(pipeline)
