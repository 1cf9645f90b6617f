"""What is fitted on a window's training rows: the scaler and the trend thresholds.

Columns are read one at a time from their memory-mapped files, so that memory holds one column of
a window, not the window.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from foxhunt_pipeline.datasets.manifest import Scaler

Matrix = NDArray[np.float32]

_IQR_OF_NORMAL = 1.3489795003921634


def fit_scaler(parts: Sequence[tuple[Matrix, Sequence[int]]], n_columns: int) -> Scaler:
    """Robust scaler of the pooled rows of ``parts``: a matrix (row, …) and the places of the
    columns in it.

    Centre: the median. Scale: the interquartile range over that of the standard normal, which is
    the standard deviation of a normal column; where more than half of the values are equal, the
    standard deviation itself; 1 for a constant column. NaN is ignored.
    """
    centers, scales = [], []
    for column in range(n_columns):
        values = _pooled([matrix[:, places[column]] for matrix, places in parts])
        if not len(values):
            centers.append(0.0)
            scales.append(1.0)
            continue
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        scale = (high - low) / _IQR_OF_NORMAL or values.std()
        centers.append(float(middle))
        scales.append(float(scale) or 1.0)
    return Scaler(tuple(centers), tuple(scales))


def trend_thresholds(parts: Sequence[Matrix], n_horizons: int, share: float) -> tuple[float, ...]:
    """Per horizon the threshold t such that 2 ``share`` of the labelled rows have a smoothed
    return above t or below -t: the classes up and down then have about ``share`` each.

    One threshold for both sides, as in DeepLOB and TLOB, so that no rise is ever called down;
    taken from training rows only, unlike theirs. ``parts``: smoothed returns, (rows, horizon).
    """
    thresholds = []
    for column in range(n_horizons):
        values = np.abs(_pooled([part[:, column] for part in parts]))
        thresholds.append(float(np.quantile(values, 1 - 2 * share)) if len(values) else 0.0)
    return tuple(thresholds)


def _pooled(parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
    values: NDArray[np.float64] = np.concatenate([np.empty(0), *parts])
    return values[np.isfinite(values)]
