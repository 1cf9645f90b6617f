"""Rows of a book view with a known answer: what the best possible forecast loses is known.

Columns are autoregressive; the return at each horizon is a known share of one column, the
imbalance, plus Gaussian noise. Share 0 is a martingale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foxhunt_pipeline.models.contract import Batch, InputSpec

LEVEL = ("lob_ask_px_00", "lob_ask_sz_00", "lob_bid_px_00", "lob_bid_sz_00")
SPEC = InputSpec(
    view="book", columns=(*LEVEL, "spread_bps", "imbalance", "ofi"), horizons=(5, 20), n_levels=1
)
THRESHOLD = 0.43
"""Thirds of a standard normal, about."""


@dataclass
class Planted:
    """Keeps :class:`foxhunt_pipeline.training.inputs.Rows`."""

    n: int
    context: int
    shares: tuple[float, ...]
    """R² of the best forecast, one a horizon."""
    seed: int
    sign: float = 1.0

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        n = self.n + self.context - 1
        x = np.empty((n, SPEC.n_features), np.float32)
        x[0] = random.standard_normal(SPEC.n_features)
        shocks = random.standard_normal(x.shape) * 0.6
        for t in range(1, n):
            x[t] = 0.8 * x[t - 1] + shocks[t]
        self.x = x
        signal = self.sign * x[self.context - 1 :, SPEC.columns.index("imbalance")]
        share = np.array(self.shares)
        self.mean = (np.sqrt(share) * signal[:, None]).astype(np.float32)
        self.noise = np.sqrt(1 - share)
        self.y = (self.mean + self.noise * random.standard_normal(self.mean.shape)).astype(
            np.float32
        )
        self.trend = 1 + (self.y > THRESHOLD).astype(np.int64) - (self.y < -THRESHOLD)

    def __len__(self) -> int:
        return self.n

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        window = rows[:, None] + np.arange(self.context)
        return Batch(
            x=torch.from_numpy(self.x[window]),
            y=torch.from_numpy(self.y[rows]),
            trend=torch.from_numpy(self.trend[rows]),
            weight=torch.ones(len(rows)),
        )

    def describe(self, rows: NDArray[np.int64]) -> str:
        return f"{len(rows)} planted rows from {rows[0]}"

    def everything(self) -> Batch:
        return self.batch(np.arange(self.n))

    def best(self) -> tuple[Tensor, Tensor]:
        """Conditional mean (row, horizon) and class log-probabilities (row, horizon, 3)."""
        mean = torch.from_numpy(self.mean)
        noise = torch.from_numpy(self.noise.astype(np.float32))
        down = _cdf((-THRESHOLD - mean) / noise)
        up = _cdf((mean - THRESHOLD) / noise)
        return mean, torch.stack((down, 1 - down - up, up), -1).clamp_min(1e-9).log()

    def unconditional(self) -> tuple[Tensor, Tensor]:
        """Mean and class log-probabilities that ignore the input."""
        tail = 0.5 * math.erfc(THRESHOLD / math.sqrt(2))
        classes = torch.tensor([tail, 1 - 2 * tail, tail]).log()
        return torch.zeros(self.y.shape), classes.expand(*self.y.shape, 3)


def _cdf(z: Tensor) -> Tensor:
    return 0.5 * torch.erfc(-z / math.sqrt(2))


@dataclass(frozen=True)
class Losses:
    """Of each row: (row,), means over the horizons."""

    squared: Tensor
    logarithmic: Tensor


def losses(point: Tensor, log_probabilities: Tensor, planted: Planted) -> Losses:
    """Proper losses of a forecast of all rows: (row, horizon) and (row, horizon, 3)."""
    trend = torch.from_numpy(planted.trend).unsqueeze(-1)
    return Losses(
        squared=(point - torch.from_numpy(planted.y)).square().mean(1),
        logarithmic=-log_probabilities.gather(-1, trend).squeeze(-1).mean(1),
    )
