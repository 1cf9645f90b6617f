"""The dataset of made-up sessions: what is in it, what is left out, what changes with what."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foxhunt_pipeline.artifacts import Artifact
from foxhunt_pipeline.datasets.manifest import DatasetManifest, Span, load
from foxhunt_pipeline.datasets.stage import build
from foxhunt_pipeline.errors import DataError, ViewUnavailableError
from support.dataset_inputs import MINUTE, Sessions
from support.task import FolderTask


def manifest_of(task: FolderTask) -> tuple[DatasetManifest, Artifact]:
    artifact = task.build(build)
    reader = FolderTask(task.folder, "model", inputs={"dataset": artifact})
    return load(reader), artifact


def arrays(task: FolderTask, manifest: DatasetManifest, span: Span, file: str) -> np.ndarray:
    stream = manifest.streams[span.stream]
    item = stream.features if file == "x.npy" else stream.labels
    return np.load(task.path(item, file))[span.start : span.stop]


@pytest.fixture
def sessions(tmp_path: Path) -> Sessions:
    made = Sessions(tmp_path)
    for day in range(5):
        made.add(day)
    return made


def test_windows_streams_and_json(sessions: Sessions) -> None:
    manifest, artifact = manifest_of(sessions.task())
    days = tuple(sessions.features)
    assert manifest.sessions == days
    assert [w.name for w in manifest.windows] == ["w000", "w001", "w002", "production"]
    assert manifest.window("w001").test_sessions == (days[3],)
    assert len(manifest.streams) == 10
    assert manifest.views["bars"].columns == ("drift", "noise", "constant", "none")
    assert manifest.views["bars"].horizons == (1, 5)
    again = DatasetManifest.from_json(json.loads(json.dumps(manifest.to_json())))
    assert again == manifest
    assert again.digest == manifest.digest == artifact.items["manifest"].digest
    part = manifest.window("w000").views["bars"]
    assert part.rows["test"] == 120
    assert sum(part.rows.values()) == 360
    with pytest.raises(DataError, match=r"no window w009.*w000, w001"):
        manifest.window("w009")
    with pytest.raises(DataError, match="format 9"):
        DatasetManifest.from_json({**manifest.to_json(), "format": 9})


def test_labels_of_training_end_before_the_test_span(tmp_path: Path) -> None:
    """Around the clock, a session's last label ends where the next session begins."""
    made = Sessions(tmp_path)
    for day in range(4):
        made.add(day, rows=1440)
    task = made.task(walk_forward={"embargo": "5m"})
    manifest, _ = manifest_of(task)
    embargoed = 0
    for window in manifest.windows:
        part = window.views["bars"]
        embargoed += part.embargoed
        for earlier, later in (
            (part.train, part.validation),
            (part.train, part.test),
            (part.validation, part.test),
        ):
            ends = [int(arrays(task, manifest, s, "end_ts.npy").max()) for s in earlier]
            starts = [int(arrays(task, manifest, s, "ts.npy")[0]) for s in later]
            if later:
                assert max(ends) + 5 * MINUTE <= min(starts)
    assert embargoed > 0


def test_the_scaler_is_of_the_training_rows_alone(sessions: Sessions) -> None:
    task = sessions.task()
    manifest, _ = manifest_of(task)
    for window in manifest.windows:
        part = window.views["bars"]
        x = np.concatenate([arrays(task, manifest, s, "x.npy") for s in part.train])
        low, middle, high = np.nanquantile(x[:, :2].astype(float), [0.25, 0.5, 0.75], axis=0)
        np.testing.assert_allclose(part.scaler.center[:2], middle)
        np.testing.assert_allclose(part.scaler.scale[:2], (high - low) / 1.3489795)
        assert part.scaler.center[2:] == (7.0, 0.0)  # constant, and never defined
        assert part.scaler.scale[2:] == (1.0, 1.0)
        smooth = np.concatenate([arrays(task, manifest, s, "smooth.npy") for s in part.train])
        for horizon, threshold in enumerate(part.trend_thresholds):
            defined = np.abs(smooth[:, horizon][np.isfinite(smooth[:, horizon])])
            assert np.mean(defined > threshold) == pytest.approx(0.66, abs=0.01)


