"""What is expected of market data: every expectation, in one place, as data.

A suite is the list of expectations of a kind of table. Each names its Great Expectations class,
the column that it judges (of the rows themselves, or of the profile that
:mod:`foxhunt_pipeline.validation.rules` makes of all rows), its bound and its severity. A failed
``critical`` expectation keeps the session out of everything downstream; a failed ``warning``
is shown and counted.

To add an expectation, add a line here; to judge something new, add the figure to the rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from foxhunt_pipeline.errors import DataError
from foxhunt_pipeline.validation.kinds import KINDS, Kind

Severity = Literal["critical", "warning"]
Judges = Literal["rows", "profile"]

ROWS_IN_TABLE = "rows_in_table"
"""Bound that is the number of rows that the table says it has."""


@dataclass(frozen=True)
class Setting:
    """A bound taken from the ``validation`` section of the configuration."""

    key: str


@dataclass(frozen=True)
class Expectation:
    """One expectation.

    ``kind`` is a class of ``great_expectations.expectations``; ``bounds`` its arguments beside
    the column. ``fault`` is the rule whose count and first offenders are shown with the result.
    """

    name: str
    kind: str
    judges: Judges
    column: str
    severity: Severity
    bounds: Mapping[str, Any]
    fault: str = ""
    why: str = ""

    def kwargs(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of the Great Expectations class, bounds of the configuration filled in."""
        column = {"column": self.column} if self.column else {}
        return column | {
            key: settings[value.key] if isinstance(value, Setting) else value
            for key, value in self.bounds.items()
        }

    def bound(self, settings: Mapping[str, Any]) -> str:
        """The bound in words, as ``at most 0.01``."""
        given = self.kwargs(settings)
        return _in_words({key: given[key] for key in self.bounds})

    def bound_key(self) -> str:
        """The bound in words, naming configuration keys in place of their values."""
        return _in_words(
            {
                key: f"`validation.{value.key}`"
                if isinstance(value, Setting) and value.key != ROWS_IN_TABLE
                else "the table's row count"
                if isinstance(value, Setting)
                else value
                for key, value in self.bounds.items()
            }
        )


def _none(name: str, fault: str, severity: Severity, why: str) -> Expectation:
    """No row may have the fault."""
    return Expectation(
        name, "ExpectColumnMaxToBeBetween", "profile", fault, severity, {"max_value": 0}, fault, why
    )


def _at_most(
    name: str, figure: str, key: str, severity: Severity, fault: str, why: str
) -> Expectation:
    """A figure of the profile stays within a bound of the configuration."""
    return Expectation(
        name,
        "ExpectColumnMaxToBeBetween",
        "profile",
        figure,
        severity,
        {"max_value": Setting(key)},
        fault,
        why,
    )


def _one_of(name: str, column: str, values: Sequence[int], why: str) -> Expectation:
    return Expectation(
        name,
        "ExpectColumnValuesToBeInSet",
        "rows",
        column,
        "critical",
        {"value_set": list(values)},
        why=why,
    )


def _present(name: str, column: str, severity: Severity, why: str) -> Expectation:
    return Expectation(name, "ExpectColumnValuesToNotBeNull", "rows", column, severity, {}, why=why)


