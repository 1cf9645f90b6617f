"""The table of models, the releases, and why a release is what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foxhunt_pipeline.cli.console import say, show
from foxhunt_pipeline.cli.families import models
from foxhunt_pipeline.errors import ConfigError
from foxhunt_pipeline.incremental.records import Manifest

if TYPE_CHECKING:
    from foxhunt_pipeline.incremental.index import Failure
    from resources.pipeline import Pipeline

_COLUMNS = (
    "model",
    "version",
    "stage",
    "champion",
    "windows",
    "rows",
    "parameters",
    "steps",
    "net bps",
    "Sharpe",
    "IC",
    "why",
)


def summary(pipeline: Pipeline) -> None:
    """Every configured model: version, stage, what it was trained on and how it did."""
    rows = [_summed_up(pipeline, model) for model in models(pipeline)]
    show(f"Models{_simulated(pipeline)}", _COLUMNS, rows)


def list_releases() -> None:
    """Every published version of every model."""
    from foxhunt_pipeline.checkpoints import publish
    from resources.pipeline import open_pipeline

    store = open_pipeline().releases
    rows = []
    for model in publish.models(store):
        leads = publish.champion(store, model)
        for release in publish.releases(store, model):
            failed = [gate.gate for gate in release.gates if not gate.passed]
            rows.append(
                (
                    model,
                    release.version,
                    "champion" if leads and leads.version == release.version else "candidate",
                    release.published_at,
                    release.sha256[:12],
                    ", ".join(failed) or "every gate passed",
                )
            )
    if not rows:
        say("No model has been released yet: run foxhunt sync.")
        return
    show("Releases", ("model", "version", "stage", "published", "sha256", "gates failed"), rows)


def why(model: str) -> None:
    """Each gate of a model's last decision, or why there is none."""
    from foxhunt_pipeline.cli.opening import opened

    pipeline = opened()
    if model not in models(pipeline):
        raise ConfigError(
            f"There is no model {model}.",
            remedy=f"Models: {', '.join(models(pipeline)) or 'none is enabled'}.",
        )
    failure = _failure(pipeline, model)
    manifest = pipeline.index.manifest(f"{model}/release", None)
    if manifest is not None:
        decision = manifest.artifact.items["decision"].figures
        show(
            f"{model}: {decision['decision']}",
            ("gate", "number", "bound", "passed", "detail"),
            [
                (gate["gate"], gate["number"], gate["bound"], gate["passed"], gate["detail"])
                for gate in decision["gates"]
            ],
        )
        if decision["reason"]:
            say(decision["reason"])
    if failure is not None:
        say(f"{failure.asset} was {_outcome(failure)} when last tried: {failure.message}")
    elif manifest is None:
        say(f"{model} was not released yet: run foxhunt sync.")


def _summed_up(pipeline: Pipeline, model: str) -> tuple[object, ...]:
    training = pipeline.index.manifest(f"{model}/training", None)
    release = pipeline.index.manifest(f"{model}/release", None)
    failure = _failure(pipeline, model)
    if training is None or release is None:
        stage = _outcome(failure) if failure else "not built"
        return (model, "-", stage, *[""] * 8, failure.message if failure else "run foxhunt sync")
    decision = release.artifact.items["decision"].figures
    items = training.artifact.items
    why = decision["reason"] or "every gate passed"
    return (
        model,
        *_versions(pipeline, model, release),
        len(items) - 1,
        sum(int(item.figures["rows"]) for item in items.values()),
        items["production"].figures["parameters"],
        sum(int(item.figures["steps"]) for item in items.values()),
        *_figures(decision["figures"]),
        f"{why}; since then {_outcome(failure)}: {failure.message}" if failure else why,
    )


def _versions(pipeline: Pipeline, model: str, manifest: Manifest) -> tuple[str, str, str]:
    """Version and stage of the present release, and the version that is champion."""
    from foxhunt_pipeline.checkpoints.publish import champion, releases

    sha256 = manifest.artifact.items["checkpoint"].files["model.safetensors"].sha256
    mine = [r.version for r in releases(pipeline.releases, model) if r.sha256 == sha256]
    leads = champion(pipeline.releases, model)
    decided = str(manifest.artifact.items["decision"].figures["decision"])
    return mine[-1] if mine else "-", decided, leads.version if leads else "-"


def _figures(overall: dict[str, Any]) -> tuple[object, object, object]:
    trading, horizons = overall.get("trading", overall), overall.get("horizons", {})
    first: dict[str, Any] = next(iter(horizons.values()), {})
    return (
        trading.get("net_return_bps"),
        trading.get("sharpe"),
        first.get("information_coefficient"),
    )


def _failure(pipeline: Pipeline, model: str) -> Failure | None:
    """The newest failed attempt at one of a model's stages."""
    found = [
        failure
        for (asset, _), failure in pipeline.index.failures().items()
        if asset.startswith(f"{model}/")
    ]
    return max(found, key=lambda failure: failure.at_ns, default=None)


def _outcome(failure: Failure) -> str:
    return "skipped" if failure.category == "skipped" else "failed"


def _simulated(pipeline: Pipeline) -> str:
    from foxhunt_pipeline.market.simulator import DATASET

    datasets = {f.dataset for s in pipeline.survey().sessions.values() for f in s.files}
    return " (simulated data)" if DATASET in datasets else ""
