"""Plots, as PNG bytes: small, labelled, and told apart without seeing colours (Okabe & Ito).

Nothing here decides anything; stages do not import it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from foxhunt_pipeline.datasets.manifest import DatasetManifest, Span, WindowView

BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
)
PALETTE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 2)))
GREY = "#666666"
DPI = 110
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


@contextmanager
def _sheet(width: float, height: float) -> Iterator[tuple[Figure, io.BytesIO]]:
    """A figure in the common style, in inches, that is drawn when the block ends."""
    out = io.BytesIO()
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
        yield figure, out
        # No version in the file: the same figure gives the same bytes.
        figure.savefig(out, format="png", metadata={"Software": None})


def equity(
    curves: Mapping[str, tuple[NDArray[np.int64], NDArray[np.floating]]],
    windows: Mapping[str, int],
    title: str,
) -> bytes:
    """Net equity out of sample, in basis points of capital.

    curves: by name, times in ns and the net P&L of each as a fraction of capital; the first is
    drawn strongest. windows: by name, the time at which its test span begins. Time between
    sessions is left out.
    """
    grid = np.unique(np.concatenate([ts for ts, _ in curves.values()]))
    with _sheet(7.2, 3.6) as (figure, out):
        axes = figure.subplots()
        axes.axhline(0, color=GREY, linewidth=0.8)
        for number, (name, (ts, net)) in enumerate(curves.items()):
            axes.plot(
                np.searchsorted(grid, ts),
                np.cumsum(net) * 1e4,
                label=name,
                color=PALETTE[number % len(PALETTE)],
                linestyle=DASHES[number % len(DASHES)],
                linewidth=1.8 if number == 0 else 1.2,
                zorder=10 - number,
            )
        _mark_windows(axes, grid, windows)
        _session_ticks(axes, grid)
        axes.set_xlim(0, max(len(grid) - 1, 1))
        axes.set_ylabel("net equity (bps of capital)")
        axes.set_title(title, loc="left", pad=16)
        axes.legend(loc="best", ncols=2)
    return out.getvalue()


def _mark_windows(axes: Axes, grid: NDArray[np.int64], windows: Mapping[str, int]) -> None:
    """A line where each window begins, and as many names as fit."""
    every = max(1, -(-len(windows) // 12))
    for number, (name, start) in enumerate(windows.items()):
        place = int(np.searchsorted(grid, start))
        axes.axvline(place, color=GREY, linewidth=0.8, linestyle=(0, (2, 2)))
        if number % every == 0:
            axes.text(
                place,
                1.01,
                f" {name}",
                transform=axes.get_xaxis_transform(),
                fontsize=7.5,
                color=GREY,
                va="bottom",
            )


def _session_ticks(axes: Axes, grid: NDArray[np.int64]) -> None:
    days = grid.astype("datetime64[ns]").astype("datetime64[D]")
    first = np.flatnonzero(np.diff(days.astype(np.int64), prepend=-1))
    shown = first[:: max(1, -(-len(first) // 7))]
    axes.set_xticks(shown, [str(days[place]) for place in shown])
    axes.set_xlabel("test rows in order, by date (UTC)")
    axes.tick_params(axis="x", labelsize=8)


def losses(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    title: str,
    *,
    x: str = "epoch",
    y: str = "loss (dashed: training, solid: validation)",
) -> bytes:
    """Training (dashed) and validation (solid) loss by epoch, a pair of lines a window.

    curves: by window, the two losses after each epoch; the first may be empty. x, y: labels of
    the axes, where it is another measure or moment.
    """
    colours = mpl.colormaps["cividis"](np.linspace(0, 0.9, len(curves)))
    with _sheet(6.4, 3.6) as (figure, out):
        axes = figure.subplots()
        for colour, (name, (training, validation)) in zip(colours, curves.items(), strict=True):
            label = name if len(curves) <= 12 else None
            epochs = np.arange(1, len(validation) + 1)
            axes.plot(
                epochs[: len(training)], training, color=colour, linestyle="--", linewidth=1.1
            )
            axes.plot(epochs, validation, color=colour, marker="o", markersize=3, label=label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.set_title(title, loc="left")
        if 0 < len(curves) <= 12:
            axes.legend(ncols=2)
    return out.getvalue()


@dataclass(frozen=True)
class WindowBar:
    """A window on the session axis: spans (kind, start, stop) in sessions since the first."""

    name: str
    spans: tuple[tuple[str, float, float], ...]


KINDS = {
    "train": (BLUE, ""),
    "validation": (SKY, "///"),
    "purge and embargo": (GREY, ""),
    "test": (ORANGE, "..."),
}
NARROWEST = 0.004
"""Share of the axis below which a span is widened: an embargo of a minute must be seen."""


def window_bars(manifest: DatasetManifest, view: str) -> list[WindowBar]:
    """The windows of a view as bars. Within a session, places are shares of its rows."""
    place = {session: number for number, session in enumerate(manifest.sessions)}

    def where(spans: Sequence[Span]) -> list[tuple[float, float]]:
        by_session: dict[int, tuple[float, float]] = {}
        for span in spans:
            stream = manifest.streams[span.stream]
            at = place[stream.session]
            low, high = by_session.get(at, (1.0, 0.0))
            rows = max(stream.rows, 1)
            by_session[at] = (min(low, span.start / rows), max(high, span.stop / rows))
        merged: list[tuple[float, float]] = []
        for at, (low, high) in sorted(by_session.items()):
            if merged and low == 0 and merged[-1][1] == at:
                merged[-1] = (merged[-1][0], at + high)
            else:
                merged.append((at + low, at + high))
        return merged

    def bar(name: str, part: WindowView) -> WindowBar:
        kinds = {"train": part.train, "validation": part.validation, "test": part.test}
        spans = [(kind, *span) for kind, spans in kinds.items() for span in where(spans)]
        ordered = sorted(spans, key=lambda span: span[1])
        gaps = [
            ("purge and embargo", before[2], after[1])
            for before, after in pairwise(ordered)
            if before[2] < after[1] and before[0] != after[0]
        ]
        return WindowBar(name, (*ordered, *gaps))

    return [bar(w.name, w.views[view]) for w in manifest.windows_of(view)]


def windows(sessions: Sequence[str], bars: Sequence[WindowBar], title: str) -> bytes:
    """Walk-forward windows over the sessions: what each trains, validates and is tested on.

    sessions: dates in order; bars: of :func:`window_bars`.
    """
    height = 0.6
    least = NARROWEST * len(sessions)
    with _sheet(7.2, min(1.5 + 0.32 * len(bars), 9)) as (figure, out):
        axes = figure.subplots()
        for kind, (colour, hatch) in KINDS.items():
            pieces = [
                (number, start, max(stop - start, least))
                for number, bar in enumerate(bars)
                for name, start, stop in bar.spans
                if name == kind
            ]
            if pieces:
                rows, starts, lengths = zip(*pieces, strict=True)
                axes.barh(
                    rows,
                    lengths,
                    height,
                    left=starts,
                    color=colour,
                    hatch=hatch,
                    edgecolor="white",
                    linewidth=0,
                    label=kind,
                )
        shown = range(0, len(sessions), max(1, -(-len(sessions) // 7)))
        axes.set_xticks(list(shown), [sessions[place] for place in shown])
        named = range(0, len(bars), max(1, -(-len(bars) // 25)))
        axes.set_yticks(list(named), [bars[place].name for place in named])
        axes.set_xlim(0, max(len(sessions), 1))
        axes.set_ylim(len(bars) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="x", labelsize=8)
        axes.set_xlabel("session (trading date, at its first row)")
        axes.set_title(title, loc="left", pad=22)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 0.995), ncols=4, borderaxespad=0.2)
    return out.getvalue()


def distributions(
    columns: Sequence[str], x: NDArray[np.floating], title: str, unit: str = "scaled"
) -> bytes:
    """Distribution of each feature: median, middle half (thick), 1 % to 99 % (thin).

    x: (row, feature), NaN where undefined; the share of undefined rows stands at the right.
    """
    with _sheet(6.4, min(1.3 + 0.19 * len(columns), 12)) as (figure, out):
        axes = figure.subplots()
        for number, values in enumerate(x.T):
            known = values[np.isfinite(values)]
            if known.size:
                q = np.quantile(known, [0.01, 0.25, 0.5, 0.75, 0.99])
                axes.plot(q[[0, 4]], [number, number], color=SKY, linewidth=1.4)
                axes.plot(q[[1, 3]], [number, number], color=BLUE, linewidth=5)
                axes.plot(q[2], number, "|", color="white", markersize=6, markeredgewidth=1.6)
            missing = 1 - known.size / max(values.size, 1)
            if missing:
                axes.text(
                    1.01,
                    number,
                    f"{missing:.0%} undefined",
                    transform=axes.get_yaxis_transform(),
                    fontsize=7,
                    color=GREY,
                    va="center",
                )
        axes.axvline(0, color=GREY, linewidth=0.8)
        axes.set_yticks(range(len(columns)), list(columns), fontsize=7.5)
        axes.set_ylim(len(columns) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(f"value ({unit}); thick: middle half, thin: 1 % to 99 %")
        axes.set_title(title, loc="left")
    return out.getvalue()
