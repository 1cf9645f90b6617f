"""An incremental machine-learning pipeline for Databento market data.

>>> import foxhunt_pipeline as fx
>>> fx.open_asset("features", session="2024-01-02")  # doctest: +SKIP
>>> fx.open_release("tlob")  # doctest: +SKIP

Names are imported when they are first used: importing the package is cheap, and a stage's code
version does not depend on what is exported here.
"""

from __future__ import annotations

import importlib
import time
from typing import Any, Final

STARTED_NS: Final = time.time_ns()
"""When this process began to load the package, UTC nanoseconds. A source file saved later may
not be the one that was imported."""

_HOME = {
    "open_asset": "foxhunt_pipeline.api",
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

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
