"""What training reports while it runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Epoch:
    """One epoch, with the mean losses over its training rows and over the validation rows."""

    epoch: int
    steps: int
    """Optimizer steps so far."""
    loss: float
    validation_loss: float
    learning_rate: float
    """After the epoch's last step."""
    gradient_norm: float
    """Mean, before clipping."""
    rows_per_second: float
    """Training rows, validation not counted."""

    def figures(self) -> dict[str, float]:
        return asdict(self)
