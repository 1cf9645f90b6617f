"""The market as a batched environment: one tensor program, no loop over environments.

A :class:`World` holds the rows of a window's split on a device: features in one matrix, and per
decision row what holding and trading is worth (:mod:`.fills`). An episode starts flat at a random
row and walks forward in its segment. It *terminates* at the segment's last tradable row, where the
fill model closes the position, and is *truncated* after ``episode_rows`` rows, where the position
stands and has a future.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foxhunt_pipeline.datasets.reader import Split
from foxhunt_pipeline.execution.actions import ActionSpace
from foxhunt_pipeline.execution.costs import BPS, Costs
from foxhunt_pipeline.execution.fills import A, Floats, Rows, fill, value
from foxhunt_pipeline.models.learning import Observation, Step


@dataclass(frozen=True)
class Lane:
    """One segment's decision rows, which stand one after the other in the world."""

    first: int
    """World row of the first."""
    rows: NDArray[np.int64]
    """Row numbers in the split."""
    values: Rows[Floats]


@dataclass(frozen=True)
class World:
    """A split on a device. World rows number windows of ``context`` rows by where they begin."""

    features: Tensor
    """(row, feature) float32: scaled, look-back included."""
    table: Tensor
    """(row, 7) float32: the fields of :class:`~.fills.Rows`; 0 where no decision is made."""
    lanes: tuple[Lane, ...]
    context: int

    @classmethod
    def of(
        cls, split: Split, context: int, costs: Costs, device: torch.device | str = "cpu"
    ) -> World:
        """Lay out a split. A segment with fewer than ``context`` rows by its end has no lane."""
        features = [np.empty((0, split.n_features), np.float32)]
        table = [np.empty((0, 7), np.float32)]
        lanes: list[Lane] = []
        place = 0
        for offset, segment in zip(split.offsets, split.segments, strict=False):
            begin = max(segment.start, context - 1)
            if begin >= segment.stop:
                continue
            look_back = segment.raw[begin - context + 1 : segment.stop, segment.columns]
            values = value(segment.px[begin : segment.stop], costs, segment.stream.has_quotes)
            valued = np.stack(astuple(values), axis=1).astype(np.float32)
            features.append(segment.scaler.apply(look_back))
            table.append(np.pad(valued, ((0, context - 1), (0, 0))))
            lanes.append(Lane(place, np.arange(begin, segment.stop) + offset, values))
            place += len(look_back)
        return cls(
            features=torch.from_numpy(np.concatenate(features)).to(device),
            table=torch.from_numpy(np.concatenate(table)).to(device),
            lanes=tuple(lanes),
            context=context,
        )

    @property
    def rows(self) -> int:
        """Number of decision rows."""
        return sum(len(lane.rows) for lane in self.lanes)

    def starts(self) -> Tensor:
        """World rows at which an episode may start: where a position may be held."""
        is_open: Tensor = self.table[:, -1] > 0
        return is_open.nonzero().squeeze(1)

    def at(self, row: Tensor) -> Rows[Tensor]:
        """The values of world rows, (batch,) each."""
        return Rows(*self.table.index_select(0, row).unbind(1))

    def windows(self, row: Tensor) -> Tensor:
        """(batch, context, feature): the look-back of world rows, oldest first."""
        n, width = self.features.shape
        shape = (n - self.context + 1, self.context * width)
        blocks = self.features.as_strided(shape, (width, 1))
        return blocks.index_select(0, row).view(-1, self.context, width)


class MarketEnvironment:
    """``n_envs`` episodes in a world. Keeps :class:`~.learning.Environment`.

    The reward of a step is the quadratic utility of its P&L r in basis points of capital,
    ``r - risk_aversion / 2 * r**2``. Observations are (world row, exposure held).
    """

    def __init__(
        self,
        world: World,
        n_envs: int,
        episode_rows: int,
        risk_aversion: float = 0.0,
        space: ActionSpace | None = None,
        seed: int = 0,
    ) -> None:
        device = world.table.device
        self.world = world
        self.n_envs = n_envs
        self.episode_rows = episode_rows
        self.risk_aversion = risk_aversion
        self.exposures = (space or ActionSpace()).exposure_table(device)
        self.starts = world.starts()
        self.generator = torch.Generator(device).manual_seed(seed)
        self.row = self._draw()
        self.position = torch.zeros(n_envs, device=device)
        self.left = torch.full((n_envs,), episode_rows, device=device)

    def reset(self) -> Observation:
        self.row = self._draw()
        self.position = torch.zeros_like(self.position)
        self.left = torch.full_like(self.left, self.episode_rows)
        return self.row, self.position

    def step(self, action: Tensor) -> Step:
        rows = self.world.at(self.row)
        outcome = fill(rows, self.position, self.exposures[action])
        terminated = rows.open == 0
        left = self.left - 1
        truncated = (left == 0) & ~terminated
        done = terminated | truncated
        final = (self.row + ~terminated, outcome.position)
        self.row = torch.where(done, self._draw(), final[0])
        self.position = outcome.position * ~done
        self.left = torch.where(done, self.episode_rows, left)
        reward = utility(outcome.pnl, self.risk_aversion)
        return Step(reward, terminated, truncated, final, (self.row, self.position))

    def inputs(self, observation: Observation) -> tuple[Tensor, Tensor]:
        row, position = observation
        return self.world.windows(row), position

    def _draw(self) -> Tensor:
        device = self.starts.device
        choice = torch.randint(
            len(self.starts), (self.n_envs,), generator=self.generator, device=device
        )
        return self.starts[choice]


def utility(pnl: A, risk_aversion: float) -> A:
    """Quadratic utility in basis points of P&L in fractions of capital, elementwise."""
    bps = pnl / BPS
    return bps - risk_aversion / 2 * bps**2
