"""A market with a known answer, laid out as a dataset, and families that know or miss it.

Two columns, ``a`` and ``b``, are autoregressive; the next three returns lean on the sign of
their product by ``skill``, which no linear forecast can see, and on ``a`` alone by ``linear``, in
standard deviations. With both at 0 the price is a martingale whose volatility clusters. ``past`` is
the price over its mean of the last five rows, which is the part of the smoothed label (and so of
the trend class) that is known beforehand.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foxhunt_pipeline.artifacts import Artifact, Content, Item, Result, digest_arrays, digest_of
from foxhunt_pipeline.checkpoints.format import Checkpoint, Header, library_versions, save
from foxhunt_pipeline.config import Config
from foxhunt_pipeline.datasets.manifest import (
    PRODUCTION,
    DatasetManifest,
    Scaler,
    Span,
    Stream,
    ViewSpec,
    Window,
    WindowView,
)
from foxhunt_pipeline.datasets.reader import WindowData, open_window
from foxhunt_pipeline.evaluation import baselines, release, walk_forward
from foxhunt_pipeline.models.contract import (
    Batch,
    Forecast,
    ForecastFamily,
    InputSpec,
    Policy,
    PolicyFamily,
    parameter_count,
)
from support.task import FolderTask

COLUMNS = ("a", "b", "noise", "past")
HORIZONS = (1, 5)
DAYS = tuple(f"2024-03-{day:02d}" for day in (4, 5, 6, 7, 8, 11, 12, 13, 14, 15))
MINUTE = 60 * 10**9
VOLATILITY = 2e-4
TICK = 10_000_000


@dataclass
class Market:
    folder: Path
    seed: int = 0
    skill: float = 0.0
    linear: float = 0.0
    sessions: int = 6
    rows: int = 200
    symbols: tuple[str, ...] = ("AAA", "BBB")
    view: str = "bars"
    train: int = 2
    half_spread: float = 1e-5
    has_quotes: bool = True
    left_out: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.maker = FolderTask(self.folder, stage="market")

    def stream(self, session: str, symbol: str) -> Stream:
        n = self.rows
        random = self.random
        x = np.empty((n, 3), np.float32)
        x[0] = random.standard_normal(3)
        for t in range(1, n):
            x[t] = 0.7 * x[t - 1] + math.sqrt(1 - 0.49) * random.standard_normal(3)
        signal = self.skill * np.sign(x[:, 0] * x[:, 1]) + self.linear * x[:, 0]
        lean = np.convolve(signal, np.ones(3) / math.sqrt(3))[:n]
        wave = np.exp(0.5 * np.sin(np.arange(n) / 15 + random.uniform(0, 6)))
        moves = VOLATILITY * wave * (lean + random.standard_normal(n))
        mid = 100 * np.exp(np.concatenate([[0.0], np.cumsum(moves)[:-1]]))
        y = np.full((n, len(HORIZONS)), np.nan, np.float32)
        smooth = y.copy()
        padded = np.concatenate([[mid[0]] * 4, mid])
        known = np.array([padded[t : t + 5].mean() for t in range(n)])
        past = (np.log(mid / known) / VOLATILITY).astype(np.float32)
        x = np.column_stack([x, past])
        for column, h in enumerate(HORIZONS):
            y[: n - h, column] = np.log(mid[h:] / mid[: n - h])
            smooth[: n - h, column] = np.log(mid[h:] / known[: n - h])
        px = np.full((n, 6), -1, np.int64)
        e9 = np.round(mid * 1e9).astype(np.int64)
        edge = np.round(mid * 1e9 * self.half_spread).astype(np.int64) * int(self.has_quotes)
        px[:, 0], px[:, 1], px[:, 4] = e9 - edge, e9 + edge, e9
        px[:-1, 2], px[:-1, 3], px[:-1, 5] = px[1:, 1], px[1:, 0], px[1:, 4]
        day = int(np.datetime64(f"{session}T14:30", "ns").astype(np.int64))
        ts = day + np.arange(n, dtype=np.int64) * MINUTE
        end_ts = ts[:, None] + np.array(HORIZONS) * MINUTE
        name = f"{self.view}/XNAS.ITCH/2/{symbol}"
        facts = {"columns": list(COLUMNS), "has_quotes": self.has_quotes, "n_levels": 1}
        features = self._item(name, {"ts": ts, "x": x}, facts)
        arrays = {"ts": ts, "y": y, "smooth": smooth, "end_ts": end_ts, "px": px}
        labels = self._item(f"labels/{name}", arrays, facts)
        return Stream(session, self.view, "XNAS.ITCH", 2, symbol, n, features, labels)

    def _item(self, name: str, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> Item:
        def compute(folder: Path) -> Content:
            for file, array in arrays.items():
                np.save(folder / f"{file}.npy", array)
            return Content(digest_arrays(arrays), facts)

        return self.maker.item(name, [digest_arrays(arrays)], compute)

    def manifest(self) -> DatasetManifest:
        days = DAYS[: self.sessions]
        streams = [self.stream(day, symbol) for day in days for symbol in self.symbols]
        by_id = {stream.id: stream for stream in streams}
        windows = [
            self._window(f"w{i:03d}", by_id, days[i : i + self.train], days[i + self.train :][:1])
            for i in range(self.sessions - self.train)
        ]
        windows.append(self._window(PRODUCTION, by_id, days[-self.train :], ()))
        spec = ViewSpec(self.view, COLUMNS, HORIZONS, 1, MINUTE, self.missing)
        return DatasetManifest(days, self.left_out, {self.view: spec}, by_id, tuple(windows))

    def _window(
        self,
        name: str,
        streams: dict[str, Stream],
        train: tuple[str, ...],
        test: tuple[str, ...],
    ) -> Window:
        cut = self.rows - self.rows // 3
        fit, held, tested = [], [], []
        for id_, stream in streams.items():
            if stream.session in train:
                last = stream.session == train[-1]
                fit.append(Span(id_, 0, cut - max(HORIZONS) if last else self.rows))
                if last:
                    held.append(Span(id_, cut, self.rows))
            elif stream.session in test:
                tested.append(Span(id_, 0, self.rows))
        part = WindowView(
            scaler=Scaler((0.0,) * len(COLUMNS), (1.0,) * len(COLUMNS)),
            trend_thresholds=(VOLATILITY / 2,) * len(HORIZONS),
            train=tuple(fit),
            validation=tuple(held),
            test=tuple(tested),
            purged=0,
            embargoed=0,
            digest=digest_of(
                [[s.stream, s.start, s.stop, streams[s.stream].features.digest,
                  streams[s.stream].labels.digest] for s in (*fit, *held, *tested)]
            ),
        )  # fmt: skip
        return Window(name, train, test, {self.view: part})


# Families --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProductConfig:
    context: int = 4


class Product(nn.Module):
    """(batch, time, feature) -> (batch, horizon): weight · sign(a b) of the last row."""

    def __init__(self, config: ProductConfig, spec: InputSpec) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(len(spec.horizons)))

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, -1, 0] * x[:, -1, 1]).sign()[:, None] * self.weight


class Linear(Product):
    """weight · a of the last row: what ridge knows as well."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1, 0, None] * self.weight


