"""The stationary bootstrap: size, power, coverage and blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from foxhunt_pipeline.evaluation.significance import MeanTest, block_length, mean_test

LEVEL = 0.05


def ar1(rng: np.random.Generator, n: int, rho: float, mean: float = 0.0) -> np.ndarray:
    noise = rng.normal(size=n) * math.sqrt(1 - rho**2)
    series = np.empty(n)
    series[0] = rng.normal()
    for t in range(1, n):
        series[t] = rho * series[t - 1] + noise[t]
    return series + mean


def sessions(n: int, count: int) -> np.ndarray:
    return np.repeat(np.arange(count), math.ceil(n / count))[:n]


def run(series: np.ndarray, count: int = 4, seed: int = 0, samples: int = 300) -> MeanTest:
    return mean_test(series, sessions(series.size, count), samples=samples, level=LEVEL, seed=seed)


@pytest.mark.parametrize(("rho", "bound"), [(0.0, 0.075), (0.5, 0.085), (-0.3, 0.075)])
def test_false_rejections_and_coverage(rho: float, bound: float) -> None:
    """Of 400 series without a mean, about 5 % may be called better than zero, and as many
    intervals may lie below the truth."""
    rng = np.random.default_rng(11)
    results = [run(ar1(rng, 600, rho), seed=i) for i in range(400)]
    rejected = np.mean([r.p_value <= LEVEL for r in results])
    too_low = np.mean([r.high < 0 for r in results])
    assert 0.02 <= rejected <= bound
    assert 0.02 <= too_low <= bound


def test_ignoring_dependence_would_not_do() -> None:
    """The block bootstrap's interval has the width that the long-run variance demands."""
    rng = np.random.default_rng(5)
    rho, n = 0.7, 4000
    long_run = math.sqrt((1 + rho) / (1 - rho) / n)
    widths = [r.high - r.low for r in (run(ar1(rng, n, rho), seed=i) for i in range(30))]
    assert np.mean(widths) == pytest.approx(2 * 1.645 * long_run, rel=0.12)


def test_a_real_mean_is_found() -> None:
    rng = np.random.default_rng(2)
    found = [run(ar1(rng, 800, 0.3, mean=0.2), seed=i).p_value <= LEVEL for i in range(60)]
    assert np.mean(found) > 0.95


def test_p_value_and_interval_tell_the_same() -> None:
    rng = np.random.default_rng(8)
    for i in range(40):
        result = run(ar1(rng, 300, 0.2, mean=0.09), seed=i, samples=999)
        assert (result.p_value <= LEVEL) == (result.low >= 0), result


def test_same_seed_same_result() -> None:
    series = ar1(np.random.default_rng(1), 500, 0.4)
    assert run(series, seed=3) == run(series, seed=3)
    assert run(series, seed=3) != run(series, seed=4)


def test_no_difference_is_no_skill() -> None:
    assert run(np.zeros(100)).p_value == 1.0
    assert run(np.zeros(0)).rows == 0


def test_block_length_of_an_ar1_process() -> None:
    """Politis & White's optimum for AR(1) is (2 rho / (1 - rho²))^(2/3) n^(1/3)."""
    rng = np.random.default_rng(4)
    n = 20_000
    for rho in (0.3, 0.6, 0.8):
        optimum = (2 * rho / (1 - rho**2)) ** (2 / 3) * n ** (1 / 3)
        estimates = [block_length(ar1(rng, n, rho), np.zeros(n, np.int64)) for _ in range(5)]
        assert np.mean(estimates) == pytest.approx(optimum, rel=0.2)
    assert block_length(rng.normal(size=n), np.zeros(n, np.int64)) < 10


def test_least_block_holds() -> None:
    series = np.random.default_rng(0).normal(size=900)
    result = mean_test(series, sessions(900, 3), samples=100, level=LEVEL, seed=0, least_block=60)
    assert result.block >= 60


def test_blocks_stay_within_their_session() -> None:
    """A series that alternates within sessions, with opposite phases on either side of every
    boundary: blocks of even length that never cross a boundary sum to exactly nothing."""
    from foxhunt_pipeline.evaluation.significance import _resampled_means, _session_starts

    size, count = 40, 25
    series = np.concatenate([np.tile([1.0, -1.0], size // 2)] * count)
    starts = _session_starts(sessions(series.size, count))

    means = _resampled_means(series, starts, 30.0, 200, seed=1)
    brute = _slow_means(series, starts, 30.0, 200, seed=1)
    np.testing.assert_allclose(means, brute, atol=1e-12)
    noise = np.random.default_rng(0).normal(size=series.size)
    np.testing.assert_allclose(
        _resampled_means(noise, starts, 7.0, 100, seed=2),
        _slow_means(noise, starts, 7.0, 100, seed=2),
        atol=1e-12,
    )


def _slow_means(
    series: np.ndarray, starts: np.ndarray, block: float, samples: int, seed: int
) -> np.ndarray:
    """The same draws, every row of every block visited one by one."""
    n = series.size
    rng = np.random.default_rng(seed)
    blocks = math.ceil(n / block + 6 * math.sqrt(n / block) + 10)
    session_of = np.repeat(np.arange(starts.size - 1), np.diff(starts))
    means = []
    all_lengths = rng.geometric(1 / block, (samples, blocks))
    all_starts = rng.integers(n, size=(samples, blocks))
    for lengths, at in zip(all_lengths, all_starts, strict=True):
        drawn: list[float] = []
        for start, length in zip(at, lengths, strict=True):
            a, b = starts[session_of[start]], starts[session_of[start] + 1]
            drawn += [series[a + (start - a + k) % (b - a)] for k in range(length)]
        assert len(drawn) >= n
        means.append(sum(drawn[:n]) / n)
    return np.array(means)