def test_garbage_in_later_rows_moves_no_scaler_and_no_threshold(tmp_path: Path) -> None:
    fitted = []
    for spoil in (None, slice(40, None)):
        made = Sessions(tmp_path / str(spoil))
        for day in range(3):
            late = spoil if day == 1 else slice(None) if spoil and day == 2 else None
            made.add(day, spoil=late, symbols=("AAA",))
        manifest, _ = manifest_of(made.task(walk_forward={"validation_share": 0.25}))
        fitted.append(manifest.window("w000").views["bars"])
    clean, spoilt = fitted
    assert clean.scaler == spoilt.scaler
    assert clean.trend_thresholds == spoilt.trend_thresholds
    assert clean.digest != spoilt.digest  # validation and test rows are other rows
    assert (clean.train, clean.rows) == (spoilt.train, spoilt.rows)


def test_garbage_in_training_rows_moves_both(tmp_path: Path) -> None:
    fitted = []
    for spoil in (None, slice(0, 40)):
        made = Sessions(tmp_path / str(spoil))
        for day in range(3):
            made.add(day, spoil=spoil if day == 0 else None)
        manifest, _ = manifest_of(made.task())
        fitted.append(manifest.window("w000").views["bars"])
    assert fitted[0].scaler != fitted[1].scaler
    assert fitted[0].trend_thresholds != fitted[1].trend_thresholds


@pytest.mark.parametrize("expanding", [False, True])
def test_a_new_session_leaves_older_windows_as_they_were(
    sessions: Sessions, expanding: bool
) -> None:
    walk = {"expanding": expanding}
    task = sessions.task(walk_forward=walk)
    before, first = manifest_of(task)
    sessions.add(9, views=("bars",))
    after, second = manifest_of(task)
    for window in before.windows[:-1]:
        assert after.window(window.name).digest("bars") == window.digest("bars")
        assert after.window(window.name) == window
    assert [w.name for w in after.windows] == ["w000", "w001", "w002", "w003", "production"]
    assert before.window("production").digest("bars") != after.window("production").digest("bars")
    assert before.digest != after.digest
    assert task.computed == ["window/w003/bars", "window/production/bars", "manifest"]
    assert first.data_version != second.data_version


def test_a_changed_session_changes_its_windows_only(sessions: Sessions, tmp_path: Path) -> None:
    before, _ = manifest_of(sessions.task())
    sessions.add(4, seed=99)
    after, _ = manifest_of(sessions.task())
    changed = [
        w.name for w in before.windows if w.digest("bars") != after.window(w.name).digest("bars")
    ]
    assert changed == ["w002", "production"]


def test_the_digest_is_of_what_can_be_seen(sessions: Sessions) -> None:
    """Other keys and files of equal content, another folder and order: the same digests."""
    before, first = manifest_of(sessions.task())
    other = Sessions(sessions.folder / "elsewhere")
    for day in (3, 1, 0, 4, 2):
        other.add(day)
    for session, artifact in other.features.items():
        renamed = {n: replace(item, key="another") for n, item in artifact.items.items()}
        other.features[session] = Artifact("features", session, renamed, {}, "v")
    after, second = manifest_of(other.task())
    assert after.digest == before.digest
    assert first.data_version == second.data_version


def test_sessions_left_out_are_listed_with_the_reason(sessions: Sessions) -> None:
    task = sessions.task(left_out={"2024-01-20": "market/validated failed: crossed books"})
    sessions.labels.pop("2024-01-02")
    sessions.add(7, symbols=())
    manifest, artifact = manifest_of(task)
    assert manifest.left_out == {
        "2024-01-02": "has features but no labels",
        "2024-01-08": "no instrument has a row in trading hours",
        "2024-01-20": "market/validated failed: crossed books",
    }
    assert artifact.figures["left_out"] == manifest.left_out
    assert "2024-01-02" not in manifest.sessions
    assert manifest.window("w000").train_sessions == ("2024-01-01", "2024-01-03")


