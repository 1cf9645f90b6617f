"""TLOB against references, closed forms and planted answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from foxhunt_pipeline.errors import ConfigError
from foxhunt_pipeline.models.contract import Batch, settings_of
from foxhunt_pipeline.models.layers.attention import MultiHeadAttention
from foxhunt_pipeline.models.layers.normalisation import EPSILON, BilinearNorm
from foxhunt_pipeline.models.layers.positions import sinusoidal
from foxhunt_pipeline.models.tlob import FAMILY, TLOB, TLOBConfig
from foxhunt_pipeline.training.device import resolve
from foxhunt_pipeline.training.seeding import reproducible
from foxhunt_pipeline.training.settings import TrainSettings
from foxhunt_pipeline.training.supervised import fit
from support.planted import SPEC, Losses, Planted, losses

SMALL = TLOBConfig(context=16, hidden=16, n_layers=1)


@pytest.mark.parametrize(("dim", "n_heads"), [(40, 1), (32, 4)])
def test_attention_is_torchs(dim: int, n_heads: int) -> None:
    torch.manual_seed(1)
    theirs = nn.MultiheadAttention(dim, n_heads, batch_first=True)
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    ours = MultiHeadAttention(dim, n_heads, head_dim=dim // n_heads)
    with torch.no_grad():
        ours.qkv.weight.copy_(theirs.in_proj_weight)
        ours.qkv.bias.copy_(theirs.in_proj_bias)
        ours.out.weight.copy_(theirs.out_proj.weight)
        ours.out.bias.copy_(theirs.out_proj.bias)
    x = torch.randn(3, 20, dim)
    mine, reference = x.clone().requires_grad_(), x.clone().requires_grad_()
    y = ours(mine)
    expected, _ = theirs(reference, reference, reference)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    pull = torch.randn_like(y)
    y.backward(pull)
    expected.backward(pull)
    torch.testing.assert_close(mine.grad, reference.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        ours.qkv.weight.grad, theirs.in_proj_weight.grad, rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(
        ours.out.weight.grad, theirs.out_proj.weight.grad, rtol=1e-4, atol=1e-4
    )


def test_heads_as_wide_as_the_token_attend_by_the_formula() -> None:
    torch.manual_seed(1)
    layer = MultiHeadAttention(6, n_heads=3, head_dim=6)
    x = torch.randn(2, 5, 6)
    q, k, v = (part.detach().numpy() for part in layer.qkv(x).chunk(3, -1))
    heads = []
    for h in range(3):
        part = slice(6 * h, 6 * h + 6)
        score = q[..., part] @ k[..., part].transpose(0, 2, 1) / math.sqrt(6)
        weight = np.exp(score) / np.exp(score).sum(-1, keepdims=True)
        heads.append(weight @ v[..., part])
    expected = layer.out(torch.from_numpy(np.concatenate(heads, -1)))
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)


def test_bilinear_norm_by_the_formula() -> None:
    random = np.random.default_rng(1)
    norm = BilinearNorm(n_times=6, n_features=4)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.from_numpy(random.standard_normal(parameter.shape)))
    x = random.standard_normal((2, 6, 4))
    weights = {name: p.detach().numpy().astype(float) for name, p in norm.named_parameters()}

    def standard(axis: int) -> np.ndarray:
        centred = x - x.mean(axis, keepdims=True)
        return centred / np.sqrt((centred**2).mean(axis, keepdims=True) + EPSILON)

    mix = np.log1p(np.exp(weights["mix"]))
    expected = mix[0] * (standard(1) * weights["gain_time"] + weights["bias_time"]) + mix[1] * (
        standard(2) * weights["gain_feature"] + weights["bias_feature"]
    )
    got = norm(torch.from_numpy(x).float())
    np.testing.assert_allclose(got.detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_one_constant_row_among_others_is_normalised_to_zero() -> None:
    norm = BilinearNorm(n_times=8, n_features=5)
    x = torch.randn(3, 8, 5, generator=torch.Generator().manual_seed(1))
    x[:, 2] = 7.0  # an instant at which every column is the same
    x[:, :, 3] = 7.0  # a column that never moves
    x.requires_grad_()
    y = norm(x)
    y.square().sum().backward()
    assert y.isfinite().all() and x.grad is not None and x.grad.isfinite().all()
    torch.testing.assert_close(y[:, 2, 3], torch.zeros(3))


@pytest.mark.parametrize("dim", [8, 7])
def test_positions_by_the_formula(dim: int) -> None:
    table = sinusoidal(50, dim)
    assert table.shape == (50, dim)
    for position in (0, 1, 49):
        for i in range(dim):
            angle = position / 10_000 ** (2 * (i // 2) / dim)
            expected = math.cos(angle) if i % 2 else math.sin(angle)
            assert float(table[position, i]) == pytest.approx(expected, abs=1e-4)


def test_it_is_the_size_of_the_papers_model() -> None:
    columns = tuple(f"column_{i}" for i in range(144))
    spec = type(SPEC)("book", columns, (10,), n_levels=10)
    module = TLOB(TLOBConfig(), spec)
    shapes = [tuple(layer.over_time.mlp.down.weight.shape) for layer in module.layers]
    assert shapes == [(40, 160)] * 3 + [(10, 160)]
    assert [tuple(m.weight.shape) for m in module.reduce if isinstance(m, nn.Linear)] == [(80, 320)]
    assert module.head.weight.shape == (4, 80)


def test_the_loss_is_a_weighted_mean_over_labels() -> None:
    torch.manual_seed(1)
    output = torch.randn(4, 2, 4)
    y = torch.randn(4, 2) * 3
    y[1, 0] = math.nan
    trend = torch.tensor([[0, 1], [-1, 2], [2, 2], [1, -1]])
    weight = torch.tensor([1.0, 2.0, 0.0, 0.5])
    cross, huber, n_cross, n_huber = 0.0, 0.0, 0.0, 0.0
    for i in range(4):
        for h in range(2):
            w = float(weight[i])
            if trend[i, h] >= 0:
                logits = output[i, h, :3].double()
                cross += w * float(logits.logsumexp(0) - logits[trend[i, h]])
                n_cross += w
            if not math.isnan(float(y[i, h])):
                error = abs(float(output[i, h, 3] - y[i, h]))
                huber += w * (0.5 * error**2 if error < 2 else 2 * (error - 1))
                n_huber += w
    batch = Batch(torch.zeros(4, 1, 1), y, trend, weight)
    config = TLOBConfig(point_weight=0.3)
    got = float(FAMILY.loss(config, output, batch))
    assert got == pytest.approx(cross / n_cross + 0.3 * huber / n_huber, rel=1e-5)


def test_a_batch_without_labels_costs_nothing_and_pulls_nowhere() -> None:
    output = torch.randn(3, 2, 4, requires_grad=True)
    batch = Batch(
        torch.zeros(3, 1, 1),
        torch.full((3, 2), math.nan),
        torch.full((3, 2), -1),
        torch.ones(3),
    )
    loss = FAMILY.loss(TLOBConfig(), output, batch)
    loss.backward()
    assert loss.item() == 0.0 and output.grad is not None and not output.grad.any()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"hidden": 30}, "models.tlob.hidden"),
        ({"context": 12}, "models.tlob.context"),
        ({"dropout": 1.0}, "models.tlob.dropout"),
        ({"layers": 2}, "models.tlob.layers"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        settings_of(FAMILY, settings)


def _trained(shares: tuple[float, float], rows: int, epochs: int) -> tuple[Planted, Tensor, Tensor]:
    """Test rows, and what a model trained on others forecasts of them."""
    device = resolve("cpu")
    train, validation, test = (
        Planted(n, SMALL.context, shares, seed)
        for seed, n in enumerate((rows, rows // 4, 4000), start=1)
    )
    settings = TrainSettings(epochs=epochs, batch_size=64, learning_rate=5e-3, weight_decay=0.1)
    with reproducible(1, threads=1):
        module = FAMILY.build(SMALL, SPEC)
        fit(FAMILY, SMALL, module, train, validation, settings, device, seed=1)
        with torch.no_grad():
            forecast = FAMILY.predict(SMALL, module(test.everything().x))
    assert forecast.point is not None and forecast.probabilities is not None
    return test, forecast.point, forecast.probabilities.log()


def test_it_learns_a_planted_imbalance() -> None:
    test, point, log_probabilities = _trained((0.6, 0.3), rows=8000, epochs=4)
    got = losses(point, log_probabilities, test)
    best = losses(*test.best(), test)
    nothing = losses(*test.unconditional(), test)
    for name in Losses.__dataclass_fields__:
        loss, floor, start = (float(getattr(each, name).mean()) for each in (got, best, nothing))
        assert start > 1.2 * floor, "the signal would not show"
        assert loss < 1.1 * floor, f"{name} {loss:.3f}, achievable {floor:.3f}"


def test_on_noise_it_is_not_better_than_the_unconditional_forecast() -> None:
    test, point, log_probabilities = _trained((0.0, 0.0), rows=3000, epochs=2)
    got = losses(point, log_probabilities, test)
    nothing = losses(*test.unconditional(), test)
    for name in Losses.__dataclass_fields__:
        gain = getattr(nothing, name) - getattr(got, name)
        z = float(gain.mean() / gain.std() * math.sqrt(len(gain)))
        assert z < 3, f"{name} gains {z:.1f} standard errors on noise"


def test_bf16_agrees_with_fp32() -> None:
    torch.manual_seed(1)
    module = FAMILY.build(SMALL, SPEC).eval()
    nn.init.xavier_uniform_(module.head.weight)
    batch = Planted(256, SMALL.context, (0.6, 0.3), seed=1).everything()
    exact = FAMILY.predict(SMALL, module(batch.x))
    with torch.autocast("cpu", torch.bfloat16):
        rough = FAMILY.predict(SMALL, module(batch.x))
    assert exact.point is not None and rough.point is not None
    assert exact.probabilities is not None and rough.probabilities is not None
    for rough_part, exact_part in (
        (rough.point, exact.point),
        (rough.probabilities, exact.probabilities),
    ):
        error = (rough_part - exact_part).abs()  # bf16 carries three digits
        assert error.mean() < 0.02 * exact_part.std() and error.max() < 0.25 * exact_part.std()
