"""The engine over a small graph of its own: two session stages, a gathering stage, a model."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from foxhunt_pipeline.config import Config
from foxhunt_pipeline.errors import CodeChangedError, CodeError, DataError, StoreError
from foxhunt_pipeline.incremental.build import Builder, Outcome, Surroundings
from foxhunt_pipeline.incremental.closure import CodeBase
from foxhunt_pipeline.incremental.index import Index
from foxhunt_pipeline.incremental.memo import Memo
from foxhunt_pipeline.incremental.plan import Plan, SessionState, make_plan
from foxhunt_pipeline.incremental.recovery import rebuild_index
from foxhunt_pipeline.incremental.stages import Stage, select
from foxhunt_pipeline.incremental.versions import stage_versions
from foxhunt_pipeline.stores.folder import FolderStore

MODULES = {
    "raw": """
        from foxhunt_pipeline.artifacts import Content, Result
        def build(task):
            def write(folder):
                (folder / "bytes").write_text(task.partition)
                return Content(task.partition, {"length": len(task.partition)})
            return Result([task.item("bytes", [task.partition], write)])
        """,
    "feature": """
        from foxhunt_pipeline.artifacts import Content, Result
        from graph.shared import scale
        def build(task):
            [item] = task.input("raw").items.values()
            def write(folder):
                text = task.path(item, "bytes").read_text()
                if "bad" in text:
                    from foxhunt_pipeline.errors import DataError
                    raise DataError("bytes are bad.", remedy="Get others.")
                value = str(scale(len(text)))
                (folder / "value").write_text(value)
                return Content(value)
            return Result([task.item("value", [item.digest], write)])
        """,
    "shared": "def scale(x):\n    return 2 * x\n",
    "gather": """
        from foxhunt_pipeline.artifacts import Content, Result
        def build(task):
            found = {s: a.data_version for s, a in task.sessions("feature").items()}
            def write(folder):
                (folder / "list").write_text("\\n".join(found))
                return Content("|".join(f"{s}={v}" for s, v in found.items()))
            item = task.item("list", list(found.values()), write, extra={"sessions": list(found)})
            return Result([item], {"left_out": dict(task.left_out())})
        """,
    "train": """
        from foxhunt_pipeline.artifacts import Content, Result
        def build(task):
            items = []
            for name in task.path(task.input("gather").items["list"], "list").read_text().split():
                def write(folder):
                    (folder / "model").write_text(name)
                    return Content(name)
                items.append(task.item(name, [name], write))
            return Result(items, {"rate": task.config("costs.fee_bps")})
        """,
}
STAGES = (
    Stage("raw", "graph.raw", "", "g", partitioned=True),
    Stage("feature", "graph.feature", "", "g", inputs=("raw",), partitioned=True),
    Stage("gather", "graph.gather", "", "g", inputs=("feature",), needs_session=("feature",)),
    Stage("train", "graph.train", "", "g", inputs=("gather",), config=("costs",)),
)


@dataclass
class World:
    """A state folder, a code folder and a landing that a test changes."""

    folder: Path
    state: str = "state"
    config: Config = field(default_factory=Config)
    sessions: dict[str, SessionState] = field(default_factory=dict)

    def write(self, module: str, text: str) -> None:
        path = self.folder / "graph" / f"{module}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))

    def builder(self) -> Builder:
        """A builder as a new process would make it."""
        for name in [name for name in sys.modules if name.partition(".")[0] == "graph"]:
            del sys.modules[name]
        stages = {stage.name: stage for stage in STAGES}
        versions = stage_versions(self.config, CodeBase(("graph",)), stages)
        state = self.folder / self.state
        memo = Memo(FolderStore(self.folder / "store"), state / "cache")
        return Builder(self.config, stages, versions, Index(state / "index.sqlite"), memo)

    def plan(self, **options: object) -> Plan:
        b = self.builder()
        return make_plan(b.stages, b.versions, self.sessions, b.index, **options)

    def build(self, name: str, partition: str | None = None, **options: bool) -> Outcome:
        b = self.builder()
        outcome = b.build(name, partition, self.sessions, Surroundings(), **options)
        b.index.succeeded(outcome.manifest)
        return outcome

    def sync(self) -> list[tuple[str, str | None]]:
        """Do what the plan says, twice as sync does; returns what was computed."""
        done = []
        for _ in range(2):
            plan = self.plan()
            for entry in plan.entries:
                if entry.partition is None and plan.sessions:
                    continue
                try:
                    outcome = self.build(entry.asset, entry.partition)
                except DataError:
                    continue
                if outcome.computed:
                    done.append((entry.asset, entry.partition))
        return done


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("foxhunt_pipeline.incremental.build.STARTED_NS", 2**62)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made = World(tmp_path)
    made.write("__init__", "")
    for name, text in MODULES.items():
        made.write(name, text)
    made.sessions = {day: SessionState(f"digest of {day}") for day in ("2024-01-02", "2024-01-03")}
    yield made
    for name in [name for name in sys.modules if name.partition(".")[0] == "graph"]:
        del sys.modules[name]


def places(plan: Plan) -> list[tuple[str, str | None, str]]:
    return [(entry.asset, entry.partition, entry.action) for entry in plan.entries]


def test_everything_is_planned_first_and_nothing_after(world: World) -> None:
    plan = world.plan()
    assert [entry.asset for entry in plan.entries] == [
        "raw",
        "raw",
        *["feature"] * 2,
        "gather",
        "train",
    ]
    assert len(world.sync()) == 6
    assert world.plan() == Plan(())
    assert world.sync() == []


def test_an_edit_rebuilds_the_stage_and_stops_where_the_result_is_the_same(world: World) -> None:
    world.sync()
    world.write("shared", "def scale(x):\n    return x + x\n")
    plan = world.plan()
    assert places(plan) == [
        ("feature", "2024-01-02", "rebuild"),
        ("feature", "2024-01-03", "rebuild"),
        ("gather", None, "may_change"),
        ("train", None, "may_change"),
    ]
    assert {entry.reason for entry in plan.entries} == {"graph/shared.py changed"}
    assert world.sync() == [("feature", "2024-01-02"), ("feature", "2024-01-03")]
    assert world.plan() == Plan(())


def test_an_edit_that_changes_the_result_goes_through(world: World) -> None:
    world.sync()
    world.write("shared", "def scale(x):\n    return 3 * x\n")
    assert [asset for asset, _ in world.sync()] == ["feature", "feature", "gather"]
    # The names of the sessions are all that training reads: it computed nothing.
    world.write("shared", "def scale(x):\n    return 2 * x\n")
    assert world.sync() == [], "the old results are known"


def test_a_comment_changes_nothing(world: World) -> None:
    world.sync()
    world.write("shared", "# doubles\ndef scale(x):\n    'Doubled.'\n    return 2 * x\n")
    assert world.plan() == Plan(())


def test_configuration_counts_where_it_is_declared(world: World) -> None:
    world.sync()
    world.config = Config.model_validate({"costs": {"fee_bps": 5.0}})
    plan = world.plan()
    assert places(plan) == [("train", None, "rebuild")]
    assert plan.entries[0].reason == "config costs.fee_bps: 0.1 -> 5.0"


def test_reading_an_undeclared_section_or_input_is_refused(world: World) -> None:
    world.sync()
    world.write("train", "def build(task):\n    task.config('labels')\n")
    with pytest.raises(CodeError, match=r"train reads the configuration section labels"):
        world.build("train")
    world.write("train", "def build(task):\n    task.input('raw')\n")
    with pytest.raises(CodeError, match="train reads raw, which is not among its inputs"):
        world.build("train")


def test_a_new_session_computes_its_own_and_one_new_item(world: World) -> None:
    world.sync()
    world.sessions["2024-01-04"] = SessionState("new")
    assert world.sync() == [
        ("raw", "2024-01-04"),
        ("feature", "2024-01-04"),
        ("gather", None),
        ("train", None),
    ]
    manifest = world.builder().index.manifest("train", None)
    assert manifest is not None
    assert list(manifest.artifact.items) == ["2024-01-02", "2024-01-03", "2024-01-04"]


def test_new_items_alone_are_computed(world: World) -> None:
    world.sync()
    world.sessions["2024-01-04"] = SessionState("new")
    for asset in ("raw", "feature"):
        world.build(asset, "2024-01-04")
    world.build("gather")
    outcome = world.build("train")
    assert outcome.computed == ("2024-01-04",)
    assert outcome.reused == ("2024-01-02", "2024-01-03")


def test_a_bad_session_is_left_out_with_its_reason_and_not_tried_again(world: World) -> None:
    world.sessions["2024-01-02-bad"] = SessionState("bad")
    world.sync()
    plan = world.plan()
    assert plan.entries == ()
    assert [(held.asset, held.partition) for held in plan.held] == [("feature", "2024-01-02-bad")]
    manifest = world.builder().index.manifest("gather", None)
    assert manifest is not None
    assert manifest.artifact.figures["left_out"] == {"2024-01-02-bad": "bytes are bad. Get others."}
    world.write("feature", MODULES["feature"].replace('"bad" in text', "False"))
    assert ("feature", "2024-01-02-bad", "rebuild") in places(world.plan())


def test_a_session_seen_before_keeps_its_last_good_version(world: World) -> None:
    world.sync()
    good = world.builder().index.row("feature", "2024-01-03")
    index = world.builder().index
    from foxhunt_pipeline.incremental.index import Failure

    world.sessions["2024-01-03"] = SessionState("redelivered", "refused", "cut short")
    index.fail(Failure("raw", "2024-01-03", "k", "data", "cut short", 1))
    assert places(world.plan())[0] == ("raw", "2024-01-03", "rebuild")
    assert world.builder().index.row("feature", "2024-01-03") == good


def test_a_session_that_is_still_arriving_waits(world: World) -> None:
    world.sessions["2024-01-04"] = SessionState("x", "waiting", "one file is arriving")
    world.sync()
    assert world.plan().entries == ()
    assert world.plan().held[0].reason == "one file is arriving"
    assert world.builder().index.row("raw", "2024-01-04") is None


def test_a_failure_of_code_is_planned_again(world: World) -> None:
    world.sync()
    world.write("train", "def build(task):\n    raise RuntimeError('oops')\n")
    with pytest.raises(RuntimeError):
        world.build("train")
    assert places(world.plan()) == [("train", None, "rebuild")]
    world.write("train", MODULES["train"])
    assert world.plan().entries[0].reason.startswith("the last attempt failed: RuntimeError: oops")
    world.build("train")
    assert world.plan() == Plan(())


def test_the_guard_catches_a_save_between_plan_and_import(world: World) -> None:
    world.sync()
    world.write("train", textwrap.dedent(MODULES["train"]) + "x = 1\n")
    builder = world.builder()
    world.write("train", textwrap.dedent(MODULES["train"]) + "x = 2\n")
    with pytest.raises(CodeChangedError, match=r"graph/train\.py changed"):
        builder.build("train", None, world.sessions, Surroundings())
    assert world.build("train").manifest.code_version == world.builder().versions["train"].digest


def test_the_guard_catches_a_save_that_came_before_the_import_was_done(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foxhunt_pipeline.incremental.build.STARTED_NS", 1)
    with pytest.raises(CodeChangedError, match="was saved"):
        world.build("raw", "2024-01-02")


def test_bytecode_of_an_earlier_save_in_the_same_second_is_not_trusted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two saves of equal length within a second: Python itself would run the first."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = world.folder / "graph" / "shared.py"
    world.sessions = {"2024-01-02": SessionState("x")}
    world.build("raw", "2024-01-02")
    second = 1_700_000_000 * 10**9
    os.utime(path, ns=(second, second))
    world.build("feature", "2024-01-02")
    world.write("shared", "def scale(x):\n    return 3 * x\n")
    os.utime(path, ns=(second + 5 * 10**8,) * 2)
    compiled = Path(importlib.util.cache_from_source(str(path)))
    os.utime(compiled, ns=(second + 10**8,) * 2)
    with pytest.raises(CodeChangedError, match="saved twice in a second"):
        world.build("feature", "2024-01-02")
    built = world.build("feature", "2024-01-02")
    assert built.artifact.items["value"].digest == "30"


def test_force_computes_again_to_the_same_result(world: World) -> None:
    world.sync()
    before = world.builder().index.row("feature", "2024-01-02")
    outcome = world.build("feature", "2024-01-02", force=True)
    assert outcome.computed == ("value",)
    assert before is not None
    assert outcome.artifact.data_version == before.data_version
    assert {entry.reason for entry in world.plan(force=True).entries} == {"forced"}


def test_nothing_is_stored_of_a_computation_that_fails(world: World) -> None:
    world.sessions = {"bad": SessionState("bad")}
    world.build("raw", "bad")
    before = sorted(p for p in (world.folder / "store").rglob("*") if p.is_file())
    with pytest.raises(DataError):
        world.build("feature", "bad")
    assert sorted(p for p in (world.folder / "store").rglob("*") if p.is_file()) == before
    assert list((world.folder / "state/cache/scratch").iterdir()) == []


def test_a_damaged_blob_is_found_dropped_and_computed_again(world: World) -> None:
    world.sync()
    item = world.builder().artifact("raw", "2024-01-02").items["bytes"]
    blob = world.folder / "store" / "blobs" / item.files["bytes"].sha256
    blob.chmod(0o644)
    blob.write_text("2024-01-99")
    with pytest.raises(StoreError, match="damaged"):
        world.build("feature", "2024-01-02", force=True)
    assert not blob.exists()
    assert world.build("raw", "2024-01-02").computed == ("bytes",)
    assert world.build("feature", "2024-01-02", force=True).artifact.data_version


def test_another_state_folder_with_the_same_store_reuses_everything(world: World) -> None:
    world.sync()
    world.state = "other"
    assert len(world.plan().entries) == 6
    assert world.sync() == []
    assert world.plan() == Plan(())


def test_a_lost_index_is_rebuilt_from_the_manifests(world: World) -> None:
    world.sync()
    world.write("train", textwrap.dedent(MODULES["train"]) + "x = 1\n")
    before = world.plan()
    (world.folder / "state/index.sqlite").unlink()
    builder = world.builder()
    count = rebuild_index(
        builder.index, builder.memo, builder.stages, builder.versions, world.sessions
    )
    assert count == 6
    assert world.plan() == before


def test_two_processes_computing_one_key_agree(world: World) -> None:
    """Both start before either has written; the loser adopts the winner's item."""
    script = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        from foxhunt_pipeline.artifacts import Content
        from foxhunt_pipeline.incremental.memo import Memo
        from foxhunt_pipeline.stores.folder import FolderStore
        store, cache, me = map(Path, sys.argv[1:])
        def write(folder):
            (folder / "who").write_text(me.name)
            Path(cache, me.name).touch()
            while len(list(cache.glob("writer*"))) < 2:
                time.sleep(0.01)
            return Content(me.name)
        print(Memo(FolderStore(store), cache / me.name[-1]).compute("k", "n", write).digest)
        """
    )
    cache = world.folder / "race"
    cache.mkdir()
    arguments = [sys.executable, "-c", script, str(world.folder / "store"), str(cache)]
    racers = [
        subprocess.Popen([*arguments, f"writer{i}"], stdout=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    printed = {racer.communicate(timeout=60)[0].strip() for racer in racers}
    assert len(printed) == 1
    assert printed <= {"writer0", "writer1"}


def test_selections(world: World) -> None:
    stages = {stage.name: stage for stage in STAGES}
    assert select(stages, []) == set(stages)
    assert select(stages, ["gather"]) == {"gather"}
    assert select(stages, ["gather+"]) == {"gather", "train"}
    assert select(stages, ["+feature"]) == {"raw", "feature"}
    assert select(stages, ["*a*e*"]) == {"feature", "gather"}
    with pytest.raises(Exception, match="names no stage"):
        select(stages, ["nothing"])


def test_a_plan_of_ten_thousand_sessions_reads_only_the_index(world: World) -> None:
    """The loop over sessions does no more than look up rows: counted, not timed."""
    world.sessions = {f"{i:05d}": SessionState(str(i)) for i in range(10_000)}
    assert len(world.plan().entries) == 20_002


def test_what_belongs_to_an_asset_and_fails_is_the_assets_failure(world: World) -> None:
    """The artifact is known, yet the asset is planned again until all of it is done."""
    world.sync()
    world.write("train", textwrap.dedent(MODULES["train"]) + "x = 1\n")

    def refuse(outcome: Outcome) -> None:
        raise StoreError("the release store is full.", remedy="Make room.")

    with pytest.raises(StoreError):
        world.builder().build("train", None, world.sessions, Surroundings(), finish=refuse)
    assert places(world.plan()) == [("train", None, "rebuild")]
    failure = world.builder().index.failures()["train", None]
    assert (failure.category, failure.message) == ("store", "the release store is full. Make room.")
    assert world.build("train").computed == ()
    assert world.plan() == Plan(())
