"""Barto's pole as a batched environment with the dynamics of Gymnasium's ``CartPole-v1``."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from foxhunt_pipeline.models.learning import Observation, Step

LIMIT = 500


class CartPole:
    """Observation: the state (cart, its speed, angle, its speed). Reward 1 a step."""

    def __init__(self, n_envs: int, seed: int) -> None:
        self.n_envs = n_envs
        self.generator = torch.Generator().manual_seed(seed)
        self.reset()

    def reset(self) -> Observation:
        self.state = self._draw()
        self.age = torch.zeros(self.n_envs, dtype=torch.int64)
        return (self.state,)

    def step(self, action: Tensor) -> Step:
        final = dynamics(self.state, action)
        terminated = (final[:, 0].abs() > 2.4) | (final[:, 2].abs() > 12 * 2 * math.pi / 360)
        self.age += 1
        truncated = (self.age == LIMIT) & ~terminated
        done = terminated | truncated
        self.state = torch.where(done.unsqueeze(1), self._draw(), final)
        self.age = self.age * ~done
        return Step(torch.ones(self.n_envs), terminated, truncated, (final,), (self.state,))

    def inputs(self, observation: Observation) -> tuple[Tensor, Tensor]:
        (state,) = observation
        return state.unsqueeze(1), state.new_zeros(len(state))

    def _draw(self) -> Tensor:
        return torch.rand(self.n_envs, 4, generator=self.generator) * 0.1 - 0.05


def dynamics(state: Tensor, action: Tensor) -> Tensor:
    """(batch, 4), (batch,) -> (batch, 4): one Euler step of 20 ms."""
    x, speed, angle, spin = state.unbind(1)
    push = (action * 20 - 10 + 0.05 * spin**2 * angle.sin()) / 1.1
    twist = (9.8 * angle.sin() - angle.cos() * push) / (
        0.5 * (4 / 3 - 0.1 * angle.cos() ** 2 / 1.1)
    )
    pull = push - 0.05 * twist * angle.cos() / 1.1
    return torch.stack(
        [x + 0.02 * speed, speed + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * twist], dim=1
    )
