"""What a full build, a no-op, a one-family edit and a new session cost.

Works on a copy of the code, so that it can edit it, and on simulated data at the demo's settings.
Peers: the family's own share of the full build for the edit (nothing that rebuilds the family
correctly can cost less), stock Dagster materializing the same assets without the engine's plan for
the new session, and the bounds of the design for the no-op and the plan.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

from report import Row, arguments, lower_is_better, publish

ROOT = Path(__file__).resolve().parent.parent
SESSIONS = 5
FAMILIES = 10
PLANNED_SESSIONS = 250


class Copy:
    """A copy of the code with a state folder and a landing of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("foxhunt_pipeline", "assets", "resources"):
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        shutil.copy(ROOT / "dagster.yaml", folder)
        self.landing = folder / "landing"
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("FOXHUNT_")}
        self.environment |= {
            "PYTHONPATH": str(folder),
            "FOXHUNT_STATE": str(folder / "state"),
            "FOXHUNT_LANDING": str(self.landing),
            "FOXHUNT_PRESET": "demo",
            "DAGSTER_HOME": str(folder / "state/dagster"),
        }

    def run(self, *words: str) -> float:
        """Wall seconds of a foxhunt command."""
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "foxhunt_pipeline", *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"foxhunt {' '.join(words)} failed:\n{done.stdout}\n{done.stderr}")
        return time.perf_counter() - began

    def simulate(self, sessions: int) -> None:
        self.run("simulate", str(self.landing), "--sessions", str(sessions), "--symbols", "FOXA")

    def steps(self) -> list[tuple[str, float]]:
        """(step, wall seconds) of every step that ever succeeded, from Dagster's own events."""
        found: list[tuple[str, float]] = []
        for file in (self.folder / "state/dagster/history/runs").glob("*.db"):
            if file.name == "index.db":
                continue
            with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as db:
                query = (
                    "SELECT step_key, MIN(timestamp), MAX(timestamp) FROM event_logs"
                    " WHERE step_key IS NOT NULL AND dagster_event_type IN"
                    " ('STEP_START', 'STEP_SUCCESS') GROUP BY step_key"
                )
                found += [(step, _seconds(b) - _seconds(a)) for step, a, b in db.execute(query)]
        return found

    def edit(self, file: str) -> None:
        """Change a module's code, not what it computes: the family is trained again all the same,
        since nobody can know."""
        with (self.folder / "foxhunt_pipeline" / file).open("a", encoding="utf-8") as source:
            source.write("\n\nEDITED = 1\n")


