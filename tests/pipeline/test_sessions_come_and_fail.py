"""A session more, a session that is corrupt, a view that is missing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable

from support.project import SESSION_STAGES, Project

DAYS = ("2024-01-02", "2024-01-03", "2024-01-04", "2024-01-05", "2024-01-08")
THIRD = DAYS[2]


def test_one_more_session_trains_one_more_window(project: Project) -> None:
    before = {model: project.checkpoints(model) for model in ("tlob", "ppo")}
    versions = project.versions()
    project.simulate(5)
    assert [p for _, p, _ in project.planned() if p] == [DAYS[4]] * len(SESSION_STAGES)
    runs = project.sync().runs
    assert [run.partition for run in runs] == [DAYS[4], None]
    assert runs[0].planned == set(SESSION_STAGES)
    for model, old in before.items():
        metadata = project.materialization(f"{model}/training").metadata
        counters = {k: metadata[k] for k in ("windows_trained", "windows_reused", "items_computed")}
        assert counters == {"windows_trained": 2, "windows_reused": 2, "items_computed": 2}
        assert metadata["computed"] == "w002, production"
        new = project.checkpoints(model)
        assert {window: new[window] for window in ("w000", "w001")} == {
            window: old[window] for window in ("w000", "w001")
        }
        assert new["production"] != old["production"]
        walked = project.materialization(f"{model}/walk_forward").metadata
        assert (walked["items_computed"], walked["items_reused"]) == (2, 2)
        assert walked["computed"] == "predictions/w002, scorecard"
    now = project.versions()
    assert all(now[place] == version for place, version in versions.items() if place[1])
    assert project.plan() == []


def test_a_corrupt_session_is_left_out_and_said(new_project: Callable[..., Project]) -> None:
    project = new_project()
    project.env["FOXHUNT_MODELS__PPO__ENABLED"] = "false"
    files = project.simulate(5)
    job = files[0].parent
    for file in files:  # flat, without the manifest that would call a damaged file arriving
        file.rename(project.landing / file.name)
    shutil.rmtree(job)
    [bad] = [path for path in project.landing.iterdir() if "20240104.mbp-10" in path.name]
    good = bad.read_bytes()
    bad.write_bytes(good[: len(good) // 2] + bytes(64) + good[len(good) // 2 + 64 :])

    synced = project.sync(code=1)
    assert bad.name in synced.err
    runs = {run.partition: run for run in synced.runs}
    assert [run.partition for run in synced.runs] == [*DAYS, None]
    assert {day: run.status for day, run in runs.items()} == {
        day: "FAILURE" if day == THIRD else "SUCCESS" for day in (*DAYS, None)
    }
    assert runs[THIRD].assets == ()

    versions = project.versions(*SESSION_STAGES)
    assert {day for _, day in versions} == set(DAYS) - {THIRD}
    for place, version in versions.items():
        assert project.materialization(*place).data_version == version
    for stage in ("raw/dbn", "market/tables", "features", "labels"):
        assert len({version for place, version in versions.items() if place[0] == stage}) == 4
    failure = project.failures()["raw/dbn", THIRD]
    assert failure.category == "data"
    assert bad.name in failure.message

    left_out = project.materialization("dataset").metadata["left_out"].records
    assert [record.data["session"] for record in left_out] == [THIRD]
    assert bad.name in str(left_out[0].data["reason"])
    assert project.materialization("dataset").metadata["sessions"] == 4
    assert project.materialization("tlob/training").metadata["windows_trained"] == 3
    [release] = project.releases("tlob")
    assert list(release.provenance["left_out"]) == [THIRD]

    listed = json.loads(project.foxhunt("data", "ls", "--json").stdout)
    states = {session["session"]: session["state"] for session in listed["sessions"]}
    assert states == {day: "refused" if day == THIRD else "ready" for day in DAYS}
    assert [file["name"] for file in listed["refused"]] == [bad.name]
    assert bad.name in project.said("data", "ls")
    assert project.plan() == []
    assert f"held: raw/dbn {THIRD}" in project.said("plan")
    assert project.sync().runs == []
    assert THIRD in project.said("status", code=1)

    part = project.root / "repaired"
    part.write_bytes(good)
    part.replace(bad)
    runs_after = project.sync().runs
    assert [run.partition for run in runs_after] == [THIRD, None]
    assert set(runs_after[0].assets) == set(SESSION_STAGES)
    dataset = project.materialization("dataset").metadata
    assert dataset["sessions"] == 5
    assert dataset["left_out"] == "none"
    # The newest two sessions are what they were, and so is production.
    trained = project.materialization("tlob/training").metadata
    assert trained["computed"] == "w000, w001, w002"
    assert project.failures() == {}
    assert project.plan() == []
    project.foxhunt("status")


def test_a_missing_view_skips_its_models_and_no_others(
    new_project: Callable[..., Project],
) -> None:
    project = new_project()
    files = project.simulate(3)
    for file in files:
        if "mbp-10" not in file.name:
            file.rename(project.landing / file.name)
    shutil.rmtree(files[0].parent)
    synced = project.sync()
    assert [run.partition for run in synced.runs] == [*DAYS[:3], None]
    done = set(synced.runs[-1].assets)
    assert {"dataset", "baselines/walk_forward", "ppo/release"} <= done
    assert not any(asset.startswith("tlob") for asset in done)
    assert len(project.releases("ppo")) == 1
    assert project.releases("tlob") == []

    failure = project.failures()["tlob/training", None]
    assert failure.category == "skipped"
    assert "book" in failure.message
    assert project.plan() == []
    assert project.sync().runs == []
    status = project.said("status")
    assert "held: tlob/training" in status
    assert "no book view" in status
    why = project.said("releases", "why", "tlob")
    assert "tlob/training was skipped" in why
    assert "no book view" in why
