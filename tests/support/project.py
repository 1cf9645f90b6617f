"""A whole pipeline in a folder of its own: code, configuration, landing, state and instance.

A test may edit the code, the configuration and the landing of its project and then asks the
pipeline through its public door, ``python -m foxhunt_pipeline`` in a process of its own, and
reads what came of it from the Dagster instance, the index and the release store.

One project is synced once a test session; each test works on a clone of it. A clone lies at
another path and is nevertheless up to date, because nothing in the state folder names a path:
code versions are of syntax trees, data versions of contents, blobs of bytes, and Dagster's
storage is relative to ``DAGSTER_HOME``. Only the inventory knows files by inode and time stamp,
so the landing is cloned by hard links, as are the immutable blobs; databases are copied.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from foxhunt_pipeline.checkpoints.publish import Champion, Release, champion, releases
from foxhunt_pipeline.incremental.index import Failure, Index, Row
from foxhunt_pipeline.incremental.records import Manifest
from foxhunt_pipeline.market.simulator import simulate
from foxhunt_pipeline.stores.folder import FolderStore

ROOT = Path(__file__).resolve().parents[2]
CODE = ("foxhunt_pipeline", "assets", "resources")
FILES = ("dagster.yaml", "workspace.yaml", "pyproject.toml")
SESSION_STAGES = ("raw/dbn", "market/tables", "market/validated", "features", "labels")
COMMAND_SECONDS = 240

CONFIG = """
    preset = "demo"

    [landing]
    url = "landing"
    settle_seconds = 0.0

    [clock]
    book = "10s"

    [labels]
    bars_horizons = [1, 5]
    book_horizons = [2, 6]

    [evaluation]
    bootstrap_samples = 100

    [models.tlob]
    context = 16
    hidden = 16

    [models.tlob.train]
    epochs = 2
    batch_size = 64
    rows_per_epoch = 512
    validation_rows = 256

    [models.ppo]
    context = 8
    hidden = 16
    n_envs = 16
    episode_rows = 64
    total_steps = 2048
