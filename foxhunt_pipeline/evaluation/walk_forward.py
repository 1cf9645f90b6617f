"""Walk-forward evaluation of a model: every window's checkpoint on its own test span.

A window's predictions depend on its checkpoint and its own content alone, so that a new session
evaluates the new window and no other.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from foxhunt_pipeline.artifacts import Content, Item, Result, Task
from foxhunt_pipeline.checkpoints.format import Checkpoint
from foxhunt_pipeline.checkpoints.format import load as load_checkpoint
from foxhunt_pipeline.datasets.manifest import DatasetManifest, Window, load
from foxhunt_pipeline.datasets.reader import Split, WindowData, open_window
from foxhunt_pipeline.evaluation.annual import sessions_per_year
from foxhunt_pipeline.evaluation.forecasting import expected_returns
from foxhunt_pipeline.evaluation.judge import judge, judge_forecast, loss_scale, scorecard, write
from foxhunt_pipeline.evaluation.scores import Scores
from foxhunt_pipeline.execution.costs import Costs
from foxhunt_pipeline.execution.environment import World
from foxhunt_pipeline.execution.rollout import follow
from foxhunt_pipeline.models.contract import Family, ForecastFamily, settings_of
from foxhunt_pipeline.training.rebuild import forecaster, module_from
from foxhunt_pipeline.training.seeding import reproducible

MODEL = "model"
"""Name of the contestant in the items, as ``ridge`` is one of the baselines'."""
CHECKPOINT = "model.safetensors"


def build(task: Task) -> Result:
    """Items ``predictions/<window>`` with the window's
    :class:`~foxhunt_pipeline.evaluation.scores.Scores`, and ``scorecard``.

    Raises :class:`~foxhunt_pipeline.errors.ViewUnavailableError` where the data lacks the view.
    """
    manifest = load(task)
    view = task.family.view
    spec = manifest.require_view(view)
    training = task.input(f"{task.model}/training").items
    predictions = [
        _window(task, manifest, window, training[window.name])
        for window in manifest.windows_of(view)
        if window.test_sessions
    ]
    year = sessions_per_year(manifest, view, task.config("market.calendars"))
    card = scorecard(task, "scorecard", predictions, (MODEL,), spec, year)
    return Result([*predictions, card], card.figures[MODEL]["overall"])


def _window(task: Task, manifest: DatasetManifest, window: Window, trained: Item) -> Item:
    def compute(folder: Path) -> Content:
        data = open_window(task, manifest, window.name, task.family.view)
        checkpoint = load_checkpoint(task.path(trained, CHECKPOINT))
        scores = score(task, checkpoint, data, data.test)
        return write(folder, {MODEL: scores})

    return task.item(
        f"predictions/{window.name}",
        inputs=[trained.digest, window.digest(task.family.view)],
        compute=compute,
        extra={"device": torch.device(task.device).type},
    )


def score(task: Task, checkpoint: Checkpoint, data: WindowData, test: Split) -> Scores:
    """A checkpoint's decisions on a test span, judged. ``test`` is the window's, perhaps scaled
    as the checkpoint wants it; losses are in units of the window's training rows."""
    family: Family = task.family
    costs = Costs(**task.config("costs"))
    device = torch.device(task.device)
    threads = task.config("training.threads")
    cuda = (device.index or 0) if device.type == "cuda" else None
    with reproducible(task.seed, threads=threads, cuda=cuda):
        if isinstance(family, ForecastFamily):
            model = forecaster(checkpoint, family, device)
            rows = test.rows(model.config.context, labelled=False)
            said = expected_returns(model, test, rows, data.validation)
            expected = _or_nothing(said.expected, rows, test)
            scale = loss_scale(data.train)
            return judge_forecast(test, rows, expected, costs, scale, said.probabilities)
        context = settings_of(family, checkpoint.header.config).context
        module = module_from(checkpoint, family, device)
        walked = follow(module, World.of(test, context, costs, device))
        return judge(test, walked.rows, walked.targets, costs)


def _or_nothing(
    expected: NDArray[np.floating] | None, rows: NDArray[np.int64], test: Split
) -> NDArray[np.floating]:
    """Expected returns, NaN where there was no row to forecast."""
    return np.full((len(rows), test.n_horizons), np.nan) if expected is None else expected
