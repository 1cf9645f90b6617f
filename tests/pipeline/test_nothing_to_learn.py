"""A market in which there is nothing to learn makes no champion."""

from __future__ import annotations

from collections.abc import Callable

from support.project import Project


def test_no_family_is_champion_of_a_martingale(new_project: Callable[..., Project]) -> None:
    project = new_project()
    project.env["FOXHUNT_MODELS__PPO__TOTAL_STEPS"] = "20000"
    project.env["FOXHUNT_MODELS__TLOB__TRAIN__ROWS_PER_EPOCH"] = "4000"
    project.simulate(3, martingale=True)
    project.sync()
    for model in ("tlob", "ppo"):
        assert project.champion(model) is None
        decision = project.manifest(f"{model}/release").artifact.items["decision"].figures
        assert decision["decision"] in ("candidate", "refused")
        failed = [gate["gate"] for gate in decision["gates"] if not gate["passed"]]
        assert failed
        assert failed[0] in project.said("releases", "why", model)