def _seconds(stamp: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(stamp).timestamp()


def importing(folder: Path) -> list[Row]:
    """What a code server and every run pay before anything else; Dagster alone as the peer."""
    copy = Copy(folder)
    copy.landing.mkdir()

    def seconds(module: str) -> float:
        code = (
            f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
        )
        command = [sys.executable, "-c", code]
        runs = [
            subprocess.run(
                command,
                cwd=folder,
                env=copy.environment,
                capture_output=True,
                text=True,
                check=True,
            )
            for _ in range(4)
        ]
        return min(float(run.stdout) for run in runs[1:])

    ours, dagster = seconds("foxhunt_pipeline.definitions"), seconds("dagster")
    peer = f"import dagster {metadata.version('dagster')} alone"
    name = "import of the definitions"
    return [
        lower_is_better(name, ours, 1.5, "the bound of 1.5 s", "s", 1.0),
        lower_is_better(name, ours, dagster, peer, "s"),
    ]


def builds(folder: Path) -> list[Row]:
    """Full build, no-op, edit, new session."""
    copy = Copy(folder)
    copy.simulate(SESSIONS)
    full = copy.run("sync")
    first = copy.steps()
    share = sum(seconds for step, seconds in first if step.startswith("tlob__"))
    noop = copy.run("sync")
    copy.edit("models/tlob.py")
    edit = copy.run("sync")
    edited = copy.steps()
    copy.simulate(SESSIONS + 1)
    session = copy.run("sync")
    grown = copy.steps()
    print(f"full build: {full:.1f} s, {len(first)} assets")
    print(f"no-op: {noop:.2f} s, 0 assets")
    print(f"one-family edit: {edit:.1f} s, {len(edited) - len(first)} assets")
    print(f"one new session: {session:.1f} s, {len(grown) - len(edited)} assets")
    return [
        lower_is_better("no-op sync", noop, 3.0, "the bound of 3 s", "s", 1.0),
        lower_is_better(
            "one-family edit",
            edit,
            share + 3.0,
            "the family's share of a full build + 3 s",
            "s",
            1.0,
        ),
        lower_is_better(
            "one-family edit",
            edit,
            full,
            f"everything again (dagster {metadata.version('dagster')} without a plan)",
            "s",
        ),
        lower_is_better("one new session", session, full, "everything again", "s"),
    ]


def planning(folder: Path) -> list[Row]:
    """`plan` with many sessions and ten families, nothing built and everything built."""
    copy = Copy(folder)
    template = (copy.folder / "foxhunt_pipeline/models/tlob.py").read_text()
    config = ['[market.calendars]\n"BENCH" = "24/7"\n']
    for i in range(FAMILIES - 2):
        (copy.folder / f"family_{i}.py").write_text(template)
        config.append(f'[models.family_{i}]\nfamily = "family_{i}:FAMILY"\n')
    (copy.folder / "foxhunt.toml").write_text("\n".join(config))
    script = copy.folder / "fill.py"
    script.write_text(_FILL)
    subprocess.run(
        [sys.executable, str(script), str(PLANNED_SESSIONS)],
        cwd=copy.folder,
        env=copy.environment,
        check=True,
    )
    copy.run("plan", "--json")
    stale = min(copy.run("plan", "--json") for _ in range(3))
    subprocess.run(
        [sys.executable, str(script), "built"], cwd=copy.folder, env=copy.environment, check=True
    )
    current = min(copy.run("plan", "--json") for _ in range(3))
    label = f"plan, {PLANNED_SESSIONS} sessions, {FAMILIES} families"
    bound = "the bound of 2 s"
    return [
        lower_is_better(f"{label}, nothing built", stale, 2.0, bound, "s", 1.0),
        lower_is_better(f"{label}, all built", current, 2.0, bound, "s", 1.0),
    ]


_FILL = '''
"""Fills a landing with small daily files, or the index with everything that a plan asks for."""
import sys, time
import numpy as np
from foxhunt_pipeline.artifacts import Artifact
from foxhunt_pipeline.incremental.plan import input_versions, step_key, usable_sessions
from foxhunt_pipeline.incremental.records import Manifest
from foxhunt_pipeline.market.writing import empty_records, write_dbn
from resources.pipeline import open_pipeline

pipeline = open_pipeline()
if sys.argv[1] != "built":
    from pathlib import Path
    landing = Path(pipeline.settings.landing_url)
    landing.mkdir(parents=True)
    day, minute = 86_400 * 10**9, 60 * 10**9
    for i in range(int(sys.argv[1])):
        start = (19_000 + i) * day
        bars = empty_records("ohlcv-1m", 10)
        bars["ts_event"] = start + minute * np.arange(10)
        for name in ("open", "high", "low", "close"):
            bars[name] = 100 * 10**9
        bars["volume"], bars["instrument_id"] = 1, 1
        path = landing / f"bench-{i}.ohlcv-1m.dbn.zst"
        write_dbn(path, "ohlcv-1m", "BENCH", bars, {"X": 1}, start, start + day)
else:
    sessions = pipeline.sessions(fresh=True)
    for stage in pipeline.stages.values():
        version = pipeline.versions[stage.name]
        rows = pipeline.index.rows()
        used = usable_sessions(stage.needs_session, rows, pipeline.versions, sessions)
        for partition in sorted(sessions) if stage.partitioned else [None]:
            inputs = input_versions(
                stage, partition, rows, sessions, used if stage.needs_session else [],
                pipeline.stages,
            )
            key = step_key(stage, partition, version.digest, inputs)
            artifact = Artifact(stage.name, partition, {}, {}, key)
            pipeline.index.succeeded(Manifest(
                artifact, key, version.digest, version.components, inputs, time.time_ns(), 1.0
            ))
    assert pipeline.plan().entries == ()
'''


def main() -> None:
    options = arguments(__doc__ or "")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        rows = importing(root / "import") + planning(root / "plan") + builds(root / "build")
    publish("The incremental engine", rows, options.json)


if __name__ == "__main__":
    main()