def test_too_few_sessions_say_how_many_are_needed(tmp_path: Path) -> None:
    made = Sessions(tmp_path)
    made.add(0)
    made.add(1)
    with pytest.raises(DataError, match=r"needs 3 sessions \(2 to train on, 1 .* are 2"):
        made.task().build(build)


def test_features_and_labels_that_do_not_match_are_refused(sessions: Sessions) -> None:
    sessions.labels["2024-01-03"] = sessions.labels["2024-01-04"]
    other = Sessions(sessions.folder)
    other.add(2, rows=50)
    sessions.labels["2024-01-03"] = other.labels["2024-01-03"]
    with pytest.raises(DataError, match=r"2024-01-03.*bars/TEST/1/AAA have 60 rows, labels 50"):
        sessions.task().build(build)


def test_a_view_in_some_sessions_only(tmp_path: Path) -> None:
    made = Sessions(tmp_path)
    for day in range(6):
        made.add(day, views=("bars",) if day in (0, 1) else ("bars", "book"))
    manifest, _ = manifest_of(made.task())
    assert list(manifest.views["book"].missing) == ["2024-01-01", "2024-01-02"]
    assert "mbp-10" in manifest.views["book"].missing["2024-01-01"]
    assert manifest.views["bars"].missing == {}
    assert [w.name for w in manifest.windows_of("book")] == ["w001", "w002", "w003", "production"]
    streams = {s.stream for s in manifest.window("w001").views["book"].train}
    assert {s[:10] for s in streams} == {"2024-01-03"}
    assert manifest.require_view("book", 2).n_levels == 2
    with pytest.raises(ViewUnavailableError, match="has 2 levels of the book and 10 are needed"):
        manifest.require_view("book", 10)
    with pytest.raises(ViewUnavailableError, match="no panel view: it has bars, book"):
        manifest.require_view("panel")


def test_a_view_without_a_testable_window_is_unavailable(tmp_path: Path) -> None:
    made = Sessions(tmp_path)
    for day in range(4):
        made.add(day, views=("bars", "book") if day == 3 else ("bars",))
    manifest, _ = manifest_of(made.task())
    with pytest.raises(ViewUnavailableError, match=r"No walk-forward window .* 3 of 4 sessions"):
        manifest.require_view("book")


def test_of_the_levels_those_that_every_instrument_has(tmp_path: Path) -> None:
    made = Sessions(tmp_path)
    for day in range(3):
        made.add(day, views=("book",), levels={"AAA": 3, "BBB": 1})
    spec = manifest_of(made.task())[0].require_view("book", 1)
    assert spec.n_levels == 1
    assert spec.columns[:5] == (
        "lob_ask_px_00",
        "lob_ask_sz_00",
        "lob_bid_px_00",
        "lob_bid_sz_00",
        "drift",
    )
    with pytest.raises(ViewUnavailableError, match=r"\(TEST BBB\)"):
        manifest_of(made.task())[0].require_view("book", 3)


def test_building_twice_gives_the_same(sessions: Sessions) -> None:
    first, second = (manifest_of(sessions.task()) for _ in range(2))
    assert first[0] == second[0]
    assert {n: (i.digest, i.files) for n, i in first[1].items.items()} == {
        n: (i.digest, i.files) for n, i in second[1].items.items()
    }


def test_sessions_too_short_for_their_horizons(tmp_path: Path) -> None:
    made = Sessions(tmp_path)
    for day in range(3):
        made.add(day, rows=6)
    manifest, _ = manifest_of(made.task(walk_forward={"train_sessions": 1, "embargo": "1h"}))
    with pytest.raises(ViewUnavailableError, match="too short for horizons and embargo"):
        manifest.require_view("bars")
