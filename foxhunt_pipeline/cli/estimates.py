"""What a sync will take of disk and time, and what that is based on.

What was built here is the best guide to what will be. Before anything was, the figures are those
measured on two cores of a cloud machine with simulated and real equity sessions.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foxhunt_pipeline.cli.families import models
from foxhunt_pipeline.datasets.windows import plan_windows
from foxhunt_pipeline.intervals import interval_ns
from foxhunt_pipeline.market.calendars import calendar_for

if TYPE_CHECKING:
    from foxhunt_pipeline.market.facts import FileFacts
    from foxhunt_pipeline.market.sessions import Session
    from resources.pipeline import Pipeline

SESSION_STAGES = ("raw/dbn", "market/tables", "market/validated", "features", "labels")
TABLE_BYTES = 1.3
"""Parquet for each landed byte: 0.3 to 1.3 were measured."""
ROW_BYTES = 400
"""Features, labels and predictions for each row of the book clock and instrument."""
SESSION_SECONDS = 2.5
SECONDS_PER_MB = 0.6
"""Stages by session: for each session, and for each landed MB."""
WINDOW_SECONDS = 15.0
"""A model of the demo preset on one window: to train it, and to judge it."""


@dataclass(frozen=True)
class Estimate:
    """Bytes or seconds, and where the figure comes from."""

    amount: float
    basis: str


def session_disk(pipeline: Pipeline, sessions: Collection[str]) -> Estimate:
    """Bytes that the artifacts of these sessions will take."""
    done = _built(pipeline)
    if done:
        taken = 0
        for stage in SESSION_STAGES:
            for session in done:
                artifact = pipeline.builder.artifact(stage, session)
                taken += sum(b.size for i in artifact.items.values() for b in i.files.values())
        return Estimate(taken / len(done) * len(sessions), f"as the {len(done)} sessions here")
    surveyed = pipeline.survey().sessions
    amount = sum(_session_bytes(pipeline, surveyed[session]) for session in sessions)
    return Estimate(amount, "from landed bytes, instruments and the clock; nothing was built yet")


def session_time(pipeline: Pipeline, sessions: Collection[str]) -> Estimate:
    """Seconds that the stages by session will take for these."""
    done = _built(pipeline)
    if done:
        past = sum(row.seconds for (_, p), row in pipeline.index.rows().items() if p in done)
        return Estimate(past / len(done) * len(sessions), f"as the {len(done)} sessions here")
    surveyed = pipeline.survey().sessions
    landed = sum(_share(f, s) for s in sessions for f in surveyed[s].files)
    return Estimate(
        SESSION_SECONDS * len(sessions) + SECONDS_PER_MB * landed / 1e6,
        f"at {SESSION_SECONDS} s a session and {SECONDS_PER_MB} s a landed MB, as measured on two "
        "cores",
    )


def training_time(pipeline: Pipeline, stale: Collection[str]) -> Estimate | None:
    """Seconds that training and judging the ``stale`` models will take on every window, or None
    where nothing like it was ever measured.

    Raises :class:`~foxhunt_pipeline.errors.DataError` if there are too few sessions for a window.
    """
    walk = pipeline.config.walk_forward
    windows = len(
        plan_windows(
            sorted(pipeline.survey().ready()),
            train=walk.train_sessions,
            test=walk.test_sessions,
            step=walk.step_sessions,
            expanding=walk.expanding,
        )
    )
    trained = [
        float(item.figures["seconds"])
        for model in models(pipeline)
        if (manifest := pipeline.index.manifest(f"{model}/training", None))
        for item in manifest.artifact.items.values()
    ]
    if trained:
        each, basis = sum(trained) / len(trained), f"as the {len(trained)} windows trained here"
    elif pipeline.config.preset == "demo":
        each, basis = (
            WINDOW_SECONDS,
            f"at {WINDOW_SECONDS:.0f} s a window, as measured on two cores",
        )
    else:
        return None
    return Estimate(each * windows * len(stale), basis)


def _built(pipeline: Pipeline) -> set[str]:
    """Sessions that were built through every stage by session."""
    rows = pipeline.index.rows()
    found = [{p for (asset, p) in rows if asset == stage and p} for stage in SESSION_STAGES]
    return set.intersection(*found)


def _session_bytes(pipeline: Pipeline, session: Session) -> float:
    config = pipeline.config
    tables = TABLE_BYTES * sum(_share(f, session.date) for f in session.files)
    rows = 0
    for dataset in {f.dataset for f in session.files}:
        calendar = calendar_for(dataset, config.market.calendars)
        hours = calendar.regular_hours if config.market.hours == "regular" else calendar.bounds
        start, end = hours(session.date)
        instruments = {
            (span.publisher_id, span.symbol)
            for f in session.files
            if f.dataset == dataset
            for span in f.tables
            if span.session == session.date
        }
        rows += len(instruments) * ((end - start) // interval_ns(config.clock.book))
    return tables + ROW_BYTES * rows


def _share(facts: FileFacts, session: str) -> float:
    """Bytes of a file that are a session's, by its records."""
    return facts.size * facts.spans[session].records / max(facts.records, 1)
