"""plan, sync and demo."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING

from foxhunt_pipeline.cli.console import duration, out, say, show, warn
from foxhunt_pipeline.cli.opening import nothing_landed, opened
from foxhunt_pipeline.incremental.plan import Entry, Held, Plan

if TYPE_CHECKING:
    from foxhunt_pipeline.sync import RunResult, SyncReport
    from resources.pipeline import Pipeline

_DONE = "Everything is up to date."


def plan(expressions: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Print the plan."""
    pipeline = opened()
    made = pipeline.plan(expressions, force=force)
    if as_json:
        print(json.dumps(made.to_json(), indent=2))
    else:
        print_plan(made, nothing_landed(pipeline))


def print_plan(made: Plan, nothing: str = "") -> None:
    """The plan as text: sessions with the same story share a line. ``nothing`` is what to say
    where it is empty for want of data."""
    if not made.entries:
        say(nothing or _DONE)
    else:
        show(
            f"{len(made.entries)} to run",
            ("asset", "partition", "action", "because"),
            [
                (asset, _span(partitions), action.replace("_", " "), reason)
                for (asset, action, reason), partitions in _grouped(made.entries)
            ],
        )
    print_held(() if nothing else made.held)


def print_held(held: tuple[Held, ...]) -> None:
    """What cannot be built from what is there."""
    for item in held:
        where = f" {item.partition}" if item.partition else ""
        warn(f"held: {item.asset}{where}: {item.reason}")


def _grouped(
    entries: tuple[Entry, ...],
) -> list[tuple[tuple[str, str, str], list[str | None]]]:
    def story(entry: Entry) -> tuple[str, str, str]:
        return entry.asset, entry.action, entry.reason

    return [(key, [e.partition for e in found]) for key, found in groupby(entries, story)]


def _span(partitions: list[str | None]) -> str:
    named = [p for p in partitions if p is not None]
    if len(named) <= 1:
        return named[0] if named else ""
    return f"{named[0]} to {named[-1]} ({len(named)})"


def sync(expressions: tuple[str, ...], force: bool, within: str = "") -> int:
    """Run what is stale. Returns the exit code: 1 if a run failed."""
    pipeline = opened()
    began = time.perf_counter()
    report = run_sync(pipeline, expressions, force, within)
    nothing = nothing_landed(pipeline)
    if report.runs:
        count = f"{len(report.runs)} run{'s' if len(report.runs) > 1 else ''}"
        say(f"{count} in {duration(time.perf_counter() - began)}.")
    else:
        say(nothing or _DONE)
    print_held(() if nothing else report.held)
    return 0 if report.success else 1


def run_sync(
    pipeline: Pipeline, expressions: tuple[str, ...], force: bool, within: str = ""
) -> SyncReport:
    """Sync in this process, showing progress."""
    first = pipeline.plan(expressions, force=force)
    if not first.entries:
        from foxhunt_pipeline.sync import SyncReport

        return SyncReport(held=first.held)

    import dagster as dg

    from foxhunt_pipeline.cli.families import check_models
    from foxhunt_pipeline.cli.instance import prepare_home
    from foxhunt_pipeline.definitions import defs
    from foxhunt_pipeline.definitions import pipeline as defined
    from foxhunt_pipeline.sync import sync as run

    check_models(defined)
    prepare_home(defined.settings)
    with dg.DagsterInstance.get() as instance, _progress(defined):
        return run(
            defined,
            defs,
            instance,
            expressions=expressions,
            force=force,
            on_plan=_print_next,
            on_run=_print_run,
            on_wait=lambda: say("Another sync of this state folder is running; waiting."),
            within=within,
        )


def demo(sessions: int, symbols: str, seed: int) -> int:
    """Run the whole pipeline and print what was published."""
    from pathlib import Path

    from foxhunt_pipeline.cli.data import simulate
    from foxhunt_pipeline.cli.models import summary

    began = time.perf_counter()
    pipeline = opened()
    landing = pipeline.settings.landing_url
    if not pipeline.config.landing.url and not pipeline.landing.list():
        say(f"No landing is configured: simulating {sessions} sessions into {landing}.")
        simulate(Path(landing), sessions, symbols, seed, martingale=False)
    say(f"Landing: {landing}")
    report = run_sync(pipeline, (), False)
    print_held(report.held)
    summary(pipeline)
    say(f"\nDone in {duration(time.perf_counter() - began)}. Where to look:")
    say(f"  releases   {pipeline.settings.releases.url}")
    say(f"  artifacts  {pipeline.settings.artifacts.url}")
    say("  the UI     make ui, then http://127.0.0.1:3000")
    say("  why        foxhunt releases why MODEL; foxhunt plan; foxhunt data ls")
    return 0 if report.success else 1


def _print_next(made: Plan) -> None:
    """What is about to run, and why: the sessions if there are any, else the rest."""
    sessions, rest = len(made.sessions), len(made.unpartitioned)
    say(f"Plan: {sessions} sessions to run, then {rest} assets over all sessions.")
    coming = tuple(e for e in made.entries if (e.partition is not None) == bool(sessions))
    for (asset, action, reason), partitions in _grouped(coming):
        what = f"{asset} {_span(partitions)}".rstrip()
        say(f"  {action.replace('_', ' '):10}  {what}: {reason}")


def _print_run(run: RunResult) -> None:
    what = f"{run.partition or ', '.join(run.assets)} (run {run.run_id[:8]})"
    if run.success:
        say(f"  ok      {what}", style="green")
    for failure in run.failures:
        warn(f"  failed  {what}: {failure}", style="red")


@contextmanager
def _progress(pipeline: Pipeline) -> Iterator[None]:
    """A line that lives on a terminal; every tenth second a plain line elsewhere."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(20), TimeElapsedColumn())
    last = time.monotonic()
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bars:
        bar = bars.add_task("starting", total=None)

        def listen(
            asset: str, partition: str | None, message: str, figures: Mapping[str, float]
        ) -> None:
            nonlocal last
            text = f"{asset}{' ' + partition if partition else ''}: {message}"
            done, total = figures.get("step"), figures.get("steps")
            bars.update(bar, description=text, completed=done or 0, total=total)
            if not out.is_terminal and time.monotonic() - last > 10:
                last = time.monotonic()
                say(f"  {text}")

        pipeline.listeners.append(listen)
        try:
            yield
        finally:
            pipeline.listeners.remove(listen)
