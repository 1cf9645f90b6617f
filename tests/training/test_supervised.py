"""The supervised loop and its stage, on planted sessions."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn

from foxhunt_pipeline.checkpoints.format import Checkpoint, load, read_header, save
from foxhunt_pipeline.datasets import manifest
from foxhunt_pipeline.datasets.reader import open_window
from foxhunt_pipeline.errors import (
    CheckpointError,
    ConfigError,
    TrainingError,
    ViewUnavailableError,
)
from foxhunt_pipeline.models.contract import Batch
from foxhunt_pipeline.models.tlob import FAMILY, TLOBConfig
from foxhunt_pipeline.training import supervised
from foxhunt_pipeline.training.device import resolve
from foxhunt_pipeline.training.inputs import SplitRows, target_scale
from foxhunt_pipeline.training.numerics import blame
from foxhunt_pipeline.training.optimiser import adamw, warmup_cosine
from foxhunt_pipeline.training.rebuild import forecaster, module_from
from foxhunt_pipeline.training.seeding import reproducible, seed_of
from foxhunt_pipeline.training.settings import TrainSettings, train_settings
from foxhunt_pipeline.training.supervised import Fit, evaluate, fit
from foxhunt_pipeline.training.windows import CHECKPOINT
from support.planted import SPEC, Planted
from support.planted_dataset import SESSIONS, SIGMA, planted_task, with_features
from support.task import FolderTask

ROOT = Path(__file__).resolve().parents[2]
CONFIG = TLOBConfig(context=16, hidden=16, n_layers=1)
MODEL = {
    "context": 16,
    "hidden": 16,
    "n_layers": 1,
    "train": {"epochs": 2, "batch_size": 64, "learning_rate": 3e-3},
}
CPU = resolve("cpu")


def trained(
    settings: TrainSettings,
    *,
    rows: int = 512,
    seed: int = 1,
    precision: str = "fp32",
    **options: Any,
) -> tuple[nn.Module, Fit]:
    with reproducible(seed, threads=1):
        module = FAMILY.build(CONFIG, SPEC)
        fitted = fit(
            FAMILY,
            CONFIG,
            module,
            Planted(rows, CONFIG.context, (0.6, 0.3), seed=1),
            Planted(256, CONFIG.context, (0.6, 0.3), seed=2),
            settings,
            resolve("cpu", precision=precision),
            seed=seed,
            **options,
        )
    return module, fitted


# The stage ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[FolderTask, Any]:
    task = planted_task(tmp_path_factory.mktemp("built"), FAMILY, MODEL)
    return task, task.build(supervised.build)


def test_every_window_and_production_gives_a_checkpoint(built: tuple[FolderTask, Any]) -> None:
    task, artifact = built
    assert list(artifact.items) == ["w000", "production"]
    for name, item in artifact.items.items():
        header = read_header(task.path(item, CHECKPOINT))
        assert header.family == "tlob" and header.view == "book"
        assert header.columns == SPEC.columns and header.horizons == SPEC.horizons
        assert header.extra["window"] == name and header.seed == task.seed
        assert header.parameter_count == item.figures["parameters"]
        # 600 + 340 rows with 15 of look-back missing in each session and 20 of label in one
        assert item.figures["rows"] == (600 - 15 - 20) + (340 - 15)
        assert item.figures["rows_validation"] == 240 - 20
        assert item.figures["steps"] == 2 * math.ceil(item.figures["rows"] / 64)
        assert len(item.figures["epochs"]) == 2
    assert artifact.figures["windows"] == 2
    assert artifact.items["w000"].digest != artifact.items["production"].digest


def test_progress_is_reported_once_an_epoch(built: tuple[FolderTask, Any]) -> None:
    task, artifact = built
    assert [message for message, _ in task.messages] == [
        f"tlob {window} epoch {epoch}/2" for window in artifact.items for epoch in (1, 2)
    ]
    for _, figures in task.messages:
        assert {"loss", "validation_loss", "learning_rate", "rows_per_second"} <= figures.keys()
        assert all(math.isfinite(value) for value in figures.values())


def test_the_target_scale_is_that_of_the_training_rows(built: tuple[FolderTask, Any]) -> None:
    task, artifact = built
    opened = open_window(task, manifest.load(task), "w000", "book")
    rows = opened.train.rows(CONFIG.context)
    y = np.concatenate(
        [segment.y[segment.start : segment.stop][15:] for segment in opened.train.segments]
    )
    expected = np.sqrt(np.nanmean(y[~np.isnan(y).any(1)].astype(float) ** 2, axis=0))
    assert len(rows) == (~np.isnan(y).any(1)).sum()
    header = read_header(task.path(artifact.items["w000"], CHECKPOINT))
    np.testing.assert_allclose(header.extra["target_scale"], expected, rtol=1e-6)
    assert expected == pytest.approx([SIGMA, SIGMA], rel=0.1)


def test_a_reloaded_model_forecasts_the_same_bits(
    built: tuple[FolderTask, Any], tmp_path: Path
) -> None:
    task, artifact = built
    path = task.path(artifact.items["w000"], CHECKPOINT)
    checkpoint = load(path)
    module = module_from(checkpoint, FAMILY)
    save(Checkpoint(module.state_dict(), checkpoint.header), tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
    again = load(tmp_path / "again.safetensors")
    x = Planted(64, CONFIG.context, (0.6, 0.3), seed=9).everything().x
    first, second = forecaster(checkpoint, FAMILY)(x), forecaster(again, FAMILY)(x)
    assert first.point is not None and second.point is not None
    assert torch.equal(first.point, second.point)
    raw = FAMILY.predict(CONFIG, module(x).detach()).point
    assert raw is not None
    scale = torch.tensor(checkpoint.header.extra["target_scale"])
    torch.testing.assert_close(first.point, raw * scale)


def test_training_in_memory_and_from_the_file_are_one(
    built: tuple[FolderTask, Any], tmp_path: Path
) -> None:
    module, _ = trained(TrainSettings(epochs=1, batch_size=64))
    task, artifact = built
    header = read_header(task.path(artifact.items["w000"], CHECKPOINT))
    save(Checkpoint(module.state_dict(), header), tmp_path / CHECKPOINT)
    loaded = module_from(load(tmp_path / CHECKPOINT), FAMILY)
    x = Planted(64, CONFIG.context, (0.6, 0.3), seed=9).everything().x
    assert torch.equal(module(x), loaded(x))


def test_a_checkpoint_of_another_shape_is_refused(built: tuple[FolderTask, Any]) -> None:
    task, artifact = built
    checkpoint = load(task.path(artifact.items["w000"], CHECKPOINT))
    wider = replace(
        checkpoint, header=replace(checkpoint.header, config={**MODEL, "hidden": 32, "train": {}})
    )
    with pytest.raises(CheckpointError, match="does not fit tlob"):
        module_from(wider, FAMILY)
    other = replace(checkpoint, header=replace(checkpoint.header, family="mamba"))
    with pytest.raises(CheckpointError, match="of family mamba, not tlob"):
        module_from(other, FAMILY)


def test_the_future_never_changes_a_forecast(built: tuple[FolderTask, Any]) -> None:
    task, artifact = built
    forecast = forecaster(load(task.path(artifact.items["w000"], CHECKPOINT)), FAMILY)
    stream = f"{SESSIONS[2]}/book/TEST/1/AAA"
    before = open_window(task, manifest.load(task), "w000", "book").test
    now = 300
    x = np.array(before.segments[0].raw)
    x[now + 1 :] = np.random.default_rng(1).standard_normal(x[now + 1 :].shape) * 5
    changed = with_features(task, stream, x)
    after = open_window(changed, manifest.load(changed), "w000", "book").test
    rows = before.rows(CONFIG.context, labelled=False)
    one, two = (
        forecast(torch.from_numpy(split.gather(rows, CONFIG.context))) for split in (before, after)
    )
    assert one.point is not None and two.point is not None
    known = torch.from_numpy(rows <= now)
    assert torch.equal(one.point[known], two.point[known])
    assert not torch.isclose(one.point[~known], two.point[~known], rtol=1e-3).all(1).any()


def test_the_same_training_twice_is_reused_and_another_seed_is_not(
    built: tuple[FolderTask, Any],
) -> None:
    task, artifact = built
    again = replace(task, computed=[], reused=[], messages=[])
    assert again.build(supervised.build).data_version == artifact.data_version
    assert again.reused == ["w000", "production"] and not again.messages
    reseeded = replace(
        task, known={}, settings=task.settings.model_copy(update={"seed": task.seed + 1})
    )
    assert reseeded.build(supervised.build).items["w000"].digest != artifact.items["w000"].digest


def test_two_processes_write_the_same_bytes(built: tuple[FolderTask, Any], tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, hashlib; sys.path.insert(0, 'tests')\n"
        "from support.planted_dataset import planted_task\n"
        "from foxhunt_pipeline.models.tlob import FAMILY\n"
        "from foxhunt_pipeline.training import supervised\n"
        f"task = planted_task(pathlib.Path(sys.argv[1]), FAMILY, {MODEL!r})\n"
        "items = task.build(supervised.build).items\n"
        "print(*(item.files['model.safetensors'].sha256 for item in items.values()))"
    )
    there = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "1"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    here = [item.files[CHECKPOINT].sha256 for item in built[1].items.values()]
    assert there == here


def test_a_window_without_usable_rows_is_named(tmp_path: Path) -> None:
    settings = {**MODEL, "context": 400}
    task = planted_task(tmp_path, FAMILY, settings, rows=300)
    with pytest.raises(TrainingError, match=r"window w000 has no training row with 400 rows"):
        task.build(supervised.build)


def test_a_view_that_is_missing_or_too_shallow_skips_the_model(tmp_path: Path) -> None:
    shallow = planted_task(tmp_path / "a", FAMILY, {**MODEL, "min_levels": 10})
    with pytest.raises(ViewUnavailableError, match="1 levels of the book and 10 are needed"):
        shallow.build(supervised.build)
    bars = planted_task(tmp_path / "b", replace(FAMILY, view="bars"), MODEL)
    with pytest.raises(ViewUnavailableError, match="no bars view"):
        bars.build(supervised.build)


def test_torch_is_left_as_it_was(tmp_path: Path) -> None:
    torch.manual_seed(123)
    expected = torch.rand(3)
    torch.manual_seed(123)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    mine = Accelerator(cpu=True, mixed_precision="bf16")
    try:
        planted_task(tmp_path, FAMILY, MODEL).build(supervised.build)
        assert torch.get_num_threads() == 2
        assert not torch.are_deterministic_algorithms_enabled()
        assert torch.equal(torch.rand(3), expected)
        assert mine.mixed_precision == "bf16" and mine.state.mixed_precision == "bf16"
    finally:
        torch.set_num_threads(threads)
        AcceleratorState._reset_state(reset_partial_state=True)


# The loop ----------------------------------------------------------------------------------------


def test_the_best_weights_are_the_ones_kept() -> None:
    settings = TrainSettings(epochs=10, batch_size=32, learning_rate=2e-2, patience=10)
    module, fitted = trained(settings, rows=128)
    curve = [epoch.validation_loss for epoch in fitted.epochs]
    assert fitted.best_epoch == 1 + int(np.argmin(curve)) < len(curve)
    validation = Planted(256, CONFIG.context, (0.6, 0.3), seed=2)
    kept = evaluate(FAMILY, CONFIG, module, validation, np.arange(256), settings)
    assert kept == pytest.approx(min(curve), rel=1e-6)


def test_training_stops_when_patience_ends() -> None:
    settings = TrainSettings(epochs=30, batch_size=32, learning_rate=2e-2, patience=2)
    _, fitted = trained(settings, rows=128)
    assert len(fitted.epochs) == fitted.best_epoch + 2 < 30


def test_accumulated_parts_are_one_batch() -> None:
    whole, _ = trained(TrainSettings(epochs=1, batch_size=64))
    parts, fitted = trained(TrainSettings(epochs=1, batch_size=64, accumulation=5))
    assert fitted.steps == 8
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], value, rtol=1e-3, atol=2e-4)


def test_an_average_of_the_weights_is_what_is_kept() -> None:
    plain, _ = trained(TrainSettings(epochs=1, batch_size=64))
    averaged, fitted = trained(TrainSettings(epochs=1, batch_size=64, ema=0.9))
    one, two = plain.state_dict()["head.weight"], averaged.state_dict()["head.weight"]
    assert not torch.equal(one, two)
    kept = evaluate(
        FAMILY,
        CONFIG,
        averaged,
        Planted(256, CONFIG.context, (0.6, 0.3), seed=2),
        np.arange(256),
        TrainSettings(),
    )
    assert kept == pytest.approx(fitted.epochs[0].validation_loss, rel=1e-6)


def test_an_epoch_draws_rows_anew_and_validation_spreads_its_own() -> None:
    class Watched(Planted):
        def batch(self, rows: np.ndarray) -> Batch:
            seen[self.seed].append(rows)
            return super().batch(rows)

    seen: dict[int, list[np.ndarray]] = {1: [], 2: []}
    fit(
        FAMILY,
        CONFIG,
        FAMILY.build(CONFIG, SPEC),
        Watched(512, CONFIG.context, (0.6, 0.3), seed=1),
        Watched(256, CONFIG.context, (0.6, 0.3), seed=2),
        TrainSettings(epochs=2, batch_size=64, rows_per_epoch=100, validation_rows=52),
        CPU,
        seed=1,
    )
    assert [len(rows) for rows in seen[1]] == [64, 36, 64, 36]
    first, second = set(np.concatenate(seen[1][:2])), set(np.concatenate(seen[1][2:]))
    assert len(first) == len(second) == 100 and first != second
    assert [list(rows) for rows in seen[2]] == [list(range(0, 256, 5))] * 2


def test_bf16_trains_as_fp32_does() -> None:
    settings = TrainSettings(epochs=2, batch_size=64, learning_rate=3e-3)
    exact, exact_fit = trained(settings)
    rough, rough_fit = trained(settings, precision="bf16")
    assert all(p.dtype == torch.float32 for p in rough.parameters())
    for one, two in zip(exact_fit.epochs, rough_fit.epochs, strict=True):
        assert two.validation_loss == pytest.approx(one.validation_loss, rel=0.03)
    x = Planted(64, CONFIG.context, (0.6, 0.3), seed=9).everything().x
    assert rough(x).dtype == torch.float32, "the module keeps no autocast of its training"
    assert not torch.equal(exact(x), rough(x))


def test_a_diverging_loss_names_step_place_and_batch() -> None:
    with pytest.raises(TrainingError) as caught:
        trained(TrainSettings(epochs=2, batch_size=64, learning_rate=1e30), name="tlob w007")
    message = str(caught.value)
    assert "tlob w007: loss nan" in message
    assert "at step 2 of epoch 1" in message
    assert "First not finite:" in message and "64 planted rows from" in message


def test_blame_finds_the_first_fault() -> None:
    torch.manual_seed(1)
    module = FAMILY.build(CONFIG, SPEC)
    x = torch.randn(2, CONFIG.context, SPEC.n_features)
    assert blame(module, x) == "the loss"
    assert blame(module, x / 0) == "the input"
    with torch.no_grad():
        module.layers[0].over_time.mlp.up.weight.fill_(3e38)
    assert blame(module, x) == "output of layer layers.0.over_time.mlp.up"
    with torch.no_grad():
        module.layers[0].over_time.mlp.up.weight[0, 0] = math.nan
    assert blame(module, x) == "parameter layers.0.over_time.mlp.up.weight"


def test_a_batch_is_described_by_stream_and_time(built: tuple[FolderTask, Any]) -> None:
    task, _ = built
    opened = open_window(task, manifest.load(task), "w000", "book")
    scale = target_scale(opened.train, CONFIG.context)
    rows = SplitRows(opened.train, CONFIG.context, scale, torch.device("cpu"))
    text = rows.describe(np.array([570, 3]))
    # the first session has 600 - 15 - 20 usable rows, so this is the sixth of the second
    assert text == (
        f"2 rows, first row 20 of {SESSIONS[1]}/book/TEST/1/AAA "
        f"at {SESSIONS[1]}T14:30:21.000000000Z"
    )


# Settings, schedule, seeds -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"epoch": 3}, r"models\.tlob\.train\.epoch is not a setting.*Allowed:.*epochs"),
        ({"epochs": 0}, r"models\.tlob\.train\.epochs = 0"),
        ({"ema": 1.0}, r"models\.tlob\.train\.ema = 1\.0"),
        ({"learning_rate": "fast"}, r"models\.tlob\.train\.learning_rate = 'fast'"),
    ],
)
def test_a_wrong_training_setting_is_named(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train_settings("tlob", {"train": table})


def test_the_train_key_is_a_table() -> None:
    with pytest.raises(ConfigError, match=r"models\.tlob\.train = 3"):
        train_settings("tlob", {"train": 3})


def test_only_matrices_decay() -> None:
    module = FAMILY.build(CONFIG, SPEC)
    decayed, spared = adamw(module, 1e-3, 0.1).param_groups
    assert decayed["weight_decay"] == 0.1 and spared["weight_decay"] == 0.0
    names = {id(p): name for name, p in module.named_parameters()}
    assert {names[id(p)] for p in spared["params"]} >= {"normalise.mix", "head.bias"}
    assert all(p.ndim >= 2 for p in decayed["params"])
    assert len(decayed["params"]) + len(spared["params"]) == len(names)


def test_the_schedule_warms_up_and_ends_at_zero() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = warmup_cosine(optimizer, steps=100, warmup_share=0.1)
    rates = []
    for _ in range(100):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    assert rates[:10] == pytest.approx([2 * (n + 1) / 11 for n in range(10)])
    assert rates[10] == 2.0 and rates[55] == pytest.approx(1.0)
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.0, abs=1e-12)


def test_seeds_differ_by_every_part() -> None:
    seeds = {
        seed_of(*parts) for parts in [(7, "tlob", "w000"), (7, "tlob", "w001"), (8, "tlob", "w000")]
    }
    assert len(seeds) == 3 and all(0 <= seed < 2**63 for seed in seeds)
    text = json.dumps([7, "tlob", "w000"], separators=(",", ":"))
    assert seed_of(7, "tlob", "w000") == int(hashlib.sha256(text.encode()).hexdigest()[:15], 16)
