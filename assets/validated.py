"""``market/validated``: the verdict on a session's tables, one asset check an expectation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from assets.shown import table
from assets.stage_asset import asset_key, stage_asset
from foxhunt_pipeline.incremental.build import Outcome
from foxhunt_pipeline.validation.suites import SUITES
from resources.pipeline import Pipeline

_KEY = asset_key("market/validated")
_SEVERITY = {"critical": dg.AssetCheckSeverity.ERROR, "warning": dg.AssetCheckSeverity.WARN}
_EXPECTATIONS = {e.name: e for suite in SUITES.values() for e in suite}


def market_validated(pipeline: Pipeline) -> dg.AssetsDefinition:
    """The asset of a pipeline."""
    specs = [
        dg.AssetCheckSpec(check_name(name), asset=_KEY, description=expectation.why)
        for name, expectation in _EXPECTATIONS.items()
    ]
    return stage_asset(pipeline, "market/validated", describe=_describe, checks=specs, judge=_judge)


def check_name(expectation: str) -> str:
    """An expectation's name as Dagster allows it."""
    return re.sub(r"[^a-z0-9]+", "_", expectation.lower()).strip("_")


def _describe(pipeline: Pipeline, outcome: Outcome) -> dict[str, Any]:
    tables = outcome.artifact.figures["tables"]
    return {
        "rows": sum(row["rows"] for row in tables),
        "quarantined": sum(row["quarantined"] for row in tables),
        "tables": table(tables),
    }


def _judge(outcome: Outcome | Exception) -> Iterator[dg.AssetCheckResult]:
    """A result for every expectation. One that no table called for passes, and says so; where
    the stage failed before any verdict there is nothing to report."""
    if isinstance(outcome, Exception):
        figures: Mapping[str, Any] | None = getattr(outcome, "figures", None)
    else:
        figures = outcome.artifact.figures
    if figures is None:
        return
    judged = {check["name"]: check for check in figures["checks"]}
    for name, expectation in _EXPECTATIONS.items():
        check = judged.get(name)
        yield dg.AssetCheckResult(
            check_name=check_name(name),
            asset_key=_KEY,
            passed=check is None or bool(check["success"]),
            severity=_SEVERITY[expectation.severity],
            metadata={"tables_judged": 0} if check is None else _figures(check),
        )


def _figures(check: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "tables_judged": check["tables"],
        "unexpected_count": check["unexpected_count"],
        "results": table(check["results"]),
    }
