"""Fills against an exact ledger of whole shares and rational cash."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foxhunt_pipeline.execution.actions import Action, ActionSpace, OrderType, Side, Urgency
from foxhunt_pipeline.execution.costs import Costs
from foxhunt_pipeline.execution.fills import Rows, backtest, fill, value

NANO = 10**9
LOT = 200
"""Shares of a lot in the ledger: even, so that half a lot is whole shares."""

price = st.integers(50 * NANO, 500 * NANO)
side = st.one_of(price, st.just(-1))
level = st.sampled_from(ActionSpace().exposures)
rates = st.integers(0, 500)


@st.composite
def sessions(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """(px, targets) of one session: one-sided, untradable and unmarked rows among them."""
    n = draw(st.integers(1, 40))
    marks = draw(st.lists(side, min_size=n + 1, max_size=n + 1))
    buy = draw(st.lists(side, min_size=n, max_size=n))
    sell = [
        draw(st.one_of(st.just(-1), st.integers(40 * NANO, b if b > 0 else 500 * NANO)))
        for b in buy
    ]
    px = np.array([sell, buy, buy, sell, marks[:-1], marks[1:]], np.int64).T
    return px, np.array(draw(st.lists(level, min_size=n, max_size=n)))


def ledger(px: np.ndarray, targets: np.ndarray, rate: Fraction) -> list[tuple[int, Fraction]]:
    """(shares held, equity in 1e-9) after each row, by whole shares and rational cash."""
    two_sided = [i for i, row in enumerate(px.tolist()) if row[2] > 0 and row[3] > 0]
    close = two_sided[-1] if two_sided else 0
    cash, shares = Fraction(0), 0
    latest = max(px[0, 4].item(), 0)
    states = []
    for t, (_, _, buy, sell, _, after) in enumerate(px.tolist()):
        wanted = 0 if t >= close else int(targets[t] * LOT)
        change = wanted - shares
        trade = buy if change > 0 else sell
        latest = after if after > 0 else latest
        if change and trade > 0 and latest > 0:
            cash -= change * trade + abs(change) * trade * rate
            shares = wanted
        states.append((shares, cash + shares * latest))
    return states


@settings(max_examples=300, deadline=None)
@given(sessions(), rates, rates, rates, st.booleans())
def test_accounting_conserves_to_the_cent(session, fee, slippage, half_spread, has_quotes):
    px, targets = session
    costs = Costs(fee / 100, slippage / 100, half_spread / 100)
    spread = 0 if has_quotes else half_spread
    states = ledger(px, targets, Fraction(fee + slippage + spread, 10**6))
    marks = [m for m in [px[0, 4], *px[:, 5]] if m > 0]
    reference = int(marks[0]) if marks else 1
    outcome = backtest(value(px, costs, has_quotes), targets)
    dollars = np.cumsum(outcome.pnl) * LOT * reference / NANO
    if marks:
        expected = [float(equity / NANO) for _, equity in states]
        np.testing.assert_allclose(dollars, expected, rtol=0, atol=0.005)
        assert [int(p * LOT) for p in outcome.position] == [shares for shares, _ in states]
    assert outcome.position[-1] == 0
    assert (outcome.cost >= 0).all()


@settings(max_examples=100, deadline=None)
@given(sessions(), st.booleans())
def test_untradable_rows_never_fill(session, has_quotes):
    px, targets = session
    outcome = backtest(value(px, Costs(1, 1, 1), has_quotes), targets)
    change = np.diff(outcome.position, prepend=0)
    assert (change[px[:, 2] <= 0] <= 0).all()
    assert (change[px[:, 3] <= 0] >= 0).all()
    np.testing.assert_array_equal(np.abs(change), outcome.turnover)


@settings(max_examples=100, deadline=None)
@given(sessions(), st.booleans())
def test_numpy_and_torch_agree_to_the_bit(session, has_quotes):
    px, targets = session
    rows = value(px, Costs(0.3, 0.2, 0.7), has_quotes)
    tensors = Rows(*(torch.from_numpy(getattr(rows, name)) for name in Rows.__dataclass_fields__))
    held = np.roll(targets, 1)
    ours = fill(rows, held, targets)
    theirs = fill(tensors, torch.from_numpy(held), torch.from_numpy(targets))
    for name in ("position", "gross", "cost", "turnover", "pnl"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name).numpy())


def flat_market(n: int) -> np.ndarray:
    """Bid 99, ask 101, mark 100 throughout; the last row cannot be traded."""
    px = np.tile(np.array([99, 101, 101, 99, 100, 100]) * NANO, (n, 1))
    px[-1, [2, 3, 5]] = -1
    return px


def test_an_order_at_t_neither_fills_nor_earns_at_or_before_t():
    """A jump between t and t + 1 belongs to what was held before t; what is bought at t pays
    the price after the jump."""
    px = flat_market(6)
    px[2, 2:4] = np.array([201, 199]) * NANO  # fills after row 2, when the mark has doubled
    px[2, 5] = 200 * NANO
    px[3:, 4] = 200 * NANO
    px[3:5, 2:4] = np.array([201, 199]) * NANO
    px[3:5, 5] = 200 * NANO
    free = Costs(0, 0, 0)
    late = backtest(value(px, free, True), np.array([0, 0, 1.0, 1, 0, 0]))
    assert late.gross.sum() == pytest.approx(0)
    early = backtest(value(px, free, True), np.array([0, 1.0, 1, 1, 0, 0]))
    assert early.gross.sum() == pytest.approx(1)


@settings(max_examples=100, deadline=None)
@given(sessions(), st.data())
def test_the_past_of_a_fill_is_fixed(session, data):
    """Prices known at t (bid, ask, mark) and everything before never enter the fill at t, and
    changing rows after t changes nothing up to t but the moment of the forced close."""
    px, _ = session
    t = data.draw(st.integers(0, len(px) - 1))
    rows = value(px, Costs(1, 1, 1), True)
    garbage = px.copy()
    garbage[t, [0, 1]] = 1
    again = value(garbage, Costs(1, 1, 1), True)
    for name in Rows.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(rows, name), getattr(again, name))
    garbage = px.copy()
    garbage[t + 1 :, [0, 1, 2, 3, 5]] = 7 * NANO
    later = value(garbage, Costs(1, 1, 1), True)
    if (px[: t + 1, 5] > 0).any():
        for name in ("move", "drift", "buy_cost", "sell_cost", "buyable", "sellable"):
            np.testing.assert_array_equal(
                getattr(rows, name)[: t + 1], getattr(later, name)[: t + 1]
            )


def test_costs_are_what_they_say():
    """One round trip of a lot at mark 100: the quoted spread, or the configured one."""
    targets = np.array([1.0, 1, 0, 0])
    px = flat_market(4)
    quoted = backtest(value(px, Costs(2, 3, 50), True), targets)
    fees = (101 + 99) / 100 * 5e-4
    assert quoted.gross.sum() == pytest.approx(0)
    assert quoted.cost.sum() == pytest.approx(0.02 + fees)
    px[:3, 2:4] = 100 * NANO
    unquoted = backtest(value(px, Costs(2, 3, 50), False), targets)
    assert unquoted.cost.sum() == pytest.approx(2 * 55e-4)
    assert unquoted.turnover.sum() == 2


def test_actions_are_numbered_by_factor():
    space = ActionSpace()
    assert len(space) == 5
    assert [space.index(space[i]) for i in range(5)] == list(range(5))
    assert space.exposure_table().tolist() == [-1, -0.5, 0, 0.5, 1]
    action = Action(0.5, OrderType.MARKET, Urgency.IMMEDIATE)
    assert [action.side(held) for held in (0.0, 0.5, 1.0)] == [Side.BUY, Side.HOLD, Side.SELL]
    with pytest.raises(IndexError):
        space[5]
