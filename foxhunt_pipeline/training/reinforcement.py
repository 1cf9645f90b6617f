"""Training of the policy families: one plain loop for all of them.

Every walk-forward window, and production, gives one checkpoint: that of the policy which, acting
greedily, did best on the window's validation rows. A window is seeded by itself (from the
configured seed, the model's name and the window's), so that it comes out the same whichever
windows are trained beside it. Policies are small and computed in fp32 on every device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foxhunt_pipeline.artifacts import Content, Item, Result, Task, digest_of
from foxhunt_pipeline.checkpoints.format import Checkpoint, Header, library_versions, save
from foxhunt_pipeline.datasets import manifest
from foxhunt_pipeline.datasets.reader import open_window
from foxhunt_pipeline.errors import TrainingError
from foxhunt_pipeline.execution.actions import ActionSpace
from foxhunt_pipeline.execution.costs import Costs
from foxhunt_pipeline.execution.environment import MarketEnvironment, World, utility
from foxhunt_pipeline.execution.rollout import follow
from foxhunt_pipeline.models.contract import PolicyFamily, parameter_count, settings_of
from foxhunt_pipeline.models.learning import Learner, PolicyConfig
from foxhunt_pipeline.training.device import Device, resolve
from foxhunt_pipeline.training.inputs import input_spec
from foxhunt_pipeline.training.optimiser import snapshot
from foxhunt_pipeline.training.seeding import reproducible, seed_of

CHECKPOINT = "model.safetensors"
PRECISION = "fp32"
EVALUATIONS = 20
"""Times that a training looks at the validation rows, evenly spread over its steps."""


@dataclass(frozen=True)
class Fit:
    """How a module was trained. The module itself holds the weights of ``best_step``."""

    curve: tuple[Mapping[str, float], ...]
    """At each evaluation: ``env_steps``, ``gradient_steps``, ``validation`` (mean utility of a
    row, in basis points) and the learner's figures, each the mean since the evaluation before."""
    best_step: int
    """Environment steps after which the validation utility was greatest."""
    env_steps: int
    gradient_steps: int


def build(task: Task) -> Result:
    """Train every window of the model's view, and production.

    Raises:
        ConfigError: A setting of the model is wrong.
        ViewUnavailableError: The data lacks the model's view.
        TrainingError: A window has no rows to trade in, or a figure is not finite.
    """
    family: PolicyFamily = task.family
    table = task.config(f"models.{task.model}")
    own = {key: value for key, value in table.items() if key not in ("enabled", "family")}
    config = settings_of(family, own)
    training = task.config("training")
    device = resolve(task.device, training["require_device"], PRECISION)
    data = manifest.load(task)
    data.require_view(family.view, getattr(config, "min_levels", 0))

    def train(window: manifest.Window) -> Item:
        return task.item(
            window.name,
            inputs=[window.digest(family.view)],
            compute=lambda folder: _train_window(
                task, folder, data, window.name, config, device, training["threads"]
            ),
            extra={"device": device.kind, "precision": PRECISION, "deterministic": True},
        )

    items = [train(window) for window in data.windows_of(family.view)]
    return Result(
        items=items,
        figures={
            "windows": len(items),
            "rows": sum(item.figures["rows"] for item in items),
            "parameters": items[-1].figures["parameters"],
            "steps": sum(item.figures["steps"] for item in items),
            "env_steps": sum(item.figures["env_steps"] for item in items),
            "device": device.describe(),
        },
    )


