"""S3 under fire: refused credentials, lost answers, busy servers, ignored conditions."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from foxhunt_pipeline.config import StoreConfig
from foxhunt_pipeline.errors import (
    AccessDeniedError,
    ConfigError,
    PreconditionError,
    StoreError,
    UnavailableError,
)
from foxhunt_pipeline.stores.base import ObjectStore
from foxhunt_pipeline.stores.s3 import PART_BYTES, S3Store
from resources.s3 import S3StoreResource
from resources.stores import open_store
from support.faulty_s3 import Proxy, proxy, stand_in
from support.object_server import ObjectServer

WRONG = "wrong-secret-0123456789"


@pytest.fixture
def faulty(object_server: ObjectServer) -> Iterator[Proxy]:
    with proxy(object_server.endpoint) as running:
        yield running


@pytest.fixture
def through(faulty: Proxy, s3_config: StoreConfig) -> ObjectStore:
    """The bucket, reached through the faulty proxy, with short waits."""
    client = S3StoreResource(
        endpoint_url=faulty.endpoint, region_name="us-east-1", addressing_style="path"
    ).get_client()
    bucket, _, prefix = s3_config.url.removeprefix("s3://").partition("/")
    return S3Store(client, bucket, prefix, attempts=4, delay=0.01)


def test_a_wrong_secret_is_refused_clearly_and_changes_nothing(
    s3_config: StoreConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    right = open_store(s3_config)
    etag = right.put_new("k", b"old")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", WRONG)
    wrong = open_store(s3_config)
    file = tmp_path / "file"
    file.write_bytes(bytes(PART_BYTES + 1))
    for use in (
        lambda: wrong.get("k"),
        lambda: wrong.head("k"),
        lambda: wrong.put_new("new", b"x"),
        lambda: wrong.replace("k", b"x", etag),
        lambda: wrong.put_file_new("file", file),
        lambda: wrong.fetch("k", tmp_path / "down", sha256="0" * 64, size=3),
        lambda: wrong.delete("k"),
        lambda: [*wrong.list("")],
        wrong.probe,
    ):
        with pytest.raises(AccessDeniedError) as caught:
            use()
        message = str(caught.value)
        assert "403" in message and "credentials" in message
        assert s3_config.url in message and str(s3_config.endpoint_url) in message
        assert WRONG not in message
        assert not caught.value.transient
    with pytest.raises(AccessDeniedError, match="file in"):
        wrong.put_file_new("file", file)
    assert [head.key for head in right.list("")] == ["k"]
    assert right.get("k").data == b"old"
    assert not (tmp_path / "down").exists()


def test_no_credentials_and_no_bucket_are_named(
    s3_config: StoreConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nowhere = s3_config.model_copy(update={"url": "s3://no-such-bucket/p"})
    with pytest.raises(StoreError, match="no bucket no-such-bucket at http://127"):
        open_store(nowhere).put_new("k", b"")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))
    with pytest.raises(AccessDeniedError, match="AWS_ACCESS_KEY_ID"):
        open_store(s3_config).get("k")


def test_secrets_are_never_shown(s3_config: StoreConfig, object_server: ObjectServer) -> None:
    store = open_store(s3_config)
    resource = S3StoreResource(endpoint_url=s3_config.endpoint_url)
    secret = object_server.secret_key
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == secret
    for shown in (store, resource, s3_config, object_server):
        assert secret not in repr(shown) + str(shown)
    with pytest.raises(ConfigError, match="AWS_ACCESS_KEY_ID") as caught:
        S3StoreResource(aws_access_key_id="AK", aws_secret_access_key=WRONG).get_client()
    assert WRONG not in str(caught.value)
    with pytest.raises(ConfigError, match="endpoint_url") as caught:
        open_store(StoreConfig(url="s3://b", endpoint_url=f"http://user:{WRONG}@host"))
    assert WRONG not in str(caught.value)


@pytest.mark.parametrize("url", ["", "gs://bucket/x", "s3://", "s3:///x"])
def test_a_url_that_is_no_store_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="url"):
        open_store(StoreConfig(url=url))
    with pytest.raises(ConfigError, match="ca_bundle"):
        open_store(StoreConfig(url="s3://b", ca_bundle="absent.pem"))


def test_a_lost_answer_to_ones_own_success_is_a_success(
    faulty: Proxy, through: ObjectStore, tmp_path: Path
) -> None:
    faulty.faults = ["lost"]
    etag = through.put_new("k", b"1")
    faulty.faults = ["lost"]
    through.replace("k", b"2", etag)
    assert through.get("k").data == b"2"
    file = tmp_path / "file"
    file.write_bytes(os.urandom(PART_BYTES + 1))
    faulty.matches = lambda method, path: method == "POST" and "uploadId" in path
    faulty.faults = ["lost"]
    assert through.put_file_new("file", file)
    through.fetch(
        "file",
        tmp_path / "down",
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        size=PART_BYTES + 1,
    )
    assert faulty.faults == []


def test_a_lost_answer_to_a_refusal_is_a_refusal(faulty: Proxy, through: ObjectStore) -> None:
    old = through.put_new("k", b"same bytes")
    faulty.faults = ["lost"]
    with pytest.raises(PreconditionError):
        through.put_new("k", b"same bytes")
    through.replace("k", b"newer", old)
    faulty.faults = ["lost"]
    with pytest.raises(PreconditionError):
        through.replace("k", b"newer", old)
    assert faulty.faults == []


@pytest.mark.parametrize("status", [409, 429, 500, 503])
def test_a_busy_server_is_asked_again_but_not_for_ever(
    faulty: Proxy, through: ObjectStore, status: int
) -> None:
    faulty.faults = [status] * 3
    through.put_new("k", b"1")
    assert len(faulty.requests) == 4
    faulty.faults = [status] * 4
    with pytest.raises(UnavailableError, match=str(status)) as caught:
        through.put_new("l", b"1")
    assert caught.value.transient
    assert len(faulty.requests) == 8
    assert through.head("l") is None


@pytest.mark.parametrize("status", [401, 403, 400])
def test_a_final_refusal_is_not_repeated(faulty: Proxy, through: ObjectStore, status: int) -> None:
    faulty.faults = [status]
    with pytest.raises(StoreError, match=str(status)):
        through.put_new("k", b"1")
    assert len(faulty.requests) == 1


def test_a_server_that_is_not_there_is_named() -> None:
    client = S3StoreResource(
        endpoint_url="http://127.0.0.1:9", use_unsigned_session=True
    ).get_client()
    store = S3Store(client, "bucket", attempts=2, delay=0.01)
    with pytest.raises(UnavailableError, match=r"s3://bucket/ at http://127\.0\.0\.1:9"):
        store.get("k")


def test_a_bit_flipped_on_the_way_is_caught(
    faulty: Proxy, through: ObjectStore, tmp_path: Path
) -> None:
    data = os.urandom(1000)
    through.put_new("k", data)
    faulty.matches = lambda method, path: method == "GET"
    faulty.faults = ["flipped"]
    with pytest.raises(StoreError, match="SHA-256"):
        through.fetch("k", tmp_path / "down", sha256=hashlib.sha256(data).hexdigest(), size=1000)
    assert not (tmp_path / "down").exists()


def test_parts_of_an_upload_that_fails_are_taken_back(
    faulty: Proxy, through: ObjectStore, object_server: ObjectServer, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(PART_BYTES + 1))
    faulty.matches = lambda method, path: "partNumber=2" in path
    faulty.faults = [403]
    with pytest.raises(AccessDeniedError):
        through.put_file_new("file", file)
    assert through.head("file") is None
    assert any(method == "DELETE" and "uploadId" in path for method, path, _ in faulty.requests)


@pytest.mark.parametrize("checksum", ["when_supported", "when_required"])
def test_the_checksum_mode_decides_whether_checksums_are_sent(
    faulty: Proxy, s3_config: StoreConfig, checksum: str, tmp_path: Path
) -> None:
    store = open_store(
        s3_config.model_copy(update={"endpoint_url": faulty.endpoint, "checksum": checksum})
    )
    file = tmp_path / "file"
    file.write_bytes(bytes(PART_BYTES + 1))
    store.put_new("k", b"1")
    store.put_file_new("file", file)
    sent = [
        any(name.lower().startswith("x-amz-checksum-crc") for name in headers)
        for method, _, headers in faulty.requests
        if method == "PUT"
    ]
    assert sent == [checksum == "when_supported"] * 3


@pytest.mark.parametrize(
    ("honours", "broken"),
    [
        (set(), "If-None-Match on an existing key"),
        ({"none-match", "match-absent"}, "If-Match on a stale etag"),
        ({"none-match", "match"}, "If-Match on an absent key"),
        ({"none-match", "match", "match-absent"}, None),
    ],
)
def test_a_store_that_ignores_conditions_is_refused(honours: set[str], broken: str | None) -> None:
    with stand_in(frozenset(honours)) as endpoint:
        client = S3StoreResource(
            endpoint_url=endpoint, addressing_style="path", use_unsigned_session=True
        ).get_client()
        store = S3Store(client, "bucket")
        if broken is None:
            store.probe()
        else:
            with pytest.raises(StoreError, match=f"ignores conditions.*{broken}"):
                store.probe()
        assert [*store.list("")] == []


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate")
def test_a_ca_bundle_makes_a_private_server_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "ca.pem"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 "
        f"-addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}".split(),
        check=True,
        capture_output=True,
    )
    both = tmp_path / "both.pem"
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    with stand_in(frozenset({"none-match", "match", "match-absent"}), both) as endpoint:
        config = StoreConfig(
            url="s3://bucket",
            endpoint_url=endpoint,
            addressing_style="path",
            checksum="when_required",
        )
        with pytest.raises(StoreError, match="certificate is not trusted"):
            open_store(config).get("k")
        open_store(config.model_copy(update={"ca_bundle": str(certificate)})).probe()
