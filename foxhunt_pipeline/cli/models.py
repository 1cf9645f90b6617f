"""The table of models, and why a release is what it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from foxhunt_pipeline.cli.console import out, show
from foxhunt_pipeline.errors import NotFoundError
from foxhunt_pipeline.incremental.index import Failure

if TYPE_CHECKING:
    from resources.pipeline import Pipeline


def summary(pipeline: Pipeline) -> None:
    """Every configured model: version, stage, what it was trained on and how it did."""
    from foxhunt_pipeline.checkpoints.publish import champion, releases

    failures = pipeline.index.failures()
    rows: list[tuple[object, ...]] = []
    for model in dict.fromkeys(s.model for s in pipeline.stages.values() if s.model):
        training = pipeline.index.manifest(f"{model}/training", None)
        release = pipeline.index.manifest(f"{model}/release", None)
        if training is None or release is None:
            lines = [
                f.message for (asset, _), f in failures.items() if asset.startswith(f"{model}/")
            ]
            rows.append((model, "-", "skipped", *[""] * 8, lines[0] if lines else "not built"))
            continue
        decision = release.artifact.items["decision"].figures
        items = training.artifact.items
        published = releases(pipeline.releases, model)
        leads = champion(pipeline.releases, model)
        version = next(
            (
                r.version
                for r in reversed(published)
                if r.sha256
                == release.artifact.items["checkpoint"].files["model.safetensors"].sha256
            ),
            "-",
        )
        overall = decision["figures"]
        rows.append(
            (
                model,
                version,
                decision["decision"],
                leads.version if leads else "-",
                len(items) - 1,
                sum(int(item.figures["rows"]) for item in items.values()),
                items["production"].figures["parameters"],
                sum(int(item.figures["steps"]) for item in items.values()),
                *_figures(overall),
                decision["reason"] or "every gate passed",
            )
        )
    show(
        f"Models{_simulated(pipeline)}",
        (
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
        ),
        rows,
    )


def _why_not(failures: Mapping[tuple[str, str | None], Failure], model: str) -> str:
    found = [f.message for (asset, _), f in failures.items() if asset.startswith(f"{model}/")]
    return found[0] if found else "not built yet"


def _figures(overall: dict[str, Any]) -> tuple[object, object, object]:
    trading, horizons = overall.get("trading", overall), overall.get("horizons", {})
    first: dict[str, Any] = next(iter(horizons.values()), {})
    return (
        trading.get("net_return_bps"),
        trading.get("sharpe"),
        first.get("information_coefficient"),
    )


def _simulated(pipeline: Pipeline) -> str:
    from foxhunt_pipeline.market.simulator import DATASET

    datasets = {f.dataset for s in pipeline.survey().sessions.values() for f in s.files}
    return " (simulated data)" if DATASET in datasets else ""


def list_releases() -> None:
    """Every published version of every model."""
    from foxhunt_pipeline.checkpoints.publish import champion, models, releases
    from resources.pipeline import open_pipeline

    pipeline = open_pipeline()
    rows = []
    for model in models(pipeline.releases):
        leads = champion(pipeline.releases, model)
        for release in releases(pipeline.releases, model):
            stage = "champion" if leads and leads.version == release.version else "candidate"
            failed = [gate.gate for gate in release.gates if not gate.passed]
            rows.append(
                (
                    model,
                    release.version,
                    stage,
                    release.published_at,
                    release.sha256[:12],
                    ", ".join(failed) or "every gate passed",
                )
            )
    show("Releases", ("model", "version", "stage", "published", "sha256", "gates failed"), rows)


def why(model: str) -> None:
    """Each gate of a model's last decision."""
    from resources.pipeline import open_pipeline

    pipeline = open_pipeline()
    manifest = pipeline.index.manifest(f"{model}/release", None)
    if manifest is None:
        raise NotFoundError(
            f"{model} has no release: {_why_not(pipeline.index.failures(), model)}",
            remedy="foxhunt status shows what there is.",
        )
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
        out.print(decision["reason"], markup=False)
