"""Feature and label items of made-up sessions, as the stages before the dataset make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foxhunt_pipeline.artifacts import Artifact, Content, Result, digest_arrays
from foxhunt_pipeline.config import Config
from foxhunt_pipeline.labels.returns import end_times, forward_returns, smoothed_returns
from support.task import FolderTask

MINUTE = 60 * 10**9
DAY = 24 * 60 * MINUTE
HORIZONS = (1, 5)


@dataclass
class Sessions:
    """Artifacts of ``features`` and ``labels`` by session, in one folder."""

    folder: Path
    features: dict[str, Artifact] = field(default_factory=dict)
    labels: dict[str, Artifact] = field(default_factory=dict)

    def add(
        self,
        day: int,
        *,
        rows: int = 60,
        start: int = 0,
        symbols: Sequence[str] = ("AAA", "BBB"),
        views: Sequence[str] = ("bars",),
        levels: int | dict[str, int] = 2,
        seed: int | None = None,
        spoil: slice | None = None,
    ) -> str:
        """A session of minute rows from midnight + ``start`` minutes on day ``day`` of 2024, drawn
        from ``seed`` (default: the day). ``spoil``: rows whose features and marks are garbage."""
        rng = np.random.default_rng(day if seed is None else seed)
        session = str(np.datetime64("2024-01-01") + day)
        midnight = int(np.datetime64(session, "ns").astype(np.int64))
        ts = midnight + MINUTE * np.arange(start + 1, start + rows + 1, dtype=np.int64)
        items = []
        for view in views:
            for symbol in symbols:
                depth = levels if isinstance(levels, int) else levels[symbol]
                lob = [
                    f"lob_{s}_{w}_{i:02d}"
                    for i in range(depth)
                    for s in ("ask", "bid")
                    for w in ("px", "sz")
                ]
                columns = [*(lob if view == "book" else ()), "drift", "noise", "constant", "none"]
                x = rng.normal(3, 2, (rows, len(columns))).astype(np.float32)
                x[:, -2], x[:, -1], x[:3, -3] = 7, np.nan, np.nan
                mark = np.round(1e11 * np.exp(rng.normal(0, 1e-3, rows).cumsum())).astype(np.int64)
                if spoil is not None:
                    x[spoil] = rng.normal(1e6, 1e6, x[spoil].shape)
                    mark[spoil] *= rng.integers(1, 9, len(mark[spoil]))
                items.append((view, symbol, ts, x, mark, columns, depth if view == "book" else 0))
        self.features[session] = self._task(session, "features").build(
            lambda task: Result([_features(task, *item) for item in items])
        )
        self.labels[session] = self._task(session, "labels").build(
            lambda task: Result([_labels(task, *item[:3], item[4]) for item in items])
        )
        return session

    def task(self, left_out: dict[str, str] | None = None, **config: Any) -> FolderTask:
        """The task of the dataset stage; its folder also holds what the sessions hold."""
        return FolderTask(
            self.folder,
            "dataset",
            settings=Config.model_validate(config),
            session_inputs={"features": self.features, "labels": self.labels},
            excluded=left_out or {},
        )

    def _task(self, session: str, stage: str) -> FolderTask:
        return FolderTask(self.folder, stage, session)


def _save(folder: Path, arrays: dict[str, NDArray[Any]]) -> str:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return digest_arrays(arrays)


def _features(
    task: Any,
    view: str,
    symbol: str,
    ts: NDArray[np.int64],
    x: NDArray[np.float32],
    mark: NDArray[np.int64],
    columns: list[str],
    depth: int,
) -> Any:
    figures = {
        "view": view,
        "dataset": "TEST",
        "publisher_id": 1,
        "symbol": symbol,
        "columns": columns,
        "rows": len(ts),
        "n_levels": depth,
        "step_ns": MINUTE,
    }
    name = f"{view}/TEST/1/{symbol}"
    return task.item(
        name,
        [digest_arrays({"x": x, "ts": ts})],
        lambda folder: Content(_save(folder, {"ts": ts, "x": x}), figures),
    )


def _labels(
    task: Any, view: str, symbol: str, ts: NDArray[np.int64], mark: NDArray[np.int64]
) -> Any:
    px = np.stack([mark, mark + 1, mark + 2, mark, mark, np.roll(mark, -1)], axis=1)
    arrays = {
        "ts": ts,
        "y": forward_returns(mark, HORIZONS).astype(np.float32),
        "smooth": smoothed_returns(mark, HORIZONS).astype(np.float32),
        "end_ts": end_times(ts, HORIZONS),
        "px": px,
    }
    figures = {"view": view, "rows": len(ts), "horizons": list(HORIZONS), "has_quotes": True}
    return task.item(
        f"{view}/TEST/1/{symbol}",
        [digest_arrays(arrays)],
        lambda folder: Content(_save(folder, arrays), figures),
    )