def _squared_error(config: ProductConfig, output: Tensor, batch: Batch) -> Tensor:
    return (output - batch.y).square().mean()


PRODUCT = ForecastFamily(
    name="product",
    view="bars",
    config=ProductConfig,
    build=Product,
    loss=_squared_error,
    predict=lambda config, output: Forecast(point=output),
)

CLASSES = ForecastFamily(
    name="product",
    view="bars",
    config=ProductConfig,
    build=Product,
    loss=_squared_error,
    predict=lambda config, output: Forecast(
        probabilities=torch.stack([-output, torch.zeros_like(output), output], -1).softmax(-1)
    ),
)


class Past(Product):
    """weight · past of the last row: knows part of the trend's label and nothing of returns."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1, 3, None] * self.weight


class ProductPolicy(nn.Module):
    """Holds the side of weight · sign(a b), or nothing while the weight is small."""

    def __init__(self, config: ProductConfig, spec: InputSpec, n_actions: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("exposures", torch.linspace(-1, 1, n_actions))

    def forward(self, x: Tensor, position: Tensor) -> Policy:
        side = (x[:, -1, 0] * x[:, -1, 1]).sign() * self.weight
        return Policy(
            logits=-((self.exposures - side[:, None].clamp(-1, 1)) ** 2), value=side * 0 + position
        )


POLICY = PolicyFamily(
    name="product", view="bars", config=ProductConfig, build=ProductPolicy, learner=lambda *a: None
)


def product_weight(data: WindowData, weigh: Callable[[NDArray[Any]], Any]) -> NDArray[Any]:
    """Least squares weight a horizon on the training rows, in units of ``weigh``."""
    rows = data.train.rows(4)
    x = data.train.gather(rows, 1)[:, 0]
    y = data.train.take("y", rows).astype(np.float64)
    sign = np.sign(x[:, 0] * x[:, 1])
    return np.asarray((sign[:, None] * y).mean(axis=0) / weigh(y))


@dataclass
class Chain:
    """Everything a release reads, built in a folder."""

    market: Market
    family: Any = PRODUCT
    change: Callable[[str, dict[str, Any]], None] = lambda window, header: None
    """Edits a window's header before it is saved."""
    weights: Callable[[str, NDArray[Any]], NDArray[Any]] = lambda window, weight: weight
    config: Config = field(
        default_factory=lambda: Config.model_validate(
            {"evaluation": {"bootstrap_samples": 300}, "seed": 5}
        )
    )

    known: dict[str, Item] = field(default_factory=dict)
    """Items computed before, as a store holds them."""

    def __post_init__(self) -> None:
        self.data = self.market.manifest()

    def task(self, stage: str, inputs: dict[str, Artifact] | None = None) -> FolderTask:
        return FolderTask(
            self.market.folder,
            stage=stage,
            settings=self.config,
            inputs=inputs or {},
            family=self.family,
            model="product",
            known=self.known,
        )

    @cached_property
    def dataset(self) -> Artifact:
        data = self.data

        def compute(folder: Path) -> Content:
            (folder / "manifest.json").write_text(json.dumps(data.to_json()))
            return Content(data.digest)

        task = self.task("dataset")
        return task.build(lambda t: Result([t.item("manifest", [data.digest], compute)]))

    @cached_property
    def training(self) -> Artifact:
        task = self.task("product/training", {"dataset": self.dataset})

        def train(window: Window) -> Item:
            def compute(folder: Path) -> Content:
                checkpoint = self.checkpoint(task, window)
                save(checkpoint, folder / "model.safetensors")
                return Content(checkpoint.digest(), {"rows": 1})

            return task.item(window.name, [window.digest("bars")], compute)

        return task.build(lambda t: Result([train(w) for w in self.data.windows_of("bars")]))

    def checkpoint(self, task: FolderTask, window: Window) -> Checkpoint:
        data = open_window(task, self.data, window.name, "bars")
        rows = data.train.rows(4)
        scale = np.sqrt(np.mean(data.train.take("y", rows).astype(np.float64) ** 2, axis=0))
        weight = product_weight(data, lambda y: np.sqrt(np.mean(y**2, axis=0)))
        weight = np.asarray(self.weights(window.name, weight))
        spec = InputSpec("bars", COLUMNS, HORIZONS, 1)
        if isinstance(self.family, ForecastFamily):
            module = self.family.build(ProductConfig(), spec)
        else:
            module = self.family.build(ProductConfig(), spec, 5)
            weight = np.atleast_1d(weight[0])
        state = dict(module.state_dict())
        state["weight"] = torch.tensor(weight, dtype=torch.float32)
        header = {
            "family": self.family.name,
            "config": asdict(ProductConfig()),
            "view": "bars",
            "columns": COLUMNS,
            "center": data.scaler.center,
            "scale": data.scaler.scale,
            "horizons": HORIZONS,
            "seed": 5,
            "code_version": "c" * 64,
            "data_versions": {window.name: window.digest("bars")},
            "libraries": library_versions(),
            "device": "cpu",
            "precision": "fp32",
            "parameter_count": parameter_count(module),
            "extra": {
                "target_scale": scale.tolist(),
                "train_sessions": list(window.train_sessions),
                "n_levels": 1,
                "n_actions": 5,
            },
        }
        self.change(window.name, header)
        return Checkpoint(state, Header(**header))

    @cached_property
    def baselines(self) -> Artifact:
        self.baselines_task = self.task("baselines/walk_forward", {"dataset": self.dataset})
        return self.baselines_task.build(baselines.build)

    @cached_property
    def walk_forward(self) -> Artifact:
        inputs = {"dataset": self.dataset, "product/training": self.training}
        self.walk_forward_task = self.task("product/walk_forward", inputs)
        return self.walk_forward_task.build(walk_forward.build)

    def release_task(self) -> FolderTask:
        return self.task(
            "product/release",
            {
                "dataset": self.dataset,
                "product/training": self.training,
                "product/walk_forward": self.walk_forward,
                "baselines/walk_forward": self.baselines,
            },
        )

    def release(self, champion: Path | None = None, scores: Path | None = None) -> dict[str, Any]:
        """The decision."""
        task = self.release_task()
        task.champion = champion
        task.champion_scores = scores
        item = task.build(release.build).items["decision"]
        return json.loads(task.path(item, "decision.json").read_text())


def gate(decision: dict[str, Any], name: str) -> dict[str, Any]:
    """The gate of that name."""
    return next(row for row in decision["gates"] if row["gate"] == name)


def failed(decision: dict[str, Any]) -> list[str]:
    return [row["gate"] for row in decision["gates"] if not row["passed"]]
