"""The public face: its names, its errors, its releases."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import foxhunt_pipeline as fx
from foxhunt_pipeline import errors
from foxhunt_pipeline.checkpoints.format import save
from foxhunt_pipeline.checkpoints.publish import promote, publish
from support.checkpoints import checkpoint

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "api.md"
ERRORS = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)]


def test_what_is_exported_is_documented_once() -> None:
    documented = re.findall(r"^- `(\w+)`: \S", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(documented) == fx.__all__


@pytest.mark.parametrize("name", fx.__all__)
def test_every_name_is_there_with_a_docstring(name: str) -> None:
    assert inspect.getdoc(getattr(fx, name))
    assert name in dir(fx)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'open_assets'"):
        fx.open_assets  # noqa: B018


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, foxhunt_pipeline; "
        "print(sorted({'torch', 'polars', 'dagster', 'pandas', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_error_of_the_taxonomy_is_exported() -> None:
    assert {e.__name__ for e in ERRORS} == {n for n in fx.__all__ if n.endswith("Error")}


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_has_category_and_remedy(kind: type[errors.FoxhuntError]) -> None:
    error = kind("It is broken.", remedy="Mend it.")
    assert isinstance(error, fx.FoxhuntError)
    assert (error.message, error.remedy) == ("It is broken.", "Mend it.")
    assert str(error) == "It is broken. Mend it."
    assert re.fullmatch("[a-z]+", error.category)
    assert error.category != "internal" or kind is fx.FoxhuntError
    assert error.transient == (kind is fx.UnavailableError)
    assert kind.__doc__


def test_a_release_is_opened_by_version_or_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fx.NotFoundError, match="tlob has no champion yet"):
        fx.open_release("tlob")
    with pytest.raises(fx.NotFoundError, match="tlob has no release"):
        fx.open_release("tlob", "latest")
    store = fx.open_pipeline().releases
    for seed in (1, 2):
        path = tmp_path / f"{seed}.safetensors"
        save(checkpoint(seed), path)
        said = {"stage": "candidate", "gates": [], "provenance": {"seed": seed}}
        publish(store, "tlob", path, said)
    promote(store, "tlob", "v0001", reason="test")
    opened = {
        version: int(fx.open_release("tlob", version).tensors["steps"])
        for version in ("champion", "latest", "v0001", "v0002")
    }
    assert opened == {"champion": 1, "latest": 2, "v0001": 1, "v0002": 2}
    assert fx.open_release("tlob", folder=str(tmp_path)).header.horizons == (10, 30)
    with pytest.raises(fx.NotFoundError, match="no release v0003 of tlob"):
        fx.open_release("tlob", "v0003")
    with pytest.raises(fx.ReleaseError, match="'newest' is not a version"):
        fx.open_release("tlob", "newest")


def test_simulate_is_the_simulator(tmp_path: Path) -> None:
    files = fx.simulate(tmp_path, sessions=1, symbols=["A"], seed=1, events_per_session=1000)
    assert {path.name.split(".")[1] for path in files} == {
        "definition",
        "mbp-10",
        "ohlcv-1m",
        "trades",
    }
