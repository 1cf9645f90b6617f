"""Layers of the configuration: which wins, and what each value says of where it came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foxhunt_pipeline.config import Config, Settings, leaves, load
from foxhunt_pipeline.errors import ConfigError

PLACES: dict[str, st.SearchStrategy[Any]] = {
    "seed": st.integers(0, 2**31 - 1),
    "walk_forward.train_sessions": st.integers(1, 500),
    "walk_forward.expanding": st.booleans(),
    "costs.fee_bps": st.floats(0, 100),
    "clock.book": st.sampled_from(["100ms", "1s", "5m", "1h"]),
    "training.precision": st.sampled_from(["auto", "fp32", "bf16"]),
    "universe.instruments": st.lists(st.sampled_from(["SPY", "IBM", "600519", "ES.FUT"])),
    "market.hours": st.sampled_from(["regular", "all"]),
    "stores.artifacts.url": st.sampled_from(["here", "s3://bucket/x", "2024", "true", "1e5"]),
    "automation.nightly_timezone": st.sampled_from(["UTC", "Europe/London"]),
    "models.tlob.context": st.integers(2, 500),
    "models.tlob.train.learning_rate": st.floats(1e-6, 1.0),
}
"""A key of each kind, and values that it may have."""


def variable(key: str) -> str:
    return "FOXHUNT_" + key.upper().replace(".", "__")


def toml(values: dict[str, Any]) -> str:
    """Dotted keys at top level, which is TOML."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def shell(value: Any) -> str:
    """As one writes it in a shell: bare words, TOML for lists."""
    return value if isinstance(value, str) else json.dumps(value)


def found(resolved: Settings) -> dict[str, tuple[Any, str]]:
    return {key: (value, origin) for key, value, origin in resolved.values()}


layer = st.fixed_dictionaries({}, optional=PLACES)


@given(file=layer, variables=layer, preset=st.sampled_from([None, "demo", "full"]))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_last_layer_that_gives_a_value_wins(
    tmp_path: Path, file: dict[str, Any], variables: dict[str, Any], preset: str | None
) -> None:
    """Against an oracle that looks a key up in each layer, last first."""
    (tmp_path / "foxhunt.toml").write_text(toml(file))
    environ = {variable(key): shell(value) for key, value in variables.items()}
    if preset:
        environ["FOXHUNT_PRESET"] = preset
    values = found(load(tmp_path, environ))
    base = found(load(None, {"FOXHUNT_PRESET": preset or "full", "FOXHUNT_CONFIG": ""}))
    for key in PLACES:
        if key in variables:
            expected = (variables[key], variable(key))
        elif key in file:
            expected = (file[key], "foxhunt.toml")
        elif key in base:
            expected = base[key]
        else:
            assert key not in values
            continue
        assert values[key] == expected, key


def test_a_preset_lies_below_the_file_and_above_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "foxhunt.toml").write_text('preset = "demo"\n[models.tlob]\ncontext = 9\n')
    values = found(load(tmp_path, {}))
    assert values["preset"] == ("demo", "foxhunt.toml")
    assert values["models.tlob.context"] == (9, "foxhunt.toml")
    assert values["models.tlob.hidden"][1] == "preset demo"
    assert values["models.tlob.enabled"] == (True, "default")
    assert values["seed"] == (7, "default")


def test_presets_bring_the_models_and_a_model_can_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "foxhunt.toml").write_text("[models.ppo]\nenabled = false\n")
    models = load(tmp_path, {}).config.models
    assert set(models) == {"tlob", "ppo"}
    assert models["tlob"].enabled
    assert not models["ppo"].enabled
    assert load(tmp_path, {"FOXHUNT_PRESET": "demo"}).config.models["tlob"].settings["hidden"] == 32


def test_tables_are_laid_over_one_another_key_by_key(tmp_path: Path) -> None:
    (tmp_path / "foxhunt.toml").write_text('[market.calendars]\n"GLBX.MDP3" = "CMES"\nX = "XNYS"\n')
    environ = {"FOXHUNT_MARKET__CALENDARS": '{X = "24/7"}'}
    assert load(tmp_path, environ).config.market.calendars == {"GLBX.MDP3": "CMES", "X": "24/7"}


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("1", True), ("False", False), ("0", False)]
)
def test_a_variable_is_read_by_the_type_of_its_key(text: str, value: bool) -> None:
    assert (
        load(None, {"FOXHUNT_WALK_FORWARD__EXPANDING": text}).config.walk_forward.expanding is value
    )