_ALL = (
    Expectation(
        "Rows looked at equal rows in the file",
        "ExpectTableRowCountToEqual",
        "rows",
        "",
        "critical",
        {"value": Setting(ROWS_IN_TABLE)},
        why="A verdict on part of a table is no verdict.",
    ),
    Expectation(
        "There are rows",
        "ExpectColumnMinToBeBetween",
        "profile",
        "rows",
        "warning",
        {"min_value": 1},
        why="A file of metadata alone is legal, and worth knowing of.",
    ),
    _none(
        "Rows are in order",
        "out_of_order",
        "critical",
        "Everything downstream reads a table as a sequence in time; bars must also be distinct.",
    ),
)
_SESSION = (
    _none(
        "Rows lie within the session",
        "outside_session",
        "warning",
        "Rows of another session are quarantined.",
    ),
    _at_most(
        "Few rows are quarantined",
        "quarantined_share",
        "max_quarantined_share",
        "critical",
        "quarantined",
        "A table that needs this much cleaning cannot be trusted.",
    ),
    _at_most(
        "No long silence in regular hours",
        "longest_silence_minutes",
        "max_gap_minutes",
        "warning",
        "silence",
        "Longest time without a row, the open and the close included; shown is the row before it.",
    ),
    _none(
        "Prices are positive",
        "non_positive_price",
        "warning",
        "Quarantined, except in datasets of `validation.non_positive_prices`.",
    ),
    _none(
        "No price is far beyond those before it",
        "outlier",
        "warning",
        "Further than `validation.outlier_share` and `validation.outlier_sigmas` from the prints "
        "before; quarantined.",
    ),
    _at_most(
        "Moves between neighbouring prints are small",
        "largest_move_share",
        "max_move_share",
        "warning",
        "move",
        "A large move may be true (news, a halt) or a split or wrong print.",
    ),
    _none(
        "Prices are defined",
        "undefined_price",
        "warning",
        "A print or bar without a price is quarantined. One side of a quote may have none.",
    ),
)
_PRINTS = (
    _none("Trades have a size", "zero_size", "warning", "A trade of nothing is quarantined."),
    _at_most(
        "Few rows repeat another in every field",
        "duplicate_share",
        "max_duplicate_share",
        "warning",
        "duplicate",
        "Fills of one order can be equal in every field, so duplicates are counted and kept.",
    ),
)

SUITES: Mapping[Kind, tuple[Expectation, ...]] = {
    "trades": (
        *_ALL,
        _present("Trades have a time", "ts_recv", "critical", "The time that a row is known."),
        _one_of(
            "Aggressor is buyer, seller or unknown",
            "aggressor_side",
            (-1, 0, 1),
            "Another value means that the table was not decoded as trades.",
        ),
        *_SESSION,
        *_PRINTS,
    ),
    "quotes": (
        *_ALL,
        _present("Quotes have a time", "ts_recv", "critical", "The time that a row is known."),
        _one_of(
            "Action is one of DBN's (A C F M N R T)",
            "action",
            sorted(b"ACFMNRT"),
            "Another value means that the table was not decoded as quotes.",
        ),
        _one_of(
            "Side is bid, ask or none",
            "side",
            (-1, 0, 1),
            "Another value means that the table was not decoded as quotes.",
        ),
        *_SESSION,
        *_PRINTS,
        _at_most(
            "Few books are crossed in regular hours",
            "crossed_regular_share",
            "max_crossed_share",
            "critical",
            "crossed_regular",
            "Bid above ask where an event ends. Moments of it are normal in a consolidated feed.",
        ),
        _at_most(
            "Few books are crossed outside regular hours",
            "crossed_outside_share",
            "max_crossed_share",
            "warning",
            "crossed_outside",
            "Normal before an opening auction: orders rest without matching.",
        ),
        _at_most(
            "Few books are locked in regular hours",
            "locked_regular_share",
            "max_locked_share",
            "warning",
            "locked_regular",
            "Bid equal to ask where an event ends.",
        ),
        _at_most(
            "Few books are locked outside regular hours",
            "locked_outside_share",
            "max_locked_share",
            "warning",
            "locked_outside",
            "As before; thin quotes lock more often.",
        ),
        _none(
            "Levels of the book are in order",
            "unordered_levels",
            "critical",
            "Bids fall and asks rise from level to level, or the book was rebuilt wrongly.",
        ),
    ),
    "bars": (
        *_ALL,
        _present("Bars have a time", "ts_event", "critical", "The open of the bar's interval."),
        *_SESSION,
        _none(
            "Open and close lie between low and high",
            "inconsistent_bar",
            "warning",
            "A bar that contradicts itself is quarantined.",
        ),
        _none(
            "Bars start and end on their interval",
            "misaligned_bar",
            "critical",
            "A bar off its grid is known at another time than it says.",
        ),
    ),
    "definitions": (
        *_ALL,
        _present("Definitions have a symbol", "raw_symbol", "critical", "The instrument's name."),
        _none(
            "Instruments had not expired",
            "expired",
            "warning",
            "An expired definition describes another instrument of the same id.",
        ),
    ),
}


