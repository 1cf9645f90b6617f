"""Landing, artifacts and releases on a real S3 server, from two machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from foxhunt_pipeline.checkpoints.publish import champion, open_release, releases
from foxhunt_pipeline.config import StoreConfig
from foxhunt_pipeline.stores.base import ObjectStore
from foxhunt_pipeline.stores.s3 import S3Store
from support.object_server import ObjectServer
from support.project import SESSION_STAGES, Project

DAYS = ("2024-01-02", "2024-01-03", "2024-01-04")


def _places(server: ObjectServer, bucket: str) -> dict[str, str]:
    """Variables that put everything there is into a bucket."""
    found = dict(server.environment())
    for part, key in (
        ("LANDING", "FOXHUNT_LANDING"),
        ("STORES__ARTIFACTS", "FOXHUNT_STORES__ARTIFACTS__URL"),
        ("STORES__RELEASES", "FOXHUNT_STORES__RELEASES__URL"),
    ):
        found[key] = f"s3://{bucket}/{part.rpartition('_')[2].lower()}"
        found[f"FOXHUNT_{part}__ENDPOINT_URL"] = server.endpoint
        found[f"FOXHUNT_{part}__ADDRESSING_STYLE"] = "path"
    return found


def _listed(client: Any, bucket: str) -> dict[str, str]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    return {entry["Key"]: entry["ETag"] for page in pages for entry in page.get("Contents", [])}


def test_everything_on_s3_and_a_second_machine_reuses_it(
    new_project: Callable[..., Project], object_server: ObjectServer, tmp_path: Path
) -> None:
    project = new_project()
    client, bucket = object_server.client(), object_server.new_bucket()
    for file in project.simulate(3)[0].parent.iterdir():
        client.upload_file(str(file), bucket, f"landing/{file.parent.name}/{file.name}")
    project.env |= _places(object_server, bucket)

    # A machine with a wrong secret is told so, and changes nothing.
    before = _listed(client, bucket)
    wrong = project.clone(tmp_path / "wrong")
    wrong.env["AWS_SECRET_ACCESS_KEY"] = "of somebody else"
    for command in ("plan", "sync"):
        said = wrong.foxhunt(command, code=2)
        assert "403" in said.stderr
        assert "credentials" in said.stderr
    assert wrong.runs() == []
    assert _listed(client, bucket) == before

    # So is one that finds the data and may not write what it makes of it.
    local = project.clone(tmp_path / "local")
    local.env |= {"FOXHUNT_LANDING": str(local.landing), "AWS_SECRET_ACCESS_KEY": "another's"}
    refused = local.sync("--select", "raw/dbn", code=1)
    assert [run.status for run in refused.runs] == ["FAILURE"] * 3
    assert "403" in refused.err
    assert local.rows() == {}
    assert {place for place, _, _ in local.planned("--select", "raw/dbn")} == {"raw/dbn"}
    assert _listed(client, bucket) == before

    first = project.sync()
    assert [run.partition for run in first.runs] == [*DAYS, None]
    assert not (project.state / "artifacts").exists()
    assert not (project.state / "releases").exists()
    versions = project.versions()
    store: ObjectStore = S3Store(client, bucket, "releases")
    for model in ("tlob", "ppo"):
        [release] = releases(store, model)
        checkpoint = open_release(store, model, release.version, cache=tmp_path / "downloads")
        assert release.sha256 == project.checkpoints(model)["production"]
        assert checkpoint.header.parameter_count > 100
        leads = champion(store, model)
        assert (leads is None) == (release.stage == "candidate")

    second = project.clone(tmp_path / "second")
    second.state = second.root / "another-state"
    runs = second.sync().runs
    assert [run.partition for run in runs] == [*DAYS, None]
    assert second.versions() == versions
    for place in versions:
        metadata = second.materialization(*place).metadata
        assert metadata["items_computed"] == 0, place
        assert metadata["reused"], place
    assert len(releases(store, "tlob")) == len(releases(store, "ppo")) == 1
    assert {place[0] for place in versions if place[1]} == set(SESSION_STAGES)
    assert second.plan() == []
    assert StoreConfig(url=second.env["FOXHUNT_STORES__RELEASES__URL"]).is_s3
