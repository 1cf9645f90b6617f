"""The settings of the configured models, which only their families can judge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from foxhunt_pipeline.config import ModelConfig, leaves, unknown_key
from foxhunt_pipeline.incremental.families import family_of

if TYPE_CHECKING:
    from resources.pipeline import Pipeline


def check_models(pipeline: Pipeline) -> list[str]:
    """Names of the models, once every setting of each is right.

    Raises :class:`~foxhunt_pipeline.errors.ConfigError` for a wrong one.
    """
    for _ in model_values(pipeline):
        continue
    return models(pipeline)


def models(pipeline: Pipeline) -> list[str]:
    """Names of the models that take part, in the order of the configuration."""
    return [stage.model for stage in pipeline.stages.values() if stage.name.endswith("/training")]


def model_values(pipeline: Pipeline) -> Iterator[tuple[str, Any]]:
    """(key, value) of every setting of every model's family and training loop.

    Raises :class:`~foxhunt_pipeline.errors.ConfigError` for a wrong one.
    """
    for model in models(pipeline):
        yield from leaves(_settings(pipeline, model), f"models.{model}.")


def _settings(pipeline: Pipeline, model: str) -> dict[str, Any]:
    from foxhunt_pipeline.models.contract import settings_of
    from foxhunt_pipeline.training.settings import TrainSettings, train_settings

    family = family_of(pipeline.stages[f"{model}/training"])
    given = pipeline.config.models[model].settings
    supervised = family.kind == "forecast"
    known = {f.name for f in fields(family.config)} | set(ModelConfig.model_fields)
    _check_keys(pipeline, f"models.{model}", given, known | ({"train"} if supervised else set()))
    found = asdict(settings_of(replace(family, name=model), given))
    if supervised:
        if isinstance(table := given.get("train", {}), dict):
            trained = {f.name for f in fields(TrainSettings)}
            _check_keys(pipeline, f"models.{model}.train", table, trained)
        found["train"] = asdict(train_settings(model, given))
    return found


def _check_keys(pipeline: Pipeline, table: str, given: dict[str, Any], known: set[str]) -> None:
    for name in given:
        if name not in known:
            key = f"{table}.{name}"
            raise unknown_key(key, known, pipeline.settings.origin(key))
