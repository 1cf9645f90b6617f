"""``dagster dev`` over a project: webserver, daemon and code servers, asked through GraphQL."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from support.project import Project

T = TypeVar("T")

LOCATION = "foxhunt_pipeline"
START_SECONDS = 120
FINISHED = ("SUCCESS", "FAILURE", "CANCELED")


@dataclass(frozen=True)
class Server:
    """A running ``dagster dev``. ``log``: what all of its processes print."""

    project: Project
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def graphql(self, query: str, **variables: Any) -> dict[str, Any]:
        """Data that a query answers; an error of it fails the test."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(
            f"{self.url}/graphql", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        assert not answer.get("errors"), answer["errors"]
        data: dict[str, Any] = answer["data"]
        return data

    def launch(self, job: str, config: Mapping[str, Any] | None = None) -> str:
        """Launch a job as the button of the UI does; returns the run's id."""
        answer = self.graphql(
            """mutation Launch($params: ExecutionParams!) {
                 launchRun(executionParams: $params) {
                   ... on LaunchRunSuccess { run { runId } }
                   ... on PythonError { message }
                   ... on RunConfigValidationInvalid { errors { message } }
                 } }""",
            params={
                "selector": {
                    "repositoryLocationName": LOCATION,
                    "repositoryName": "__repository__",
                    "jobName": job,
                },
                "runConfigData": json.dumps(config or {}),
                "mode": "default",
            },
        )["launchRun"]
        assert "run" in answer, answer
        return str(answer["run"]["runId"])

    def terminate(self, run_id: str) -> None:
        """End a run as the button of the UI does."""
        answer = self.graphql(
            """mutation Terminate($id: String!) {
                 terminateRun(runId: $id, terminatePolicy: SAFE_TERMINATE) {
                   __typename
                   ... on TerminateRunFailure { message }
                   ... on PythonError { message }
                 } }""",
            id=run_id,
        )["terminateRun"]
        assert answer["__typename"] == "TerminateRunSuccess", answer

    def reload(self) -> None:
        """Load the code location anew, as the button of the UI does."""
        answer = self.graphql(
            """mutation Reload($name: String!) {
                 reloadRepositoryLocation(repositoryLocationName: $name) {
                   __typename
                   ... on WorkspaceLocationEntry { loadStatus }
                 } }""",
            name=LOCATION,
        )["reloadRepositoryLocation"]
        assert answer["__typename"] == "WorkspaceLocationEntry", answer

    def status(self, run_id: str) -> str:
        """Status of a run."""
        run = self.graphql(
            "query Run($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }", id=run_id
        )["runOrError"]
        return str(run["status"])

    def finish(self, run_id: str, seconds: float = 120) -> str:
        """Status of a run once it has come to an end."""
        return until(
            lambda: status if (status := self.status(run_id)) in FINISHED else None,
            seconds,
            f"run {run_id} ends",
        )

    def said(self, run_id: str) -> list[str]:
        """Messages of a run's log so far."""
        with self.project.instance() as instance:
            return [entry.user_message for entry in instance.all_logs(run_id)]


def until(ask: Callable[[], T | None], seconds: float, what: str, every: float = 0.5) -> T:
    """The first answer that is neither None nor empty nor False."""
    deadline = time.monotonic() + seconds
    while True:
        if answer := ask():
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(every)


def group_members(group: int) -> list[int]:
    """Processes of a process group that have not ended."""
    return [pid for pid, pgid, _ in _processes() if pgid == group]


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and those started by them."""
    children: dict[int, list[int]] = {}
    for child, _, parent in _processes():
        children.setdefault(parent, []).append(child)
    found = list(children.get(pid, []))
    for each in found:
        found += children.get(each, [])
    return found


def command_of(pid: int) -> str:
    """Command line of a process, or an empty string."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def process_with(words: str) -> int:
    """The process with these words in its command line."""
    [found] = [pid for pid, _, _ in _processes() if words in command_of(pid)]
    return found


def _processes() -> Iterator[tuple[int, int, int]]:
    """(pid, process group, parent) of every process that is not a zombie."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                state, parent, group, *_ = (entry / "stat").read_text().rpartition(") ")[2].split()
                if state != "Z":
                    yield int(entry.name), int(group), int(parent)


@contextmanager
def serving(project: Project) -> Iterator[Server]:
    """``dagster dev`` until the block ends; nothing of it is left then."""
    port = _free_port()
    log = project.root / "dagster-dev.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            _command(port),
            cwd=project.root,
            env=project.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(project, port, log)
    try:
        until(lambda: _loaded(server, process), START_SECONDS, "dagster dev serves")
        yield server
    finally:
        _end(process)


def _command(port: int) -> Sequence[str]:
    address = ["-h", "127.0.0.1", "-p", str(port)]
    return [sys.executable, "-m", "dagster", "dev", "-w", "workspace.yaml", *address]


def _loaded(server: Server, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, server.log.read_text()
    try:
        answer = server.graphql(
            """{ locationStatusesOrError {
                   ... on WorkspaceLocationStatusEntries { entries { name loadStatus } } }
                 repositoriesOrError {
                   ... on RepositoryConnection { nodes { location { name } } }
                   ... on PythonError { message } } }"""
        )
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
    return bool(answer["repositoriesOrError"].get("nodes"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process group as Ctrl-C does; then by force what is left of it, and of what its
    members started in groups of their own."""
    groups = {process.pid} | {os.getpgid(pid) for pid in descendants(process.pid)}
    for sign, told, seconds in (
        (signal.SIGINT, {process.pid}, 20),
        (signal.SIGKILL, groups, 10),
    ):
        for group in told:
            with suppress(ProcessLookupError):
                os.killpg(group, sign)
        with suppress(TimeoutError, subprocess.TimeoutExpired):
            process.wait(seconds)
            until(lambda: not any(group_members(group) for group in groups), seconds, "it ends")
            return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
