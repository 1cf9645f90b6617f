"""Fixtures that run a test on every kind of store."""

from __future__ import annotations

from pathlib import Path

import pytest

from foxhunt_pipeline.config import StoreConfig
from foxhunt_pipeline.stores.base import ObjectStore
from resources.stores import open_store
from support.object_server import ObjectServer


@pytest.fixture
def s3_config(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> StoreConfig:
    """A new bucket of the server; its credentials are in the default chain."""
    for name, value in object_server.environment().items():
        monkeypatch.setenv(name, value)
    return StoreConfig(
        url=f"s3://{object_server.new_bucket()}/some/prefix",
        endpoint_url=object_server.endpoint,
        addressing_style="path",
    )


@pytest.fixture(params=["folder", "s3"])
def store_config(request: pytest.FixtureRequest, tmp_path: Path) -> StoreConfig:
    """An empty store of each kind."""
    if request.param == "s3":
        config: StoreConfig = request.getfixturevalue("s3_config")
        return config
    return StoreConfig(url=str(tmp_path / "store"))


@pytest.fixture
def object_store(store_config: StoreConfig) -> ObjectStore:
    """An empty store of each kind, opened."""
    return open_store(store_config)
