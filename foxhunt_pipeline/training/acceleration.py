"""Hugging Face Accelerate without its process-wide state.

Accelerate keeps what the first ``Accelerator`` of a process was told (device, precision) in class
attributes and refuses, or silently ignores, another answer later. One process here trains many
windows, tests train on many settings, and a notebook may hold an Accelerator of its own. So the
state is set aside while training runs and put back after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState

from foxhunt_pipeline.training.device import Device

_STATES: tuple[Any, ...] = (PartialState, AcceleratorState, GradientState)


@contextmanager
def accelerated(device: Device) -> Iterator[Accelerator]:
    """An accelerator on the device and in its precision, as if it were the process's first."""
    before = [dict(state._shared_state) for state in _STATES]
    for state in _STATES:
        state._shared_state.clear()
    try:
        with nullcontext() if device.index is None else torch.cuda.device(device.index):
            yield Accelerator(
                cpu=device.kind == "cpu",
                mixed_precision="bf16" if device.precision == "bf16" else "no",
            )
    finally:
        for state, kept in zip(_STATES, before, strict=True):
            state._shared_state.clear()
            state._shared_state.update(kept)
