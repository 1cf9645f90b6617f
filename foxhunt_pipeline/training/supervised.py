"""Training of the supervised families: one plain loop for all of them.

Every walk-forward window, and production, gives one checkpoint. A window is seeded by itself
(from the configured seed, the model's name and the window's), so that it comes out the same
whichever windows are trained beside it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import nn

from foxhunt_pipeline.artifacts import Content, Item, Result, Task, digest_of
from foxhunt_pipeline.checkpoints.format import Checkpoint, Header, library_versions, save
from foxhunt_pipeline.datasets import manifest
from foxhunt_pipeline.datasets.reader import open_window
from foxhunt_pipeline.errors import TrainingError
from foxhunt_pipeline.models.contract import (
    ForecastFamily,
    parameter_count,
    settings_of,
)
from foxhunt_pipeline.training.acceleration import accelerated
from foxhunt_pipeline.training.device import Device, resolve
from foxhunt_pipeline.training.inputs import Rows, SplitRows, input_spec, target_scale
from foxhunt_pipeline.training.numerics import blame
from foxhunt_pipeline.training.optimiser import (
    WeightAverage,
    adamw,
    snapshot,
    warmup_cosine,
)
from foxhunt_pipeline.training.progress import Epoch
from foxhunt_pipeline.training.seeding import reproducible, seed_of
from foxhunt_pipeline.training.settings import TrainSettings, train_settings

CHECKPOINT = "model.safetensors"
"""File of a training item."""


@dataclass(frozen=True)
class Fit:
    """How a module was trained. The module itself holds the weights of ``best_epoch``."""

    epochs: tuple[Epoch, ...]
    best_epoch: int
    """Counted from 1: the epoch with the lowest validation loss."""

    @property
    def steps(self) -> int:
        return self.epochs[-1].steps


def build(task: Task) -> Result:
    """Train every window of the model's view, and production.

    Raises:
        ConfigError: A setting of the model or of its training is wrong.
        ViewUnavailableError: The data lacks the model's view, or levels of the book.
        TrainingError: A window has no rows, or a loss or gradient is not finite.
        DeviceError: The precision asked for is not there.
    """
    family: ForecastFamily = task.family
    table = {
        key: value
        for key, value in task.config(f"models.{task.model}").items()
        if key not in ("enabled", "family")
    }
    config = settings_of(family, table)
    settings = train_settings(task.model, table)
    training = task.config("training")
    device = resolve(task.device, training["require_device"], training["precision"])
    data = manifest.load(task)
    data.require_view(family.view, getattr(config, "min_levels", 0))

    def train(window: manifest.Window) -> Item:
        return task.item(
            window.name,
            inputs=[window.digest(family.view)],
            compute=lambda folder: _train_window(
                task, folder, data, window.name, config, settings, device, training["threads"]
            ),
            extra={
                "device": device.kind,
                "precision": device.precision,
                "deterministic": True,
            },
        )

    items = [train(window) for window in data.windows_of(family.view)]
    return Result(
        items=items,
        figures={
            "windows": len(items),
            "rows": sum(item.figures["rows"] for item in items),
            "parameters": items[-1].figures["parameters"],
            "steps": sum(item.figures["steps"] for item in items),
            "device": device.describe(),
        },
    )


def _train_window(
    task: Task,
    folder: Path,
    data: manifest.DatasetManifest,
    window: str,
    config: Any,
    settings: TrainSettings,
    device: Device,
    threads: int,
) -> Content:
    started = time.perf_counter()
    family: ForecastFamily = task.family
    opened = open_window(task, data, window, family.view)
    spec = input_spec(opened.spec)
    scale = target_scale(opened.train, config.context)
    train = SplitRows(opened.train, config.context, scale, device.torch)
    validation = SplitRows(opened.validation, config.context, scale, device.torch)
    for rows, split in ((train, "training"), (validation, "validation")):
        if not len(rows):
            raise TrainingError(
                f"{task.model}: window {window} has no {split} row with {config.context} rows of "
                f"look-back and every label ({', '.join(opened.window.train_sessions)}).",
                remedy=f"Lower models.{task.model}.context or the horizons, or give the window "
                "more sessions.",
            )
    seed = seed_of(task.seed, task.model, window)

    def report(epoch: Epoch) -> None:
        task.progress(
            f"{task.model} {window} epoch {epoch.epoch}/{settings.epochs}", **epoch.figures()
        )

    with reproducible(seed, threads=threads, cuda=device.index):
        with device.torch:
            module = family.build(config, spec)
        fitted = fit(
            family,
            config,
            module,
            train,
            validation,
            settings,
            device,
            seed=seed,
            name=f"{task.model} {window}",
            report=report,
        )
    checkpoint = Checkpoint(
        tensors=module.state_dict(),
        header=Header(
            family=family.name,
            config=asdict(config),
            view=family.view,
            columns=spec.columns,
            center=opened.scaler.center,
            scale=opened.scaler.scale,
            horizons=spec.horizons,
            seed=task.seed,
            code_version=task.code_version,
            data_versions={window: opened.window.digest(family.view)},
            libraries=library_versions() | {"accelerate": version("accelerate")},
            device=device.kind,
            precision=device.precision,
            parameter_count=parameter_count(module),
            metrics={
                "best_epoch": fitted.best_epoch,
                "validation_loss": fitted.epochs[fitted.best_epoch - 1].validation_loss,
                "steps": fitted.steps,
                "rows_train": len(train),
                "rows_validation": len(validation),
            },
            extra={
                "model": task.model,
                "window": window,
                "train_sessions": list(opened.window.train_sessions),
                "n_levels": spec.n_levels,
                "target_scale": scale.tolist(),
                "trend_thresholds": list(opened.trend_thresholds),
            },
        ),
    )
    save(checkpoint, folder / CHECKPOINT)
    return Content(
        digest=digest_of(checkpoint.digest(), checkpoint.header.extra),
        figures={
            "rows": len(train),
            "rows_validation": len(validation),
            "parameters": parameter_count(module),
            "steps": fitted.steps,
            "best_epoch": fitted.best_epoch,
            "epochs": [epoch.figures() for epoch in fitted.epochs],
            "seconds": time.perf_counter() - started,
        },
    )


def fit(
    family: ForecastFamily,
    config: Any,
    module: nn.Module,
    train: Rows,
    validation: Rows,
    settings: TrainSettings,
    device: Device,
    *,
    seed: int,
    name: str = "model",
    report: Callable[[Epoch], None] = lambda epoch: None,
) -> Fit:
    """Train a module in place; it ends in evaluation mode with its best weights.

    Best is the lowest mean loss over the validation rows after an epoch. ``seed`` decides the
    order of the rows; dropout follows torch's own generator. ``name`` is what errors call the
    module. Under several processes (DDP) each takes its share of every batch.

    Raises :class:`~foxhunt_pipeline.errors.TrainingError` naming step, layer and batch if a loss
    or gradient is not finite.
    """
    per_epoch = min(settings.rows_per_epoch or len(train), len(train))
    total_steps = settings.epochs * math.ceil(per_epoch / settings.batch_size)
    shuffle = np.random.default_rng(seed)
    checked = _spread(len(validation), settings.validation_rows)
    epochs: list[Epoch] = []
    best, best_epoch, best_state = math.inf, 0, snapshot(module)
    step = 0

    with accelerated(device) as accelerator:
        raw_optimizer = adamw(module, settings.learning_rate, settings.weight_decay)
        schedule = warmup_cosine(raw_optimizer, total_steps, settings.warmup_share)
        model, optimizer = accelerator.prepare(module, raw_optimizer)
        average = WeightAverage(module, settings.ema) if settings.ema else None
        for epoch in range(1, settings.epochs + 1):
            started = time.perf_counter()
            model.train()
            losses, norms = 0.0, 0.0
            order = shuffle.permutation(len(train))[:per_epoch]
            batches = list(_batches(order, settings.batch_size))
            for rows in batches:
                step += 1
                mine = rows[accelerator.process_index :: accelerator.num_processes]
                loss = _backward(accelerator, family, config, model, train, mine, settings)
                norm = accelerator.clip_grad_norm_(model.parameters(), settings.clip_norm)
                if not math.isfinite(loss) or not norm.isfinite():
                    raise TrainingError(
                        f"{name}: loss {loss:g}, gradient norm {norm:g} at step {step} of epoch "
                        f"{epoch}. First not finite: {blame(module, train.batch(rows).x)}. "
                        f"Batch: {train.describe(rows)}.",
                        remedy="Lower learning_rate, or look at these rows of the features.",
                    )
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                if average:
                    average.update(module)
                losses += loss * len(rows)
                norms += float(norm)
            seconds = time.perf_counter() - started

            with average.in_place(module) if average else nullcontext():
                validation_loss = evaluate(family, config, model, validation, checked, settings)
                if not math.isfinite(validation_loss):
                    raise TrainingError(
                        f"{name}: validation loss {validation_loss:g} after epoch {epoch}.",
                        remedy="Lower learning_rate, or look at the features of the last "
                        "training rows.",
                    )
                if validation_loss < best:
                    best, best_epoch, best_state = validation_loss, epoch, snapshot(module)
            epochs.append(
                Epoch(
                    epoch=epoch,
                    steps=step,
                    loss=losses / per_epoch,
                    validation_loss=validation_loss,
                    learning_rate=float(schedule.get_last_lr()[0]),
                    gradient_norm=norms / len(batches),
                    rows_per_second=per_epoch / seconds,
                )
            )
            report(epochs[-1])
            if epoch - best_epoch >= settings.patience:
                break
        accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    module.load_state_dict(best_state)
    module.eval()
    return Fit(tuple(epochs), best_epoch)


def _backward(
    accelerator: Accelerator,
    family: ForecastFamily,
    config: Any,
    model: nn.Module,
    train: Rows,
    rows: NDArray[np.int64],
    settings: TrainSettings,
) -> float:
    """Gradient of the batch's mean loss, computed in ``accumulation`` parts; that loss."""
    parts = [part for part in np.array_split(rows, settings.accumulation) if len(part)]
    total = 0.0
    for number, part in enumerate(parts, 1):
        batch = train.batch(part)
        with accelerator.no_sync(model) if number < len(parts) else nullcontext():
            loss = family.loss(config, model(batch.x), batch) * (len(part) / len(rows))
            accelerator.backward(loss)
        total += float(loss.detach())
    return total


@torch.no_grad()
def evaluate(
    family: ForecastFamily,
    config: Any,
    model: nn.Module,
    data: Rows,
    rows: NDArray[np.int64],
    settings: TrainSettings,
) -> float:
    """Mean loss over rows, in evaluation mode."""
    model.eval()
    total = 0.0
    for part in _batches(rows, settings.batch_size):
        batch = data.batch(part)
        total += float(family.loss(config, model(batch.x), batch)) * len(part)
    return total / len(rows)


def _batches(rows: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _spread(n: int, most: int) -> NDArray[np.int64]:
    """At most that many of n row numbers (0 for all), evenly spread."""
    return np.linspace(0, n - 1, min(n, most or n)).astype(np.int64)