ODDITIES = (
    (
        "crossed or locked books where an event ends",
        "counted in and outside regular hours, judged as shares, kept",
    ),
    (
        "crossed books within an event (no `F_LAST`) or in doubt (`F_MAYBE_BAD_BOOK`)",
        "not judged, kept",
    ),
    (
        "trades equal in every field, sequence included",
        "counted as duplicates, kept: they can be separate fills",
    ),
    (
        "trades equal but for their sequence",
        "no duplicates",
    ),
    (
        "auction and late prints, intermarket sweeps away from the quote",
        "kept while within the price band",
    ),
    (
        "rows flagged by the publisher (`F_PUBLISHER_SPECIFIC`)",
        "counted as `publisher_flagged`, kept",
    ),
    (
        "a quote with one side only",
        "kept",
    ),
    (
        "receive time before event time",
        "reported as `clock_skew_ms`, kept",
    ),
    (
        "a session only partly delivered",
        "a silence: a warning",
    ),
    (
        "a true jump of more than the band",
        "the first three prints are quarantined, then three in a row confirm it",
    ),
)
"""What looks wrong in sound data, and how it is classified."""


def kind_of(schema: str) -> Kind:
    """Kind of table of a schema. Raises DataError for one that no suite judges."""
    if schema not in KINDS:
        raise DataError(
            f"No suite of expectations judges tables of schema {schema}.",
            remedy=f"There are suites for {', '.join(KINDS)}.",
        )
    return KINDS[schema]


def markdown() -> str:
    """The page ``docs/validation.md``: every expectation, made from the data above."""
    lines = [_PAGE, *(f"| {oddity} | {how} |" for oddity, how in ODDITIES)]
    for kind, suite in SUITES.items():
        schemas = ", ".join(f"`{schema}`" for schema, of in KINDS.items() if of == kind)
        lines += [
            f"\n## {kind.capitalize()}\n\nSchemas: {schemas}.\n",
            "| expectation | judges | Great Expectations class | bound | severity | why |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {e.name} | {_judged(e)} | `{e.kind}` | {e.bound_key()} | {e.severity} | {e.why} |"
            for e in suite
        ]
    return "\n".join(lines) + "\n"


def _judged(expectation: Expectation) -> str:
    return f"{expectation.judges}: `{expectation.column}`" if expectation.column else "rows"


def _in_words(bounds: Mapping[str, Any]) -> str:
    words = {
        "max_value": "at most {}",
        "min_value": "at least {}",
        "value": "equal to {}",
        "value_set": "one of {}",
    }
    parts = [
        words[key].format(", ".join(map(str, value)) if isinstance(value, list) else value)
        for key, value in bounds.items()
    ]
    return " and ".join(parts) or "none missing"


_PAGE = """\
# Validation

Made from `foxhunt_pipeline/validation/suites.py`; a test holds this page to it. Regenerate with
`python -c "from foxhunt_pipeline.validation.suites import markdown; print(markdown(), end='')"`.

Market rules are applied to **every** row of a table and give its profile: counts, shares,
extremes and the first offenders of each fault. Great Expectations judges the profile and the cheap
columns of the rows themselves. A failed *critical* expectation keeps the session out of features,
labels and the dataset, which says so; a failed *warning* is shown. Bounds are set under
`validation` in `foxhunt.toml`.

A row is quarantined only where no reading of it is valid: outside the session, an undefined price,
a price of zero or less where the product forbids it, a trade of size zero, a bar that contradicts
itself, a price far beyond those before it. Quarantined rows are kept with their reason in
`quarantine.parquet`; the tables themselves are never changed. Whether a row is quarantined depends
on it and earlier rows only.

How known oddities of sound data are classified:

| oddity | classified as |
|---|---|"""
