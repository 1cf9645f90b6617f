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
from functools import partial
from typing import Any

import torch
from torch import nn

from foxhunt_pipeline.artifacts import Result, Task
from foxhunt_pipeline.errors import TrainingError
from foxhunt_pipeline.execution.actions import ActionSpace
from foxhunt_pipeline.execution.costs import Costs
from foxhunt_pipeline.execution.environment import MarketEnvironment, World, utility
from foxhunt_pipeline.execution.rollout import follow
from foxhunt_pipeline.models.contract import PolicyFamily, settings_of
from foxhunt_pipeline.models.learning import Learner, PolicyConfig
from foxhunt_pipeline.training.optimiser import snapshot
from foxhunt_pipeline.training.seeding import reproducible, seed_of
from foxhunt_pipeline.training.windows import Trained, TrainingWindow, model_table, train_windows

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
    config = settings_of(family, model_table(task))
    costs = Costs(**task.config("costs"))

    def report(window: TrainingWindow, step: int, figures: Mapping[str, float]) -> None:
        message = f"{window.model} {window.name} step {step}/{config.total_steps}"
        task.progress(message, **figures)

    return train_windows(
        task,
        config,
        lambda window: _train(family, config, costs, window, partial(report, window)),
        precision=PRECISION,
    )


def _train(
    family: PolicyFamily,
    config: Any,
    costs: Costs,
    window: TrainingWindow,
    report: Callable[[int, Mapping[str, float]], None],
) -> Trained:
    name = f"{window.model} {window.name}"
    opened, device, space = window.opened, window.device, ActionSpace()
    train = World.of(opened.train, config.context, costs, device.torch)
    validation = World.of(opened.validation, config.context, costs, device.torch)
    for world, split in ((train, "training"), (validation, "validation")):
        if not len(world.starts()):
            raise TrainingError(
                f"{name}: no {split} row can be traded with {config.context} rows of look-back "
                f"({', '.join(window.sessions)}).",
                remedy=f"Lower models.{window.model}.context, or give the window more sessions.",
            )
    with reproducible(window.seed, threads=window.threads, cuda=device.index):
        with device.torch:
            module = family.build(config, window.spec, len(space))
        fitted = fit(
            family, config, module, train, validation, seed=window.seed, name=name, report=report
        )
    return Trained(
        module=module,
        metrics={
            "best_step": fitted.best_step,
            "validation_utility_bps": max(point["validation"] for point in fitted.curve),
            "env_steps": fitted.env_steps,
            "steps": fitted.gradient_steps,
            "rows_train": train.rows,
            "rows_validation": validation.rows,
        },
        extra={
            "n_actions": len(space),
            "exposures": list(space.exposures),
            "costs": asdict(costs),
        },
        figures={
            "rows": train.rows,
            "rows_validation": validation.rows,
            "steps": fitted.gradient_steps,
            "env_steps": fitted.env_steps,
            "best_step": fitted.best_step,
            "curve": [dict(point) for point in fitted.curve],
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
