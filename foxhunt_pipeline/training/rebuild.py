"""From a checkpoint back to a model, by the file alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from foxhunt_pipeline.checkpoints.format import Checkpoint, Header
from foxhunt_pipeline.errors import CheckpointError
from foxhunt_pipeline.models.contract import (
    Family,
    Forecast,
    ForecastFamily,
    InputSpec,
    PolicyFamily,
    settings_of,
)


def input_spec_of(header: Header) -> InputSpec:
    """What the checkpoint's model is given."""
    return InputSpec(
        view=header.view,  # type: ignore[arg-type]
        columns=header.columns,
        horizons=header.horizons,
        n_levels=header.extra.get("n_levels", 0),
    )


def module_from(
    checkpoint: Checkpoint, family: Family, device: torch.device | str = "cpu"
) -> nn.Module:
    """The checkpoint's module, on the device, in evaluation mode.

    Raises :class:`~foxhunt_pipeline.errors.CheckpointError` if the checkpoint is of another
    family, or its tensors are not those of the module that its configuration describes.
    """
    header = checkpoint.header
    if header.family != family.name:
        raise CheckpointError(
            f"The checkpoint is of family {header.family}, not {family.name}.",
            remedy="Load it with the family that trained it.",
        )
    config = settings_of(family, header.config)
    spec = input_spec_of(header)
    device = torch.device(device)
    cuda = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda), device:
        if isinstance(family, PolicyFamily):
            module = family.build(config, spec, header.extra["n_actions"])
        else:
            module = family.build(config, spec)
    try:
        module.load_state_dict(checkpoint.tensors)
    except RuntimeError as error:
        raise CheckpointError(
            f"The checkpoint does not fit {family.name}: {error}.",
            remedy="Load it with the version of the code that trained it, or train again.",
        ) from None
    return module.eval()


@dataclass(frozen=True)
class Forecaster:
    """A supervised model ready for use: scaled look-back in, forecast in log return out."""

    module: nn.Module
    family: ForecastFamily
    config: Any
    target_scale: Tensor
    """(horizon,): log return of one unit of the module's output."""

    @torch.inference_mode()
    def __call__(self, x: Tensor) -> Forecast:
        """x: (batch, time, feature), scaled, on the module's device."""
        forecast = self.family.predict(self.config, self.module(x))
        point, quantiles = forecast.point, forecast.quantiles
        return Forecast(
            point=None if point is None else point * self.target_scale,
            quantiles=None if quantiles is None else quantiles * self.target_scale[:, None],
            levels=forecast.levels,
            probabilities=forecast.probabilities,
        )


def forecaster(
    checkpoint: Checkpoint, family: ForecastFamily, device: torch.device | str = "cpu"
) -> Forecaster:
    """The checkpoint's model with its configuration and unit of return.

    Raises what :func:`module_from` raises.
    """
    module = module_from(checkpoint, family, device)
    return Forecaster(
        module=module,
        family=family,
        config=settings_of(family, checkpoint.header.config),
        target_scale=torch.tensor(checkpoint.header.extra["target_scale"], device=device),
    )
