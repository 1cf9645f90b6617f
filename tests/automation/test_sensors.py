"""The sensors, tick by tick, over a landing that changes between the ticks."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foxhunt_pipeline.automation import LOOKS, automation, sync_job
from foxhunt_pipeline.config import load
from foxhunt_pipeline.market.simulator import simulate
from resources.pipeline import Pipeline
from support.project import Project

NOT_STARTED, STARTED = dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTED


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    """An instance with no runs; a test that makes some removes them."""
    with dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("instance"))) as made:
        yield made


@dataclass
class Watch:
    """A sensor and the landing that it looks at, as the daemon drives it."""

    folder: Path
    instance: dg.DagsterInstance
    environment: Mapping[str, str] = field(default_factory=dict)
    sensor: str = "new_market_data"
    cursor: str | None = None
    skipped: str | None = None
    _sensor: dg.SensorDefinition | None = None

    @property
    def landing(self) -> Path:
        return self.folder / "landing"

    def load(self, **environment: str) -> None:
        """Load the code location anew, under other settings."""
        self.landing.mkdir(parents=True, exist_ok=True)
        variables = {
            "FOXHUNT_LANDING": str(self.landing),
            "FOXHUNT_STATE": str(self.folder / "state"),
            "FOXHUNT_LANDING__SETTLE_SECONDS": "0",
        }
        pipeline = Pipeline(load(self.folder, variables | environment))
        [self._sensor] = [s for s in automation(pipeline).sensors or () if s.name == self.sensor]

    def tick(self) -> bool:
        """Whether a run was asked for."""
        if self._sensor is None:
            self.load()
        assert self._sensor is not None
        with dg.build_sensor_context(self.instance, self.cursor) as context:
            tick = self._sensor.evaluate_tick(context)
        self.cursor, self.skipped = tick.cursor, tick.skip_message
        assert len(tick.run_requests or ()) <= 1
        return bool(tick.run_requests)

    def ticks(self, count: int) -> list[bool]:
        return [self.tick() for _ in range(count)]

    def put(self, name: str, data: bytes = b"not DBN", at: float | None = None) -> Path:
        """A file of the landing, last written at that time."""
        path = self.landing / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if at is not None:
            os.utime(path, (at, at))
        return path


@pytest.fixture
def watch(tmp_path: Path, instance: dg.DagsterInstance) -> Watch:
    return Watch(tmp_path, instance)


@pytest.fixture
def acted(watch: Watch) -> Watch:
    """A landing of one file, for which a sync was started."""
    watch.put("a.dbn")
    assert watch.ticks(3) == [False, True, False]
    return watch


@pytest.fixture
def run(instance: dg.DagsterInstance) -> Iterator[dg.DagsterRun]:
    """A run of the sync job that has not started."""
    made = instance.create_run_for_job(sync_job, status=NOT_STARTED)
    yield made
    instance.delete_run(made.run_id)


def test_an_empty_landing_starts_nothing(watch: Watch) -> None:
    assert not watch.tick()
    assert watch.skipped is not None and str(watch.landing) in watch.skipped


def test_a_file_starts_one_sync_once_two_looks_agree(watch: Watch) -> None:
    watch.put("a.dbn")
    assert watch.ticks(4) == [False, True, False, False]
    assert watch.skipped == "1 files, none of them new."


def test_a_file_of_the_same_second_is_not_lost(watch: Watch) -> None:
    watch.put("a.dbn", at=1_700_000_000)
    watch.ticks(3)
    watch.put("b.dbn", at=1_700_000_000)
    assert watch.ticks(3) == [False, True, False]


def test_a_late_file_with_an_old_time_is_not_lost(acted: Watch) -> None:
    acted.put("job/earlier.dbn", at=1)
    assert acted.ticks(3) == [False, True, False]


def test_a_file_rewritten_at_the_same_size_is_not_lost(acted: Watch) -> None:
    acted.put("a.dbn", b"not dbn")
    assert acted.ticks(3) == [False, True, False]


def test_a_file_removed_and_put_back_starts_a_sync_each_time(acted: Watch) -> None:
    kept = acted.landing / "a.dbn"
    kept.rename(acted.folder / "kept")
    assert acted.ticks(3) == [False, True, False]
    (acted.folder / "kept").rename(kept)
    assert acted.ticks(3) == [False, True, False]


def test_support_files_and_uploads_under_way_start_nothing(acted: Watch) -> None:
    for name in ("symbology.json", "b.dbn.part", ".b.dbn.swp", "job.zip"):
        acted.put(name)
    assert acted.ticks(3) == [False] * 3


def test_a_landing_that_never_holds_still_is_taken_every_so_often(watch: Watch) -> None:
    growing = b""
    asked = []
    for _ in range(2 * LOOKS):
        growing += b"x"
        watch.put("a.dbn", growing)
        asked.append(watch.tick())
    assert asked == ([False] * (LOOKS - 1) + [True]) * 2
    assert watch.ticks(3) == [True, False, False], "what settled at last was never taken"


def test_a_file_that_may_still_grow_is_waited_for(watch: Watch) -> None:
    watch.load(FOXHUNT_LANDING__SETTLE_SECONDS="3600")
    path = watch.put("a.dbn")
    assert watch.ticks(3) == [False] * 3, "a sync would have left the file out"
    os.utime(path, (1, 1))
    assert watch.ticks(3) == [False, True, False]


def test_the_cursor_stays_small(watch: Watch) -> None:
    for number in range(3_000):
        watch.put(f"{number}.dbn")
    sizes = []
    for _ in range(2):
        watch.tick()
        sizes.append(len(watch.cursor or ""))
    assert max(sizes) < 300


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, instance: dg.DagsterInstance) -> Watch:
    """A landing that is emptied before each use."""
    watch = Watch(tmp_path_factory.mktemp("swept"), instance)
    watch.load()
    return watch


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.sampled_from(["tick", "add", "rewrite", "remove", "old"]), max_size=40))
def test_whatever_happens_the_last_state_is_taken(swept: Watch, steps: list[str]) -> None:
    watch = swept
    watch.cursor = None
    for path in watch.landing.iterdir():
        path.unlink()
    numbers = itertools.count()
    there: dict[str, int] = {}
    taken: dict[str, int] = {}
    asked_without_change = 0

    def tick() -> None:
        nonlocal taken, asked_without_change
        if watch.tick():
            asked_without_change += taken == there
            taken = dict(there)

    for step in steps:
        number = next(numbers)
        if step == "tick":
            tick()
        elif step in ("add", "old"):
            watch.put(f"{number}.dbn", at=number if step == "old" else None)
            there[f"{number}.dbn"] = number
        elif there:
            name = min(there)
            if step == "rewrite":
                watch.put(name, b"n" * (number + 1))
                there[name] = number
            else:
                (watch.landing / name).unlink()
                del there[name]
    for _ in range(3):
        tick()
    assert taken == there
    assert asked_without_change <= 1 + len(steps) // LOOKS
    assert not watch.tick()


def test_a_queued_sync_stands_for_what_arrived_since(watch: Watch, run: dg.DagsterRun) -> None:
    watch.put("a.dbn")
    assert watch.ticks(3) == [False] * 3, "the queued run has not planned yet"
    assert watch.skipped is not None and run.run_id in watch.skipped
    started = dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, run.job_name)
    watch.instance.report_dagster_event(started, run.run_id)
    assert watch.tick(), "a run that has planned may have missed the file"


@pytest.fixture
def pending(watch: Watch) -> Watch:
    """A session that ``condition.json`` calls pending, however long ago it was."""
    [data, *_] = simulate(
        watch.landing, sessions=1, symbols=["FOXA"], seed=1, events_per_session=1_000
    )
    (data.parent / "condition.json").write_text(
        json.dumps([{"date": "2024-01-02", "condition": "pending"}])
    )
    watch.load(FOXHUNT_LANDING__WAIT_HOURS="1e6")
    return watch


def test_a_session_whose_wait_is_over_starts_a_sync(pending: Watch) -> None:
    assert pending.ticks(4) == [False, True, False, False]
    pending.load(FOXHUNT_LANDING__WAIT_HOURS="1")
    assert pending.ticks(3) == [True, False, False], "nothing in the landing changed, but time did"


def test_a_sync_that_was_killed_is_started_once_more(pending: Watch, run: dg.DagsterRun) -> None:
    pending.load()
    pending.instance.delete_run(run.run_id)
    assert pending.ticks(2) == [False, True]
    under_way = pending.instance.create_run_for_job(sync_job, status=STARTED)
    assert not pending.tick()
    assert pending.skipped == f"Run {under_way.run_id} is at it."
    pending.instance.delete_run(under_way.run_id)
    assert pending.ticks(4) == [True, False, False, False]


@pytest.fixture
def stale(
    built_project: Project, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> Watch:
    """The sensor that plans, over a project with everything up to date."""
    monkeypatch.chdir(built_project.root)
    for name, value in built_project.environment().items():
        monkeypatch.setenv(name, value)
    watch = Watch(built_project.root, instance, sensor="sync_when_stale")
    watch.load()
    return watch


def test_stale_code_or_configuration_starts_one_sync_a_plan(
    stale: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not stale.tick()
    assert stale.skipped == "Nothing is stale."
    monkeypatch.setenv("FOXHUNT_COSTS__FEE_BPS", "0.3")
    assert stale.ticks(2) == [True, False]
    assert stale.skipped is not None and "foxhunt status" in stale.skipped
    monkeypatch.setenv("FOXHUNT_COSTS__FEE_BPS", "0.4")
    assert stale.tick(), "the same assets for the same reasons, but from other inputs"


def test_a_sync_under_way_is_not_planned_against(stale: Watch, run: dg.DagsterRun) -> None:
    assert not stale.tick()
    assert stale.skipped == f"Run {run.run_id} is at it."


def test_a_plan_that_cannot_be_made_says_why(stale: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOXHUNT_COSTS__FEE_BPS", "free")
    with pytest.raises(RuntimeError, match=r"foxhunt plan failed: .*costs\.fee_bps"):
        stale.tick()
