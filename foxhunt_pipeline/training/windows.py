"""What every loop does round its training: walk the windows, write the checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from foxhunt_pipeline.artifacts import Content, Result, Task, digest_of
from foxhunt_pipeline.checkpoints.format import Checkpoint, Header, library_versions, save
from foxhunt_pipeline.datasets import manifest
from foxhunt_pipeline.datasets.reader import WindowData, open_window
from foxhunt_pipeline.models.contract import Family, InputSpec, parameter_count
from foxhunt_pipeline.training.device import Device, resolve
from foxhunt_pipeline.training.inputs import input_spec
from foxhunt_pipeline.training.seeding import seed_of

CHECKPOINT = "model.safetensors"
"""File of a training item."""


@dataclass(frozen=True)
class TrainingWindow:
    """One window to train: its rows, where it trains and from which seed."""

    name: str
    model: str
    opened: WindowData
    spec: InputSpec
    device: Device
    threads: int
    seed: int

    @property
    def sessions(self) -> tuple[str, ...]:
        return self.opened.window.train_sessions


@dataclass(frozen=True)
class Trained:
    """A fitted module, with what the header and the figures of its window say besides."""

    module: nn.Module
    metrics: Mapping[str, Any]
    """Goes into the checkpoint's header."""
    extra: Mapping[str, Any]
    """Goes into the header too: what rebuilding or judging the model needs."""
    figures: Mapping[str, Any]
    """Goes into the item's figures."""


def model_table(task: Task) -> dict[str, Any]:
    """The model's part of the configuration without the keys that are no settings."""
    table: Mapping[str, Any] = task.config(f"models.{task.model}")
    return {key: value for key, value in table.items() if key not in ("enabled", "family")}


def train_windows(
    task: Task,
    config: Any,
    train: Callable[[TrainingWindow], Trained],
    *,
    precision: str | None = None,
    libraries: Mapping[str, str] | None = None,
) -> Result:
    """An item for each window of the family's view and for production: a checkpoint.

    config: the family's own. precision: of the loop, or None for the configured one.
    Raises :class:`~foxhunt_pipeline.errors.ViewUnavailableError` where the data lacks the view.
    """
    family: Family = task.family
    training = task.config("training")
    device = resolve(task.device, training["require_device"], precision or training["precision"])
    data = manifest.load(task)
    data.require_view(family.view, getattr(config, "min_levels", 0))

    def compute(name: str, folder: Path) -> Content:
        started = time.perf_counter()
        opened = open_window(task, data, name, family.view)
        window = TrainingWindow(
            name=name,
            model=task.model,
            opened=opened,
            spec=input_spec(opened.spec),
            device=device,
            threads=training["threads"],
            seed=seed_of(task.seed, task.model, name),
        )
        trained = train(window)
        checkpoint = _checkpoint(task, config, window, trained, libraries or {})
        save(checkpoint, folder / CHECKPOINT)
        return Content(
            digest=digest_of(checkpoint.digest(), checkpoint.header.extra),
            figures={
                **trained.figures,
                "parameters": parameter_count(trained.module),
                "seconds": time.perf_counter() - started,
            },
        )

    items = [
        task.item(
            window.name,
            inputs=[window.digest(family.view)],
            compute=partial(compute, window.name),
            extra={
                "device": device.kind,
                "precision": device.precision,
                "deterministic": True,
            },
        )
        for window in data.windows_of(family.view)
    ]
    totals = [key for key in ("rows", "steps", "env_steps") if key in items[-1].figures]
    return Result(
        items=items,
        figures={
            "windows": len(items),
            "parameters": items[-1].figures["parameters"],
            **{key: sum(item.figures[key] for item in items) for key in totals},
            "device": device.describe(),
        },
    )


def _checkpoint(
    task: Task,
    config: Any,
    window: TrainingWindow,
    trained: Trained,
    libraries: Mapping[str, str],
) -> Checkpoint:
    family: Family = task.family
    opened, spec = window.opened, window.spec
    return Checkpoint(
        tensors=trained.module.state_dict(),
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
            data_versions={window.name: opened.window.digest(family.view)},
            libraries=library_versions() | dict(libraries),
            device=window.device.kind,
            precision=window.device.precision,
            parameter_count=parameter_count(trained.module),
            metrics=dict(trained.metrics),
            extra={
                "model": task.model,
                "window": window.name,
                "train_sessions": list(window.sessions),
                "n_levels": spec.n_levels,
                **trained.extra,
            },
        ),
    )
