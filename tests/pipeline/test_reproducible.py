"""The same inputs give the same bytes, and no save slips between a plan and an import."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from support.editing import wrap_result
from support.project import CONFIG, Project

DEMO_CONFIG = CONFIG.partition("[models.tlob]")[0]
"""Without settings of the models: those of the preset."""

TRAIN_FIRST_WINDOW = """
    import hashlib, sys

    from foxhunt_pipeline.incremental.build import StepTask, Surroundings
    from foxhunt_pipeline.incremental.families import import_entry
    from resources.pipeline import open_pipeline


    class FirstWindow(StepTask):
        def item(self, name, inputs, compute, *, extra=None):
            self.builder.memo.compute("first", name, lambda folder: trained(folder, compute))
            raise AssertionError


    def trained(folder, compute):
        content = compute(folder)
        data = (folder / "model.safetensors").read_bytes()
        figures = content.figures
        print(figures["rows"], figures["steps"], hashlib.sha256(data).hexdigest(), content.digest)
        sys.exit()


    pipeline = open_pipeline()
    stage = pipeline.stages[sys.argv[1]]
    task = FirstWindow(
        pipeline.builder, stage, pipeline.versions[stage.name], None, pipeline.sessions(), [],
        Surroundings(), False,
    )
    import_entry(stage).build(task)
    """


def _in_two_processes(project: Project, stage: str) -> set[str]:
    command = [sys.executable, "-c", textwrap.dedent(TRAIN_FIRST_WINDOW), stage]
    started = [
        subprocess.Popen(
            command,
            cwd=project.root,
            env=project.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    ended = [process.communicate(timeout=240) for process in started]
    assert [process.returncode for process in started] == [0, 0], ended
    return {said for said, _ in ended}


def test_two_trainings_at_the_demos_settings_give_the_same_bytes(project: Project) -> None:
    project.configure(DEMO_CONFIG)
    [tlob] = _in_two_processes(project, "tlob/training")
    assert int(tlob.split()[1]) >= 2
    [ppo] = _in_two_processes(project, "ppo/training")
    assert int(ppo.split()[1]) > 100
    assert tlob.split()[2:] != ppo.split()[2:]


def test_a_forced_training_gives_the_same_bytes_again(project: Project) -> None:
    before = {model: project.checkpoints(model) for model in ("tlob", "ppo")}
    synced = project.sync("--force", "--select", "*/training")
    [run] = synced.runs
    assert run.planned == {"tlob/training", "ppo/training"}
    for model, checkpoints in before.items():
        assert project.materialization(f"{model}/training").metadata["windows_trained"] == 3
        assert project.checkpoints(model) == checkpoints
    assert project.plan() == []


SYNC_WHILE_SOMEBODY_SAVES = """
    import sys
    from pathlib import Path

    import dagster as dg

    from foxhunt_pipeline.definitions import defs, pipeline
    from foxhunt_pipeline.sync import sync

    def save(plan):
        path = Path("foxhunt_pipeline/models/tlob.py")
        path.write_text(path.read_text().replace("2.0 * (", "4.0 * ("))

    with dg.DagsterInstance.get() as instance:
        report = sync(pipeline, defs, instance, on_plan=save)
    [run] = report.runs
    print(*run.failures, sep="\\n")
    """


def test_a_save_between_plan_and_import_is_caught(project: Project) -> None:
    wrap_result(project.root / "foxhunt_pipeline/models/tlob.py", "loss", "2.0 * ({})")
    before, stored = project.versions(), project.tree(".foxhunt", "artifacts")
    said = project.python(SYNC_WHILE_SOMEBODY_SAVES)
    assert "tlob__training: Code changed while the run of tlob/training was starting" in said
    assert "models/tlob.py changed" in said
    assert "Run again." in said
    assert project.versions() == before
    assert project.tree(".foxhunt", "artifacts") == stored
    assert [asset for asset, _, _ in project.planned()] == [
        "tlob/training",
        "tlob/walk_forward",
        "tlob/release",
    ]
