"""Labels against brute force."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foxhunt_pipeline.labels.returns import end_times, forward_returns, smoothed_returns
from foxhunt_pipeline.market import clock
from support import real_market
from support.real_market import MINUTE, SECOND

horizons = st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True).map(sorted)
marks = st.lists(st.one_of(st.just(-1), st.integers(90, 110)), min_size=1, max_size=40)


@given(mark=marks, horizons=horizons)
def test_forward_returns_and_end_times(mark: list[int], horizons: list[int]) -> None:
    n = len(mark)
    ts = 1000 + 7 * np.arange(n, dtype=np.int64)
    y = forward_returns(np.array(mark, np.int64), horizons)
    end = end_times(ts, horizons)
    for i in range(n):
        for column, h in enumerate(horizons):
            if i + h >= n:
                assert np.isnan(y[i, column])
                assert end[i, column] == -1
                continue
            assert end[i, column] == ts[i + h]
            if mark[i] > 0 and mark[i + h] > 0:
                np.testing.assert_allclose(y[i, column], np.log(mark[i + h] / mark[i]), atol=1e-12)
            else:
                assert np.isnan(y[i, column])


@given(mark=marks, horizons=horizons)
def test_smoothed_returns(mark: list[int], horizons: list[int]) -> None:
    smooth = smoothed_returns(np.array(mark, np.int64), horizons)
    for i in range(len(mark)):
        for column, h in enumerate(horizons):
            following = mark[i + 1 : i + 1 + h]
            there = [m for m in following if m > 0]
            if len(following) == h and mark[i] > 0 and 2 * len(there) >= h:
                expected = np.log(np.mean(there) / mark[i])
                np.testing.assert_allclose(smooth[i, column], expected, atol=1e-12)
            else:
                assert np.isnan(smooth[i, column])


def test_smoothing_is_exact_at_the_size_of_real_prices() -> None:
    """Bitcoin in 1e-9 dollars over a day of seconds: the sum of prices would be near 2^63."""
    rng = np.random.default_rng(0)
    mark = (60_000 + rng.normal(0, 10, 86_400).cumsum()) * 1e9
    mark = mark.astype(np.int64)
    smooth = smoothed_returns(mark, (60,))[:, 0]
    for i in (0, 40_000, 86_339):
        mean = sum(int(m) for m in mark[i + 1 : i + 61]) / 60
        np.testing.assert_allclose(smooth[i], np.log(mean / mark[i]), rtol=0, atol=1e-14)
    assert np.isnan(smooth[86_340:]).all()


def test_labels_look_forward() -> None:
    """A rise after row 2 is seen by rows before it and by none after."""
    mark = np.array([100, 100, 100, 110, 110, 110, 110], np.int64)
    for labels in (forward_returns, smoothed_returns):
        up = labels(mark, (2,))[:, 0] > 1e-3
        assert up.tolist() == [False, True, True, False, False, False, False]


def test_no_label_crosses_the_end_of_the_session(test_data: Path) -> None:
    hours = real_market.hours("equities")
    bars = clock.bars(real_market.prints(test_data, "equities", "SPY"), None, hours, MINUTE)
    y, end = forward_returns(bars.close, (1, 5, 15)), end_times(bars.ts, (1, 5, 15))
    assert np.isfinite(y).sum(axis=0).tolist() == [389, 385, 375]
    np.testing.assert_array_equal(np.isfinite(y), end > 0)
    assert end.max() == hours.close_ns
    assert ((end - bars.ts[:, None])[end > 0] % MINUTE == 0).all()


def test_the_label_is_the_return_of_the_mid(test_data: Path) -> None:
    quotes = real_market.quotes(test_data, "futures", "ESH4")
    prints = real_market.prints(test_data, "futures", "ESH4")
    book = clock.book(quotes, prints, real_market.hours("futures"), SECOND)
    y = forward_returns(clock.book_prices(book)[:, 4], (10,))
    mid = (book.bid_px[:, 0] + book.ask_px[:, 0]) / 2
    np.testing.assert_allclose(y[:-10, 0], np.log(mid[10:] / mid[:-10]), atol=1e-12)