"""


@dataclass(frozen=True)
class Run:
    """A run of the instance: its partition, and what it materialized, in order."""

    id: str
    job: str
    partition: str | None
    status: str
    assets: tuple[str, ...]
    planned: frozenset[str]
    tags: Mapping[str, str] = field(repr=False)


@dataclass
class Project:
    """A pipeline in ``root``. ``env`` are variables that its commands see beside a clean set."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    state: Path = Path()

    def __post_init__(self) -> None:
        self.state = self.root / ".foxhunt"

    # Making one ------------------------------------------------------------------------------

    @staticmethod
    def create(root: Path, config: str = CONFIG) -> Project:
        """A project with a copy of the code as it is now and an empty landing."""
        root.mkdir(parents=True, exist_ok=True)
        for name in CODE:
            shutil.copytree(
                ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", ".*")
            )
        for name in FILES:
            shutil.copy2(ROOT / name, root / name)
        project = Project(root)
        project.landing.mkdir()
        project.configure(config)
        return project

    def clone(self, root: Path) -> Project:
        """The same project at another path, with everything that it has built."""
        state = self.state.relative_to(self.root)
        shutil.copytree(self.root, root, copy_function=_copy_or_link, symlinks=True)
        made = Project(root, dict(self.env))
        made.state = root / state
        return made

    @property
    def landing(self) -> Path:
        return self.root / "landing"

    def configure(self, text: str) -> None:
        """Replace ``foxhunt.toml``."""
        (self.root / "foxhunt.toml").write_text(textwrap.dedent(text), encoding="utf-8")

    def simulate(
        self,
        sessions: int,
        symbols: Sequence[str] = ("FOXA",),
        *,
        martingale: bool = False,
    ) -> list[Path]:
        """Simulated DBN files of the first sessions of 2024; more sessions join the same job."""
        return simulate(
            self.landing,
            sessions=sessions,
            symbols=symbols,
            seed=11,
            martingale=martingale,
            events_per_session=3_000,
        )

    # Changing it -----------------------------------------------------------------------------

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace a text that occurs once in a file of the project, as an editor saves."""
        path = self.root / file
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {file}"
        _replace(path, text.replace(old, new).encode())

    def append(self, file: str, text: str) -> None:
        """Add lines to the end of a file of the project."""
        path = self.root / file
        _replace(path, path.read_bytes() + textwrap.dedent(text).encode())

    def write(self, file: str, text: str) -> Path:
        """Write a file of the project."""
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    # Its public door -------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """What its processes see: a clean set of variables, and ``env``."""
        kept = ("PATH", "HOME", "TMPDIR", "LANG")
        inherited = {name: os.environ[name] for name in kept if name in os.environ}
        own = {
            "PYTHONPATH": str(self.root),
            "FOXHUNT_STATE": str(self.state),
            "DAGSTER_HOME": str(self.state / "dagster"),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "240",
        }
        return inherited | own | self.env

    def popen(self, *arguments: str) -> subprocess.Popen[str]:
        """``foxhunt …`` as a process in a group of its own, not waited for."""
        return subprocess.Popen(
            [sys.executable, "-m", "foxhunt_pipeline", *arguments],
            cwd=self.root,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def foxhunt(self, *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """``foxhunt …``, which must end with that exit code (None: any) and no traceback."""
        return self._run([sys.executable, "-m", "foxhunt_pipeline", *arguments], code)

    def said(self, *arguments: str, code: int | None = 0) -> str:
        """All that ``foxhunt …`` printed, with single spaces."""
        done = self.foxhunt(*arguments, code=code)
        return " ".join((done.stdout + done.stderr).split())

    def python(self, script: str | Path, *arguments: str, code: int = 0) -> str:
        """Run Python code, or a script of that path, in the project; returns what it printed."""
        source = [str(script)] if isinstance(script, Path) else ["-c", textwrap.dedent(script)]
        return self._run([sys.executable, *source, *arguments], code).stdout

    def _run(self, command: list[str], code: int | None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command,
            cwd=self.root,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        said = f"{' '.join(command[1:])}\n{done.stdout}\n{done.stderr}"
        assert code in (None, done.returncode), f"exit code {done.returncode}, not {code}: {said}"
        assert "Traceback (most recent call last)" not in done.stderr, said
        return done

    def plan(self, *arguments: str) -> list[dict[str, Any]]:
        """The entries of ``foxhunt plan --json``."""
        entries: list[dict[str, Any]] = json.loads(
            self.foxhunt("plan", "--json", *arguments).stdout
        )
        return entries

    def planned(self, *arguments: str) -> list[tuple[str, str | None, str]]:
        """(asset, partition, action) of every entry of the plan."""
        return [(e["asset"], e["partition"], e["action"]) for e in self.plan(*arguments)]

    def sync(self, *arguments: str, code: int = 0) -> Synced:
        """``foxhunt sync``: what it said, and the runs that it made."""
        before = {run.id for run in self.runs()}
        done = self.foxhunt("sync", *arguments, code=code)
        return Synced(done.stdout, done.stderr, [r for r in self.runs() if r.id not in before])

    # What came of it -------------------------------------------------------------------------

    @contextmanager
    def instance(self) -> Iterator[dg.DagsterInstance]:
        """The project's Dagster instance."""
        with dg.DagsterInstance.from_config(str(self.state / "dagster")) as instance:
            yield instance

    def runs(self) -> list[Run]:
        """Every run of the instance, oldest first."""
        if not (self.state / "dagster" / "dagster.yaml").exists():
            return []
        with self.instance() as instance:
            return [_run_of(instance, run) for run in reversed(instance.get_runs())]

    def materialization(self, asset: str, partition: str | None = None) -> Materialized:
        """The newest materialization of an asset (and partition)."""
        with self.instance() as instance:
            records = instance.fetch_materializations(
                dg.AssetRecordsFilter(
                    asset_key=dg.AssetKey(asset.split("/")),
                    asset_partitions=None if partition is None else [partition],
                ),
                limit=1,
            ).records
        assert records, f"{asset} {partition or ''} was never materialized"
        found = records[0].asset_materialization
        assert found is not None
        metadata = {key: value.value for key, value in found.metadata.items()}
        return Materialized(metadata, (found.tags or {})["dagster/data_version"])

    @property
    def index(self) -> Index:
        return Index(self.state / "index.sqlite")

    def rows(self) -> dict[tuple[str, str | None], Row]:
        """What is current."""
        return self.index.rows()

    def versions(self, *stages: str) -> dict[tuple[str, str | None], str]:
        """Data versions of what is current, of these stages or all."""
        return {
            place: row.data_version
            for place, row in self.rows().items()
            if not stages or place[0] in stages
        }

    def failures(self) -> dict[tuple[str, str | None], Failure]:
        """Last attempts that failed."""
        return self.index.failures()

    def manifest(self, asset: str, partition: str | None = None) -> Manifest:
        """The current artifact of an asset, with its items."""
        found = self.index.manifest(asset, partition)
        assert found is not None, f"{asset} {partition or ''} was never built"
        return found

    def checkpoints(self, model: str) -> dict[str, str]:
        """SHA-256 of each window's checkpoint file."""
        items = self.manifest(f"{model}/training").artifact.items
        return {name: item.files["model.safetensors"].sha256 for name, item in items.items()}

    def releases(self, model: str) -> list[Release]:
        """Published versions of a model, oldest first."""
        return releases(FolderStore(self.state / "releases"), model)

    def champion(self, model: str) -> Champion | None:
        """The model's champion, if it has one."""
        return champion(FolderStore(self.state / "releases"), model)

    def tree(self, *parts: str) -> set[str]:
        """Paths of all files below a folder of the project."""
        folder = self.root.joinpath(*parts)
        return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


