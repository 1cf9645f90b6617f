"""Markets of a known law, as splits that the environment can read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foxhunt_pipeline.artifacts import Item
from foxhunt_pipeline.datasets.manifest import Scaler, Stream
from foxhunt_pipeline.datasets.reader import Segment, Split

PRICE = 100 * 10**9
"""Price at which every market starts, in 1e-9."""


def segment(px: np.ndarray, x: np.ndarray, start: int = 0, *, has_quotes: bool = False) -> Segment:
    """One session whose rows from ``start`` on belong to the split. x: (row, feature), used
    as it is."""
    n, width = x.shape
    columns = [f"c{i}" for i in range(width)]
    stream = Stream(
        session="2024-01-02",
        view="bars",
        dataset="TEST",
        publisher_id=1,
        symbol="ABC",
        rows=n,
        features=Item("bars/TEST/1/ABC", "k", "d", figures={"columns": columns, "n_levels": 0}),
        labels=Item("bars/TEST/1/ABC", "k", "d", figures={"has_quotes": has_quotes}),
    )
    return Segment(
        stream=stream,
        start=start,
        stop=n,
        scaler=Scaler((0.0,) * width, (1.0,) * width),
        thresholds=np.zeros(1, np.float32),
        columns=slice(None),
        raw=np.asarray(x, np.float32),
        ts=np.arange(n, dtype=np.int64),
        y=np.zeros((n, 1), np.float32),
        smooth=np.zeros((n, 1), np.float32),
        end_ts=np.zeros((n, 1), np.int64),
        px=px,
    )


def split(segments: Sequence[Segment]) -> Split:
    return Split(tuple(segments), segments[0].raw.shape[1], 1)


def prices(moves_bps: np.ndarray) -> np.ndarray:
    """(row, 6) px of a market without quotes that fills at the mark. moves_bps: (row,), the move
    from each row to the next in basis points of the first price; the last row is untradable."""
    steps = np.rint(moves_bps * 1e-4 * PRICE).astype(np.int64)
    mark = PRICE + np.concatenate([[0], np.cumsum(steps)[:-1]])
    after = mark + steps
    px = np.stack([mark, mark, mark, mark, mark, after], axis=1)
    px[-1, [2, 3, 5]] = -1
    return px


def reverting(
    n_sessions: int, rows: int, *, strength: float, noise: float, seed: int, memory: float = 0.9
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(signals, moves) per session: a signal s of unit variance with s' = memory s + e, which
    foretells the next move in basis points, strength s + noise e'."""
    rng = np.random.default_rng(seed)
    signals, moves = [], []
    for _ in range(n_sessions):
        s = np.empty(rows)
        s[0] = rng.normal()
        shocks = rng.normal(size=rows) * np.sqrt(1 - memory**2)
        for t in range(1, rows):
            s[t] = memory * s[t - 1] + shocks[t]
        signals.append(s)
        moves.append(strength * s + noise * rng.normal(size=rows))
    return signals, moves


def reverting_split(signals: Sequence[np.ndarray], moves: Sequence[np.ndarray]) -> Split:
    return split([segment(prices(m), s[:, None]) for s, m in zip(signals, moves, strict=True)])
