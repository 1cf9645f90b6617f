"""ingest, simulate and data ls."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foxhunt_pipeline.cli.console import out, say, show, size, warn
from foxhunt_pipeline.errors import ConfigError

if TYPE_CHECKING:
    from foxhunt_pipeline.market.facts import FileFacts
    from foxhunt_pipeline.market.sessions import Session, Survey


def ingest(files: list[Path]) -> int:
    """Verify files and put the good ones into the landing. Returns the exit code."""
    from foxhunt_pipeline.cli.opening import opened
    from foxhunt_pipeline.market.ingest import check_files

    pipeline = opened()
    if pipeline.settings.landing_url.startswith("s3://"):
        raise ConfigError(
            f"The landing is {pipeline.settings.landing_url}; ingest copies into a folder.",
            remedy="Set FOXHUNT_LANDING to a folder, or upload with your S3 client.",
        )
    landing = Path(pipeline.settings.landing_url)
    refused = 0
    for file in files:
        (report,) = check_files([file], landing, pipeline.config.market.calendars)
        line = f"{report.outcome:12} {report.reason}"
        if report.outcome == "refused":
            refused += 1
            warn(line, style="red")
        else:
            say(line)
    return 1 if refused else 0


def simulate(folder: Path, sessions: int, symbols: str, seed: int, martingale: bool) -> None:
    """Write simulated DBN files and say which. ``symbols`` are separated by commas."""
    from rich.progress import Progress

    from foxhunt_pipeline.market.simulator import simulate as write

    with Progress(console=out, transient=True, disable=not out.is_terminal) as bars:
        bar = bars.add_task("simulating", total=sessions)
        files = write(
            folder,
            sessions=sessions,
            symbols=[symbol.strip() for symbol in symbols.split(",")],
            seed=seed,
            martingale=martingale,
            on_session=lambda date: bars.update(bar, advance=1, description=f"simulated {date}"),
        )
    total = sum(file.stat().st_size for file in files)
    say(f"{len(files)} simulated files, {size(total)}, in {files[0].parent}")


def ls(as_json: bool) -> None:
    """Sessions by schema and instrument, gaps, and files that are no data, as of now."""
    from foxhunt_pipeline.cli.opening import nothing_landed, opened

    pipeline = opened()
    survey = pipeline.survey()
    if as_json:
        print(json.dumps({"landing": pipeline.settings.landing_url} | _data(survey), indent=2))
        return
    rows: list[tuple[object, ...]] = []
    for session in survey.sessions.values():
        for dataset, schema, records in _tables(session):
            names = sorted(records)
            total = sum(records.values())
            rows.append(
                (session.date, session.state, dataset, schema, len(names), _few(names), total)
            )
        if session.reason:
            rows.append((session.date, session.state, "", "", "", session.reason, ""))
    rows += [(gap.date, "gap", gap.dataset, "", "", gap.reason, "") for gap in survey.gaps]
    show(
        pipeline.settings.landing_url,
        ("session", "state", "dataset", "schema", "instruments", "which", "records"),
        sorted(rows, key=lambda row: str(row[0])),
    )
    for title in ("refused", "arriving", "ignored"):
        for facts in getattr(survey, title):
            say(f"{title}: {_named(facts)}")
    for note in survey.notes:
        say(f"note: {note}")
    if nothing := nothing_landed(pipeline):
        say(nothing)


def _data(survey: Survey) -> dict[str, Any]:
    """The survey as JSON data; a record count for each session, schema and instrument."""

    def files(group: tuple[FileFacts, ...]) -> list[dict[str, Any]]:
        return [{"name": f.name, "size": f.size, "reason": f.reason} for f in group]

    return {
        "sessions": [
            {
                "session": session.date,
                "state": session.state,
                "reason": session.reason,
                "tables": [
                    {"dataset": dataset, "schema": schema, "instrument": symbol, "records": count}
                    for dataset, schema, records in _tables(session)
                    for symbol, count in sorted(records.items())
                ],
            }
            for session in survey.sessions.values()
        ],
        "gaps": [{"date": g.date, "dataset": g.dataset, "reason": g.reason} for g in survey.gaps],
        "refused": files(survey.refused),
        "arriving": files(survey.arriving),
        "ignored": files(survey.ignored),
        "notes": list(survey.notes),
    }


def _tables(session: Session) -> Iterator[tuple[str, str, Counter[str]]]:
    """(dataset, schema, records by instrument) of a session."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for facts in session.files:
        records = found.setdefault((facts.dataset, facts.schema), Counter())
        for span in facts.tables:
            if span.session == session.date:
                records[span.symbol] += span.records
    for (dataset, schema), records in sorted(found.items()):
        yield dataset, schema, records


def _named(facts: FileFacts) -> str:
    """A file's reason, which mostly begins with its name."""
    return facts.reason if facts.name in facts.reason else f"{facts.name}: {facts.reason}"


def _few(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
