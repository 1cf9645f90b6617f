"""What the package exports, and where each name lives.

The package finds names here when they are first used. No stage imports this module, so that
exporting one more name changes no code version.
"""

from __future__ import annotations

from collections.abc import Mapping

HOME: Mapping[str, str] = {
    "open_asset": "foxhunt_pipeline.api",
    "open_model": "foxhunt_pipeline.api",
    "open_pipeline": "foxhunt_pipeline.api",
    "open_release": "foxhunt_pipeline.api",
    "load_config": "foxhunt_pipeline.api",
    "simulate": "foxhunt_pipeline.market.simulator",
    "ForecastFamily": "foxhunt_pipeline.models.contract",
    "PolicyFamily": "foxhunt_pipeline.models.contract",
    "InputSpec": "foxhunt_pipeline.models.contract",
    "Forecast": "foxhunt_pipeline.models.contract",
    "Policy": "foxhunt_pipeline.models.contract",
    "Batch": "foxhunt_pipeline.models.contract",
    "FoxhuntError": "foxhunt_pipeline.errors",
    "AccessDeniedError": "foxhunt_pipeline.errors",
    "CheckpointError": "foxhunt_pipeline.errors",
    "CodeChangedError": "foxhunt_pipeline.errors",
    "CodeError": "foxhunt_pipeline.errors",
    "ConfigError": "foxhunt_pipeline.errors",
    "DataError": "foxhunt_pipeline.errors",
    "DeviceError": "foxhunt_pipeline.errors",
    "NotFoundError": "foxhunt_pipeline.errors",
    "PreconditionError": "foxhunt_pipeline.errors",
    "ReleaseError": "foxhunt_pipeline.errors",
    "StoreError": "foxhunt_pipeline.errors",
    "TrainingError": "foxhunt_pipeline.errors",
    "UnavailableError": "foxhunt_pipeline.errors",
    "ValidationError": "foxhunt_pipeline.errors",
    "ViewUnavailableError": "foxhunt_pipeline.errors",
}
