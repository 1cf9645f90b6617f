"""Bilinear normalisation (Tran, Kanniainen, Gabbouj & Iosifidis 2021, "Data normalization for
bilinear structures in high-frequency financial time-series")."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

EPSILON = 1e-5
"""Added to a variance, so that a constant row is normalised to zero and not to NaN."""


class BilinearNorm(nn.Module):
    """Normalise ``(batch, time, feature)`` along time and along features, and mix the two.

    Along time every feature loses its level and keeps its path; along features every instant
    keeps how its columns stand to one another. Each has an affine map of its own, and two learned
    positive numbers mix them. The mixing numbers go through a softplus, so that they train
    everywhere and never need to be reset. Constant rows or columns give finite output and
    finite gradients.
    """

    def __init__(self, n_times: int, n_features: int) -> None:
        super().__init__()
        self.gain_time = nn.Parameter(torch.ones(n_features))
        self.bias_time = nn.Parameter(torch.zeros(n_features))
        self.gain_feature = nn.Parameter(torch.ones(n_times, 1))
        self.bias_feature = nn.Parameter(torch.zeros(n_times, 1))
        self.mix = nn.Parameter(torch.full((2,), math.log(math.expm1(0.5))))  # softplus: 0.5 each

    def forward(self, x: Tensor) -> Tensor:
        along_time = _standardise(x, 1) * self.gain_time + self.bias_time  # (batch, time, feature)
        along_feature = _standardise(x, 2) * self.gain_feature + self.bias_feature
        mix = functional.softplus(self.mix)
        return mix[0] * along_time + mix[1] * along_feature


def _standardise(x: Tensor, dim: int) -> Tensor:
    var, mean = torch.var_mean(x, dim, correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(var + EPSILON)
