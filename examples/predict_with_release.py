"""Load a published checkpoint and forecast from the newest rows.

    python examples/predict_with_release.py [MODEL] [FOLDER]

MODEL is a supervised model with a release (default: tlob). The checkpoint is enough: it says
which columns it wants, how they are scaled and how the module is built.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

import foxhunt_pipeline as fx

CLIP = 10.0
"""Scaled features beyond are cut off, as in training; undefined ones are 0."""


def main(model: str = "tlob", folder: str = ".") -> None:
    checkpoint = fx.open_release(model, "latest", folder=folder)
    header = checkpoint.header
    print(f"{model}: {header.family}, {header.parameter_count:,} parameters, {header.view} view")

    pipeline = fx.open_pipeline(Path(folder))
    newest = max(partition for _, partition in pipeline.index.rows() if partition)
    forecast = fx.open_model(model, "latest", folder=folder)
    for name, frame in fx.open_asset("features", newest, folder=folder).items():
        if not name.startswith(f"{header.view}/"):
            continue
        x = frame.select(header.columns)[-forecast.config.context :].to_numpy()
        x = (x - np.array(header.center)) / np.array(header.scale)
        x = np.nan_to_num(np.clip(x, -CLIP, CLIP), nan=0.0).astype(np.float32)
        said = forecast(torch.from_numpy(x[None]))
        for i, horizon in enumerate(header.horizons):
            down, flat, up = said.probabilities[0, i].tolist()
            print(
                f"{name} at {frame['ts'][-1]}, in {horizon} rows: "
                f"{1e4 * said.point[0, i].item():+.3f} bps; "
                f"down {down:.2f}, flat {flat:.2f}, up {up:.2f}"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
