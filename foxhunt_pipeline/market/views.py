"""The views that a session's tables give: which instrument, from which tables, in which hours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from foxhunt_pipeline.artifacts import Item, Task
from foxhunt_pipeline.intervals import interval_ns
from foxhunt_pipeline.market.calendars import calendar_for
from foxhunt_pipeline.market.clock import Hours, Sources, sources
from foxhunt_pipeline.market.reading import clean_table, instruments
from foxhunt_pipeline.market.tape import Prints, Quotes

VIEWS = ("bars", "book")
DEPTH = {"mbp-10": 10, "mbp-1": 1, "tbbo": 1}
"""Levels of the book in a schema."""


@dataclass(frozen=True)
class ViewSource:
    """One instrument's view of one session, not yet read."""

    view: str
    dataset: str
    publisher_id: int
    symbol: str
    hours: Hours
    step_ns: int
    sources: Sources
    tables: Mapping[str, tuple[Item, Item]]
    """Per schema read: the table and its verdict."""

    @property
    def name(self) -> str:
        """Name of the items made of it: ``{view}/{dataset}/{publisher_id}/{symbol}``."""
        parts = (self.view, self.dataset, str(self.publisher_id), self.symbol)
        return "/".join(quote(part, safe="") for part in parts)

    @property
    def inputs(self) -> list[str]:
        """Digests of all that is read."""
        return [item.digest for pair in self.tables.values() for item in pair]

    @property
    def facts(self) -> dict[str, object]:
        """What else decides the rows, as JSON: schemas, hours, step."""
        return {
            "sources": list(self.tables),
            "hours": [self.hours.open_ns, self.hours.close_ns],
            "step_ns": self.step_ns,
        }

    def prints(self, task: Task) -> Prints:
        """The trades, or bars of trades, without quarantined rows."""
        schema = self.sources.prints
        if schema.startswith("ohlcv"):
            columns = ["ts_event", "ts_close", "open", "high", "low", "close", "volume"]
            return Prints.of_bars(clean_table(task, *self.tables[schema], columns))
        side = ["aggressor_side"] if schema == "trades" else ["action", "side"]
        columns = ["ts_recv", "price", "size", *side]
        return Prints.of_trades(clean_table(task, *self.tables[schema], columns))

    def quotes(self, task: Task, levels: int) -> Quotes | None:
        """The states of the book, at most so deep, without quarantined rows; None if there is
        no book."""
        schema = self.sources.quotes
        if schema is None:
            return None
        columns = ["ts_recv", "action", "flags"]
        for level in range(min(levels, DEPTH[schema])):
            columns += [f"{s}_{what}_{level:02d}" for s in ("bid", "ask") for what in ("px", "sz")]
        table = clean_table(task, *self.tables[schema], columns)
        return Quotes.of_book(table, levels, every_record=schema == "tbbo")


def view_sources(task: Task) -> Iterator[ViewSource]:
    """Every view of every instrument in the task's session, in the order of their names.

    Reads the inputs ``market/tables`` and ``market/validated`` and the configuration ``clock``
    and ``market``.
    """
    session = task.partition
    assert session is not None, "views belong to a session"
    market, clock = task.config("market"), task.config("clock")
    verdicts = task.input("market/validated").items
    for (dataset, publisher_id, symbol), tables in sorted(
        instruments(task.input("market/tables")).items()
    ):
        calendar = calendar_for(dataset, market["calendars"])
        whole = market["hours"] == "all"
        hours = Hours(*(calendar.bounds(session) if whole else calendar.regular_hours(session)))
        delivered = {schema for schema, item in tables.items() if item.figures["rows"]}
        for view in VIEWS:
            step_ns = interval_ns(clock[view])
            found = sources(view, delivered, step_ns)
            if found is not None:
                read = {s: (tables[s], verdicts[tables[s].name]) for s in found.schemas}
                yield ViewSource(view, dataset, publisher_id, symbol, hours, step_ns, found, read)
