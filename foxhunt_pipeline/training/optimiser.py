"""AdamW as transformers are trained with it (Loshchilov & Hutter 2019; GPT-3's decay groups)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR


def adamw(module: nn.Module, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW that decays matrices and leaves vectors (biases, gains, mixes) alone."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    return torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=learning_rate,
    )


def warmup_cosine(optimizer: torch.optim.Optimizer, steps: int, warmup_share: float) -> LambdaLR:
    """Linear warm-up over the first share of the steps, then a half cosine down to 0."""
    warmup = round(steps * warmup_share)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))

    return LambdaLR(optimizer, factor)


class WeightAverage:
    """Exponential moving average of a module's weights, started quickly: step ``n`` decays by
    ``min(decay, n / (n + 9))``, so that the random start is soon forgotten."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.steps = 0
        self.weights = snapshot(module)

    def update(self, module: nn.Module) -> None:
        self.steps += 1
        decay = min(self.decay, self.steps / (self.steps + 9))
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                self.weights[name].lerp_(value, 1 - decay)
            else:
                self.weights[name].copy_(value)

    @contextmanager
    def in_place(self, module: nn.Module) -> Iterator[None]:
        """The module with the averaged weights, and its own again afterwards."""
        own = snapshot(module)
        module.load_state_dict(self.weights)
        try:
            yield
        finally:
            module.load_state_dict(own)


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    """A copy of the module's state."""
    return {name: value.detach().clone() for name, value in module.state_dict().items()}
