"""The public API, for notebooks and services. Everything here is also exported by the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import polars as pl

from foxhunt_pipeline.artifacts import Item
from foxhunt_pipeline.config import load as load_config
from foxhunt_pipeline.errors import DataError, NotFoundError
from resources.pipeline import Pipeline, open_pipeline

if TYPE_CHECKING:
    import pandas as pd

    from foxhunt_pipeline.checkpoints.format import Checkpoint

__all__ = ["load_config", "open_asset", "open_pipeline", "open_release"]

Frames = dict[str, pl.DataFrame]


@overload
def open_asset(
    name: str,
    session: str | None = ...,
    *,
    folder: Path | None = ...,
    as_: Literal["polars"] = ...,
) -> Frames: ...
@overload
def open_asset(
    name: str, session: str | None = ..., *, folder: Path | None = ..., as_: Literal["pandas"]
) -> dict[str, pd.DataFrame]: ...
def open_asset(
    name: str,
    session: str | None = None,
    *,
    folder: Path | None = None,
    as_: Literal["polars", "pandas"] = "polars",
) -> Any:
    """The current content of any asset, as one data frame an item.

    name: as in the UI, ``market/tables`` or ``tlob/walk_forward``. session: ``YYYY-MM-DD`` for an
    asset by session. folder: where ``foxhunt.toml`` is (default: here).

    Tables come as stored (times UTC, prices int64 of 1e-9); features and labels with ``ts``
    (UTC) and a column each; predictions a row a decision; an item without rows, such as a
    checkpoint, gives its figures as one row.

    Raises :class:`~foxhunt_pipeline.errors.DataError` for an asset that is unknown or not built.
    """
    pipeline = open_pipeline(folder)
    stage = pipeline.stages.get(name)
    if stage is None:
        raise DataError(
            f"There is no asset {name}.", remedy=f"Assets: {', '.join(pipeline.stages)}."
        )
    if stage.partitioned and session is None:
        done = sorted(p for (asset, p) in pipeline.index.rows() if asset == name and p)
        raise DataError(
            f"{name} is an asset by session.", remedy=f"Name one: {', '.join(done) or 'none yet'}."
        )
    artifact = pipeline.builder.artifact(name, session)
    frames = {item.name: _frame(pipeline, item) for item in artifact.items.values()}
    if as_ == "pandas":
        return {key: frame.to_pandas() for key, frame in frames.items()}
    return frames


def open_release(
    model: str, version: str = "champion", *, folder: Path | None = None
) -> Checkpoint:
    """A published checkpoint, verified: its tensors and the header that rebuilds the model.

    version: ``champion``, ``latest`` or a version like ``v0003``. Raises
    :class:`~foxhunt_pipeline.errors.NotFoundError` if there is none.
    """
    from foxhunt_pipeline.checkpoints import publish

    pipeline = open_pipeline(folder)
    if version == "latest":
        known = publish.releases(pipeline.releases, model)
        if not known:
            raise NotFoundError(f"{model} has no release.", remedy="Run foxhunt sync.")
        version = known[-1].version
    return publish.open_release(
        pipeline.releases, model, version, cache=pipeline.cache / "releases"
    )


def _frame(pipeline: Pipeline, item: Item) -> pl.DataFrame:
    files = {name: pipeline.memo.path(item, name) for name in item.files}
    if parquet := next((path for name, path in files.items() if name.endswith(".parquet")), None):
        return pl.read_parquet(parquet)
    if "x.npy" in files:
        x = np.load(files["x.npy"], mmap_mode="r")
        columns = {name: x[:, i] for i, name in enumerate(item.figures["columns"])}
        return _timed(files["ts.npy"], columns)
    if "y.npy" in files:
        return _timed(files["ts.npy"], _labels(files, item))
    if "model.npz" in files:
        return _arrays(files["model.npz"])
    rows = json.loads(json.dumps(dict(item.figures)))
    flat = {k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in rows.items()}
    return pl.DataFrame([flat] if flat else [])


def _labels(files: dict[str, Path], item: Item) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name in ("y", "smooth", "end_ts"):
        values = np.load(files[f"{name}.npy"], mmap_mode="r")
        for i, horizon in enumerate(item.figures["horizons"]):
            columns[f"{name}_{horizon}"] = values[:, i]
    px = np.load(files["px.npy"], mmap_mode="r")
    names = ("bid", "ask", "buy_fill", "sell_fill", "mark", "next_mark")
    return columns | {f"px_{name}": px[:, i] for i, name in enumerate(names)}


def _timed(ts: Path, columns: dict[str, Any]) -> pl.DataFrame:
    times = pl.Series("ts", np.load(ts)).cast(pl.Datetime("ns", "UTC"))
    return pl.DataFrame(
        [times, *(pl.Series(k, np.ascontiguousarray(v)) for k, v in columns.items())]
    )


def _arrays(path: Path) -> pl.DataFrame:
    """The one-dimensional arrays of an archive that have a value a row."""
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    rows = len(arrays["ts"])
    columns = [pl.Series(n, a) for n, a in arrays.items() if a.ndim == 1 and len(a) == rows]
    wide = [
        pl.Series(f"{name}_{i}", np.ascontiguousarray(array[:, i]))
        for name, array in arrays.items()
        if array.ndim == 2 and len(array) == rows
        for i in range(array.shape[1])
    ]
    return pl.DataFrame([*columns, *wide])
