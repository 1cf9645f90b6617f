"""Labels that look forward a number of rows: returns and smoothed returns.

A label that would need a row beyond the session's last does not exist: NaN, never a shorter one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def forward_returns(mark: Ints, horizons: Sequence[int]) -> Floats:
    """(n, horizon): log(mark[i + h] / mark[i]); NaN where either is undefined (<= 0)."""
    logs = _log(mark)
    out = np.full((len(mark), len(horizons)), np.nan)
    for column, h in enumerate(horizons):
        out[:-h, column] = logs[h:] - logs[:-h]
    return out


def smoothed_returns(mark: Ints, horizons: Sequence[int]) -> Floats:
    """(n, horizon): log(mean of mark[i + 1 .. i + h] / mark[i]).

    Zhang, Zohren and Roberts (2019), equation 3: the mean of the next marks against the mark now.
    Their equation 4, and TLOB, set it against the mean of the past ones, which puts moves that
    have happened already into what is to be foretold. Marks that are undefined are left out of
    the mean; the label exists if at least half of the marks and the one at the row are there.
    """
    there = mark > 0
    base = int(mark[there][0]) if there.any() else 0
    sums = _cumulated(np.where(there, mark - base, 0))
    counts = _cumulated(there)
    out = np.full((len(mark), len(horizons)), np.nan)
    for column, h in enumerate(horizons):
        rows = np.arange(max(len(mark) - h, 0))
        total = sums[rows + h + 1] - sums[rows + 1]
        count = counts[rows + h + 1] - counts[rows + 1]
        usable = (2 * count >= h) & there[rows]
        rows, total, count = rows[usable], total[usable], count[usable]
        out[rows, column] = np.log((base + total / count) / mark[rows])
    return out


def end_times(ts: Ints, horizons: Sequence[int]) -> Ints:
    """(n, horizon): time of the row at which the label is known; -1 where there is none."""
    out = np.full((len(ts), len(horizons)), -1, np.int64)
    for column, h in enumerate(horizons):
        out[:-h, column] = ts[h:]
    return out


def _cumulated(values: Ints | NDArray[np.bool_]) -> Ints:
    """(n + 1,): sums of the first 0, 1, … values, exact in integers."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)])


def _log(px: Ints) -> Floats:
    logs: Floats = np.log(np.where(px > 0, px, np.nan))
    return logs
