"""Fixtures that every test may use."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

pytest_plugins = ["support.object_server", "support.project", "support.stores"]

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    # A run judges the change at hand; new examples are looked for where somebody watches.
    settings.load_profile("ci")

TEST_DATA = Path(os.environ.get("FOXHUNT_TEST_DATA") or ROOT.parent / "shared" / "data")


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Real market data as DBN files; skips where it is not at hand."""
    if not (TEST_DATA / "landing").is_dir():
        if os.environ.get("FOXHUNT_REQUIRE_TEST_DATA"):
            pytest.fail(f"no market data at {TEST_DATA}, and FOXHUNT_REQUIRE_TEST_DATA is set")
        pytest.skip(f"no market data at {TEST_DATA}; set FOXHUNT_TEST_DATA to a copy of it")
    return TEST_DATA


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No configuration of the person running the tests reaches them."""
    for name in list(os.environ):
        if name.startswith("FOXHUNT_") or name == "DAGSTER_HOME":
            monkeypatch.delenv(name)
    yield
