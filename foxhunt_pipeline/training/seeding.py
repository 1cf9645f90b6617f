"""Training that gives the same result again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from foxhunt_pipeline.artifacts import digest_of


def seed_of(*parts: Any) -> int:
    """A seed made of JSON values, as the configured seed, the model and the window."""
    return int(digest_of(*parts)[:15], 16)


@contextmanager
def reproducible(seed: int, *, threads: int, cuda: int | None = None) -> Iterator[None]:
    """Seed torch, set its threads and allow deterministic algorithms only; leave torch as found.

    On the CPU the same code, seed and threads give the same bits. On a CUDA device a few kernels
    have no deterministic form: torch then warns, and results may differ in the last bits.
    """
    before = (
        torch.get_num_threads(),
        torch.get_deterministic_debug_mode(),
        torch.backends.cudnn.benchmark,
    )
    if cuda is not None:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with torch.random.fork_rng(devices=[] if cuda is None else [cuda]):
        try:
            torch.set_num_threads(threads)
            # As use_deterministic_algorithms, which imports the compiler first: seconds.
            torch.set_deterministic_debug_mode("error" if cuda is None else "warn")
            torch.backends.cudnn.benchmark = False
            torch.manual_seed(seed)
            yield
        finally:
            torch.set_num_threads(before[0])
            torch.set_deterministic_debug_mode(before[1])
            torch.backends.cudnn.benchmark = before[2]
