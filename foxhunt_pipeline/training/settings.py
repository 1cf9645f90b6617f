"""Settings of the supervised training loop: the table ``models.<name>.train``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from foxhunt_pipeline.errors import ConfigError

Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class TrainSettings:
    """How a family is trained. Rows are decision rows: one row of the view with its look-back."""

    epochs: Annotated[int, Field(ge=1)] = 10
    batch_size: Annotated[int, Field(ge=1)] = 128
    """Rows an optimizer step sees."""
    accumulation: Annotated[int, Field(ge=1)] = 1
    """Parts a batch is computed in, to save memory; the step stays the same."""
    rows_per_epoch: Annotated[int, Field(ge=0)] = 0
    """Rows drawn anew each epoch; 0 for all."""
    validation_rows: Annotated[int, Field(ge=0)] = 0
    """Rows validated on, evenly spread over the validation span; 0 for all."""
    learning_rate: Annotated[float, Field(gt=0)] = 3e-4
    """Peak of the schedule: linear warm-up, then a cosine to 0."""
    warmup_share: Share = 0.05
    """Share of the steps that warm up."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Of matrices only, never of biases, gains and other vectors."""
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    """Largest norm of the gradient."""
    patience: Annotated[int, Field(ge=1)] = 3
    """Epochs without a better validation loss before training stops."""
    ema: Share = 0.0
    """Decay of a running average of the weights, which is then what is validated and kept;
    0 for none."""


def train_settings(model: str, settings: Mapping[str, Any]) -> TrainSettings:
    """Settings from the model's ``train`` table.

    Raises :class:`ConfigError` naming a wrong key or value and listing what is allowed.
    """
    table = settings.get("train", {})
    where = f"models.{model}.train"
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} = {table!r}.", remedy="It is a table of settings.")
    allowed = [f.name for f in fields(TrainSettings)]
    for key in table:
        if key not in allowed:
            raise ConfigError(
                f"{where}.{key} is not a setting of training.",
                remedy=f"Allowed: {', '.join(sorted(allowed))}.",
            )
    try:
        return TypeAdapter(TrainSettings).validate_python(dict(table))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"{where}.{key} = {first['input']!r}: {first['msg']}.",
            remedy=f"The default is {getattr(TrainSettings, key)}.",
        ) from None
