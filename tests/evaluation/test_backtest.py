"""The rule, and the backtest against a ledger kept in exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import HORIZONS, Chain, Market

from foxhunt_pipeline.datasets.reader import Segment, open_window
from foxhunt_pipeline.evaluation.backtest import round_trip, targets_of
from foxhunt_pipeline.evaluation.judge import judge, judge_forecast
from foxhunt_pipeline.execution.costs import Costs

COSTS = Costs(fee_bps=0.3, slippage_bps=0.2, half_spread_bps=1.5)
EXACT = {"fee": Fraction(3, 10), "slippage": Fraction(2, 10), "half_spread": Fraction(3, 2)}


@given(
    st.lists(
        st.tuples(
            st.one_of(st.integers(-30, 30), st.just(math.nan)),
            st.one_of(st.integers(1, 20), st.just(math.inf)),
        ),
        max_size=60,
    )
)
def test_the_rule_is_the_state_machine_it_says(rows: list[tuple[float, float]]) -> None:
    held, expected = 0, []
    for forecast, cost in rows:
        if abs(forecast) > cost:
            held = 1 if forecast > 0 else -1
        elif not forecast * held > 0:
            held = 0
        expected.append(held)
    forecasts = np.array([f for f, _ in rows], float)
    costs = np.array([c for _, c in rows], float)
    np.testing.assert_array_equal(targets_of(forecasts, costs), expected)


def test_round_trip_is_the_quoted_spread_and_both_sides_fees() -> None:
    px = np.array([[99_000, 101_000, 0, 0, 100_000, 0], [-1, 101_000, 0, 0, -1, 0]])
    assert round_trip(px, COSTS, True).tolist() == pytest.approx([0.02 + 1e-4, math.inf])
    assert round_trip(px, COSTS, False).tolist() == pytest.approx([4e-4, math.inf])


def exact_ledger(segment: Segment, targets: list[float]) -> list[Fraction]:
    """Net worth after each row, starting from one lot's price, in fractions of it.

    Shares and cash, order by order: a market order decided at row t is filled at the row's fill
    price, fees and slippage are a share of the value traded, worth is marked at the row's next
    mark. The last row at which one can still trade both ways is the last order.
    """
    px = [[Fraction(int(v)) for v in row] for row in segment.px]
    rate = EXACT["fee"] + EXACT["slippage"]
    rate = (rate if segment.stream.has_quotes else rate + EXACT["half_spread"]) / 10_000
    reference = px[0][4]
    last = max(t for t, row in enumerate(px) if row[2] > 0 and row[3] > 0)
    cash, lots, mark, worths = reference, Fraction(0), px[0][4], []
    for t, row in enumerate(px):
        wanted = Fraction(targets[t]) if t < last else Fraction(0)
        change = wanted - lots
        if change > 0 and row[2] > 0:
            cash -= change * row[2] * (1 + rate)
            lots = wanted
        elif change < 0 and row[3] > 0:
            cash += -change * row[3] * (1 - rate)
            lots = wanted
        mark = row[5] if row[5] > 0 else mark
        worths.append((cash + lots * mark) / reference)
    assert lots == 0
    return worths


@pytest.mark.parametrize("has_quotes", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_net_pnl_is_the_ledgers(tmp_path: Path, has_quotes: bool, seed: int) -> None:
    market = Market(tmp_path, seed=seed, has_quotes=has_quotes, rows=80, sessions=3)
    chain = Chain(market)
    data = open_window(chain.task("x", {"dataset": chain.dataset}), chain.data, "w000", "bars")
    test = data.test
    rows = test.rows(4, labelled=False)
    targets = np.random.default_rng(seed).choice([-1, -0.5, 0, 0.5, 1], len(rows))
    scores = judge(test, rows, targets, COSTS)
    net = scores.gross.astype(float) - scores.cost.astype(float)
    for number, segment in enumerate(test.segments):
        of_segment = scores.stream == scores.streams.index(segment.stream.id)
        aims = [0.0] * 3 + targets[test.locate(rows)[0] == number].tolist()
        worth = [float(w) - 1 for w in exact_ledger(segment, aims)]
        np.testing.assert_allclose(np.cumsum(net[of_segment]), worth, atol=2e-8)
        assert scores.position[of_segment][-1] == 0


def test_a_decision_earns_nothing_before_its_fill(tmp_path: Path) -> None:
    """A forecast that knows the coming move to the last digit earns the moves after the fill,
    not the one it foresaw: by then the price has moved."""
    chain = Chain(Market(tmp_path, sessions=3, half_spread=0.0))
    data = open_window(chain.task("x", {"dataset": chain.dataset}), chain.data, "w000", "bars")
    test = data.test
    rows = test.rows(1, labelled=False)
    clairvoyant = np.nan_to_num(test.take("y", rows))[:, :1].repeat(len(HORIZONS), axis=1)
    free = Costs(fee_bps=0, slippage_bps=0, half_spread_bps=0)
    scores = judge_forecast(test, rows, clairvoyant, free, np.ones(len(HORIZONS)))
    foreseen = float(np.nansum(np.abs(test.take("y", rows)[:, 0]))) / len(test.segments)
    assert abs(float(scores.gross.sum()) / len(test.segments)) < 0.2 * foreseen
    # Sides are those of the forecast all the same, up to the row where the session is closed.
    sides = np.sign(clairvoyant[:, 0])
    locations = test.locate(rows)[1]
    np.testing.assert_array_equal(
        scores.position[locations < 198], sides[locations < 198].astype(np.float32)
    )
