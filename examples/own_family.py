"""A model family of your own, without a fork.

    python examples/own_family.py FOLDER

FOLDER has a foxhunt.toml. This file is copied beside it and registered as the model `momentum`;
then the model is trained on every window, judged on the same windows and costs as all others,
and released. Edit the copy, and `foxhunt plan` lists this model's assets and no others.

The family is a linear forecast of the returns from the mean of the look-back. A family is a
frozen configuration, a module, a loss and a forecast, gathered in FAMILY.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from foxhunt_pipeline import Batch, Forecast, ForecastFamily, InputSpec


@dataclass(frozen=True)
class MomentumConfig:
    context: int = 8
    """Rows of look-back."""


class Momentum(nn.Module):
    """(batch, time, feature) -> (batch, horizon) of returns in units of the target scale."""

    def __init__(self, config: MomentumConfig, spec: InputSpec) -> None:
        super().__init__()
        self.head = nn.Linear(spec.n_features, len(spec.horizons))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.mean(dim=1))


def loss(config: MomentumConfig, output: Tensor, batch: Batch) -> Tensor:
    """Weighted mean squared error over the returns that are known."""
    weight = batch.weight.unsqueeze(1) * batch.y.isfinite()
    error = (output - batch.y.nan_to_num(0.0)).square()
    return (error * weight).sum() / weight.sum().clamp_min(1e-12)


def predict(config: MomentumConfig, output: Tensor) -> Forecast:
    return Forecast(point=output)


FAMILY = ForecastFamily(
    name="momentum",
    view="bars",
    config=MomentumConfig,
    build=Momentum,
    loss=loss,
    predict=predict,
)

REGISTRATION = """
[models.momentum]
family = "own_family:FAMILY"
[models.momentum.train]
epochs = 3
learning_rate = 1e-2
"""


def main(folder: str) -> None:
    settings = Path(folder) / "foxhunt.toml"
    shutil.copy(__file__, folder)
    if "[models.momentum]" not in settings.read_text(encoding="utf-8"):
        with settings.open("a", encoding="utf-8") as file:
            file.write(REGISTRATION)
    for command in ("plan", "sync"):
        foxhunt = [sys.executable, "-m", "foxhunt_pipeline", command, "--select", "momentum/*"]
        subprocess.run(foxhunt, cwd=folder, check=True)
    show = [sys.executable, "-m", "foxhunt_pipeline", "releases", "why", "momentum"]
    subprocess.run(show, cwd=folder, check=True)


if __name__ == "__main__":
    main(sys.argv[1])
