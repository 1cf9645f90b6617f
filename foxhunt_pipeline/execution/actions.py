"""What an agent may ask for: exposure level x order type x urgency.

Actions are numbered row-major over the three factors, so that a policy's logits are one flat
vector and each factor can be read back. ``Buy``/``Sell``/``Hold`` is only their projection
given the exposure held.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor, nn


class OrderType(Enum):
    MARKET = "market"


class Urgency(Enum):
    IMMEDIATE = "immediate"


class Side(Enum):
    SELL = -1
    HOLD = 0
    BUY = 1


@dataclass(frozen=True)
class Action:
    """Bring the exposure to ``exposure`` (in lots, see :mod:`.fills`) by such an order."""

    exposure: float
    order: OrderType
    urgency: Urgency

    def side(self, held: float) -> Side:
        """The projection: which way this action trades when ``held`` is the exposure held."""
        change = self.exposure - held
        return Side((change > 0) - (change < 0))


@dataclass(frozen=True)
class ActionSpace:
    """The factored space, and the numbering of its actions."""

    exposures: tuple[float, ...] = (-1.0, -0.5, 0.0, 0.5, 1.0)
    orders: tuple[OrderType, ...] = (OrderType.MARKET,)
    urgencies: tuple[Urgency, ...] = (Urgency.IMMEDIATE,)

    def __len__(self) -> int:
        return len(self.exposures) * len(self.orders) * len(self.urgencies)

    def __getitem__(self, index: int) -> Action:
        """The action of a number in [0, len); IndexError outside."""
        if not 0 <= index < len(self):
            raise IndexError(f"action {index} of {len(self)}")
        rest, urgency = divmod(index, len(self.urgencies))
        exposure, order = divmod(rest, len(self.orders))
        return Action(self.exposures[exposure], self.orders[order], self.urgencies[urgency])

    def index(self, action: Action) -> int:
        """The number of an action; ValueError if the space does not hold it."""
        exposure = self.exposures.index(action.exposure)
        order = self.orders.index(action.order)
        urgency = self.urgencies.index(action.urgency)
        return (exposure * len(self.orders) + order) * len(self.urgencies) + urgency

    def exposure_table(self, device: torch.device | str = "cpu") -> Tensor:
        """(action,) float32: the exposure that each action asks for."""
        return torch.tensor([self[i].exposure for i in range(len(self))], device=device)


@torch.no_grad()
def act(module: nn.Module, x: Tensor, position: Tensor) -> Tensor:
    """(batch,) int64: the action of greatest probability, the lowest number among equals.

    module: a policy family's module, mapping (x, position) to a Policy; x: (batch, time,
    feature) scaled; position: (batch,) exposure held.
    """
    policy = module(x, position)
    actions: Tensor = policy.logits.argmax(dim=-1)
    return actions
