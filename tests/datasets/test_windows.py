"""Windows and their cuts: no label of a training row reaches what it is judged on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foxhunt_pipeline.datasets.windows import Cut, Timeline, cut, plan_windows
from foxhunt_pipeline.errors import DataError
from foxhunt_pipeline.labels.returns import end_times

DAYS = [f"2024-01-{day:02d}" for day in range(1, 11)]


def test_rolling_windows_from_the_first_session() -> None:
    plans = plan_windows(DAYS[:6], train=2, test=1, step=1, expanding=False)
    assert [(p.name, p.train, p.test) for p in plans] == [
        ("w000", (DAYS[0], DAYS[1]), (DAYS[2],)),
        ("w001", (DAYS[1], DAYS[2]), (DAYS[3],)),
        ("w002", (DAYS[2], DAYS[3]), (DAYS[4],)),
        ("w003", (DAYS[3], DAYS[4]), (DAYS[5],)),
        ("production", (DAYS[4], DAYS[5]), ()),
    ]


def test_expanding_windows_and_longer_steps() -> None:
    plans = plan_windows(DAYS[:8], train=2, test=2, step=2, expanding=True)
    assert [(len(p.train), p.test) for p in plans] == [
        (2, (DAYS[2], DAYS[3])),
        (4, (DAYS[4], DAYS[5])),
        (6, (DAYS[6], DAYS[7])),
        (8, ()),
    ]


@given(
    n=st.integers(0, 10),
    train=st.integers(1, 4),
    test=st.integers(1, 3),
    step=st.integers(1, 3),
    expanding=st.booleans(),
)
def test_a_new_session_changes_no_older_window(
    n: int, train: int, test: int, step: int, expanding: bool
) -> None:
    def plans(sessions: list[str]) -> list[tuple[object, ...]]:
        if len(sessions) < train + test:
            with pytest.raises(DataError, match=f"needs {train + test} sessions"):
                plan_windows(sessions, train=train, test=test, step=step, expanding=expanding)
            return []
        found = plan_windows(sessions, train=train, test=test, step=step, expanding=expanding)
        assert found[-1].name == "production"
        assert found[-1].train[-1] == sessions[-1]
        for plan in found[:-1]:
            assert len(plan.test) == test
            assert max(plan.train) < min(plan.test)
        return [(p.name, p.train, p.test) for p in found[:-1]]

    before, after = plans(DAYS[:n]), plans([*DAYS[:n], "2024-02-01"])
    assert after[: len(before)] == before
    assert len(after) - len(before) <= 1


streams = st.lists(
    st.tuples(
        st.integers(0, 30),  # start
        st.lists(st.integers(1, 5), min_size=1, max_size=40),  # gaps between rows
    ),
    min_size=1,
    max_size=3,
)


@given(
    train=streams,
    test=streams,
    distance=st.integers(0, 120),
    horizons=st.lists(st.integers(1, 30), min_size=1, max_size=3, unique=True).map(sorted),
    embargo=st.integers(0, 30),
    share=st.floats(0.01, 0.9),
    production=st.booleans(),
)
def test_no_label_reaches_a_later_span_and_the_embargo_comes_on_top(
    train: list[tuple[int, list[int]]],
    test: list[tuple[int, list[int]]],
    distance: int,
    horizons: list[int],
    embargo: int,
    share: float,
    production: bool,
) -> None:
    def timelines(
        drawn: list[tuple[int, list[int]]], offset: int, kind: str
    ) -> tuple[list[Timeline], dict[str, tuple[np.ndarray, np.ndarray]]]:
        out, raw = [], {}
        for number, (start, gaps) in enumerate(drawn):
            ts = offset + start + np.cumsum(gaps).astype(np.int64)
            end = end_times(ts, horizons)
            raw[f"{kind}{number}"] = (ts, end)
            out.append(Timeline.of(f"{kind}{number}", ts, end))
        return out, raw

    learn, raw = timelines(train, 0, "train")
    judge, judged = timelines([] if production else test, distance, "test")
    result = cut(learn, judge, embargo_ns=embargo, validation_share=share)
    raw |= judged

    def ends(spans: object) -> list[int]:
        """Row times and label ends of the spans, from the labels as stored."""
        found = []
        for span in spans:  # type: ignore[attr-defined]
            ts, end = raw[span.stream]
            found += ts[span.start : span.stop].tolist()
            found += [e for row in end[span.start : span.stop].tolist() for e in row if e >= 0]
        return found

    def begin(spans: object) -> list[int]:
        return [raw[s.stream][0][s.start] for s in spans]  # type: ignore[attr-defined]

    for earlier, later in (
        (result.train, result.validation),
        (result.train, result.test),
        (result.validation, result.test),
    ):
        if earlier and later:
            assert max(ends(earlier)) < min(begin(later))
            assert max(ends(earlier)) <= min(begin(later)) - embargo
    _nothing_lost(result, learn, judge)


def _nothing_lost(result: Cut, learn: list[Timeline], judge: list[Timeline]) -> None:
    kept = sum(span.rows for span in (*result.train, *result.validation))
    assert kept + result.purged + result.embargoed == sum(len(t.ts) for t in learn)
    assert sum(span.rows for span in result.test) == sum(len(t.ts) for t in judge)
    for span in result.train:
        assert span.start == 0


def test_purge_and_embargo_count_rows() -> None:
    """100 rows, labels 5 ahead, then a test span: 5 rows reach into it, an embargo of 3 takes two
    more. Where sessions lie apart their labels end with them, and nothing is dropped."""
    ts = np.arange(200, dtype=np.int64)
    whole = end_times(ts, (5,))
    contiguous = Timeline.of("a", ts[:100], whole[:100])
    test = [Timeline.of("b", ts[100:], whole[100:])]
    result = cut([contiguous], test, embargo_ns=3, validation_share=0.001)
    assert (result.purged, result.embargoed) == (5, 2)
    assert sum(s.rows for s in (*result.train, *result.validation)) == 93
    session = Timeline.of("a", ts[:50], end_times(ts[:50], (5,)))
    apart = cut([session], test, embargo_ns=3, validation_share=0.001)
    assert (apart.purged, apart.embargoed) == (0, 0)


def test_the_validation_span_is_the_last_share() -> None:
    ts = np.arange(100, dtype=np.int64)
    two = [Timeline.of(name, ts, end_times(ts, (5,))) for name in "ab"]
    result = cut(two, [], embargo_ns=1, validation_share=0.2)
    assert [(s.stream, s.start, s.stop) for s in result.validation] == [
        ("a", 80, 100),
        ("b", 80, 100),
    ]
    assert [(s.start, s.stop) for s in result.train] == [(0, 75), (0, 75)]
    assert (result.purged, result.embargoed) == (10, 0)
