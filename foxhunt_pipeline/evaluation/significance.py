"""Is a mean difference more than noise? Stationary bootstrap of a paired series.

Politis & Romano (1994), "The Stationary Bootstrap": blocks of geometric length, so that the
resampled series keeps the serial dependence of the original. A block starts at any row and, at
the end of its session, goes on at the session's beginning: it never joins two sessions, and
every row is drawn equally often. The mean block length is chosen from the data by Politis & White
(2004) as corrected by Patton, Politis & White (2009).

The test is one-sided: H0 "the mean is at most zero" is rejected at ``level`` when
``p_value <= level``, which is when ``low >= 0``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MeanTest:
    """Result of :func:`mean_test`.

    ``low`` and ``high`` bound the mean, each with confidence ``1 - level`` (basic bootstrap
    interval); ``block`` is the mean block length in rows.
    """

    mean: float
    low: float
    high: float
    p_value: float
    rows: int
    block: float


def mean_test(
    difference: Floats,
    sessions: NDArray[np.int64],
    *,
    samples: int,
    level: float,
    seed: int,
    least_block: float = 1.0,
) -> MeanTest:
    """Test whether the mean of a paired difference is above zero.

    difference: (n,) in time order; sessions: (n,) a number that is the same within a session
    and ascends; least_block: shortest mean block, as the longest horizon of overlapping
    forecasts. The same arguments give the same result.
    """
    n = difference.size
    if n == 0 or not np.any(difference):
        return MeanTest(0.0, 0.0, 0.0, 1.0, n, 1.0)
    starts = _session_starts(sessions)
    block = max(block_length(difference, sessions), min(least_block, n / 3), 1.0)
    mean = float(difference.mean())
    deviations = _resampled_means(difference, starts, block, samples, seed) - mean
    return MeanTest(
        mean=mean,
        low=mean - float(np.quantile(deviations, 1 - level, method="higher")),
        high=mean - float(np.quantile(deviations, level, method="lower")),
        p_value=(1 + int(np.sum(deviations >= mean))) / (samples + 1),
        rows=n,
        block=block,
    )


def block_length(series: Floats, sessions: NDArray[np.int64]) -> float:
    """Mean block length that minimises the error of the stationary bootstrap's variance.

    ``(G / g(0))^(2/3) n^(1/3)`` with ``G = Σ λ(k/M) |k| R(k)`` and ``g(0) = Σ λ(k/M) R(k)``;
    λ is the flat-top kernel, R the autocovariance (products within a session only) and M twice
    the lag after which the correlations are insignificant. At least 1, at most
    ``min(3 sqrt(n), n / 3)``.
    """
    n = series.size
    run = max(5, math.ceil(math.sqrt(math.log10(max(n, 10)))))
    longest = min(math.ceil(math.sqrt(n)) + run, n - 1)
    covariance = _autocovariance(series - series.mean(), _session_starts(sessions), longest)
    if longest <= run or covariance[0] <= 0:
        return 1.0
    noise = 2 * math.sqrt(math.log10(n) / n)
    quiet = np.abs(covariance[1:]) < noise * covariance[0]
    runs = np.convolve(quiet, np.ones(run), mode="valid") == run
    last = int(np.argmax(runs)) if runs.any() else longest - run
    m = min(2 * max(last, 1), longest)
    lags = np.arange(1, m + 1)
    kernel = np.clip(2 * (1 - lags / m), 0, 1)
    weighted = kernel * covariance[1 : m + 1]
    g = float(2 * np.sum(lags * weighted))
    spectrum = float(covariance[0] + 2 * np.sum(weighted))
    longest_block = max(1.0, min(3 * math.sqrt(n), n / 3))
    if spectrum <= 0:
        return longest_block
    return float(np.clip((g / spectrum) ** 2 * n, 1.0, longest_block**3) ** (1 / 3))


def _session_starts(sessions: NDArray[np.int64]) -> NDArray[np.int64]:
    """First row of each session, and n."""
    return np.concatenate([[0], np.flatnonzero(np.diff(sessions)) + 1, [sessions.size]])


def _autocovariance(centred: Floats, starts: NDArray[np.int64], longest: int) -> Floats:
    """R(k) for k = 0 … longest: products within sessions, over n."""
    result = np.zeros(longest + 1)
    for a, b in pairwise(starts):
        part = centred[a:b]
        size = 1 << int(2 * part.size - 1).bit_length()
        spectrum = np.fft.rfft(part, size)
        products = np.fft.irfft(spectrum * np.conj(spectrum), size)
        lags = min(part.size, longest + 1)
        result[:lags] += products[:lags]
    return result / centred.size


def _resampled_means(
    series: Floats, starts: NDArray[np.int64], block: float, samples: int, seed: int
) -> Floats:
    """Means of stationary-bootstrap samples.

    Only sums are needed, so a block costs two look-ups in running sums however long it is.
    """
    n = series.size
    rng = np.random.default_rng(seed)
    running = np.concatenate([[0.0], np.cumsum(series)])
    session = np.repeat(np.arange(starts.size - 1), np.diff(starts))
    first, size = starts[:-1][session], np.diff(starts)[session]
    total = (running[starts[1:]] - running[starts[:-1]])[session]
    # Enough blocks to fill a sample but for a chance of about 1e-9; the last one fills up.
    expected = n / block
    blocks = math.ceil(expected + 6 * math.sqrt(expected) + 10)
    at_once = max(1, 1_000_000 // blocks)
    means = np.empty(samples)
    for a in range(0, samples, at_once):
        shape = (min(at_once, samples - a), blocks)
        ends = np.minimum(np.cumsum(rng.geometric(1 / block, shape), axis=1), n)
        ends[:, -1] = n
        lengths = np.diff(ends, axis=1, prepend=0)
        at = rng.integers(n, size=shape)
        laps, left = np.divmod(at - first[at] + lengths, size[at])
        sums = laps * total[at] + running[first[at] + left] - running[at]
        means[a : a + shape[0]] = sums.sum(axis=1) / n
    return means
