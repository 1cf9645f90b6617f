"""Metrics against brute force and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from foxhunt_pipeline.evaluation import metrics

pnl_series = hnp.arrays(
    np.float64,
    st.integers(2, 40),
    elements=st.floats(-0.1, 0.1).map(lambda value: round(value, 6)),
)
class_pairs = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=60)


def test_errors_of_a_known_forecast() -> None:
    forecast, actual = np.array([1.0, 2.0, 4.0]), np.array([1.0, 4.0, 1.0])
    assert metrics.mse(forecast, actual) == pytest.approx(13 / 3)
    assert metrics.rmse(forecast, actual) == pytest.approx(math.sqrt(13 / 3))
    assert metrics.mae(forecast, actual) == pytest.approx(5 / 3)


def test_cross_entropy_is_the_mean_surprise() -> None:
    p = np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [1.0, 0.0, 0.0]])
    actual = np.array([0, 2, 1])
    expected = (math.log(2) - math.log(0.7) - math.log(1e-12)) / 3
    assert metrics.cross_entropy(p, actual) == pytest.approx(expected)


@given(class_pairs)
def test_class_figures_match_counting_by_hand(pairs: list[tuple[int, int]]) -> None:
    predicted, actual = (np.array(side, np.int64) for side in zip(*pairs, strict=True))
    counts = metrics.confusion(predicted, actual)
    assert metrics.accuracy(counts) == pytest.approx(sum(p == a for p, a in pairs) / len(pairs))

    scores = []
    for c in range(3):
        hit = sum(p == c and a == c for p, a in pairs)
        false = sum(p == c and a != c for p, a in pairs)
        missed = sum(p != c and a == c for p, a in pairs)
        if hit + false + missed:
            precision = hit / (hit + false) if hit + false else 0.0
            recall = hit / (hit + missed) if hit + missed else 0.0
            both = precision + recall
            scores.append(2 * precision * recall / both if both else 0.0)
    assert metrics.macro_f1(counts) == pytest.approx(sum(scores) / len(scores))

    # R_K as the correlation of one-hot vectors, summed over classes.
    hot_p, hot_a = np.eye(3)[predicted], np.eye(3)[actual]
    hot_p, hot_a = hot_p - hot_p.mean(axis=0), hot_a - hot_a.mean(axis=0)
    below = math.sqrt(float((hot_p**2).sum() * (hot_a**2).sum()))
    if below < 1e-9:
        assert math.isnan(metrics.mcc(counts))
    else:
        assert metrics.mcc(counts) == pytest.approx(float((hot_p * hot_a).sum()) / below, abs=1e-9)


def test_two_class_mcc_is_the_phi_coefficient() -> None:
    tp, fp, fn, tn = 31, 7, 12, 50
    counts = np.array([[tp, 0, fn], [0, 0, 0], [fp, 0, tn]])
    phi = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert metrics.mcc(counts) == pytest.approx(phi)


def test_information_coefficient_is_the_correlation() -> None:
    rng = np.random.default_rng(0)
    forecast = rng.normal(size=200)
    actual = 0.3 * forecast + rng.normal(size=200)
    assert metrics.information_coefficient(forecast, actual) == pytest.approx(
        np.corrcoef(forecast, actual)[0, 1]
    )
    assert math.isnan(metrics.information_coefficient(np.ones(5), actual[:5]))


@given(pnl_series)
def test_trading_figures_match_a_walk_through_the_equity(pnl: np.ndarray) -> None:
    equity = peak = deepest = gains = losses = 0.0
    for value in pnl.tolist():
        equity += value
        peak = max(peak, equity)
        deepest = max(deepest, peak - equity)
        gains += max(value, 0.0)
        losses += max(-value, 0.0)
    assert metrics.net_return_bps(pnl) == pytest.approx(equity * 1e4, abs=1e-9)
    assert metrics.max_drawdown_bps(pnl) == pytest.approx(deepest * 1e4, abs=1e-9)
    if losses:
        assert metrics.profit_factor(pnl) == pytest.approx(gains / losses)
    else:
        assert math.isnan(metrics.profit_factor(pnl))
    moved = [value for value in pnl.tolist() if value]
    if moved:
        assert metrics.hit_rate(pnl) == pytest.approx(sum(v > 0 for v in moved) / len(moved))


def test_sharpe_and_sortino_of_a_series_known_in_closed_form() -> None:
    # Alternating +3, -1: mean 1, deviations ±2, downside sqrt(1/2).
    pnl = np.tile([3.0, -1.0], 50)
    year = 252 * 390
    std = math.sqrt(4 * 100 / 99)
    assert metrics.sharpe(pnl, year) == pytest.approx(math.sqrt(year) / std)
    assert metrics.sortino(pnl, year) == pytest.approx(math.sqrt(2 * year))
    assert math.isnan(metrics.sharpe(np.full(9, 0.1), year))
    assert math.isnan(metrics.sortino(np.full(9, 0.1), year))


def test_annualised_sharpe_does_not_depend_on_the_clock() -> None:
    """Independent returns summed to a coarser clock keep their annual Sharpe ratio."""
    fine = np.random.default_rng(3).normal(0.02, 1.0, 1_000_000)
    coarse = fine.reshape(-1, 10).sum(axis=1)
    assert metrics.sharpe(coarse, 1000) == pytest.approx(metrics.sharpe(fine, 10_000), rel=0.05)


def test_undefined_figures_become_null() -> None:
    assert metrics.plain({"a": math.nan, "b": 1.5, "c": math.inf, "n": 3}) == {
        "a": None,
        "b": 1.5,
        "c": None,
        "n": 3,
    }
    figures = metrics.class_figures(np.full((4, 3), 1 / 3), np.array([-1, -1, -1, -1]))
    assert figures == dict.fromkeys(("cross_entropy", "accuracy", "macro_f1", "mcc"))
