"""Following a policy through a split, greedily and from flat to flat in every segment."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from foxhunt_pipeline.execution.actions import ActionSpace, act
from foxhunt_pipeline.execution.environment import World
from foxhunt_pipeline.execution.fills import Fill, Floats, backtest, fill


@dataclass(frozen=True)
class Rollout:
    """What a policy did, per decision row of the split."""

    rows: NDArray[np.int64]
    """Row numbers in the split, ascending."""
    targets: Floats
    """Exposure asked for, in lots. What was reached is ``outcome.position``."""
    outcome: Fill[Floats]


@torch.no_grad()
def follow(module: nn.Module, world: World, space: ActionSpace | None = None) -> Rollout:
    """Walk all lanes of the world side by side, taking the greatest action at every row.

    The walk is the same for the same module and world; P&L is booked in float64.
    """
    device = world.table.device
    exposures = (space or ActionSpace()).exposure_table(device)
    lengths = torch.tensor([len(lane.rows) for lane in world.lanes], dtype=torch.int64)
    lanes = lengths.argsort(descending=True, stable=True)
    first = torch.tensor([lane.first for lane in world.lanes], dtype=torch.int64)[lanes].to(device)
    asked = torch.zeros(int(lengths.max()) if len(lengths) else 0, len(lengths), device=device)
    position = torch.zeros(len(lengths), device=device)
    alive = (lengths[lanes] > torch.arange(len(asked)).unsqueeze(1)).sum(dim=1).tolist()
    was_training = module.training
    module.eval()
    for t, n in enumerate(alive):
        row = first[:n] + t
        asked[t, :n] = exposures[act(module, world.windows(row), position[:n])]
        position = fill(world.at(row), position[:n], asked[t, :n]).position
    module.train(was_training)
    by_lane = asked[:, lanes.argsort().to(device)].T.double().cpu().numpy()
    targets = [row[: len(lane.rows)] for row, lane in zip(by_lane, world.lanes, strict=True)]
    fills = [backtest(lane.values, row) for row, lane in zip(targets, world.lanes, strict=True)]
    names = [f.name for f in fields(Fill)]
    return Rollout(
        rows=np.concatenate([np.empty(0, np.int64), *(lane.rows for lane in world.lanes)]),
        targets=np.concatenate([np.empty(0), *targets]),
        outcome=Fill(
            *(np.concatenate([np.empty(0), *(getattr(f, name) for f in fills)]) for name in names)
        ),
    )