def _train_window(
    task: Task,
    folder: Path,
    data: manifest.DatasetManifest,
    window: str,
    config: Any,
    device: Device,
    threads: int,
) -> Content:
    started = time.perf_counter()
    family: PolicyFamily = task.family
    name = f"{task.model} {window}"
    opened = open_window(task, data, window, family.view)
    spec = input_spec(opened.spec)
    costs = Costs(**task.config("costs"))
    train = World.of(opened.train, config.context, costs, device.torch)
    validation = World.of(opened.validation, config.context, costs, device.torch)
    for world, split in ((train, "training"), (validation, "validation")):
        if not len(world.starts()):
            raise TrainingError(
                f"{name}: no {split} row can be traded with {config.context} rows of look-back "
                f"({', '.join(opened.window.train_sessions)}).",
                remedy=f"Lower models.{task.model}.context, or give the window more sessions.",
            )
    seed = seed_of(task.seed, task.model, window)

    def report(step: int, figures: Mapping[str, float]) -> None:
        task.progress(f"{name} step {step}/{config.total_steps}", **figures)

    with reproducible(seed, threads=threads, cuda=device.index):
        with device.torch:
            module = family.build(config, spec, len(ActionSpace()))
        fitted = fit(family, config, module, train, validation, seed=seed, name=name, report=report)
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
            libraries=library_versions(),
            device=device.kind,
            precision=PRECISION,
            parameter_count=parameter_count(module),
            metrics={
                "best_step": fitted.best_step,
                "validation_utility_bps": max(point["validation"] for point in fitted.curve),
                "env_steps": fitted.env_steps,
                "steps": fitted.gradient_steps,
                "rows_train": train.rows,
                "rows_validation": validation.rows,
            },
            extra={
                "model": task.model,
                "window": window,
                "train_sessions": list(opened.window.train_sessions),
                "n_levels": spec.n_levels,
                "n_actions": len(ActionSpace()),
                "exposures": list(ActionSpace().exposures),
                "costs": asdict(costs),
            },
        ),
    )
    save(checkpoint, folder / CHECKPOINT)
    return Content(
        digest=digest_of(checkpoint.digest(), checkpoint.header.extra),
        figures={
            "rows": train.rows,
            "rows_validation": validation.rows,
            "parameters": parameter_count(module),
            "steps": fitted.gradient_steps,
            "env_steps": fitted.env_steps,
            "best_step": fitted.best_step,
            "curve": [dict(point) for point in fitted.curve],
            "seconds": time.perf_counter() - started,
        },
    )


def fit(
    family: PolicyFamily,
    config: PolicyConfig,
    module: nn.Module,
    train: World,
    validation: World,
    *,
    seed: int,
    name: str = "policy",
    report: Callable[[int, Mapping[str, float]], None] = lambda step, figures: None,
) -> Fit:
    """Train a module in place; it ends in evaluation mode with its best weights.

    ``report`` is called after every update with the environment steps so far and the learner's
    figures. Raises :class:`~foxhunt_pipeline.errors.TrainingError` naming step and figure if one
    is not finite.
    """
    device = train.table.device
    environment = MarketEnvironment(
        train, config.n_envs, config.episode_rows, config.risk_aversion, seed=seed
    )
    generator = torch.Generator(device).manual_seed(seed_of(seed, "learner"))
    learner: Learner = family.learner(config, module, environment, generator)
    curve: list[Mapping[str, float]] = []
    since: list[Mapping[str, float]] = []
    best, best_step, best_state = -math.inf, 0, snapshot(module)
    while learner.env_steps < config.total_steps:
        started, before = time.perf_counter(), learner.env_steps
        module.train()
        figures = learner.update()
        _check(name, learner.env_steps, figures, module)
        since.append(figures)
        speed = (learner.env_steps - before) / (time.perf_counter() - started)
        share = learner.env_steps / config.total_steps
        if share >= 1 or math.floor(share * EVALUATIONS) > len(curve):
            pnl = follow(module, validation).outcome.pnl
            achieved = float(utility(pnl, config.risk_aversion).mean())
            if achieved > best:
                best, best_step, best_state = achieved, learner.env_steps, snapshot(module)
            means = {key: sum(f[key] for f in since) / len(since) for key in figures}
            counts = {"env_steps": learner.env_steps, "gradient_steps": learner.gradient_steps}
            curve.append({**counts, "validation": achieved, **means})
            since.clear()
            figures = {**figures, "validation": achieved}
        report(learner.env_steps, {**figures, "steps_per_second": speed})
    module.load_state_dict(best_state)
    module.eval()
    return Fit(tuple(curve), best_step, learner.env_steps, learner.gradient_steps)


def _check(name: str, step: int, figures: Mapping[str, float], module: nn.Module) -> None:
    wrong = [f"{key} = {value:g}" for key, value in figures.items() if not math.isfinite(value)]
    wrong += [
        f"parameter {key}" for key, value in module.named_parameters() if not value.isfinite().all()
    ]
    if wrong:
        raise TrainingError(
            f"{name}: not finite after step {step}: {', '.join(wrong[:5])}.",
            remedy="Lower learning_rate or max_grad_norm, or look at the features of the "
            "training rows.",
        )
