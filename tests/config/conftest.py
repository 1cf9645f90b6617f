"""No foxhunt.toml of the folder that the tests are run in reaches them."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _empty_folder(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))
