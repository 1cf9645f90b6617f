"""Pairing, stitching and summing up of rows, against dictionaries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foxhunt_pipeline.evaluation.scores import (
    Portfolio,
    Scores,
    concatenate,
    difference,
    figures,
    join,
    pair,
    portfolio,
)

STREAMS = ("d1/bars/X/1/A", "d1/bars/X/1/B", "d2/bars/X/1/A", "d3/bars/X/1/B")
Row = tuple[int, int, bool, int, int]
"""(stream, time, decided, loss, net), small integers so that sums are exact."""

row = st.tuples(
    st.integers(0, 3), st.integers(0, 8), st.booleans(), st.integers(-1, 9), st.integers(-9, 9)
)
tables = st.lists(row, max_size=30, unique_by=lambda r: (r[0], r[1]))


def table(rows: list[Row]) -> Scores:
    """Scores of rows; loss -1 means none, the net P&L is all gross."""
    rows = sorted(rows)
    used = sorted({r[0] for r in rows})
    column = [np.array([r[i] for r in rows]) for i in range(5)] if rows else [np.empty(0)] * 5
    n = len(rows)
    loss = np.where(column[3] < 0, np.nan, column[3]).astype(np.float32)
    return Scores(
        streams=tuple(STREAMS[i] for i in used),
        stream=np.searchsorted(used, column[0]).astype(np.int32),
        ts=column[1].astype(np.int64),
        decided=column[2].astype(bool),
        actual=np.zeros((n, 1), np.float32),
        trend=np.zeros((n, 1), np.int8),
        forecast=np.full((n, 1), np.nan, np.float32),
        probabilities=np.full((n, 1, 3), np.nan, np.float32),
        loss=loss,
        position=np.ones(n, np.float32),
        gross=column[4].astype(np.float32),
        cost=np.zeros(n, np.float32),
        turnover=np.zeros(n, np.float32),
    )


def as_dict(scores: Scores) -> dict[tuple[str, int], tuple[float, float]]:
    return {
        (scores.streams[s], int(t)): (float(loss), float(net))
        for s, t, loss, net in zip(scores.stream, scores.ts, scores.loss, scores.gross, strict=True)
    }


@given(tables, tables)
@settings(deadline=None)
def test_pairs_are_the_rows_on_which_both_decided(left: list[Row], right: list[Row]) -> None:
    a, b = table(left), table(right)
    mine, theirs = pair(a, b)
    both = {(STREAMS[r[0]], r[1]) for r in left if r[2]} & {
        (STREAMS[r[0]], r[1]) for r in right if r[2]
    }
    assert set(as_dict(mine)) == set(as_dict(theirs)) == both
    assert list(as_dict(mine)) == list(as_dict(theirs))
    values = as_dict(a)
    for key, found in as_dict(mine).items():
        assert np.array_equal(found, values[key], equal_nan=True)


@given(tables)
@settings(deadline=None)
def test_a_portfolio_shares_capital_and_averages_losses(rows: list[Row]) -> None:
    scores = table(rows)
    held = portfolio(scores)
    by_time: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for (stream, t), values in as_dict(scores).items():
        by_time.setdefault((stream.split("/")[0], t), []).append(values)
    keys = [(held.sessions[s], int(t)) for s, t in zip(held.session, held.ts, strict=True)]
    assert keys == sorted(by_time)
    for place, key in enumerate(keys):
        values = by_time[key]
        instruments = len({s for s in scores.streams if s.startswith(key[0])})
        assert held.net[place] == pytest.approx(sum(v[1] for v in values) / instruments)
        assert held.exposure[place] == pytest.approx(len(values) / instruments)
        assert held.count[place] == len(values)
        losses = [v[0] for v in values if not np.isnan(v[0])]
        expected = np.mean(losses) if losses else np.nan
        assert held.loss[place] == pytest.approx(expected, nan_ok=True)


@given(tables, tables)
@settings(deadline=None)
def test_differences_are_of_common_rows_with_as_many_instruments(
    left: list[Row], right: list[Row]
) -> None:
    a, b = portfolio(table(left)), portfolio(table(right))

    def rows_of(held: Portfolio) -> dict[tuple[str, int, int], float]:
        return {
            (held.sessions[s], int(t), int(c)): net
            for s, t, c, net in zip(held.session, held.ts, held.count, held.net, strict=True)
        }

    mine, theirs = rows_of(a), rows_of(b)
    common = sorted(mine.keys() & theirs.keys())
    found = difference(a, b)
    assert list(zip(found.session.tolist(), found.ts.tolist(), strict=True)) == [
        key[:2] for key in common
    ]
    np.testing.assert_allclose(found.net, [mine[k] - theirs[k] for k in common])
    rest, first = found.without(["d2", "d3"]), found.without(["d1"])
    again = join([first, rest])
    np.testing.assert_array_equal(again.session, found.session)
    np.testing.assert_array_equal(again.net, found.net)


def test_the_later_window_speaks_for_a_session_tested_twice() -> None:
    early = table([(0, 1, True, 1, 1), (1, 1, True, 1, 1), (2, 1, True, 1, 1)])
    late = table([(2, 1, True, 2, 2), (2, 2, True, 2, 2), (3, 1, True, 2, 2)])
    stitched = as_dict(concatenate([early, late]))
    assert [net for _, net in stitched.values()] == [1, 1, 2, 2, 2]
    assert concatenate([early, late]).streams == STREAMS


def test_scores_come_back_from_a_file(tmp_path: Path) -> None:
    scores = table([(0, 1, True, 1, 1), (3, 1, False, -1, 1)])
    scores.save(tmp_path / "a.npz")
    assert Scores.load(tmp_path / "a.npz").digest == scores.digest
    held = portfolio(scores)
    held.save(tmp_path / "b.npz")
    again = Portfolio.load(tmp_path / "b.npz")
    assert again.sessions == held.sessions
    np.testing.assert_array_equal(again.net, held.net)


def test_figures_of_no_rows_are_null() -> None:
    nothing = figures(table([]), [1], 252.0)
    assert nothing["rows"] == nothing["sessions"] == 0
    assert nothing["sharpe"] is None and nothing["loss"] is None and nothing["turnover"] is None


def test_one_session_a_year_apart_is_annualised_by_its_rows() -> None:
    rows: list[Row] = [(0, t, True, -1, 1 + 2 * (t % 2)) for t in range(8)]
    found = figures(table(rows), [1], 252.0)
    # Two instruments are not there: one holds all the capital; P&L alternates 1, 3.
    spread = np.std([1.0, 3.0] * 4, ddof=1)
    assert found["sharpe"] == pytest.approx(2 / spread * np.sqrt(8 * 252))
