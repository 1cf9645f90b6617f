"""How a benchmark reports: a table, and with ``--json FILE`` the same rows for a machine."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One comparison. ``ratio`` is how many times better ours is, ``target`` the least asked."""

    name: str
    ours: float
    peer: float | None
    peer_name: str
    unit: str
    ratio: float | None
    target: float | None


def lower_is_better(
    name: str, ours: float, peer: float, peer_name: str, unit: str, target: float | None = None
) -> Row:
    """A row for a cost, as seconds or megabytes."""
    return Row(name, round(ours, 4), round(peer, 4), peer_name, unit, round(peer / ours, 3), target)


def arguments(description: str) -> argparse.Namespace:
    """The command line that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    return parser.parse_args()


def publish(title: str, rows: Sequence[Row], to: Path | None) -> None:
    """Print the table and write the file."""
    heads = ("name", "ours", "peer", "unit", "ratio", "target", "peer is")
    body = [
        (r.name, _text(r.ours), _text(r.peer), r.unit, _text(r.ratio), _text(r.target), r.peer_name)
        for r in rows
    ]
    widths = [max(len(line[i]) for line in [heads, *body]) for i in range(len(heads))]
    print(f"\n{title}")
    for line in [heads, *body]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
    if to is not None:
        to.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
