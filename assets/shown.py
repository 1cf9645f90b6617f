"""How figures become metadata that the UI shows: tables inline, plots behind Show Markdown."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

ROWS = 200
"""Longest table in an event; the artifact has the rest."""


def table(rows: Iterable[Mapping[str, Any]]) -> dg.TableMetadataValue | dg.TextMetadataValue:
    """Rows as a table; all of them have the same keys."""
    records = [dg.TableRecord({key: _cell(value) for key, value in row.items()}) for row in rows]
    if not records:
        return dg.MetadataValue.text("none")
    return dg.MetadataValue.table(records[:ROWS])


def plot(png: bytes, what: str) -> dg.MarkdownMetadataValue:
    """A picture, in the event itself."""
    text = base64.b64encode(png).decode()
    return dg.MetadataValue.md(f"![{what}](data:image/png;base64,{text})")


def numbers(figures: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers among figures: the UI plots each over the asset's history."""
    found: dict[str, float] = {}
    for key, value in figures.items():
        if isinstance(value, Mapping):
            found |= numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[f"{prefix}{key}"] = float(value)
    return found


def _cell(value: Any) -> str | int | float | bool | None:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if value is None or isinstance(value, str | int | bool):
        return value
    if isinstance(value, list | tuple):
        return ", ".join(str(part) for part in value)
    return str(value)