@dataclass(frozen=True)
class Synced:
    """What a sync said and the runs that it made."""

    out: str
    err: str
    runs: list[Run]


@dataclass(frozen=True)
class Materialized:
    """Metadata and data version of a materialization."""

    metadata: Mapping[str, Any]
    data_version: str


def _run_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Run:
    records = instance.get_records_for_run(
        run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION
    ).records
    assets = [record.asset_key for record in records]
    return Run(
        id=run.run_id,
        job=run.job_name,
        partition=run.tags.get("dagster/partition"),
        status=run.status.value,
        assets=tuple("/".join(key.path) for key in assets if key is not None),
        planned=frozenset("/".join(key.path) for key in run.asset_selection or ()),
        tags=run.tags,
    )


def _copy_or_link(source: str, target: str) -> None:
    """Hard links for what nobody writes into: the landing, blobs and compiled code."""
    path = Path(source)
    if path.suffix in (".zst", ".dbn", ".safetensors") or path.parent.name == "blobs":
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def _replace(path: Path, data: bytes) -> None:
    """Save as editors do: whole, and with another size or second than before."""
    part = path.with_name(f".{path.name}.saving")
    part.write_bytes(data)
    part.replace(path)


@pytest.fixture(scope="session")
def built_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project of four simulated sessions, synced once for all workers of the test session. Not
    to be changed: clone it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    root, done = shared / "built-project", shared / "built-project.done"
    with (shared / "built-project.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(root, ignore_errors=True)
            project = Project.create(root)
            project.simulate(4)
            project.foxhunt("sync")
            done.touch()
    return Project(root)


@pytest.fixture
def project(built_project: Project, tmp_path: Path) -> Iterator[Project]:
    """A synced project of the test's own."""
    yield built_project.clone(tmp_path / "project")
    shutil.rmtree(tmp_path / "project", ignore_errors=True)


@pytest.fixture
def new_project(tmp_path: Path) -> Iterator[Callable[[str], Project]]:
    """Makes projects that have built nothing, by name."""
    made: list[Path] = []

    def make(name: str = "new", config: str = CONFIG) -> Project:
        made.append(tmp_path / name)
        return Project.create(tmp_path / name, config)

    yield make
    for root in made:
        shutil.rmtree(root, ignore_errors=True)
