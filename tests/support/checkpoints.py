"""Small checkpoints for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from foxhunt_pipeline.checkpoints.format import Checkpoint, Header, library_versions

HEADER = Header(
    family="tlob",
    config={"context": 8, "width": 16, "dropout": 0.1},
    view="book",
    columns=("spread_bps", "imbalance"),
    center=(0.5, -0.25),
    scale=(1.5, 2.0),
    horizons=(10, 30),
    seed=7,
    code_version="c" * 64,
    data_versions={"dataset": "d" * 64},
    libraries=library_versions(),
    device="cpu",
    precision="fp32",
    parameter_count=4 * 8 + 8,
    metrics={"loss": 0.25, "steps": 100},
)


def checkpoint(seed: int = 0, **header: Any) -> Checkpoint:
    """A linear layer's checkpoint with random weights."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        "head.weight": torch.randn(8, 4, generator=generator),
        "head.bias": torch.randn(8, generator=generator),
        "steps": torch.tensor(seed),
    }
    return Checkpoint(tensors, replace(HEADER, **header))
