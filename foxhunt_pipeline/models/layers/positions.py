"""Sinusoidal positions (Vaswani et al. 2017, section 3.5)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sinusoidal(length: int, dim: int) -> Tensor:
    """(length, dim): sine and cosine of the position in turn, wavelengths from 2 pi to 20000 pi.

    An odd ``dim`` ends with a sine.
    """
    position = torch.arange(length).unsqueeze(1)  # (length, 1)
    wave = torch.exp(torch.arange(0, dim, 2) * (-math.log(10_000.0) / dim))  # (ceil(dim / 2),)
    angle = position * wave  # (length, ceil(dim / 2))
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1)[:, :dim]
