"""TLOB: a transformer with dual attention for limit order books.

Berti & Kasneci 2025, "TLOB: A Novel Transformer Model with Dual Attention for Price Trend
Prediction with Limit Order Book Data" (arXiv 2502.15757). The book of the last ``context`` rows
is normalised along time and along features, embedded, and passed through layers that attend
first over time and then over features; each half ends in an MLP, and those of the last layer
reduce both axes fourfold. An MLP brings what is left down to the forecast.

What it is not: the paper classifies the trend at one horizon per model and knows no returns.
Here one model serves every horizon, and beside the three class logits it gives a point forecast
of the return. An attention head projects once where the authors' code projects twice, to the
same effect. There is no order-type embedding: the view has no single orders.

Shapes: input (batch, time, feature) scaled; output (batch, horizon, 4) of logits for down, flat
and up, then the return in units of the window's target scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from foxhunt_pipeline.models.contract import Batch, Forecast, ForecastFamily, InputSpec
from foxhunt_pipeline.models.layers.attention import MultiHeadAttention
from foxhunt_pipeline.models.layers.normalisation import BilinearNorm
from foxhunt_pipeline.models.layers.positions import sinusoidal

REDUCTION = 4
"""Factor by which the last layer and every layer of the final MLP shrink their input."""
NARROWEST = 16
"""Least context and width: layer normalisation over the reduced axis, a quarter as long, leaves
of two numbers only their signs and of one nothing."""
WIDEST_HEAD = 128
"""Width at which the final MLP stops shrinking and the forecast is read off."""
HUBER_DELTA = 2.0
"""Returns beyond so many standard deviations pull linearly: prices jump."""


@dataclass(frozen=True)
class TLOBConfig:
    """Defaults are the paper's for FI-2010."""

    context: Annotated[int, Field(ge=NARROWEST, multiple_of=REDUCTION)] = 128
    """Rows of look-back."""
    hidden: Annotated[int, Field(ge=NARROWEST, multiple_of=REDUCTION)] = 40
    """Width of an embedded row."""
    n_layers: Annotated[int, Field(ge=1)] = 4
    """Pairs of attention over time and attention over features."""
    n_heads: Annotated[int, Field(ge=1)] = 1
    """Heads, each as wide as the whole token, as in the paper."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """On attention weights and inside the MLPs, in training."""
    point_weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the return's loss beside the trend's cross-entropy."""
    min_levels: Annotated[int, Field(ge=1)] = 1
    """Levels the book must have; where it has fewer, the model is skipped."""


class MLP(nn.Module):
    """(batch, token, dim) -> (batch, token, out): two layers, residual where the width stays."""

    def __init__(self, dim: int, out: int, dropout: float) -> None:
        super().__init__()
        self.residual = dim == out
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, out)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(out)

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(self.dropout(functional.gelu(self.up(x))))  # (batch, token, out)
        return functional.gelu(self.norm(x + y if self.residual else y))


class Attend(nn.Module):
    """(batch, token, dim) -> (batch, token, out): attention over tokens, then an MLP on each."""

    def __init__(self, dim: int, out: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.residual = dim == out
        self.attention = MultiHeadAttention(dim, n_heads, head_dim=dim, dropout=dropout)
        self.norm = nn.LayerNorm(dim)
        self.mlp = MLP(dim, out, dropout)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.mlp(self.norm(x + self.attention(x)))  # (batch, token, out)
        return x + y if self.residual else y


class DualAttention(nn.Module):
    """(batch, time, hidden) -> (batch, time', hidden'): over time, then over features."""

    def __init__(self, config: TLOBConfig, shrink: int) -> None:
        super().__init__()
        time, hidden = config.context, config.hidden
        self.over_time = Attend(hidden, hidden // shrink, config.n_heads, config.dropout)
        self.over_features = Attend(time, time // shrink, config.n_heads, config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.over_time(x)  # (batch, time, hidden')
        x = self.over_features(x.transpose(1, 2))  # (batch, hidden', time')
        return x.transpose(1, 2)  # (batch, time', hidden')


class TLOB(nn.Module):
    """(batch, time, feature) -> (batch, horizon, 4)."""

    positions: Tensor

    def __init__(self, config: TLOBConfig, spec: InputSpec) -> None:
        super().__init__()
        self.normalise = BilinearNorm(config.context, spec.n_features)
        self.embed = nn.Linear(spec.n_features, config.hidden)
        self.register_buffer(
            "positions", sinusoidal(config.context, config.hidden), persistent=False
        )
        self.layers = nn.Sequential(
            *(DualAttention(config, shrink=1) for _ in range(config.n_layers - 1)),
            DualAttention(config, shrink=REDUCTION),
        )
        width = (config.context // REDUCTION) * (config.hidden // REDUCTION)
        reduce: list[nn.Module] = []
        while width > WIDEST_HEAD:
            reduce += [nn.Linear(width, width // REDUCTION), nn.GELU()]
            width //= REDUCTION
        self.reduce = nn.Sequential(*reduce)
        self.head = nn.Linear(width, 4 * len(spec.horizons))
        nn.init.zeros_(self.head.weight)  # training starts at the forecast that knows nothing
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:  # (batch, time, feature)
        x = self.embed(self.normalise(x)) + self.positions  # (batch, time, hidden)
        x = self.layers(x)  # (batch, time / 4, hidden / 4)
        x = self.reduce(x.flatten(1))  # (batch, width)
        return self.head(x).unflatten(1, (-1, 4))  # type: ignore[no-any-return]  # (batch, horizon, 4)


def loss(config: TLOBConfig, output: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy of the trend plus Huber loss of the return, weighted means over labels."""
    weight = batch.weight.unsqueeze(1)  # (batch, 1)
    trend = functional.cross_entropy(
        output[..., :3].flatten(0, 1), batch.trend.flatten(), ignore_index=-1, reduction="none"
    ).view_as(batch.trend)  # (batch, horizon)
    known = batch.y.isfinite()
    point = functional.huber_loss(
        output[..., 3], batch.y.nan_to_num(0.0), reduction="none", delta=HUBER_DELTA
    )  # (batch, horizon)
    return _mean(trend, weight * (batch.trend >= 0)) + config.point_weight * _mean(
        point, weight * known
    )


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    return (values * weight).sum() / weight.sum().clamp_min(1e-12)


def predict(config: TLOBConfig, output: Tensor) -> Forecast:
    """Point forecast in units of the target scale, and class probabilities."""
    output = output.float()
    return Forecast(point=output[..., 3], probabilities=output[..., :3].softmax(-1))


FAMILY = ForecastFamily(
    name="tlob", view="book", config=TLOBConfig, build=TLOB, loss=loss, predict=predict
)
