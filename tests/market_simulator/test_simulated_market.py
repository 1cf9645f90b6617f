"""The simulated book is one that a trader would recognise, and one in which there is something to
learn, or nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from simulated_books import Book, decoded, files

SECOND = 10**9
LAST = 128
SNAPSHOT = 32


def ladder(record: np.void, side: str) -> dict[int, tuple[int, int]]:
    return {
        int(record[f"{side}_px_{k:02d}"]): (
            int(record[f"{side}_sz_{k:02d}"]),
            int(record[f"{side}_ct_{k:02d}"]),
        )
        for k in range(10)
    }


def test_every_record_is_the_order_that_it_says(market: list[Path]) -> None:
    """Replayed one by one: what an add, cancel or trade does to the book is what the next ten
    levels show, and nothing else moves."""
    records = decoded(files(market, "mbp-10")[0])[1]
    own = records[records["instrument_id"] == records["instrument_id"][0]][:8_000]
    books = {b"B": ladder(own[19], "bid"), b"A": ladder(own[19], "ask")}
    for record in own[20:]:
        shown = {b"B": ladder(record, "bid"), b"A": ladder(record, "ask")}
        price, size = int(record["price"]), int(record["size"])
        if record["action"] != b"T":
            changed = books[record["side"]]
            before, _ = changed.get(price, (0, 0))
            after = before + size if record["action"] == b"A" else before - size
            assert after >= 0
            if after:
                assert shown[record["side"]][price][0] == after
            else:
                assert price not in shown[record["side"]]
        for side, book in shown.items():
            for level, known in books[side].items():
                same_price = record["action"] != b"T" and side == record["side"] and level == price
                if not same_price and level in book:
                    assert book[level] == known
        books = shown


def test_flags_sequence_and_stamps(market: list[Path]) -> None:
    for path in files(market, "mbp-10"):
        records = decoded(path)[1]
        assert (np.diff(records["ts_recv"].astype("i8")) >= 0).all()
        latency = records["ts_recv"].astype("i8") - records["ts_event"].astype("i8")
        assert latency.min() > 0
        assert latency.max() < 200_000
        for identifier in np.unique(records["instrument_id"]):
            own = records[records["instrument_id"] == identifier]
            assert (np.diff(own["sequence"].astype("i8")) > 0).all()
            last = (own["flags"] & LAST) != 0
            starts = np.diff(own["ts_event"].astype("i8")) > 0
            np.testing.assert_array_equal(last[:-1], starts)
            assert last[-1]
            assert not last[own["action"] == b"T"].any()
            assert ((own["flags"] & SNAPSHOT) != 0).sum() == 20


def test_books_are_sorted_whole_and_never_locked(
    market_books: list[Book], fair_books: list[Book]
) -> None:
    for book in market_books + fair_books:
        assert (book.ask[:, 0] > book.bid[:, 0]).all()
        assert (np.diff(book.bid, axis=1) == -(10**7)).all()
        assert (np.diff(book.ask, axis=1) == 10**7).all()
        assert (book.bid % 10**7 == 0).all()
        for size, count in (
            (book.bid_size, book.bid_count),
            (book.ask_size, book.ask_count),
        ):
            assert (count > 0).all()
            assert (size >= count).all()


def test_a_trader_recognises_the_book(market_books: list[Book]) -> None:
    assert all(35_000 < len(book.ts) + len(book.trade_ts) < 70_000 for book in market_books)
    shares = []
    for book in market_books:
        held = np.diff(book.ts)
        shares.append([held[book.spread[:-1] == ticks].sum() / held.sum() for ticks in (1, 2, 3)])
        depth = np.average((book.bid_size + book.ask_size)[:-1], axis=0, weights=held)
        assert (np.diff(depth) > 0).all()
        assert 1.8 < depth[9] / depth[0] < 4
        gaps = held / SECOND
        assert gaps.std() / gaps.mean() > 1.4  # clustered: 1 if they were independent
        assert np.corrcoef(book.trade_sign[1:], book.trade_sign[:-1])[0, 1] > 0.15
        assert 0.6 < np.mean(book.trade_size % 100 == 0) < 0.95
    one, two, three = np.mean(shares, axis=0)
    assert 0.6 < one < 0.85
    assert 0.1 < two < 0.35
    assert one + two + three > 0.99


def test_volatility_smiles_over_the_day_and_daily_moves_are_those_of_a_share(
    market_books: list[Book],
) -> None:
    minutes = []
    for book in market_books:
        at = book.at(book.ts[0] + np.arange(1, 390) * 60 * SECOND)
        minutes.append(np.diff(np.log(book.mid[at])))
    squares = np.mean(np.square(minutes), axis=0)
    opening, midday = np.sqrt(squares[:45].mean()), np.sqrt(squares[150:270].mean())
    closing = np.sqrt(squares[-25:].mean())
    assert opening > 1.15 * midday
    assert closing > midday
    daily = np.sqrt(390 * squares.mean())
    assert 0.004 < daily < 0.03


def forecasts(books: list[Book], levels: int, seconds: int) -> tuple[np.ndarray, np.ndarray]:
    """Imbalance on a grid, and the mid's move over the step that follows."""
    known, moves = [], []
    for book in books:
        at = book.at(book.ts[0] + np.arange(60, 23_390, seconds) * SECOND)
        known.append(book.imbalance(levels)[at[:-1]])
        moves.append(np.diff(book.mid[at]))
    return np.concatenate(known), np.concatenate(moves)