def test_settings_of_a_family_are_read_as_toml_where_they_are() -> None:
    environ = {
        "FOXHUNT_MODELS__TLOB__CONTEXT": "32",
        "FOXHUNT_MODELS__TLOB__NOTE": "as it is",
        "FOXHUNT_MODELS__TLOB__TRAIN": "{epochs = 3}",
        "FOXHUNT_MODELS__TLOB__DAY": "2024-01-02",
    }
    assert load(None, environ).config.models["tlob"].settings == {
        "context": 32,
        "note": "as it is",
        "train": {"epochs": 3},
        "day": "2024-01-02",
    }


def test_an_empty_variable_is_none() -> None:
    assert load(None, {"FOXHUNT_SEED": "", "FOXHUNT_LANDING": ""}).config == load(None, {}).config


def test_the_state_folder_is_beside_the_file_unless_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "foxhunt.toml").touch()
    monkeypatch.chdir(tmp_path)
    here = load(None, {})
    assert here.state == tmp_path / ".foxhunt"
    assert here.landing_url == str(tmp_path / ".foxhunt" / "landing")
    assert here.artifacts.url == str(tmp_path / ".foxhunt" / "artifacts")
    assert here.releases.url == str(tmp_path / ".foxhunt" / "releases")
    moved = load(None, {"FOXHUNT_STATE": "elsewhere"})
    assert moved.state == tmp_path / "elsewhere"
    assert moved.releases.url == str(tmp_path / "elsewhere" / "releases")
    assert load(None, {"FOXHUNT_STATE": "~/x"}).state == Path.home() / "x"


def test_relative_paths_start_at_the_folder_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "foxhunt.toml").write_text(
        '[landing]\nurl = "../data"\nca_bundle = "ca.pem"\n'
        '[stores.artifacts]\nurl = "s3://bucket/a"\nca_bundle = "/etc/ca.pem"\n'
        '[stores.releases]\nurl = "~/releases"\n'
    )
    monkeypatch.chdir(tmp_path)
    for resolved in (
        load(None, {"FOXHUNT_CONFIG": "project/foxhunt.toml"}),
        load(project, {}),
        load("project", {"FOXHUNT_CONFIG": "/not/looked/at"}),
    ):
        assert resolved.root == project
        assert Path(resolved.landing_url).resolve() == tmp_path / "data"
        assert resolved.config.landing.ca_bundle == str(project / "ca.pem")
        assert resolved.artifacts.url == "s3://bucket/a"
        assert resolved.artifacts.is_s3
        assert resolved.artifacts.ca_bundle == "/etc/ca.pem"
        assert resolved.releases.url == str(Path.home() / "releases")


def test_the_landing_variable_is_the_landing_place() -> None:
    resolved = load(
        None, {"FOXHUNT_LANDING": "s3://desk/raw", "FOXHUNT_LANDING__REGION": "eu-west-1"}
    )
    assert resolved.landing_url == "s3://desk/raw"
    assert resolved.origin("landing.url") == "FOXHUNT_LANDING"
    assert resolved.config.landing.region == "eu-west-1"
    assert resolved.origin("landing.region") == "FOXHUNT_LANDING__REGION"


def test_a_file_or_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"FOXHUNT_CONFIG names .*absent\.toml"):
        load(None, {"FOXHUNT_CONFIG": str(tmp_path / "absent.toml")})
    with pytest.raises(ConfigError, match="absent is not a folder"):
        load(tmp_path / "absent", {})


def test_text_that_is_not_toml_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "foxhunt.toml").write_text("seed = 1\nseed == 2\n")
    with pytest.raises(ConfigError, match=r"foxhunt\.toml is not TOML: .*line 2"):
        load(tmp_path, {})
    (tmp_path / "foxhunt.toml").write_bytes(b"seed = '\xff'")
    with pytest.raises(ConfigError, match=r"foxhunt\.toml is not TOML"):
        load(tmp_path, {})


def test_sections_are_plain_data() -> None:
    config = Config()
    for key, value in leaves(config.model_dump(mode="json")):
        assert config.section(key) == value
    assert json.loads(json.dumps(config.section("walk_forward"))) == config.section("walk_forward")
