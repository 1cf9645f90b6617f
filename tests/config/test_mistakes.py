"""A wrong key or value is named, with where it is from and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foxhunt_pipeline.config import Config, allowed, describe, leaves, load
from foxhunt_pipeline.errors import ConfigError


def mistake(**environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(None, {f"FOXHUNT_{name}": value for name, value in environ.items()})
    return str(caught.value)


def mistake_in(folder: Path, text: str) -> str:
    (folder / "foxhunt.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(folder, {})
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("sed = 1", "sed", "seed"),
        ("[walk_foward]\ntrain_sessions = 1", "walk_foward", "walk_forward"),
        ("[walk_forward]\ntrain_sesions = 1", "walk_forward.train_sesions", "train_sessions"),
        ("[stores.artefacts]\nurl = 'x'", "stores.artefacts", "artifacts"),
        ("[stores.releases]\nendpoint = 'x'", "stores.releases.endpoint", "endpoint_url"),
    ],
)
def test_a_key_that_is_none(tmp_path: Path, text: str, key: str, hint: str) -> None:
    message = mistake_in(tmp_path, text)
    assert message.startswith(f"{key} is not a configuration key (from foxhunt.toml).")
    assert f"Did you mean {hint}?" in message
    listed = message.partition("Allowed here: ")[2].removesuffix(".").split(", ")
    assert hint in listed
    assert listed == sorted(listed)


def test_a_variable_that_is_none_is_named_as_it_was_set() -> None:
    message = mistake(CLOCK__BOOKS="1s")
    assert "clock.books is not a configuration key (from FOXHUNT_CLOCK__BOOKS)" in message
    assert "Did you mean book? Allowed here: bars, book." in message
    assert "FOXHUNT_TURBO" in mistake(TURBO="1")


@pytest.mark.parametrize(
    ("variable", "value", "key", "said"),
    [
        ("SEED", "-1", "seed", "at least 0, below 2147483648"),
        ("SEED", "seven", "seed", "integer"),
        ("PRESET", "huge", "preset", "'demo' or 'full'"),
        ("CLOCK__BARS", "1 min", "clock.bars", "as 500ms, 1s, 5m or 1h"),
        ("CLOCK__BARS", "0s", "clock.bars", "as 500ms, 1s, 5m or 1h"),
        ("WALK_FORWARD__EXPANDING", "perhaps", "walk_forward.expanding", "true or false"),
        ("WALK_FORWARD__VALIDATION_SHARE", "1", "walk_forward.validation_share", "below 1"),
        ("LANDING__WAIT_HOURS", "inf", "landing.wait_hours", "finite"),
        ("LANDING__WAIT_HOURS", "nan", "landing.wait_hours", "number, at least 0"),
        ("UNIVERSE__INSTRUMENTS", "SPY", "universe.instruments", 'a list, as ["a", "b"]'),
        ("UNIVERSE__INSTRUMENTS", "[1]", "universe.instruments.0", "must be text"),
        ("LABELS__BARS_HORIZONS", "[5, 1]", "labels.bars_horizons", "positive and ascending"),
        ("LABELS__BOOK_HORIZONS", "[]", "labels.book_horizons", "positive and ascending"),
        ("TRAINING__DEVICE", "gpu", "training.device", "auto, cpu, cuda or cuda:N"),
        ("TRAINING__PRECISION", "fp8", "training.precision", "'fp32' or 'bf16'"),
        ("AUTOMATION__NIGHTLY_TIME", "25:00", "automation.nightly_time", "as 22:30"),
        ("AUTOMATION__NIGHTLY_TIMEZONE", "Mars", "automation.nightly_timezone", "IANA"),
        ("AUTOMATION__NIGHTLY_TIMEZONE", "../x", "automation.nightly_timezone", "IANA"),
        ("STORES__ARTIFACTS__CHECKSUM", "never", "stores.artifacts.checksum", "'when_required'"),
        ("MARKET", "x", "market", "must be a table"),
        ("MODELS__TLOB", "x", "models.tlob", "must be a table"),
        ("MODELS__TLOB__ENABLED", "x", "models.tlob.enabled", "true or false"),
    ],
)
def test_a_wrong_value(variable: str, value: str, key: str, said: str) -> None:
    message = mistake(**{variable: value})
    assert message.startswith(f"{key} = ")
    assert f"(from FOXHUNT_{variable})" in message
    assert said in message


def test_a_wrong_value_in_the_file_is_from_the_file(tmp_path: Path) -> None:
    message = mistake_in(tmp_path, "[walk_forward]\ntrain_sessions = 0\n")
    assert message.startswith("walk_forward.train_sessions = 0 (from foxhunt.toml): ")
    assert "integer, at least 1" in message
    assert describe("walk_forward.train_sessions") in message


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"LANDING": "gs://bucket"}, "landing.url = 'gs://bucket' is neither"),
        ({"STORES__RELEASES__URL": "s3://"}, "stores.releases.url = 's3://' is neither"),
        ({"MODELS__MINE__HIDDEN": "3"}, "no built-in family mine; built-in are ppo, tlob"),
        ({"MODELS__MINE__FAMILY": "module"}, "models.mine.family = 'module' must be"),
        ({"MODELS__BASELINES__FAMILY": "a:b"}, "no model can be called baselines"),
        ({"MODELS__CONTRACT__ENABLED": "true"}, "no built-in family contract"),
        ({"MODELS__TLOB__DROPOUT": "nan"}, "models.tlob.dropout = nan must be a finite number"),
        ({"MODELS__A-B__FAMILY": "a:b"}, "models.a-b (from FOXHUNT_MODELS__A-B__FAMILY): the name"),
    ],
)
def test_places_and_models(environ: dict[str, str], said: str) -> None:
    assert said in mistake(**environ)


KEYS = dict(leaves({k: v for k, v in Config().model_dump(mode="json").items() if k != "models"}))


@given(st.sampled_from(sorted(KEYS)), st.integers(0, 20))
def test_a_slip_of_the_finger_is_put_right(key: str, at: int) -> None:
    """Any key with one letter left out is refused, named, and mostly guessed."""
    table, _, name = key.rpartition(".")
    at %= len(name)
    slip = name[:at] + name[at + 1 :]
    path = f"{table}.{slip}".lstrip(".")
    if slip in [k.rpartition(".")[2] for k in KEYS if k.rpartition(".")[0] == table]:
        return
    layer: Any = KEYS[key]
    message = mistake(**{path.upper().replace(".", "__"): str(layer or "x")})
    assert message.startswith(f"{path} is not a configuration key")
    assert name in message.partition("Allowed here: ")[2].removesuffix(".").split(", ")


@pytest.mark.parametrize("key", [*KEYS, "models.tlob.enabled", "models.tlob.family"])
def test_every_key_says_what_it_means_and_allows(key: str) -> None:
    assert len(describe(key)) >= 10
    assert describe(key).endswith(".")
    assert allowed(key) not in ("", "value")


def test_what_is_no_key_means_nothing() -> None:
    assert describe("clock.books") == ""
    assert allowed("clock.books") == ""
