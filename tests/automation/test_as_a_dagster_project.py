"""The project as a Dagster user meets it: the ``dagster`` and ``dg`` commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from assets.validated import check_name
from foxhunt_pipeline.validation.suites import SUITES
from support.project import Project

BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def clone(built_project: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with everything up to date."""
    return built_project.clone(tmp_path_factory.mktemp("dagster") / "project")


def command(project: Project, *arguments: str) -> str:
    """What a command of the environment prints; it must succeed."""
    done = subprocess.run(
        [BIN / arguments[0], *arguments[1:]],
        cwd=project.root,
        env=project.environment() | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_definitions_are_valid(clone: Project) -> None:
    said = command(clone, "dagster", "definitions", "validate", "-w", "workspace.yaml")
    assert "Validation successful for code location foxhunt_pipeline" in said
    assert "BetaWarning" not in said and "PreviewWarning" not in said


def test_dg_accepts_the_definitions(clone: Project) -> None:
    assert "All definitions loaded successfully" in command(clone, "dg", "check", "defs")


def test_assets_are_listed_and_materialized_by_name(clone: Project) -> None:
    module = ("-m", "foxhunt_pipeline.definitions")
    listed = command(clone, "dagster", "asset", "list", *module, "--select", "key:tlob/*")
    assert [line for line in listed.splitlines() if "tlob" in line] == [
        "tlob/release",
        "tlob/training",
        "tlob/walk_forward",
    ]
    before = clone.rows()
    selection = ("--select", "key:market/tables", "--partition", "2024-01-03")
    command(clone, "dagster", "asset", "materialize", *module, *selection)
    command(clone, "dagster", "asset", "materialize", *module, "--select", "key:tlob/release")
    for place in (("market/tables", "2024-01-03"), ("tlob/release", None)):
        assert clone.materialization(*place).metadata["reused"] is True
        assert clone.materialization(*place).data_version == before[place].data_version
    assert clone.plan() == []


def test_loading_the_definitions_loads_no_heavy_library(clone: Project) -> None:
    printed = clone.python(
        """
        import sys
        import foxhunt_pipeline.definitions
        heavy = {"torch", "great_expectations", "matplotlib", "accelerate", "scipy", "boto3"}
        print(sorted(heavy & sys.modules.keys()))
        """
    )
    assert printed.strip() == "[]"


def test_every_asset_says_what_it_is(clone: Project) -> None:
    listed = json.loads(
        clone.python(
            """
            import json
            from foxhunt_pipeline.definitions import defs
            graph = defs.resolve_asset_graph()
            print(json.dumps([
                [k.to_user_string(), (n := graph.get(k)).description, n.group_name,
                 sorted(n.kinds), n.code_version, n.is_partitioned]
                for k in graph.get_all_asset_keys()
            ]))
            """
        )
    )
    assert len(listed) == 13
    for key, description, group, kinds, version, partitioned in listed:
        assert description and group != "default" and kinds and version, key
        assert partitioned == (group == "market_data" or key in ("features", "labels")), key


def test_every_stage_has_a_job_that_materializes_it_alone(clone: Project) -> None:
    listed = json.loads(
        clone.python(
            """
            import json
            from foxhunt_pipeline.definitions import defs, pipeline
            jobs = {f"{name.replace('/', '_')}_job": name for name in pipeline.stages}
            def selected(job):
                keys = defs.resolve_job_def(job).asset_layer.selected_asset_keys
                return [key.to_user_string() for key in keys]
            print(json.dumps({name: selected(job) for job, name in jobs.items()}))
            """
        )
    )
    assert listed == {name: [name] for name in listed}
    assert len(listed) == 13
    module = ("-m", "foxhunt_pipeline.definitions")
    said = command(clone, "dagster", "job", "execute", *module, "-j", "tlob_release_job")
    assert "RUN_SUCCESS" in said
    assert clone.materialization("tlob/release").metadata["reused"] is True


def test_every_expectation_is_a_check_of_its_own() -> None:
    names = {expectation.name for suite in SUITES.values() for expectation in suite}
    checks = {check_name(name) for name in names}
    assert len(checks) == len(names)
    for check in checks:
        dg.AssetCheckSpec(check, asset="market/validated")
