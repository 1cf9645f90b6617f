"""What the commands print, and small formats that they share.

On a terminal text is wrapped and tables are drawn. Elsewhere a message is one line and a table
one line a row, without colours, so that ``grep``, ``cut`` and logs get them whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

out = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def say(text: str, style: str | None = None) -> None:
    """Print a message to standard output."""
    out.print(text, style=style, markup=False, soft_wrap=not out.is_terminal)


def warn(text: str, style: str | None = "yellow") -> None:
    """Print a message to standard error."""
    errors.print(text, style=style, markup=False, soft_wrap=not errors.is_terminal)


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table."""
    body = [[_text(value) for value in row] for row in rows]
    numeric = [
        bool(body) and all(_is_number(row[i]) for row in body if row[i] not in ("", "-"))
        for i in range(len(columns))
    ]
    if out.is_terminal:
        out.print(_drawn(title, columns, body, numeric))
        return
    say(title)
    lines = [list(columns), *body]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ]
        say("  ".join(cells).rstrip())


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _drawn(
    title: str, columns: Sequence[str], body: Sequence[Sequence[str]], numeric: Sequence[bool]
) -> Table:
    made = Table(title=title, title_justify="left", title_style="bold", pad_edge=False)
    for name, right in zip(columns, numeric, strict=True):
        made.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in body:
        made.add_row(*(cell.replace("[", r"\[") for cell in row))
    return made


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return " ".join(str(value).split())


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ""))
    except ValueError:
        return False
    return True
