"""Stage ``raw/dbn``: the bytes that hold a session, verified whole and named by their hash.

One item a file. Its digest is the file's SHA-256; its figures are what the tables are made
from. The bytes stay where they landed, or are copied where the landing may change in place.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from foxhunt_pipeline.artifacts import Content, Item, Result
from foxhunt_pipeline.errors import DataError

if TYPE_CHECKING:
    from foxhunt_pipeline.market.facts import FileFacts
    from foxhunt_pipeline.market.landing import LandingTask

BYTES = "file.dbn"
"""The copied file in an item, where it is copied."""


def build(task: LandingTask) -> Result:
    """Artifact of one session.

    Raises :class:`~foxhunt_pipeline.errors.DataError` if the session is refused, or a file is
    not the one that was inspected.
    """
    session = str(task.partition)
    files = task.source.files(session)
    immutable = bool(task.config("landing.immutable"))
    items = [_item(task, facts, session, immutable) for facts in files]
    records: dict[str, int] = {}
    for facts in files:
        records[facts.schema] = records.get(facts.schema, 0) + facts.spans[session].records
    return Result(
        items,
        {
            "files": len(files),
            "bytes": sum(facts.size for facts in files),
            "records": dict(sorted(records.items())),
            "datasets": sorted({facts.dataset for facts in files}),
            "conditions": {
                f.dataset: f.conditions[session] for f in files if session in f.conditions
            },
        },
    )


def _item(task: LandingTask, facts: FileFacts, session: str, immutable: bool) -> Item:
    def verify(folder: Path) -> Content:
        path = task.source.local(facts)
        if not immutable:
            path = Path(shutil.copyfile(path, folder / BYTES))
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if sha256 != facts.sha256:
            raise DataError(
                f"{facts.name}: has SHA-256 {sha256}, and had {facts.sha256} when inspected.",
                remedy="The file was changed in place: set landing.immutable = false, run again.",
            )
        return Content(sha256, _figures(facts, session))

    extra = {"session": session, "calendar": facts.calendar, "copied": not immutable}
    return task.item(quote(facts.name, safe=""), [facts.sha256], verify, extra=extra)


def _figures(facts: FileFacts, session: str) -> dict[str, object]:
    span = facts.spans[session]
    return {
        "sha256": facts.sha256,
        "size": facts.size,
        "dataset": facts.dataset,
        "schema": facts.schema,
        "dbn_version": facts.dbn_version,
        "calendar": facts.calendar,
        "start": facts.start,
        "end": facts.end,
        "first": facts.first,
        "last": facts.last,
        "records": facts.records,
        "session_records": span.records,
        "session_first": span.first,
        "session_last": span.last,
        "publishers": list(facts.publishers),
        "symbols": sorted({t.symbol for t in facts.tables if t.session == session}),
        "tables": [
            {key: value for key, value in asdict(table).items() if key != "session"}
            for table in facts.tables
            if table.session == session
        ],
    }
