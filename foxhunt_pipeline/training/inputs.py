"""A window's rows as the batches that models are trained on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from foxhunt_pipeline.datasets.manifest import ViewSpec
from foxhunt_pipeline.datasets.reader import Split
from foxhunt_pipeline.models.contract import Batch, InputSpec


def input_spec(view: ViewSpec) -> InputSpec:
    """What a model on the view is given."""
    return InputSpec(
        view=view.name,  # type: ignore[arg-type]
        columns=view.columns,
        horizons=view.horizons,
        n_levels=view.n_levels,
    )


def target_scale(split: Split, context: int) -> NDArray[np.float32]:
    """(horizon,): root mean square of the returns of the split's rows, in log return.

    The unit of returns in training, so that losses and learning rates mean the same for a bond
    and a coin. 1 where prices never moved.
    """
    y = split.take("y", split.rows(context)).astype(np.float64)
    scale = np.sqrt(np.mean(y**2, axis=0)) if len(y) else np.zeros(split.n_horizons)
    return np.where(scale > 0, scale, 1.0).astype(np.float32)


class Rows(Protocol):
    """Numbered training rows: what the training loop asks of its data."""

    def __len__(self) -> int: ...

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """Those rows on the device; returns in units of the target scale."""
        ...

    def describe(self, rows: NDArray[np.int64]) -> str:
        """The rows as an error message names them."""
        ...


@dataclass(frozen=True)
class SplitRows:
    """The usable rows of a split, numbered from 0 in time order within each stream."""

    split: Split
    context: int
    scale: NDArray[np.float32]
    device: torch.device

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        return self.split.rows(self.context)

    def __len__(self) -> int:
        return len(self.numbers)

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        data = self.split.batch(self.numbers[rows], self.context)
        return Batch(
            x=torch.from_numpy(data.x).to(self.device),
            y=torch.from_numpy(data.y / self.scale).to(self.device),
            trend=torch.from_numpy(data.trend).to(self.device),
            weight=torch.from_numpy(data.weight).to(self.device),
        )

    def describe(self, rows: NDArray[np.int64]) -> str:
        first = self.numbers[rows[:1]]
        segment, local = self.split.locate(first)
        stream = self.split.segments[segment[0]].stream.id
        when = np.datetime64(int(self.split.take("ts", first)[0]), "ns")
        return f"{len(rows)} rows, first row {local[0]} of {stream} at {when}Z"
