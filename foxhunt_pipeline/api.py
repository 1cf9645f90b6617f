"""The public API, for notebooks and services. Everything here is also exported by the package."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foxhunt_pipeline.artifacts import Artifact, Item
from foxhunt_pipeline.config import load as load_config
from foxhunt_pipeline.errors import ConfigError, DataError, NotFoundError
from resources.pipeline import Pipeline, open_pipeline

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from foxhunt_pipeline.checkpoints.format import Checkpoint
    from foxhunt_pipeline.training.rebuild import Forecaster

__all__ = ["load_config", "open_asset", "open_model", "open_pipeline", "open_release"]

Frames = dict[str, pl.DataFrame]

_PX = ("bid", "ask", "buy_fill", "sell_fill", "mark", "next_mark")
_PLACES = {"stream": "streams", "session": "sessions"}
"""Arrays of places, and the array of the names that they are places in."""


@overload
def open_asset(
    name: str,
    session: str | None = ...,
    *,
    folder: Path | str | None = ...,
    as_: Literal["polars"] = ...,
) -> Frames: ...
@overload
def open_asset(
    name: str,
    session: str | None = ...,
    *,
    folder: Path | str | None = ...,
    as_: Literal["pandas"],
) -> dict[str, pd.DataFrame]: ...
def open_asset(
    name: str,
    session: str | None = None,
    *,
    folder: Path | str | None = None,
    as_: Literal["polars", "pandas"] = "polars",
) -> Any:
    """The current content of any asset: a data frame for each of its items, by the item's name.

    name: as in the UI, ``market/tables`` or ``tlob/walk_forward``. session: ``YYYY-MM-DD`` for an
    asset by session. folder: where ``foxhunt.toml`` is (default: ``$FOXHUNT_CONFIG`` or here).

    Times are UTC datetimes in ns and prices integers of 1e-9, null where there is none; pandas
    gets nullable integers, so that they stay exact there too. Tables come as stored, features and
    labels with ``ts`` and a column each, predictions a row a decision (an item of several
    contestants gives a frame for each, ``item/contestant``). An item without rows, such as a
    checkpoint, gives its figures as one row, nested ones as JSON.

    Raises :class:`~foxhunt_pipeline.errors.DataError` for an asset that is unknown or not built,
    and where ``session`` does not fit it.
    """
    if as_ not in ("polars", "pandas"):
        raise ValueError(f"as_ is 'polars' or 'pandas', not {as_!r}")
    pipeline = open_pipeline(None if folder is None else Path(folder))
    artifact = _artifact(pipeline, name, session)
    frames = {
        key: frame for item in artifact.items.values() for key, frame in _frames(pipeline, item)
    }
    return frames if as_ == "polars" else {key: _pandas(frame) for key, frame in frames.items()}


def open_release(
    model: str, version: str = "champion", *, folder: Path | str | None = None
) -> Checkpoint:
    """A published checkpoint, verified: its tensors and the header that rebuilds the model.

    version: ``champion``, ``latest`` or a version like ``v0003``. Raises
    :class:`~foxhunt_pipeline.errors.NotFoundError` if there is none.
    """
    from foxhunt_pipeline.checkpoints import publish

    pipeline = open_pipeline(None if folder is None else Path(folder))
    if version == "latest":
        known = publish.releases(pipeline.releases, model)
        if not known:
            raise NotFoundError(f"{model} has no release.", remedy="Run foxhunt sync.")
        version = known[-1].version
    return publish.open_release(
        pipeline.releases, model, version, cache=pipeline.cache / "releases"
    )


def open_model(
    model: str,
    version: str = "champion",
    *,
    device: str = "cpu",
    folder: Path | str | None = None,
) -> Forecaster | nn.Module:
    """A released model ready for use, rebuilt from its checkpoint alone.

    Of a forecast family: a :class:`~foxhunt_pipeline.training.rebuild.Forecaster`, from scaled
    look-back (batch, time, feature) to a forecast in log return. Of a policy family: the module,
    from (look-back, position held) to a :class:`~foxhunt_pipeline.models.contract.Policy`.

    Raises what :func:`open_release` raises, and :class:`~foxhunt_pipeline.errors.ConfigError` for
    a model that is not configured.
    """
    from foxhunt_pipeline.incremental.families import family_of
    from foxhunt_pipeline.training.rebuild import forecaster, module_from

    checkpoint = open_release(model, version, folder=folder)
    stage = open_pipeline(None if folder is None else Path(folder)).stages.get(f"{model}/training")
    if stage is None:
        raise ConfigError(
            f"The model {model} is not configured.", remedy=f"Add [models.{model}] to foxhunt.toml."
        )
    family = family_of(stage)
    if family.kind == "forecast":
        return forecaster(checkpoint, family, device)
    return module_from(checkpoint, family, device)


def _artifact(pipeline: Pipeline, name: str, session: str | None) -> Artifact:
    stage = pipeline.stages.get(name)
    if stage is None:
        raise DataError(
            f"There is no asset {name}.", remedy=f"Assets: {', '.join(pipeline.stages)}."
        )
    if not stage.partitioned and session is not None:
        raise DataError(
            f"{name} is one asset over all sessions.", remedy="Open it without a session."
        )
    manifest = pipeline.index.manifest(name, session)
    if manifest is not None:
        return manifest.artifact
    if not stage.partitioned:
        raise DataError(f"{name} was not built yet.{_failed(pipeline, name, None)}", remedy=_SYNC)
    built = sorted(p for (asset, p) in pipeline.index.rows() if asset == name and p)
    listed = ", ".join(built) if len(built) <= 10 else f"{len(built)}, {built[0]} to {built[-1]}"
    if session is None:
        raise DataError(
            f"{name} is an asset by session.", remedy=f"Name one. Built: {listed or 'none yet'}."
        )
    raise DataError(
        f"{name} of {session} was not built.{_failed(pipeline, name, session)}",
        remedy=f"Built: {listed}." if built else _SYNC,
    )


_SYNC = "Run foxhunt sync."


def _failed(pipeline: Pipeline, name: str, session: str | None) -> str:
    failure = pipeline.index.failures().get((name, session))
    return f" The last attempt failed: {failure.message}" if failure else ""


def _frames(pipeline: Pipeline, item: Item) -> Iterator[tuple[str, pl.DataFrame]]:
    """(key, frame) of what an item holds."""

    def array(name: str) -> NDArray[Any]:
        return np.asarray(np.load(pipeline.memo.path(item, name), mmap_mode="r"))

    files = list(item.files)
    tables = [name for name in files if name.endswith(".parquet")]
    archives = [name for name in files if name.endswith(".npz")]
    if tables:
        yield item.name, pl.read_parquet(pipeline.memo.path(item, tables[0]))
    elif "x.npy" in files:
        columns = dict(zip(item.figures["columns"], array("x.npy").T, strict=True))
        yield item.name, pl.DataFrame([_times("ts", array("ts.npy")), *_series(columns)])
    elif "y.npy" in files:
        yield item.name, _labels(array, item.figures["horizons"])
    elif archives:
        for name in archives:
            with np.load(pipeline.memo.path(item, name), allow_pickle=False) as archive:
                frame = _archive({key: archive[key] for key in archive.files})
            contestant = name.removesuffix(".npz")
            yield item.name if len(archives) == 1 else f"{item.name}/{contestant}", frame
    else:
        row = {
            key: json.dumps(value) if isinstance(value, dict | list | tuple) else value
            for key, value in item.figures.items()
        }
        yield item.name, pl.DataFrame([row])


def _labels(array: Any, horizons: list[int]) -> pl.DataFrame:
    columns = [_times("ts", array("ts.npy"))]
    for name in ("y", "smooth"):
        values = array(f"{name}.npy").T
        columns += _series({f"{name}_{h}": v for h, v in zip(horizons, values, strict=True)})
    ends = array("end_ts.npy").T
    columns += [_times(f"end_ts_{h}", end) for h, end in zip(horizons, ends, strict=True)]
    for name, px in zip(_PX, array("px.npy").T, strict=True):
        columns.append(_known(pl.Series(f"px_{name}", np.ascontiguousarray(px))))
    return pl.DataFrame(columns)


def _archive(arrays: Mapping[str, NDArray[Any]]) -> pl.DataFrame:
    """Arrays with a value a row; further dimensions give a column each, numbered."""
    columns = []
    for name, values in arrays.items():
        if name in _PLACES.values():
            continue
        if name in _PLACES:
            columns.append(pl.Series(name, arrays[_PLACES[name]].astype(object)[values], pl.String))
        elif name == "ts":
            columns.append(_times(name, values))
        else:
            columns += [
                pl.Series("_".join([name, *map(str, at)]), np.ascontiguousarray(values[:, *at]))
                for at in np.ndindex(values.shape[1:])
            ]
    return pl.DataFrame(columns)


def _series(columns: Mapping[str, NDArray[Any]]) -> list[pl.Series]:
    return [pl.Series(name, np.ascontiguousarray(values)) for name, values in columns.items()]


def _times(name: str, ns: NDArray[np.int64]) -> pl.Series:
    return _known(pl.Series(name, np.ascontiguousarray(ns))).cast(pl.Datetime("ns", "UTC"))


def _known(values: pl.Series) -> pl.Series:
    """Null for -1, which stands for none."""
    return values.set(values == -1, None)


def _pandas(frame: pl.DataFrame) -> pd.DataFrame:
    import pandas as pd
    import pyarrow as pa

    exact = {
        getattr(pa, name.lower())(): getattr(pd, f"{name}Dtype")()
        for name in ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
    }
    return frame.to_pandas(types_mapper=exact.get)
