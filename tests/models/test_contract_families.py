"""What every family under ``models/`` keeps, whoever wrote it."""

from __future__ import annotations

import ast
import dataclasses
import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import foxhunt_pipeline.models
from foxhunt_pipeline.models.contract import (
    Batch,
    Family,
    ForecastFamily,
    InputSpec,
    Policy,
    PolicyFamily,
)

FOLDER = Path(foxhunt_pipeline.models.__file__).parent
N_ACTIONS = 5


def _defines_family(file: Path) -> bool:
    return any(
        isinstance(node, ast.Assign | ast.AnnAssign)
        and any(
            isinstance(target, ast.Name) and target.id == "FAMILY"
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        )
        for node in ast.parse(file.read_text()).body
    )


FAMILIES = sorted(file.stem for file in FOLDER.glob("*.py") if _defines_family(file)) + sorted(
    file.parent.name for file in FOLDER.glob("*/__init__.py") if _defines_family(file)
)


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    found: Family = importlib.import_module(f"foxhunt_pipeline.models.{request.param}").FAMILY
    return found


def spec_of(family: Family, n_levels: int = 10) -> InputSpec:
    if family.view != "book":
        return InputSpec(family.view, tuple(f"column_{i}" for i in range(12)), (1, 5, 15))
    level = ("lob_ask_px", "lob_ask_sz", "lob_bid_px", "lob_bid_sz")
    lob = tuple(f"{part}_{i:02}" for i in range(n_levels) for part in level)
    top = tuple(f"column_{i}" for i in range(9))
    return InputSpec("book", lob + top, (10, 30, 60), n_levels)


def build(family: Family, config: Any, spec: InputSpec) -> nn.Module:
    if isinstance(family, PolicyFamily):
        return family.build(config, spec, N_ACTIONS)
    return family.build(config, spec)


def forward(family: Family, module: nn.Module, x: Tensor) -> Any:
    return module(x, x.new_zeros(len(x))) if isinstance(family, PolicyFamily) else module(x)


def batch_of(x: Tensor, spec: InputSpec) -> Batch:
    labels = (len(x), len(spec.horizons))
    return Batch(
        x=x,
        y=torch.randn(labels, device=x.device),
        trend=torch.randint(-1, 3, labels, device=x.device),
        weight=torch.ones(len(x), device=x.device),
    )


class OnlyOn(TorchDispatchMode):
    """Fails at the first operation that reads or makes a tensor of another device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, Tensor):
                assert leaf.device.type == self.device, f"{func} touches {leaf.device}"
        return result


def test_there_are_families() -> None:
    assert "tlob" in FAMILIES


def test_its_name_is_its_files(family: Family, request: pytest.FixtureRequest) -> None:
    assert f"[{family.name}]" in request.node.name


def test_its_config_is_frozen_and_has_a_context(family: Family) -> None:
    assert dataclasses.is_dataclass(family.config)
    config = family.config()
    assert config.context >= 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.context = 2


def test_built_on_meta_it_touches_nothing_else(family: Family) -> None:
    config, spec = family.config(), spec_of(family)
    with torch.device("meta"), OnlyOn("meta"):
        module = build(family, config, spec)
        x = torch.zeros(3, config.context, spec.n_features)
        output = forward(family, module, x)
        if isinstance(family, ForecastFamily):
            family.loss(config, output, batch_of(x, spec)).backward()
            family.predict(config, output)
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        assert tensor.device.type == "meta", name


def test_moved_to_another_device_it_leaves_nothing_behind(family: Family) -> None:
    config, spec = family.config(), spec_of(family)
    module = build(family, config, spec).to("meta")
    with OnlyOn("meta"):
        forward(family, module, torch.zeros(3, config.context, spec.n_features, device="meta"))


def test_its_output_is_as_promised(family: Family) -> None:
    config, spec = family.config(), spec_of(family)
    torch.manual_seed(1)
    module = build(family, config, spec).eval()
    x = torch.randn(3, config.context, spec.n_features)
    output = forward(family, module, x)
    if isinstance(family, PolicyFamily):
        assert isinstance(output, Policy)
        assert output.logits.shape == (3, N_ACTIONS) and output.value.shape == (3,)
        return
    loss = family.loss(config, output, batch_of(x, spec))
    assert loss.shape == () and loss.isfinite()
    forecast = family.predict(config, output.detach())
    labels = (3, len(spec.horizons))
    assert any(
        part is not None for part in (forecast.point, forecast.quantiles, forecast.probabilities)
    )
    if forecast.point is not None:
        assert forecast.point.shape == labels
    if forecast.quantiles is not None:
        assert forecast.quantiles.shape == (*labels, len(forecast.levels))
        assert (forecast.quantiles.diff(dim=-1) >= 0).all()
    if forecast.probabilities is not None:
        assert forecast.probabilities.shape == (*labels, 3)
        torch.testing.assert_close(forecast.probabilities.sum(-1), torch.ones(labels))


@pytest.mark.parametrize("value", [0.0, 1.0, -10.0])
def test_constant_rows_give_finite_numbers(family: Family, value: float) -> None:
    config, spec = family.config(), spec_of(family)
    torch.manual_seed(1)
    module = build(family, config, spec)
    x = torch.full((2, config.context, spec.n_features), value)
    output = forward(family, module, x)
    if isinstance(family, PolicyFamily):
        scalar = output.logits.square().sum() + output.value.square().sum()
    else:
        scalar = family.loss(config, output, batch_of(x, spec))
    scalar.backward()
    assert scalar.isfinite()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, f"{name} never trains"
        assert parameter.grad.isfinite().all(), name


def test_the_same_seed_builds_the_same_weights(family: Family) -> None:
    config, spec = family.config(), spec_of(family)
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(build(family, config, spec).state_dict())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("name", FAMILIES)
def test_no_family_imports_another(name: str) -> None:
    inside = FOLDER / name if (FOLDER / name).is_dir() else FOLDER / f"{name}.py"
    files = inside.rglob("*.py") if inside.is_dir() else [inside]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            imported = []
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                imported = [f"{node.module}.{alias.name}" for alias in node.names]
            for path in imported:
                other = path.removeprefix("foxhunt_pipeline.models.").split(".")[0]
                if path.startswith("foxhunt_pipeline.models."):
                    assert other == name or other not in FAMILIES, f"{file.name} imports {path}"


def test_layers_import_no_family() -> None:
    for file in (FOLDER / "layers").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                parts = [*node.module.split("."), *(alias.name for alias in node.names)]
                assert not set(parts) & set(FAMILIES), f"{file.name}: {node.module}"
