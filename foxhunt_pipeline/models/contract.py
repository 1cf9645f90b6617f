"""The contract every model family keeps.

A family's file reads top to bottom: docstring (paper, what it is, shapes), a frozen config
dataclass with the paper's defaults, the module, its loss, and last ``FAMILY``, an instance of
:class:`ForecastFamily` or :class:`PolicyFamily`. The training loops, the evaluation and the
releases know families only through these two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

View = Literal["bars", "book", "panel"]


@dataclass(frozen=True)
class InputSpec:
    """What a model is given: ``(batch, time, feature)`` with these columns, in this order."""

    view: View
    columns: tuple[str, ...]
    horizons: tuple[int, ...]
    """Forecast horizons in rows of the view's clock."""
    n_levels: int = 0
    """Levels of the book in the ``lob_*`` columns; 0 where the view has no book."""

    @property
    def n_features(self) -> int:
        return len(self.columns)


@dataclass(frozen=True)
class Forecast:
    """Forecast of log returns, one column a horizon. At least one of the three is given.

    point: (batch, horizon), in log return.
    quantiles: (batch, horizon, quantile) at ``levels``, in log return, non-decreasing.
    probabilities: (batch, horizon, 3) of down, flat, up; rows sum to 1.
    """

    point: Tensor | None = None
    quantiles: Tensor | None = None
    levels: tuple[float, ...] = ()
    probabilities: Tensor | None = None


@dataclass(frozen=True)
class Policy:
    """Distribution over actions. logits: (batch, action); value: (batch,) in reward units."""

    logits: Tensor
    value: Tensor


@dataclass(frozen=True)
class Batch:
    """Training rows. x: (batch, time, feature) scaled; y: (batch, horizon) log returns;
    trend: (batch, horizon) int64 in {0 down, 1 flat, 2 up}, -1 where there is no label;
    weight: (batch,)."""

    x: Tensor
    y: Tensor
    trend: Tensor
    weight: Tensor


@dataclass(frozen=True)
class ForecastFamily:
    """A supervised family."""

    name: str
    view: View
    config: type[Any]
    """Frozen dataclass. Must have ``context`` (rows of look-back)."""
    build: Callable[[Any, InputSpec], nn.Module]
    loss: Callable[[Any, Tensor, Batch], Tensor]
    """(config, module output, batch) -> scalar loss, mean over labelled rows."""
    predict: Callable[[Any, Tensor], Forecast]
    """(config, module output) -> Forecast."""
    kind: Literal["forecast"] = "forecast"


@dataclass(frozen=True)
class PolicyFamily:
    """A reinforcement-learning family."""

    name: str
    view: View
    config: type[Any]
    """Frozen dataclass. Must have ``context`` (rows of look-back)."""
    build: Callable[[Any, InputSpec, int], nn.Module]
    """(config, spec, n_actions) -> module mapping (x, position) to Policy, where x is
    (batch, time, feature) and position (batch,) the exposure held, in [-1, 1]."""
    learner: Callable[..., Any]
    """The family's own update rule; the loop in ``training/reinforcement.py`` drives it."""
    kind: Literal["policy"] = "policy"


Family = ForecastFamily | PolicyFamily


def settings_of(family: Family, settings: Mapping[str, Any]) -> Any:
    """The family's config from its settings (without the ``train`` table, which belongs to
    the training loop).

    Raises :class:`~foxhunt_pipeline.errors.ConfigError` naming a wrong key or value and
    listing what is allowed.
    """
    from dataclasses import fields

    from pydantic import TypeAdapter
    from pydantic import ValidationError as PydanticError

    from foxhunt_pipeline.errors import ConfigError

    allowed = {f.name: f.type for f in fields(family.config)}
    settings = {key: value for key, value in settings.items() if key != "train"}
    for key in settings:
        if key not in allowed:
            raise ConfigError(
                f"models.{family.name}.{key} is not a setting of the family.",
                remedy=f"Allowed: {', '.join(sorted(allowed))}.",
            )
    try:
        return TypeAdapter(family.config).validate_python(dict(settings))
    except PydanticError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"models.{family.name}.{key} = {first['input']!r}: {first['msg']}.",
            remedy=f"Expected {allowed.get(key, 'another value')}.",
        ) from None


def parameter_count(module: nn.Module) -> int:
    """Number of scalar parameters."""
    return sum(p.numel() for p in module.parameters())


def device_of(module: nn.Module) -> torch.device:
    """The device of the module's parameters."""
    return next(module.parameters()).device
