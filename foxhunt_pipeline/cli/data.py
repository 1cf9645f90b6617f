"""ingest, simulate and data ls."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from foxhunt_pipeline.cli.console import errors, out, show, size
from foxhunt_pipeline.errors import ConfigError


def ingest(files: list[Path]) -> int:
    """Verify files and put the good ones into the landing. Returns the exit code."""
    from foxhunt_pipeline.market.ingest import check_files
    from resources.pipeline import open_pipeline

    pipeline = open_pipeline()
    if pipeline.config.landing.url.startswith("s3://"):
        raise ConfigError(
            f"The landing is {pipeline.config.landing.url}; ingest copies into a folder.",
            remedy="Set FOXHUNT_LANDING to a folder, or upload with your S3 client.",
        )
    landing = Path(pipeline.settings.landing_url)
    reports = check_files(files, landing, pipeline.config.market.calendars)
    for report in reports:
        line = f"{report.outcome:12} {report.reason}"
        if report.outcome == "refused":
            errors.print(line, markup=False, style="red")
        else:
            out.print(line, markup=False)
    return 1 if any(report.outcome == "refused" for report in reports) else 0


def simulate(folder: Path, sessions: int, symbols: list[str], seed: int, martingale: bool) -> None:
    """Write simulated DBN files and say which."""
    from foxhunt_pipeline.market.simulator import simulate as write

    files = write(folder, sessions=sessions, symbols=symbols, seed=seed, martingale=martingale)
    total = sum(file.stat().st_size for file in files)
    out.print(f"{len(files)} simulated files, {size(total)}, in {files[0].parent}")


def ls(as_json: bool) -> None:
    """Sessions x schema x instrument, as the landing has them now."""
    from resources.pipeline import open_pipeline

    pipeline = open_pipeline()
    survey = pipeline.survey()
    rows: list[tuple[object, ...]] = []
    for date, session in survey.sessions.items():
        found: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for facts in session.files:
            for span in facts.tables:
                if span.session == date:
                    found[facts.dataset, facts.schema][span.symbol] += span.records
        for (dataset, schema), symbols in sorted(found.items()):
            names = sorted(symbols)
            total = sum(symbols.values())
            rows.append((date, session.state, dataset, schema, len(names), _few(names), total))
        if session.reason:
            rows.append((date, session.state, "", "", 0, session.reason, 0))
    if as_json:
        heads = ("session", "state", "dataset", "schema", "instruments", "detail", "records")
        print(json.dumps([dict(zip(heads, line, strict=True)) for line in rows], indent=2))
        return
    show(
        pipeline.settings.landing_url,
        ("session", "state", "dataset", "schema", "instruments", "which", "records"),
        rows,
    )
    for title, group in (
        ("refused", survey.refused),
        ("arriving", survey.arriving),
        ("ignored", survey.ignored),
    ):
        for facts in group:
            errors.print(f"{title}: {facts.name}: {facts.reason}", markup=False)
    for gap in survey.gaps:
        errors.print(f"gap: {gap.date} {gap.dataset}: {gap.reason}", markup=False)
    for note in survey.notes:
        errors.print(f"note: {note}", markup=False)


def _few(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
