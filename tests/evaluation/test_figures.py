"""Every plot is a PNG of its size, for much data, little and none."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from synthetic import Market

from foxhunt_pipeline.evaluation import figures
from foxhunt_pipeline.evaluation.figures import WindowBar, window_bars

MINUTE = 60 * 10**9
OPEN = int(np.datetime64("2024-03-04T14:30", "ns").astype(np.int64))
DAY = 86_400 * 10**9


def size(png: bytes) -> tuple[int, int]:
    """Width and height as the header of a PNG has them; fails unless it is whole."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n") and png.rstrip().endswith(b"IEND\xaeB`\x82")
    return struct.unpack(">II", png[16:24])


def pixels(inches: float) -> int:
    return round(inches * figures.DPI)


def session_times(days: int, rows: int = 390) -> np.ndarray:
    return np.concatenate([OPEN + d * DAY + np.arange(rows) * MINUTE for d in range(days)])


def a_equity(days: int = 4) -> bytes:
    rng = np.random.default_rng(0)
    ts = session_times(days)
    net = {
        "tlob": rng.normal(2e-6, 2e-5, ts.size),
        "flat": np.zeros(ts.size),
        "buy and hold": rng.normal(0, 3e-5, ts.size),
        "ridge": rng.normal(-1e-6, 1e-5, ts.size),
    }
    starts = {f"w{d:03d}": int(OPEN + d * DAY) for d in range(days)}
    return figures.equity(
        {name: (ts, values) for name, values in net.items()}, starts, "tlob, out of sample"
    )


def a_losses(count: int = 4) -> bytes:
    epochs = np.arange(1, 9)
    curves = {
        f"w{i:03d}": (
            (1.1 - 0.03 * epochs + 0.02 * i).tolist(),
            (1.1 + 0.001 * i + 0.002 * (epochs - 4.0) ** 2).tolist(),
        )
        for i in range(count)
    }
    return figures.losses(curves, "tlob, loss by window")


def some_windows(count: int = 5) -> tuple[list[str], list[WindowBar]]:
    sessions = [str(np.datetime64("2024-03-04") + i) for i in range(count + 2)]
    bars = [
        WindowBar(
            f"w{i:03d}",
            (
                ("train", i, i + 1.6),
                ("purge and embargo", i + 1.6, i + 1.62),
                ("validation", i + 1.62, i + 1.99),
                ("purge and embargo", i + 1.99, i + 2.0),
                ("test", i + 2.0, i + 3.0),
            ),
        )
        for i in range(count)
    ]
    return sessions, bars


def a_windows(count: int = 5) -> bytes:
    return figures.windows(*some_windows(count), "book view")


def a_distribution(columns: int = 21) -> bytes:
    rng = np.random.default_rng(1)
    x = rng.standard_t(4, (2000, columns)).astype(np.float32)
    x[:300, 3:4] = np.nan
    x[:, 5:6] = np.nan
    return figures.distributions([f"feature_{i:02d}" for i in range(columns)], x, "book view")


@pytest.mark.parametrize("days", [1, 4, 60])
def test_equity(days: int) -> None:
    assert size(a_equity(days)) == (pixels(7.2), pixels(3.6))


@pytest.mark.parametrize("count", [0, 1, 4, 40])
def test_losses(count: int) -> None:
    assert size(a_losses(count)) == (pixels(6.4), pixels(3.6))


@pytest.mark.parametrize("count", [1, 5, 60])
def test_windows(count: int) -> None:
    width, height = size(a_windows(count))
    assert width == pixels(7.2)
    assert height <= pixels(9)


@pytest.mark.parametrize("columns", [1, 21, 49])
def test_distributions(columns: int) -> None:
    width, height = size(a_distribution(columns))
    assert width == pixels(6.4)
    assert height <= pixels(12)


def test_bars_are_the_windows_spans(tmp_path: Path) -> None:
    manifest = Market(tmp_path, sessions=4, rows=60).manifest()
    first, second, production = window_bars(manifest, "bars")
    assert [bar.name for bar in (first, second, production)] == ["w000", "w001", "production"]
    spans = sorted(first.spans, key=lambda span: span[1])
    assert [kind for kind, _, _ in spans] == ["train", "purge and embargo", "validation", "test"]
    places = [(start, stop) for _, start, stop in spans]
    # Training ends five rows before the last third of the second session, which validates.
    expected = [(0, 1 + 35 / 60), (1 + 35 / 60, 1 + 40 / 60), (1 + 40 / 60, 2), (2, 3)]
    np.testing.assert_allclose(places, expected)
    assert "test" not in {kind for kind, _, _ in production.spans}


def test_same_figure_same_bytes() -> None:
    assert a_equity() == a_equity()
    assert a_equity(3) != a_equity(4)
