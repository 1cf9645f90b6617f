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
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import nn

from foxhunt_pipeline.artifacts import Result, Task
from foxhunt_pipeline.errors import TrainingError
from foxhunt_pipeline.models.contract import (
    ForecastFamily,
    settings_of,
)
from foxhunt_pipeline.training.acceleration import accelerated
from foxhunt_pipeline.training.device import Device
from foxhunt_pipeline.training.inputs import Rows, SplitRows, target_scale
from foxhunt_pipeline.training.numerics import blame
from foxhunt_pipeline.training.optimiser import (
    WeightAverage,
    adamw,
    snapshot,
    warmup_cosine,
)
from foxhunt_pipeline.training.progress import Epoch
from foxhunt_pipeline.training.seeding import reproducible
from foxhunt_pipeline.training.settings import TrainSettings, train_settings
from foxhunt_pipeline.training.windows import Trained, TrainingWindow, model_table, train_windows


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
    table = model_table(task)
    config = settings_of(family, table)
    settings = train_settings(task.model, table)

    def report(window: TrainingWindow, epoch: Epoch) -> None:
        message = f"{window.model} {window.name} epoch {epoch.epoch}/{settings.epochs}"
        task.progress(message, **epoch.figures())

    return train_windows(
        task,
        config,
        lambda window: _train(family, config, settings, window, partial(report, window)),
        libraries={"accelerate": version("accelerate")},
    )


def _train(
    family: ForecastFamily,
    config: Any,
    settings: TrainSettings,
    window: TrainingWindow,
    report: Callable[[Epoch], None],
) -> Trained:
    opened, device = window.opened, window.device
    scale = target_scale(opened.train, config.context)
    train = SplitRows(opened.train, config.context, scale, device.torch)
    validation = SplitRows(opened.validation, config.context, scale, device.torch)
    for rows, split in ((train, "training"), (validation, "validation")):
        if not len(rows):
            raise TrainingError(
                f"{window.model}: window {window.name} has no {split} row with {config.context} "
                f"rows of look-back and every label ({', '.join(window.sessions)}).",
                remedy=f"Lower models.{window.model}.context or the horizons, or give the window "
                "more sessions.",
            )
    with reproducible(window.seed, threads=window.threads, cuda=device.index):
        with device.torch:
            module = family.build(config, window.spec)
        fitted = fit(
            family,
            config,
            module,
            train,
            validation,
            settings,
            device,
            seed=window.seed,
            name=f"{window.model} {window.name}",
            report=report,
        )
    rows_seen = {"rows": len(train), "rows_validation": len(validation)}
    return Trained(
        module=module,
        metrics={
            "best_epoch": fitted.best_epoch,
            "validation_loss": fitted.epochs[fitted.best_epoch - 1].validation_loss,
            "steps": fitted.steps,
            "rows_train": len(train),
            "rows_validation": len(validation),
        },
        extra={
            "target_scale": scale.tolist(),
            "trend_thresholds": list(opened.trend_thresholds),
        },
        figures=rows_seen
        | {
            "steps": fitted.steps,
            "best_epoch": fitted.best_epoch,
            "epochs": [epoch.figures() for epoch in fitted.epochs],
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
