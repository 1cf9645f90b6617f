"""Great Expectations judges a table: its profile and its cheap columns.

Great Expectations takes seconds to import and has a context, so both are made once a process, on
first use. The context is ephemeral: nothing is written, nothing is sent.
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import polars as pl

from foxhunt_pipeline.errors import DataError
from foxhunt_pipeline.validation.kinds import Kind
from foxhunt_pipeline.validation.rules import Profile
from foxhunt_pipeline.validation.suites import ROWS_IN_TABLE, SUITES, Expectation, Judges

if TYPE_CHECKING:
    import pandas as pd
    from great_expectations.core.batch_definition import BatchDefinition


def judge(
    kind: Kind,
    rows: pl.DataFrame,
    profile: Profile,
    settings: Mapping[str, Any],
    rows_in_table: int,
) -> list[dict[str, Any]]:
    """Judge a table by its suite, in the suite's order.

    ``settings`` is the ``validation`` section; ``rows_in_table`` the number of rows that the table
    should have. A result has ``name, kind, column, success, severity, observed, bound,
    unexpected_count, examples``. Raises DataError where an expectation could not be evaluated.
    """
    settings = {**settings, ROWS_IN_TABLE: rows_in_table}
    suite = SUITES[kind]
    columns = sorted({e.column for e in suite if e.judges == "rows" and e.column})
    frames: dict[Judges, pd.DataFrame] = {
        "rows": rows.select(columns).to_pandas(),
        "profile": pl.DataFrame([dict(profile.figures)]).to_pandas(),
    }
    judged: dict[str, Any] = {}
    for judges, frame in frames.items():
        judged |= _validate(frame, [e for e in suite if e.judges == judges], settings)
    return [
        _result(expectation, judged[expectation.name], profile, settings) for expectation in suite
    ]


def _validate(
    frame: pd.DataFrame, suite: Sequence[Expectation], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Results of Great Expectations by name of the expectation."""
    batch_definition = _batch_definition()
    import great_expectations as gx

    batch = batch_definition.get_batch(batch_parameters={"dataframe": frame})
    expectations = [
        getattr(gx.expectations, e.kind)(**e.kwargs(settings), meta={"name": e.name}) for e in suite
    ]
    validation = batch.validate(
        gx.ExpectationSuite(name="suite", expectations=expectations), result_format="BASIC"
    )
    return {
        result.expectation_config.meta["name"]: result
        for result in validation.results
        if result.expectation_config
    }


@cache
def _batch_definition() -> BatchDefinition[Any]:
    """The process's one ephemeral context, with one data source for whole data frames."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"  # read on import
    logging.getLogger("great_expectations").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its imports warn of modules deprecated in the library
        import great_expectations as gx
        from great_expectations.data_context.types.base import ProgressBarsConfig

        context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("tables").add_dataframe_asset("table")
    return asset.add_batch_definition_whole_dataframe("all rows")


def _result(
    expectation: Expectation, result: Any, profile: Profile, settings: Mapping[str, Any]
) -> dict[str, Any]:
    _raise_unevaluated(expectation, result)
    found = result.result
    if "observed_value" in found:
        observed = _plain(found["observed_value"])
        unexpected = int(not result.success)
    else:
        observed = unexpected = int(found["unexpected_count"])
    if expectation.fault:
        count = profile.figures.get(expectation.fault)
        unexpected = unexpected if count is None else int(count)
        examples: list[Any] = profile.offenders[expectation.fault]
    else:
        examples = [_plain(value) for value in found.get("partial_unexpected_list", [])[:5]]
    return {
        "name": expectation.name,
        "kind": expectation.kind,
        "column": expectation.column,
        "success": bool(result.success),
        "severity": expectation.severity,
        "observed": observed,
        "bound": expectation.bound(settings),
        "unexpected_count": unexpected,
        "examples": examples,
    }


def _raise_unevaluated(expectation: Expectation, result: Any) -> None:
    info = result.exception_info or {}
    for one in [info, *(v for v in info.values() if isinstance(v, dict))]:
        if one.get("raised_exception"):
            raise DataError(
                f'Expectation "{expectation.name}" could not be evaluated: '
                f"{one.get('exception_message')}.",
                remedy="The table lacks what the expectation judges; see validation/suites.py.",
            )


def _plain(value: Any) -> Any:
    """A JSON value of a NumPy or pandas one; a missing number is None."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float):
        return None if math.isnan(value) else int(value) if value.is_integer() else value
    return value if isinstance(value, bool | int | str | None) else str(value)
