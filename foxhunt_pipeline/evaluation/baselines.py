"""What every model must beat, on the same windows, rows and costs.

Forecasts: ``mean`` (the training rows' mean return and class frequencies), ``last_value`` (no
change), ``ridge`` (linear in the features of the last row; Hoerl & Kennard 1970). Policies:
``flat``, ``buy_and_hold``, and each forecast traded by the common rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foxhunt_pipeline.artifacts import Content, Item, Result, Task
from foxhunt_pipeline.datasets.manifest import DatasetManifest, Window, load
from foxhunt_pipeline.datasets.reader import Split, open_window
from foxhunt_pipeline.evaluation.annual import sessions_per_year
from foxhunt_pipeline.evaluation.judge import (
    judge,
    judge_forecast,
    loss_scale,
    scorecard,
    write,
)
from foxhunt_pipeline.execution.costs import Costs

Floats = NDArray[np.floating]

FORECASTS = ("mean", "last_value", "ridge")
BASELINES = (*FORECASTS, "flat", "buy_and_hold")
PENALTIES = (10.0, 1.0, 0.1, 0.01, 0.001)
"""Ridge penalties tried, times the number of training rows, strongest first."""
CHUNK = 65_536
"""Rows held in memory at once."""


def build(task: Task) -> Result:
    """Items ``predictions/<view>/<window>`` with a file a baseline, and ``scorecard/<view>``."""
    manifest = load(task)
    costs = Costs(**task.config("costs"))
    items: list[Item] = []
    judged = [v for v in manifest.views if any(w.test_sessions for w in manifest.windows_of(v))]
    for view in judged:
        predictions = [
            _window(task, manifest, window, view, costs)
            for window in manifest.windows_of(view)
            if window.test_sessions
        ]
        year = sessions_per_year(manifest, view, task.config("market.calendars"))
        spec = manifest.views[view]
        card = scorecard(task, f"scorecard/{view}", predictions, BASELINES, spec, year)
        items += [*predictions, card]
    return Result(items, {"views": judged})


def _window(task: Task, manifest: DatasetManifest, window: Window, view: str, costs: Costs) -> Item:
    def compute(folder: Path) -> Content:
        data = open_window(task, manifest, window.name, view)
        test, scale = data.test, loss_scale(data.train)
        rows = test.rows(1, labelled=False)
        mean, frequencies = unconditional(data.train)
        shape = (len(rows), test.n_horizons)
        forecasts = {
            "mean": np.broadcast_to(mean, shape),
            "last_value": np.zeros(shape),
            "ridge": ridge(data.train, data.validation).predict(test, rows),
        }
        classes = {"mean": np.broadcast_to(frequencies, (*shape, 3))}
        scores = {
            name: judge_forecast(test, rows, forecast, costs, scale, classes.get(name))
            for name, forecast in forecasts.items()
        }
        scores["flat"] = judge(test, rows, np.zeros(len(rows)), costs)
        scores["buy_and_hold"] = judge(test, rows, np.ones(len(rows)), costs)
        return write(folder, scores)

    return task.item(
        f"predictions/{view}/{window.name}", inputs=[window.digest(view)], compute=compute
    )


def unconditional(train: Split) -> tuple[Floats, Floats]:
    """Mean return (horizon,) and class frequencies (horizon, 3) of the training rows, one row
    of each class added so that no class is impossible."""
    rows = train.rows(1)
    if not len(rows):
        return np.zeros(train.n_horizons), np.full((train.n_horizons, 3), 1 / 3)
    trend = train.take("trend", rows)
    counts = np.stack([(trend == c).sum(axis=0) for c in range(3)], axis=1) + 1.0
    mean = train.take("y", rows).astype(np.float64).mean(axis=0)
    return mean, counts / counts.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class Ridge:
    """``y = x · weights + intercept``. weights: (feature, horizon); intercept: (horizon,)."""

    weights: Floats
    intercept: Floats
    penalty: float

    def predict(self, split: Split, rows: NDArray[np.int64]) -> Floats:
        """(row, horizon): expected log returns."""
        expected = [
            split.gather(chunk, 1)[:, 0] @ self.weights + self.intercept for chunk in _chunks(rows)
        ]
        return np.concatenate([np.empty((0, len(self.intercept))), *expected])


def ridge(train: Split, validation: Split) -> Ridge:
    """Fit on the training rows; the penalty is the one of :data:`PENALTIES` that errs least on
    the validation rows. Closed form on centred data: ``(X'X + n·penalty·I)⁻¹ X'Y``."""
    rows = train.rows(1)
    f, h, n = train.n_features, train.n_horizons, max(len(rows), 1)
    sum_x, sum_y = np.zeros(f), np.zeros(h)
    xx, xy = np.zeros((f, f)), np.zeros((f, h))
    for chunk in _chunks(rows):
        x = train.gather(chunk, 1)[:, 0].astype(np.float64)
        y = train.take("y", chunk).astype(np.float64)
        sum_x, sum_y = sum_x + x.sum(axis=0), sum_y + y.sum(axis=0)
        xx, xy = xx + x.T @ x, xy + x.T @ y
    mean_x, mean_y = sum_x / n, sum_y / n
    xx -= n * np.outer(mean_x, mean_x)
    xy -= n * np.outer(mean_x, mean_y)

    fits = []
    for penalty in PENALTIES:
        weights = np.linalg.solve(xx + n * penalty * np.eye(f), xy)
        fits.append(Ridge(weights, mean_y - mean_x @ weights, penalty))
    held_out = validation.rows(1)
    actual = validation.take("y", held_out).astype(np.float64)
    scale = loss_scale(train)

    def error(fit: Ridge) -> float:
        return float(np.sum(((actual - fit.predict(validation, held_out)) / scale) ** 2))

    return min(fits, key=error)


def _chunks(rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]
