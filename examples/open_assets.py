"""Open what the pipeline made as data frames.

    python examples/open_assets.py [FOLDER]

FOLDER is where foxhunt.toml is (default: here). Run `make demo` or `foxhunt sync` first.
"""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl

import foxhunt_pipeline as fx

UNIT = 1e-9
"""Prices are stored as traded, as whole numbers of this."""


def main(folder: str = ".") -> None:
    pipeline = fx.open_pipeline(Path(folder))
    dataset = pipeline.builder.artifact("dataset")
    streams = {name: view["rows"] for name, view in dataset.figures["views"].items()}
    print(f"{dataset.figures['sessions']} sessions; rows by view: {streams}")

    newest = max(partition for _, partition in pipeline.index.rows() if partition)
    for name, trades in fx.open_asset("market/tables", newest, folder=folder).items():
        if name.endswith("/trades"):
            vwap = (trades["price"] * UNIT * trades["size"]).sum() / trades["size"].sum()
            print(f"{newest} {name}: {len(trades)} trades, volume-weighted price {vwap:.4f}")

    features = fx.open_asset("features", newest, folder=folder)
    labels = fx.open_asset("labels", newest, folder=folder)
    for name, x in features.items():
        joined = x.join(labels[name], on="ts", how="inner").drop_nulls()
        target = next(column for column in joined.columns if column.startswith("y_"))
        finite = joined.filter(pl.all_horizontal(pl.col(x.columns[-1], target).is_finite()))
        correlation = finite.select(pl.corr(x.columns[-1], target)).item()
        print(f"{name}: {x.columns[-1]} against {target}: correlation {correlation:+.3f}")

    frame = fx.open_asset("features", newest, folder=folder, as_="pandas").popitem()[1]
    print(frame.describe().round(3).iloc[:, :4].to_string())


if __name__ == "__main__":
    main(*sys.argv[1:])
