"""Stage ``market/validated``: a verdict on every table of a session and its quarantined rows.

One item a table, of the same name, computed again only if the table, the session's hours or the
bounds change. File ``quarantine.parquet`` (row: uint32 index into the table, ascending; reason:
string). Figures: ``rows``, ``quarantined``, ``passed``, ``profile`` (the rules' figures) and
``expectations`` (see :func:`foxhunt_pipeline.validation.expectations.judge`). The digest covers the
quarantined rows and the verdict: a figure that moves within its bound changes nothing downstream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from foxhunt_pipeline.artifacts import Content, Item, Result, Task, digest_arrays
from foxhunt_pipeline.errors import ValidationError
from foxhunt_pipeline.market.calendars import calendar_for
from foxhunt_pipeline.market.reading import read_table
from foxhunt_pipeline.validation.expectations import judge
from foxhunt_pipeline.validation.rules import Hours, Prices, profile
from foxhunt_pipeline.validation.suites import kind_of


class SessionRefusedError(ValidationError):
    """A session failed critical expectations. ``figures`` are those of the stage's result."""

    figures: Mapping[str, Any]


def build(task: Task) -> Result:
    """Judge every table of a session, then pass or refuse the session.

    Result figures: ``tables`` (a summary a table) and ``checks`` (see :func:`checks`). Raises
    :class:`SessionRefusedError` after every table has been judged, naming each critical failure.
    """
    settings, market = task.config("validation"), task.config("market")
    session = str(task.partition)
    items = [
        _validated(task, session, table, settings, market["calendars"])
        for table in task.input("market/tables").items.values()
    ]
    figures = {"tables": [_summary(item) for item in items], "checks": checks(items)}
    failures = [
        f'table {item.name}: "{e["name"]}" is {e["observed"]}, expected {e["bound"]}'
        + f" ({e['unexpected_count']} of {item.figures['rows']} rows{_first(e)})"
        for item in items
        for e in item.figures["expectations"]
        if _refuses(e)
    ]
    if failures:
        error = SessionRefusedError(
            f"Session {session} fails validation: {'; '.join(failures)}.",
            remedy="Have the session delivered again, or change the bound under validation in "
            "foxhunt.toml if the data is right.",
        )
        error.figures = figures
        raise error
    return Result(items, figures)


def checks(items: Sequence[Item]) -> list[dict[str, Any]]:
    """One row an expectation, over all tables that it judges.

    ``name``, ``severity``, ``success``, ``tables`` (number judged), ``unexpected_count`` (sum) and
    ``results`` (table, success, observed, bound, unexpected_count, examples), failures first.
    """
    by_name: dict[str, list[dict[str, Any]]] = {}
    for item in items:
        for e in item.figures["expectations"]:
            by_name.setdefault(e["name"], []).append({"table": item.name, **e})
    shown = ("table", "success", "observed", "bound", "unexpected_count", "examples")
    return [
        {
            "name": name,
            "severity": results[0]["severity"],
            "success": all(e["success"] for e in results),
            "tables": len(results),
            "unexpected_count": sum(e["unexpected_count"] for e in results),
            "results": [
                {key: e[key] for key in shown} for e in sorted(results, key=lambda e: e["success"])
            ],
        }
        for name, results in by_name.items()
    ]


def _validated(
    task: Task,
    session: str,
    table: Item,
    settings: Mapping[str, Any],
    calendars: Mapping[str, str],
) -> Item:
    facts = table.figures
    dataset, schema = str(facts["dataset"]), str(facts["schema"])
    kind = kind_of(schema)
    hours = _hours(dataset, session, calendars)
    prices = Prices(
        positive=dataset not in settings["non_positive_prices"],
        outlier_share=settings["outlier_share"],
        outlier_sigmas=settings["outlier_sigmas"],
        tick=facts.get("min_price_increment"),
    )

    def compute(folder: Path) -> Content:
        rows = read_table(task, table)
        found = profile(rows, schema, hours, prices)
        expectations = judge(kind, rows, found, settings, int(facts["rows"]))
        passed = not any(_refuses(e) for e in expectations)
        found.quarantine.write_parquet(folder / "quarantine.parquet")
        return Content(
            _digest(found.quarantine, passed),
            {
                "rows": rows.height,
                "quarantined": found.quarantine.height,
                "passed": passed,
                "profile": dict(found.figures),
                "expectations": expectations,
            },
        )

    return task.item(
        table.name,
        [table.digest],
        compute,
        extra={
            "schema": schema,
            "rows": facts["rows"],
            "hours": asdict(hours),
            "prices": asdict(prices),
        },
    )


def _hours(dataset: str, session: str, calendars: Mapping[str, str]) -> Hours:
    calendar = calendar_for(dataset, calendars)
    return Hours(*calendar.bounds(session), *calendar.regular_hours(session))


def _digest(quarantine: pl.DataFrame, passed: bool) -> str:
    return digest_arrays(
        {
            "row": quarantine["row"].to_numpy(),
            "reason": np.array(quarantine["reason"].to_list(), dtype="S32"),
        },
        passed,
    )


def _refuses(expectation: Mapping[str, Any]) -> bool:
    return expectation["severity"] == "critical" and not expectation["success"]


def _first(expectation: Mapping[str, Any]) -> str:
    return f", first {expectation['examples'][0]}" if expectation["examples"] else ""


def _summary(item: Item) -> dict[str, Any]:
    failed = [e for e in item.figures["expectations"] if not e["success"]]
    return {
        "table": item.name,
        "rows": item.figures["rows"],
        "quarantined": item.figures["quarantined"],
        "passed": item.figures["passed"],
        "warnings": [e["name"] for e in failed if e["severity"] == "warning"],
        "failures": [e["name"] for e in failed if e["severity"] == "critical"],
    }
