"""Consoles and small formats that the commands share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

out = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table with one line a row; numbers are set right."""
    made = Table(title=title, title_justify="left", title_style="bold", pad_edge=False)
    body = [[_text(value) for value in row] for row in rows]
    for i, name in enumerate(columns):
        numeric = bool(body) and all(_is_number(row[i]) for row in body if row[i] not in ("", "-"))
        made.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in body:
        made.add_row(*row)
    return made


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table, at full width where the output is no terminal."""
    console = out if out.is_terminal else Console(width=200, highlight=False)
    console.print(table(title, columns, rows))


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ""))
    except ValueError:
        return False
    return True
