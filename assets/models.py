"""The three assets of a model: ``<model>/training``, ``/walk_forward`` and ``/release``."""

from __future__ import annotations

import json
from typing import Any

import dagster as dg

from assets.shown import numbers, plot, table
from assets.stage_asset import stage_asset
from foxhunt_pipeline.incremental.build import Outcome
from resources.pipeline import Pipeline

_CHECKPOINT = "model.safetensors"
_CURVES = ("epochs", "curve")


def model_assets(pipeline: Pipeline, model: str) -> list[dg.AssetsDefinition]:
    """The assets of one configured model."""
    training, walk_forward, release = (
        f"{model}/{step}" for step in ("training", "walk_forward", "release")
    )
    return [
        stage_asset(pipeline, training, describe=_training, value=_checkpoints),
        stage_asset(pipeline, walk_forward, describe=_walk_forward),
        stage_asset(pipeline, release, describe=_release, finish=_publish),
    ]


def _checkpoints(pipeline: Pipeline, outcome: Outcome) -> dict[str, Any]:
    items = outcome.artifact.items
    return {name: pipeline.memo.path(item, _CHECKPOINT) for name, item in items.items()}


def _training(pipeline: Pipeline, outcome: Outcome) -> dict[str, Any]:
    items = outcome.artifact.items
    rows = [
        {"window": name, "trained": name in outcome.computed}
        | {key: item.figures[key] for key in sorted(item.figures) if key not in _CURVES}
        for name, item in items.items()
    ]
    figures = outcome.artifact.figures
    device = figures["device"]
    return {
        "training": table(rows),
        **_curves(outcome),
        "windows": len(items),
        "windows_trained": len(outcome.computed),
        "windows_reused": len(items) - len(outcome.computed),
        "rows": figures["rows"],
        "steps": figures["steps"],
        "device": f"{device['device']}: {device['name']}, {device['precision']}",
    }


def _curves(outcome: Outcome) -> dict[str, Any]:
    """Loss by epoch; of a policy, which has no validation loss, the validation utility."""
    from foxhunt_pipeline.evaluation.figures import losses

    stage = outcome.artifact.stage
    figures = {name: item.figures for name, item in outcome.artifact.items.items()}
    fits = {
        name: ([e["loss"] for e in each["epochs"]], [e["validation_loss"] for e in each["epochs"]])
        for name, each in figures.items()
        if each.get("epochs")
    }
    if fits:
        picture = losses(fits, f"Loss of {stage}")
        return {"loss_curves": plot(picture, "loss by epoch and window")}
    policies: dict[str, tuple[list[float], list[float]]] = {
        name: ([], [point["validation"] for point in each["curve"]])
        for name, each in figures.items()
        if each.get("curve")
    }
    if policies:
        picture = losses(
            policies,
            f"Validation utility of {stage}",
            x="evaluation during training",
            y="basis points a row (higher is better)",
        )
        return {"utility_curves": plot(picture, "validation utility by evaluation and window")}
    return {}


def _walk_forward(pipeline: Pipeline, outcome: Outcome) -> dict[str, Any]:
    card = outcome.artifact.items["scorecard"]
    windows = card.figures["model"]["windows"]
    return {
        "equity": plot(_equity(pipeline, outcome), "net equity out of sample"),
        "windows": table(
            {"window": name} | {k: v for k, v in numbers(figures).items() if "/" not in k}
            for name, figures in windows.items()
        ),
        **numbers(card.figures["model"]["overall"]),
    }


def _equity(pipeline: Pipeline, outcome: Outcome) -> bytes:
    import numpy as np

    from foxhunt_pipeline.evaluation.figures import equity
    from foxhunt_pipeline.evaluation.scores import Portfolio, Scores

    artifact = outcome.artifact
    model, _, _ = artifact.stage.partition("/")
    view = pipeline.view_of(model)
    baselines = pipeline.index.manifest("baselines/walk_forward", None)
    curves = {}
    held = Portfolio.load(pipeline.memo.path(artifact.items["scorecard"], "model.npz"))
    curves[model] = (held.ts, held.net)
    card = baselines and baselines.artifact.items.get(f"scorecard/{view}")
    for name in ("flat", "buy_and_hold"):
        if card and f"{name}.npz" in card.files:
            other = Portfolio.load(pipeline.memo.path(card, f"{name}.npz"))
            curves[name.replace("_", " ")] = (other.ts, other.net)
    starts = {}
    for name, item in artifact.items.items():
        if name.startswith("predictions/"):
            scores = Scores.load(pipeline.memo.path(item, "model.npz"))
            starts[name.partition("/")[2]] = int(np.min(scores.ts))
    return equity(curves, starts, f"{model}: net equity out of sample, after costs")


def _release(pipeline: Pipeline, outcome: Outcome) -> dict[str, Any]:
    decision = outcome.artifact.items["decision"].figures
    return {
        "decision": decision["decision"],
        "reason": decision["reason"] or "every gate passed",
        "gates": table(decision["gates"]),
    }


def _publish(pipeline: Pipeline, outcome: Outcome) -> dict[str, Any]:
    """Publish what the gates let through, and move the champion pointer if they all passed."""
    from foxhunt_pipeline.checkpoints.publish import champion, promote, publish

    artifact = outcome.artifact
    model = artifact.stage.partition("/")[0]
    items = artifact.items
    decision = json.loads(
        pipeline.memo.path(items["decision"], "decision.json").read_text(encoding="utf-8")
    )
    if decision["decision"] == "refused":
        return {"version": "none", "stage": "refused"}
    before = champion(pipeline.releases, model)
    release = publish(
        pipeline.releases,
        model,
        pipeline.memo.path(items["checkpoint"], _CHECKPOINT),
        {
            "stage": decision["decision"],
            "gates": decision["gates"],
            "figures": decision["figures"],
            "provenance": pipeline.provenance(model, outcome.manifest),
        },
    )
    stage = release.stage
    if stage == "champion" and (before is None or before.version != release.version):
        over = before.version if before else None
        promote(pipeline.releases, model, release.version, reason="passed every gate", over=over)
    return {"version": release.version, "stage": stage, "sha256": release.sha256}
