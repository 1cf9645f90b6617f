"""The reader against slow slicing of the stored arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foxhunt_pipeline.datasets.manifest import CLIP, Scaler, load
from foxhunt_pipeline.datasets.reader import Split, WindowData, open_window, trend_classes
from foxhunt_pipeline.datasets.stage import build
from foxhunt_pipeline.errors import DataError, ViewUnavailableError
from support.dataset_inputs import Sessions
from support.task import FolderTask


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> FolderTask:
    made = Sessions(tmp_path_factory.mktemp("sessions"))
    for day in range(4):
        views = ("bars", "book") if day else ("bars",)
        made.add(day, rows=50 + day, views=views, levels={"AAA": 3, "BBB": 2})
    dataset = made.task().build(build)
    return FolderTask(made.folder, "model", inputs={"dataset": dataset})


def window(reader: FolderTask, name: str, view: str = "bars") -> WindowData:
    return open_window(reader, load(reader), name, view)


def slow(reader: FolderTask, data: WindowData, split: Split, row: int, context: int) -> np.ndarray:
    """One look-back, by plain loops over the stored arrays."""
    for segment in split.segments:
        if row < len(segment.ts):
            break
        row -= len(segment.ts)
    stored = np.load(reader.path(segment.stream.features, "x.npy"))
    out = np.zeros((context, len(data.spec.columns)), np.float32)
    for step in range(context):
        for place, column in enumerate(data.spec.columns):
            value = stored[row - context + 1 + step, segment.stream.columns.index(column)]
            center, scale = data.scaler.center[place], data.scaler.scale[place]
            scaled = (value - np.float32(center)) / np.float32(scale)
            out[step, place] = 0 if np.isnan(scaled) else min(max(scaled, -CLIP), CLIP)
    return out


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from(["w000", "w001", "production"]),
    part=st.sampled_from(["train", "validation", "test"]),
    view=st.sampled_from(["bars", "book"]),
    context=st.integers(1, 20),
    seed=st.integers(0, 2**31),
)
def test_gather_equals_slow_slicing(
    reader: FolderTask, name: str, part: str, view: str, context: int, seed: int
) -> None:
    data = window(reader, name, view)
    split: Split = getattr(data, part)
    rows = split.rows(context)
    assert len(rows) or (name, part) == ("production", "test")
    if not len(rows):
        return
    chosen = np.random.default_rng(seed).choice(rows, 6)
    batch = split.batch(chosen, context)
    assert batch.x.dtype == np.float32
    for number, row in enumerate(chosen):
        expected = slow(reader, data, split, int(row), context)
        np.testing.assert_array_equal(batch.x[number], expected)
        at, local = split.locate(np.array([row]))
        segment = split.segments[int(at[0])]
        np.testing.assert_array_equal(batch.y[number], segment.y[local[0]])
        np.testing.assert_array_equal(batch.trend[number], segment.trend[local[0]])
        np.testing.assert_array_equal(split.take("px", chosen)[number], segment.px[local[0]])
        assert split.take("ts", chosen)[number] == segment.ts[local[0]]
        np.testing.assert_array_equal(segment.x[local[0]], batch.x[number, -1])
    assert batch.weight.tolist() == [1.0] * 6


@pytest.mark.parametrize("context", [1, 7, 30])
def test_rows_are_those_of_the_split_with_look_back_and_labels(
    reader: FolderTask, context: int
) -> None:
    data = window(reader, "w001")
    for split in (data.train, data.validation, data.test):
        expected, every, offset = [], [], 0
        for segment in split.segments:
            for local in range(len(segment.ts)):
                inside = segment.start <= local < segment.stop and local + 1 >= context
                whole = (
                    np.isfinite(segment.y[local]).all() and np.isfinite(segment.smooth[local]).all()
                )
                if inside:
                    every.append(offset + local)
                if inside and whole:
                    expected.append(offset + local)
            offset += len(segment.ts)
        assert split.rows(context).tolist() == expected
        assert split.rows(context, labelled=False).tolist() == every
        assert len(expected) < len(every) or split is not data.test


def test_splits_follow_each_other_and_share_no_row(reader: FolderTask) -> None:
    data = window(reader, "w000")
    seen = [
        (segment.stream.id, row)
        for split in (data.train, data.validation, data.test)
        for segment in split.segments
        for row in range(segment.start, segment.stop)
    ]
    assert len(seen) == len(set(seen))
    last = [split.take("ts", split.rows(1)) for split in (data.train, data.validation, data.test)]
    assert last[0].max() < last[1].min()
    assert last[1].max() < last[2].min()


def test_look_back_of_validation_reaches_into_training_and_no_other_session(
    reader: FolderTask,
) -> None:
    split = window(reader, "w001").validation
    segment = split.segments[0]
    assert segment.start > 20
    first = split.rows(20)[0]
    assert first == segment.start
    x = split.gather(np.array([first]), 20)
    np.testing.assert_array_equal(x[0], segment.x[segment.start - 19 : segment.start + 1])
    offset = split.offsets[1]  # of another session's first row
    for row in (offset, offset + 18, split.offsets[-1]):
        with pytest.raises(IndexError):
            split.gather(np.array([row]), 20)


def test_features_are_read_in_place(reader: FolderTask) -> None:
    for segment in window(reader, "w001").train.segments:
        for array in (segment.raw, segment.y, segment.px, segment.end_ts):
            assert isinstance(array.base, np.memmap)
            assert not array.flags.writeable


def test_scaling_is_finite_and_clipped() -> None:
    x = np.array([[np.nan, 5, -1e9], [1, 5, 3e9]], np.float32)
    scaled = Scaler((1.0, 5.0, 0.0), (2.0, 1.0, 1e-3)).apply(x)
    assert scaled.tolist() == [[0, 0, -CLIP], [0, 0, CLIP]]
    assert np.isnan(x[0, 0])


def test_trend_classes() -> None:
    smooth = np.array([[-2, 1], [0, 0], [2, -1], [np.nan, 3]], np.float32)
    classes = trend_classes(smooth, np.array([1, 1], np.float32))
    assert classes.tolist() == [[0, 1], [1, 1], [2, 1], [-1, 2]]
    assert classes.dtype == np.int64


def test_production_has_no_test_rows(reader: FolderTask) -> None:
    data = window(reader, "production")
    assert data.test.segments == ()
    assert data.test.rows(4).tolist() == []
    assert data.test.gather(np.empty(0, np.int64), 4).shape == (0, 4, 4)
    assert len(data.train.rows(4))


def test_a_window_without_the_view_says_so(reader: FolderTask) -> None:
    with pytest.raises(ViewUnavailableError, match="no panel view"):
        window(reader, "w000", "panel")
    with pytest.raises(DataError, match="no window w777"):
        window(reader, "w777")