@pytest.mark.parametrize(
    ("levels", "seconds", "least"), [(1, 10, 0.07), (1, 30, 0.1), (1, 60, 0.13), (5, 30, 0.1)]
)
def test_imbalance_foretells_the_mid(
    market_books: list[Book], fair_books: list[Book], levels: int, seconds: int, least: float
) -> None:
    assert least < stats.spearmanr(*forecasts(market_books, levels, seconds))[0] < 0.4
    known, moves = forecasts(fair_books, levels, seconds)
    noise = 1 / np.sqrt(len(moves))
    assert abs(stats.spearmanr(known, moves)[0]) < 3.5 * noise


def coins(book: Book) -> tuple[np.ndarray, np.ndarray]:
    """Every move of the mid, and 37 things that were visible just before it: depth and orders at
    each level, spread, the last moves, and trades so far."""
    moved = np.flatnonzero(np.diff(book.mid)) + 1
    moved = moved[moved > 200]
    before = moved - 1
    signed = np.concatenate(([0], np.cumsum(book.trade_sign * book.trade_size)))
    count = np.concatenate(([0], np.cumsum(book.trade_sign)))

    def flow(total: np.ndarray, seconds: int) -> np.ndarray:
        upto = np.searchsorted(book.trade_ts, book.ts[before], side="right")
        since = np.searchsorted(book.trade_ts, book.ts[before] - seconds * SECOND, side="right")
        return total[upto] - total[since]

    changes = np.diff(book.mid)[np.flatnonzero(np.diff(book.mid))]
    first = len(changes) - len(moved)
    past = [book.at(book.ts[before] - seconds * SECOND) for seconds in (1, 10, 60, 300)]
    seen = np.column_stack(
        [np.log(book.bid_size[before] / book.ask_size[before])]
        + [np.log(book.bid_count[before] / book.ask_count[before])]
        + [book.imbalance(levels)[before] for levels in (1, 3, 10)]
        + [np.sign(changes[first - lag : len(changes) - lag]) for lag in (1, 2, 3)]
        + [book.mid[before] - book.mid[np.maximum(at, 0)] for at in past]
        + [flow(signed, seconds) for seconds in (1, 10, 60, 300)]
        + [flow(count, seconds) for seconds in (10, 60, 300)]
        + [book.spread[before] * np.sign(changes[first - 1 : len(changes) - 1])]
    )
    return seen, np.diff(book.mid)[before]


def visible_evidence(books: list[Book]) -> float:
    """p-value of the hypothesis that nothing visible tells where the mid goes next: n times the
    (uncentred) R² of the regression of its moves on all that was seen, and on a constant, is
    chi-squared under it."""
    seen, moves = (np.concatenate(parts) for parts in zip(*map(coins, books), strict=True))
    design = np.column_stack([np.ones(len(moves)), (seen - seen.mean(0)) / seen.std(0)])
    weights = np.linalg.lstsq(design, moves, rcond=None)[0]
    explained = np.square(design @ weights).sum() / np.square(moves).sum()
    return float(stats.chi2.sf(len(moves) * explained, design.shape[1]))


def test_nothing_visible_foretells_a_martingale(
    market_books: list[Book], fair_books: list[Book]
) -> None:
    assert visible_evidence(market_books) < 1e-12
    assert visible_evidence(fair_books) > 0.001


def trade_returns(books: list[Book]) -> np.ndarray:
    """Returns in bps of a rule that looks once in five minutes at the last minutes' trades and at
    the book, buys or sells at the touch, holds for five minutes, leaves at the touch, and pays
    0.2 bp a side."""
    returns = []
    for book in books:
        grid = book.ts[0] + np.arange(300, 23_100, 300) * SECOND
        at, later = book.at(grid), book.at(grid + 300 * SECOND)
        signed = np.concatenate(([0], np.cumsum(book.trade_sign)))
        upto = np.searchsorted(book.trade_ts, grid, side="right")
        since = np.searchsorted(book.trade_ts, grid - 300 * SECOND, side="right")
        flow = (signed[upto] - signed[since]) / np.maximum(upto - since, 1)
        signal = flow + book.imbalance(5)[at]
        side = np.sign(signal) * (np.abs(signal) > 0.3)
        buy = (book.bid[later, 0] - book.ask[at, 0]) / book.ask[at, 0]
        sell = (book.bid[at, 0] - book.ask[later, 0]) / book.bid[at, 0]
        gains = np.where(side > 0, buy, sell)[side != 0]
        returns.append(1e4 * gains - 0.4)
    return np.concatenate(returns)


def test_a_simple_rule_earns_its_costs_only_where_there_is_something_to_learn(
    market_books: list[Book], fair_books: list[Book]
) -> None:
    earned, lost = trade_returns(market_books), trade_returns(fair_books)
    assert min(len(earned), len(lost)) > 100
    assert stats.ttest_1samp(earned, 0).statistic > 3
    assert lost.mean() < 0


def test_the_martingale_keeps_the_microstructure(
    market_books: list[Book], fair_books: list[Book]
) -> None:
    """Depth still leans for minutes, and trades still go where it leans."""
    for books in (market_books, fair_books):
        for book in books:
            at = book.at(book.ts[0] + np.arange(60, 23_340, 60) * SECOND)
            lean = book.imbalance(5)[at]
            assert np.corrcoef(lean[1:], lean[:-1])[0, 1] > 0.4
            buys = book.trade_sign == 1
            level = book.imbalance(5)[book.at(book.trade_ts) - 1]
            assert level[buys].mean() - level[~buys].mean() > 0.05
