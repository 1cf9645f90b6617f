"""init, doctor, config show, status: what a newcomer runs first."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foxhunt_pipeline.cli.doctor import doctor
from foxhunt_pipeline.cli.families import check_models
from foxhunt_pipeline.config import load
from foxhunt_pipeline.errors import AccessDeniedError, FoxhuntError
from resources.pipeline import Pipeline, open_pipeline
from support.command import message
from support.tiny_project import CONFIG, SESSIONS

Foxhunt = Callable[..., Any]


def checks(printed: str) -> dict[str, tuple[str, str]]:
    """(ok, found) of each check that doctor printed."""
    lines = printed.splitlines()
    assert lines[0] == "Doctor"
    found = lines[1].index("found")
    ok = lines[1].index("ok ")
    return {line[:ok].strip(): (line[ok:found].strip(), line[found:]) for line in lines[2:]}


Examine = Callable[..., dict[str, tuple[str, str]]]


@pytest.fixture
def examine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Examine:
    """The doctor in this process, which has torch imported already."""

    def run(*, code: int, folder: Path = tmp_path, **variables: str) -> Any:
        monkeypatch.chdir(folder)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert doctor() == code
        return checks(capsys.readouterr().out)

    return run


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.rglob("*")}


def test_init_writes_a_file_that_is_the_defaults(foxhunt: Foxhunt, tmp_path: Path) -> None:
    done = foxhunt("init", "desk/project")
    path = tmp_path / "desk/project/foxhunt.toml"
    assert done.stdout == "Wrote desk/project/foxhunt.toml. Next: foxhunt doctor\n"
    assert load(path.parent, {}).config == load(tmp_path, {}).config
    text = path.read_text()
    assert text.count("#") > 100
    assert tomllib.loads(text).keys() >= {"landing", "walk_forward"}
    path.write_text(before := text + "seed = 1\n")
    again = foxhunt("init", "desk/project", code=2)
    assert "foxhunt.toml is there already. Edit it, or remove it." in message(again)
    assert path.read_text() == before


def test_init_names_the_landing(foxhunt: Foxhunt, tmp_path: Path, tiny_landing: Path) -> None:
    foxhunt("init", "--landing", tiny_landing)
    assert load(tmp_path, {}).landing_url == str(tiny_landing)
    (tmp_path / "file").touch()
    assert "cannot be written" in message(foxhunt("init", "file/x", code=2))


def test_doctor_finds_a_good_landing_good(foxhunt: Foxhunt, tiny_landing: Path) -> None:
    before = snapshot(tiny_landing)
    done = foxhunt("doctor", FOXHUNT_LANDING=str(tiny_landing), FOXHUNT_PRESET="demo")
    found = checks(done.stdout)
    assert {ok for ok, _ in found.values()} == {"yes"}
    size = sum(p.stat().st_size for p in tiny_landing.rglob("*.dbn.zst"))
    assert found["landing"][1].startswith(f"12 files, {size / 1000:.1f} kB")
    assert "3 ready, 2024-01-02 to 2024-01-04; definition, mbp-10, ohlcv-1m" in found["sessions"][1]
    assert "tlob, ppo" in found["models"][1]
    assert "nothing was built yet" in found["disk"][1]
    assert "3 sessions about" in found["time"][1] and "as measured on two cores" in found["time"][1]
    assert "2 models at most 1 min 0 s (at 15 s a window" in found["time"][1]
    assert snapshot(tiny_landing) == before, "the landing is only read"


def test_doctor_works_on_a_landing_that_cannot_be_written(
    examine: Examine, foxhunt: Foxhunt, tmp_path: Path, tiny_landing: Path
) -> None:
    landing = tmp_path / "read-only"
    shutil.copytree(tiny_landing, landing)
    folders = [landing, *(p for p in landing.rglob("*") if p.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        examine(code=0, FOXHUNT_LANDING=str(landing))
        assert len(foxhunt("plan", "--json", FOXHUNT_LANDING=str(landing)).stdout) > 1000
    finally:
        for folder in folders:
            folder.chmod(0o755)


def test_doctor_estimates_from_what_was_built_here(examine: Examine, own_project: Path) -> None:
    found = examine(code=0, folder=own_project)
    assert "about 0 B needed (as the 3 sessions here)" in found["disk"][1]
    assert found["time"][1] == "2 models: not known before one was trained here"


def test_doctor_says_what_is_wrong_and_ends_with_1(examine: Examine, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = examine(
        code=1,
        FOXHUNT_LANDING=str(tmp_path / "absent"),
        FOXHUNT_STORES__ARTIFACTS__URL="file/artifacts",
        FOXHUNT_MODELS__TLOB__HIDEN="3",
        FOXHUNT_TRAINING__DEVICE="cuda:93",
        FOXHUNT_TRAINING__REQUIRE_DEVICE="true",
    )
    assert found["landing"] == (
        "no",
        f"The landing {tmp_path}/absent is not a folder. Set landing.url or FOXHUNT_LANDING to "
        "where the DBN files are.",
    )
    for name in ("files", "sessions"):
        assert found[name] == ("-", "not checked: landing first")
    assert found["artifact store"][0] == "no" and "file/artifacts" in found["artifact store"][1]
    assert found["release store"][0] == "yes"
    assert found["models"][0] == "no"
    assert "models.tlob.hiden is not a configuration key (from FOXHUNT_" in found["models"][1]
    assert "Did you mean hidden? Allowed here: context, dropout, enabled" in found["models"][1]
    assert found["device"][0] == "no" and "cuda:93 is required" in found["device"][1]


def test_doctor_on_an_empty_landing(examine: Examine, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    found = examine(code=1, FOXHUNT_LANDING="empty")
    assert "empty holds no DBN files. Set landing.url or FOXHUNT_LANDING" in found["landing"][1]


def test_doctor_names_a_refused_file(foxhunt: Foxhunt, tmp_path: Path, tiny_landing: Path) -> None:
    for path in tiny_landing.rglob("*.dbn.zst"):
        shutil.copyfile(path, tmp_path / path.name)
    (bad,) = tmp_path.glob("*20240103.mbp-10*")
    bad.write_bytes(bad.read_bytes()[:-20])
    variables = {"FOXHUNT_LANDING": ".", "FOXHUNT_LANDING__SETTLE_SECONDS": "0"}
    found = checks(foxhunt("doctor", code=1, **variables).stdout)
    assert found["files"][0] == "no"
    assert f"{bad.name} is refused: {bad.name}: is truncated" in found["files"][1]
    assert "foxhunt data ls" in found["files"][1]
    assert found["sessions"][1].startswith("2 ready")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_doctor_on_a_landing_that_cannot_be_read(examine: Examine, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir(mode=0o000)
    found = examine(code=1, FOXHUNT_LANDING="secret")
    assert "permission denied" in found["landing"][1].lower()


def test_a_store_that_refuses_is_told_in_its_own_words(
    examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def probe(self) -> None:
            raise AccessDeniedError("The bucket answered 403.", remedy="Check the credentials.")

    monkeypatch.setattr(Pipeline, "releases", Refusing())
    found = examine(code=1)
    assert found["release store"] == ("no", "The bucket answered 403. Check the credentials.")
    assert found["artifact store"][0] == "yes"


def test_config_show_tells_every_value_with_its_origin(foxhunt: Foxhunt, tmp_path: Path) -> None:
    (tmp_path / "foxhunt.toml").write_text(
        'preset = "demo"\n[walk_forward]\ntrain_sessions = 5\n[models.tlob]\nhidden = 24\n'
    )
    shown = json.loads(foxhunt("config", "show", "--json", FOXHUNT_SEED="9").stdout)
    assert shown["seed"] == {"value": 9, "origin": "FOXHUNT_SEED"}
    assert shown["walk_forward.train_sessions"] == {"value": 5, "origin": "foxhunt.toml"}
    assert shown["clock.book"] == {"value": "1s", "origin": "default"}
    assert shown["models.tlob.hidden"] == {"value": 24, "origin": "foxhunt.toml"}
    assert shown["models.tlob.n_layers"] == {"value": 1, "origin": "preset demo"}
    assert shown["models.tlob.dropout"] == {"value": 0.0, "origin": "default"}
    assert shown["models.tlob.train.patience"] == {"value": 3, "origin": "default"}
    text = foxhunt("config", "show", FOXHUNT_SEED="9").stdout
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert rows["seed"][1:3] == ["9", "FOXHUNT_SEED"]
    assert set(shown) <= set(rows)
    assert f"state folder: {tmp_path}/.foxhunt" in text


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (
            {"FOXHUNT_MODELS__TLOB__HIDDEN": "wide"},
            "models.tlob.hidden = 'wide'",
        ),
        (
            {"FOXHUNT_MODELS__TLOB__TRAIN__EPOCH": "3"},
            "models.tlob.train.epoch is not a configuration key (from "
            "FOXHUNT_MODELS__TLOB__TRAIN__EPOCH). Did you mean epochs? Allowed here: accumulation",
        ),
        ({"FOXHUNT_MODELS__TLOB__TRAIN__EPOCHS": "0"}, "models.tlob.train.epochs = 0"),
        ({"FOXHUNT_MODELS__TLOB__TRAIN": "3"}, "models.tlob.train = 3"),
        ({"FOXHUNT_MODELS__PPO__TRAIN__EPOCHS": "3"}, "models.ppo.train is not a configuration"),
        (
            {
                "FOXHUNT_MODELS__MINE__FAMILY": "foxhunt_pipeline.models.tlob:FAMILY",
                "FOXHUNT_MODELS__MINE__WIDTH": "3",
            },
            "models.mine.width is not a configuration key (from FOXHUNT_MODELS__MINE__WIDTH)",
        ),
        ({"FOXHUNT_MODELS__MINE__FAMILY": "nowhere:FAMILY"}, "nowhere"),
    ],
)
def test_a_wrong_setting_of_a_model_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(FoxhuntError) as caught:
        check_models(open_pipeline())
    assert said in str(caught.value)


def test_a_wrong_setting_is_one_message(foxhunt: Foxhunt) -> None:
    line = message(foxhunt("config", "show", code=2, FOXHUNT_SED="1"))
    assert line.startswith("configuration error: sed is not a configuration key (from FOXHUNT_SED)")
    line = message(foxhunt("config", "show", code=2, FOXHUNT_MODELS__TLOB__HIDDEN="wide"))
    assert "models.tlob.hidden = 'wide'" in line


def test_status_is_1_while_anything_is_behind(foxhunt: Foxhunt, own_project: Path) -> None:
    done = foxhunt("status", code=1, folder=own_project)
    rows = {line.split()[0]: line.split()[1:4] for line in done.stdout.splitlines()[2:]}
    assert rows["features"] == ["3", "0", "0"]
    assert rows["dataset"] == ["1", "0", "0"]
    assert rows["tlob/training"] == ["0", "1", "0"]


def test_status_is_0_when_all_is_current_and_1_after_a_failure(
    foxhunt: Foxhunt, own_project: Path
) -> None:
    from foxhunt_pipeline.incremental.index import Failure, Index

    models = "[models.tlob]\nenabled = false\n[models.ppo]\nenabled = false\n"
    (own_project / "foxhunt.toml").write_text(CONFIG + models)
    foxhunt("status", folder=own_project)
    index = Index(own_project / ".foxhunt" / "index.sqlite")
    index.fail(Failure("labels", SESSIONS[0], "k", "data", "old trouble", 1))
    index.fail(Failure("labels", SESSIONS[1], "k", "data", "new trouble", 2))
    done = foxhunt("status", code=1, folder=own_project)
    row = next(line for line in done.stdout.splitlines() if line.startswith("labels"))
    assert row.split()[3] == "2"
    assert row.endswith("new trouble")
