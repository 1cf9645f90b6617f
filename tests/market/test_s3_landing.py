"""The landing on S3, against a real server."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import boto3
import pytest
from botocore.config import Config

from foxhunt_pipeline.errors import AccessDeniedError, NotFoundError
from foxhunt_pipeline.market import raw, tables
from foxhunt_pipeline.market.inventory import Inventory
from foxhunt_pipeline.market.landing import S3Landing
from foxhunt_pipeline.market.sessions import SurveyedSource, survey
from support.deliveries import make_tables
from support.object_server import ObjectServer
from support.task import FolderTask


def test_a_bucket_is_read_as_a_folder_is(
    test_data: Path, tmp_path: Path, object_server: ObjectServer
) -> None:
    client, bucket = object_server.client(), object_server.new_bucket()
    folder = tmp_path / "folder"
    for n in (7, 8):
        name = f"lean-equity-2013100{n}.ohlcv-1m.dbn.zst"
        (folder / "JOB").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(test_data / "landing/equities" / name, folder / "JOB" / name)
        client.upload_file(str(folder / "JOB" / name), bucket, f"desk/landing/JOB/{name}")
    client.put_object(Bucket=bucket, Key="desk/landing/JOB/symbology.json", Body=b"{}")
    client.put_object(Bucket=bucket, Key="desk/landing-other/x.dbn", Body=b"no data of ours")
    landing = S3Landing(client, bucket, "desk/landing", tmp_path / "cache")
    assert [f.name for f in landing.list()] == sorted(
        f"JOB/lean-equity-2013100{n}.ohlcv-1m.dbn.zst" for n in (7, 8)
    )
    now = time.time_ns()
    surveyed = survey(Inventory(tmp_path / "state", landing).facts(now), {}, now, 6.0)
    assert list(surveyed.ready()) == ["2013-10-07", "2013-10-08"]
    common = {"partition": "2013-10-08", "source": SurveyedSource(surveyed, landing)}
    first = FolderTask(tmp_path, stage="raw/dbn", **common).build(raw.build)
    task = FolderTask(tmp_path, stage="market/tables", inputs={"raw/dbn": first}, **common)
    made = task.build(tables.build)
    same, _ = make_tables(folder, tmp_path / "other", "2013-10-08")
    assert made.data_version == same.data_version


def test_a_listing_of_many_pages_is_whole(tmp_path: Path, object_server: ObjectServer) -> None:
    client, bucket = object_server.client(), object_server.new_bucket()
    names = [f"{n}.dbn" for n in range(7)]
    for name in names:
        client.put_object(Bucket=bucket, Key=name, Body=b"x")
    client.meta.events.register(
        "provide-client-params.s3.ListObjectsV2", lambda params, **_: params | {"MaxKeys": 2}
    )
    assert [file.name for file in S3Landing(client, bucket, "", tmp_path).list()] == names


def test_a_replaced_object_is_not_taken_for_the_one_listed(
    tmp_path: Path, object_server: ObjectServer
) -> None:
    client, bucket = object_server.client(), object_server.new_bucket()
    client.put_object(Bucket=bucket, Key="x.dbn", Body=b"old")
    landing = S3Landing(client, bucket, "", tmp_path / "cache")
    (old,) = landing.list()
    assert landing.local(old).read_bytes() == b"old"
    client.put_object(Bucket=bucket, Key="x.dbn", Body=b"new")
    (new,) = landing.list()
    assert new.version != old.version
    assert landing.local(new).read_bytes() == b"new"
    assert landing.local(old).read_bytes() == b"old"
    for path in (tmp_path / "cache").iterdir():
        path.unlink()
    with pytest.raises(NotFoundError, match=r"x\.dbn .* 412"):
        landing.local(old)
    assert list((tmp_path / "cache").iterdir()) == []


def test_wrong_credentials_are_named(tmp_path: Path, object_server: ObjectServer) -> None:
    stranger = boto3.client(
        "s3",
        endpoint_url=object_server.endpoint,
        aws_access_key_id=object_server.access_key,
        aws_secret_access_key="wrong",
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )
    landing = S3Landing(stranger, object_server.new_bucket(), "desk", tmp_path)
    with pytest.raises(AccessDeniedError, match=r"desk/ .* 403") as error:
        landing.list()
    assert "wrong" not in str(error.value)
