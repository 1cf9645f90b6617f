"""plan, sync and demo."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING

from foxhunt_pipeline.cli.console import duration, errors, out, show
from foxhunt_pipeline.incremental.plan import Entry, Held, Plan

if TYPE_CHECKING:
    from foxhunt_pipeline.sync import RunResult, SyncReport
    from resources.pipeline import Pipeline


def plan(expressions: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Print the plan."""
    from resources.pipeline import open_pipeline

    made = open_pipeline().plan(expressions, force=force)
    if as_json:
        print(json.dumps(made.to_json(), indent=2))
    else:
        print_plan(made)


def print_plan(made: Plan) -> None:
    """The plan as text: sessions with the same story share a line."""
    if not made.entries:
        out.print("Everything is up to date.")
    else:
        show(
            f"{len(made.entries)} to run",
            ("asset", "partition", "action", "because"),
            [
                (asset, _span(partitions), action.replace("_", " "), reason)
                for (asset, action, reason), partitions in _grouped(made.entries)
            ],
        )
    print_held(made.held)


def print_held(held: tuple[Held, ...]) -> None:
    """What cannot be built from what is there."""
    for item in held:
        where = f" {item.partition}" if item.partition else ""
        errors.print(f"held: {item.asset}{where}: {item.reason}", markup=False, style="yellow")


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
    from resources.pipeline import open_pipeline

    pipeline = open_pipeline()
    began = time.perf_counter()
    report = run_sync(pipeline, expressions, force, within)
    if not report.runs:
        out.print("Everything is up to date.")
    else:
        out.print(f"{len(report.runs)} runs in {duration(time.perf_counter() - began)}.")
    print_held(report.held)
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
            on_wait=lambda: out.print("Another sync of this state folder is running; waiting."),
            within=within,
        )


def check_models(pipeline: Pipeline) -> None:
    """Raise a ConfigError for a wrong setting of a model before anything runs."""
    from foxhunt_pipeline.incremental.families import family_of
    from foxhunt_pipeline.models.contract import settings_of

    for stage in pipeline.stages.values():
        if stage.name.endswith("/training"):
            settings_of(family_of(stage), pipeline.config.models[stage.model].settings)


def demo(sessions: int, symbols: list[str], seed: int) -> int:
    """Run the whole pipeline and print what was published."""
    from foxhunt_pipeline.cli.models import summary
    from foxhunt_pipeline.market.simulator import simulate
    from resources.pipeline import open_pipeline

    began = time.perf_counter()
    pipeline = open_pipeline()
    landing = pipeline.settings.landing_url
    if not pipeline.config.landing.url and not list(pipeline.landing.list()):
        out.print(f"No landing is configured: simulating {sessions} sessions into {landing}.")
        from pathlib import Path

        simulate(Path(landing), sessions=sessions, symbols=symbols, seed=seed)
    out.print(f"Landing: {landing}")
    report = run_sync(pipeline, (), False)
    print_held(report.held)
    summary(pipeline)
    out.print(f"\nDone in {duration(time.perf_counter() - began)}. Where to look:")
    out.print(f"  releases   {pipeline.settings.releases.url}")
    out.print(f"  artifacts  {pipeline.settings.artifacts.url}")
    out.print("  the UI     make ui, then http://127.0.0.1:3000")
    out.print("  why        foxhunt releases why MODEL; foxhunt plan; foxhunt data ls")
    return 0 if report.success else 1


def _print_next(made: Plan) -> None:
    """What is about to run, and why: the sessions if there are any, else the rest."""
    sessions, rest = len(made.sessions), len(made.unpartitioned)
    out.print(f"Plan: {sessions} sessions to run, then {rest} assets over all sessions.")
    coming = tuple(e for e in made.entries if (e.partition is not None) == bool(sessions))
    for (asset, action, reason), partitions in _grouped(coming):
        what = f"{asset} {_span(partitions)}".rstrip()
        out.print(f"  {action.replace('_', ' '):10}  {what}: {reason}", markup=False)


def _print_run(run: RunResult) -> None:
    what = f"{run.partition or ', '.join(run.assets)} (run {run.run_id[:8]})"
    if run.success:
        out.print(f"  [green]ok[/]      {what}")
    for failure in run.failures:
        errors.print(f"  failed  {what}: {failure}", markup=False, style="red")


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
                out.print(f"  {text}", markup=False)

        pipeline.listeners.append(listen)
        try:
            yield
        finally:
            pipeline.listeners.remove(listen)
