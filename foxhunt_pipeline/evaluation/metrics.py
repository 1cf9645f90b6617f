"""Figures of merit of forecasts and of trading.

Every function takes plain arrays and gives a float; a figure that is not defined (a ratio with
nothing below the line) is NaN. Profit and loss ("P&L") is a series of returns on constant
capital, one a period, so that equity is its running sum and nothing compounds.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Classes = NDArray[np.int64]

BPS = 1e4
N_CLASSES = 3
"""Trend classes: down, flat, up."""


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else math.nan


# Forecasts -----------------------------------------------------------------------------------


def mse(forecast: Floats, actual: Floats) -> float:
    """Mean of ``(forecast - actual)²``."""
    return float(np.mean((forecast - actual) ** 2)) if forecast.size else math.nan


def rmse(forecast: Floats, actual: Floats) -> float:
    """Square root of :func:`mse`; in the unit of the returns."""
    return math.sqrt(mse(forecast, actual))


def mae(forecast: Floats, actual: Floats) -> float:
    """Mean of ``|forecast - actual|``."""
    return float(np.mean(np.abs(forecast - actual))) if forecast.size else math.nan


def cross_entropy(probabilities: Floats, actual: Classes) -> float:
    """Mean of ``-ln p[actual]``, in nats. probabilities: (n, class); actual: (n,).

    A probability below 1e-12 counts as 1e-12, so that one confident error stays finite.
    """
    if not actual.size:
        return math.nan
    chosen = np.take_along_axis(probabilities, actual[:, None], axis=1)
    return float(-np.mean(np.log(np.maximum(chosen, 1e-12))))


def confusion(predicted: Classes, actual: Classes) -> NDArray[np.int64]:
    """Counts (actual class, predicted class), both in ``range(3)``."""
    counts = np.bincount(actual * N_CLASSES + predicted, minlength=N_CLASSES**2)
    return counts.reshape(N_CLASSES, N_CLASSES)


def accuracy(counts: NDArray[np.int64]) -> float:
    """Share of a :func:`confusion` matrix on its diagonal."""
    return _ratio(float(np.trace(counts)), float(counts.sum()))


def macro_f1(counts: NDArray[np.int64]) -> float:
    """Mean over classes of ``2 TP / (2 TP + FP + FN)``; classes neither seen nor predicted
    are left out."""
    hits = np.diag(counts).astype(float)
    total = counts.sum(axis=0) + counts.sum(axis=1)
    present = total > 0
    return float(np.mean(2 * hits[present] / total[present])) if present.any() else math.nan


def mcc(counts: NDArray[np.int64]) -> float:
    """Matthews correlation for several classes, R_K of Gorodkin (2004): the correlation of the
    one-hot predictions with the one-hot classes. NaN where either never varies."""
    c = counts.astype(float)
    n, hits = c.sum(), np.trace(c)
    actual, predicted = c.sum(axis=1), c.sum(axis=0)
    covariance = hits * n - actual @ predicted
    variances = (n * n - actual @ actual) * (n * n - predicted @ predicted)
    return _ratio(float(covariance), math.sqrt(variances))


def information_coefficient(forecast: Floats, actual: Floats) -> float:
    """Pearson correlation of forecast and realised return; NaN where either never varies."""
    if forecast.size < 2:
        return math.nan
    f, a = forecast - forecast.mean(), actual - actual.mean()
    return _ratio(float(f @ a), math.sqrt(float(f @ f) * float(a @ a)))


# Trading -------------------------------------------------------------------------------------


def net_return_bps(pnl: Floats) -> float:
    """Sum of the P&L, in basis points of capital."""
    return float(pnl.sum()) * BPS


def sharpe(pnl: Floats, periods_per_year: float) -> float:
    """``mean / std · sqrt(periods per year)``, std with n - 1; Sharpe (1994), no risk-free rate:
    nothing is held overnight. NaN where the P&L never varies."""
    if pnl.size < 2:
        return math.nan
    return _ratio(float(pnl.mean()), _spread(pnl)) * math.sqrt(periods_per_year)


def sortino(pnl: Floats, periods_per_year: float) -> float:
    """``mean / sqrt(mean(min(pnl, 0)²)) · sqrt(periods per year)``; Sortino & Price (1994) with
    a target of zero. NaN where nothing was lost."""
    if not pnl.size:
        return math.nan
    downside = math.sqrt(float(np.mean(np.minimum(pnl, 0.0) ** 2)))
    return _ratio(float(pnl.mean()), downside) * math.sqrt(periods_per_year)


def _spread(pnl: Floats) -> float:
    return 0.0 if np.ptp(pnl) == 0 else float(pnl.std(ddof=1))


def max_drawdown_bps(pnl: Floats) -> float:
    """Deepest fall of the running sum below its highest value so far (at least 0, where it
    starts), in basis points of capital; not negative."""
    equity = np.concatenate([[0.0], np.cumsum(pnl)])
    return float(np.max(np.maximum.accumulate(equity) - equity)) * BPS


def hit_rate(gross: Floats) -> float:
    """Share of periods with a gain among those with a gain or a loss."""
    return _ratio(float(np.sum(gross > 0)), float(np.sum(gross != 0)))


def profit_factor(pnl: Floats) -> float:
    """Sum of gains over sum of losses. NaN where nothing was lost."""
    return _ratio(float(pnl[pnl > 0].sum()), float(-pnl[pnl < 0].sum()))


# As figures ----------------------------------------------------------------------------------


def plain(figures: dict[str, float]) -> dict[str, Any]:
    """Figures as JSON has them: NaN and infinity become null."""
    return {
        key: value if isinstance(value, int) or math.isfinite(value) else None
        for key, value in figures.items()
    }


def class_figures(probabilities: Floats, actual: Classes) -> dict[str, Any]:
    """Cross-entropy, accuracy, macro F1 and MCC over the rows that have a class (actual >= 0)."""
    known = actual >= 0
    probabilities, actual = probabilities[known], actual[known]
    counts = confusion(np.argmax(probabilities, axis=1).astype(np.int64), actual)
    return plain(
        {
            "cross_entropy": cross_entropy(probabilities, actual),
            "accuracy": accuracy(counts),
            "macro_f1": macro_f1(counts),
            "mcc": mcc(counts),
        }
    )


def return_figures(forecast: Floats, actual: Floats) -> dict[str, Any]:
    """RMSE and MAE in basis points, and the information coefficient, over finite rows."""
    known = np.isfinite(actual) & np.isfinite(forecast)
    forecast, actual = forecast[known], actual[known]
    return plain(
        {
            "rmse_bps": rmse(forecast, actual) * BPS,
            "mae_bps": mae(forecast, actual) * BPS,
            "information_coefficient": information_coefficient(forecast, actual),
        }
    )
