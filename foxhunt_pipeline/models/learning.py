"""What a reinforcement learner is given, and what it gives back.

The learner of a policy family is built as ``learner(config, module, environment, generator)``
and keeps :class:`Learner`; the environment keeps :class:`Environment`. Neither knows more of
the other, so that the same learner balances a pole and trades a market.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

Observation = tuple[Tensor, ...]
"""A compact observation, each tensor (environment, ...): what a learner stores.
:meth:`Environment.inputs` makes of it what a module reads."""


@dataclass(frozen=True)
class Step:
    """What actions led to, in every environment at once.

    ``final`` is the observation that the action led to; ``observation`` is the one to act on
    next, which is the first of a new episode where this one ended. Whoever values the future of
    a *truncated* episode values ``final``; a *terminated* one has none. Never both.
    """

    reward: Tensor
    """(environment,) float32."""
    terminated: Tensor
    """(environment,) bool."""
    truncated: Tensor
    """(environment,) bool."""
    final: Observation
    observation: Observation


class Environment(Protocol):
    """Many episodes side by side, which reset themselves."""

    def reset(self) -> Observation:
        """Start an episode in every environment."""
        ...

    def step(self, action: Tensor) -> Step:
        """Take actions, (environment,) int64."""
        ...

    def inputs(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """x (batch, time, feature) and position (batch,) of observations of any batch size."""
        ...


class Learner(Protocol):
    """A family's update rule at work on one module in one environment."""

    env_steps: int
    """Steps taken so far, of all environments together."""
    gradient_steps: int

    def update(self) -> Mapping[str, float]:
        """Gather experience and learn from it, once.

        Returns at least ``loss``, ``entropy``, ``kl``, ``reward`` (mean of a step, in reward
        units), ``gradient_norm`` (before clipping) and ``learning_rate``.
        """
        ...


class PolicyConfig(Protocol):
    """The settings that every policy family has, which say in what world it learns."""

    @property
    def context(self) -> int:
        """Rows of look-back."""
        ...

    @property
    def n_envs(self) -> int:
        """Episodes side by side."""
        ...

    @property
    def episode_rows(self) -> int:
        """Rows after which an episode is truncated."""
        ...

    @property
    def risk_aversion(self) -> float:
        """Of the reward's quadratic utility, per basis point."""
        ...

    @property
    def total_steps(self) -> int:
        """Environment steps to train for, of all environments together."""
        ...
