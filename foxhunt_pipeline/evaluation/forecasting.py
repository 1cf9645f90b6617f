"""A trained model's forecasts of a split's rows, as expected returns and class probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foxhunt_pipeline.datasets.reader import Split
from foxhunt_pipeline.models.contract import Forecast, device_of
from foxhunt_pipeline.training.rebuild import Forecaster

Floats = NDArray[np.floating]
BATCH = 1024
"""Rows forecast at once."""


@dataclass(frozen=True)
class Forecasts:
    """What a model says of some rows: expected log returns (row, horizon), or probabilities of
    down, flat and up (row, horizon, 3), or both."""

    expected: Floats | None
    probabilities: Floats | None


def forecast(model: Forecaster, split: Split, rows: NDArray[np.int64]) -> Forecasts:
    """Forecast rows of ``split.rows(model.config.context, labelled=False)``."""
    device = device_of(model.module)
    context = model.config.context
    expected: list[Tensor] = []
    probabilities: list[Tensor] = []
    for start in range(0, len(rows), BATCH):
        x = torch.from_numpy(split.gather(rows[start : start + BATCH], context)).to(device)
        said = model(x)
        mean = _mean(said)
        if mean is not None:
            expected.append(mean.double().cpu())
        if said.probabilities is not None:
            probabilities.append(said.probabilities.double().cpu())
    return Forecasts(
        expected=torch.cat(expected).numpy() if expected else None,
        probabilities=torch.cat(probabilities).numpy() if probabilities else None,
    )


def _mean(said: Forecast) -> Tensor | None:
    """The point, or else the mean of the quantiles: each stands for the levels nearest to it."""
    if said.point is not None or said.quantiles is None:
        return said.point
    levels = torch.tensor(said.levels, dtype=said.quantiles.dtype, device=said.quantiles.device)
    middles = (levels[1:] + levels[:-1]) / 2
    edges = torch.cat([middles.new_zeros(1), middles, middles.new_ones(1)])
    return said.quantiles @ edges.diff()


def expected_returns(
    model: Forecaster, split: Split, rows: NDArray[np.int64], validation: Split
) -> Forecasts:
    """Forecasts that have expected returns whatever the model says.

    Of a model that only knows classes they are ``slope · (p_up - p_down)``, the slope of each
    horizon being that of the least squares line through the origin over the validation rows,
    and 0 where it would be negative.
    """
    said = forecast(model, split, rows)
    if said.expected is not None or said.probabilities is None:
        return said
    known = validation.rows(model.config.context)
    before = forecast(model, validation, known).probabilities
    slope = np.zeros(split.n_horizons)
    if before is not None:
        lean, y = _lean(before), validation.take("y", known).astype(np.float64)
        power = np.sum(lean**2, axis=0)
        slope = np.maximum(np.sum(lean * y, axis=0), 0) / np.where(power > 0, power, 1.0)
    return Forecasts(slope * _lean(said.probabilities), said.probabilities)


def _lean(probabilities: Floats) -> Floats:
    return probabilities[..., 2] - probabilities[..., 0]
