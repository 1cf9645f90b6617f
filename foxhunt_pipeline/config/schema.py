"""Every section and key, with its type, bounds, default and meaning."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

RESERVED = frozenset({"raw", "market", "baselines", "market_data", "research_data", "sync"})
"""Names that a model cannot have: stages, groups and jobs go by them."""


@dataclass(frozen=True)
class Matching:
    """Checks a text; ``expected`` says what it must be."""

    pattern: str
    expected: str

    def __call__(self, value: str) -> str:
        if not re.fullmatch(self.pattern, value):
            raise ValueError(f"must be {self.expected}")
        return value


def _matching(pattern: str, expected: str) -> AfterValidator:
    return AfterValidator(Matching(pattern, expected))


def _empty_is_none(value: Any) -> Any:
    return None if value == "" else value


Name = Annotated[
    str, _matching("[a-z][a-z0-9_]*", "of lower-case letters, digits and _, a letter first")
]
Interval = Annotated[
    str, _matching("[1-9][0-9]*(ms|s|m|h)", "a count and a unit, as 500ms, 1s, 5m or 1h")
]
Optional = Annotated[str | None, BeforeValidator(_empty_is_none)]


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )


class StoreConfig(Section):
    """A folder or an S3 prefix. Credentials come from the default AWS chain, never from here."""

    url: str = Field(
        "", description="Folder, or s3://bucket/prefix. Empty means a folder of the state folder."
    )
    endpoint_url: Optional = Field(None, description="S3 endpoint; empty means AWS.")
    region: str = Field("us-east-1", description="S3 region.")
    addressing_style: Literal["auto", "path", "virtual"] = Field(
        "auto", description="How a bucket is named in URLs: path for most S3-compatible servers."
    )
    ca_bundle: Optional = Field(
        None, description="PEM file of the endpoint's CA certificates; empty means the system's."
    )
    checksum: Literal["when_supported", "when_required"] = Field(
        "when_supported", description="When to send S3 checksums: when_required for old servers."
    )

    @property
    def is_s3(self) -> bool:
        return self.url.startswith("s3://")


class LandingConfig(StoreConfig):
    url: str = Field(
        "",
        description="Where DBN files arrive: folder, or s3://bucket/prefix. Empty means the state "
        "folder's own, for simulated data.",
    )
    immutable: bool = Field(
        True, description="Files never change in place: reference them. false copies them."
    )
    settle_seconds: float = Field(
        2.0, ge=0, description="A file younger than this may still be written: wait."
    )
    wait_hours: float = Field(
        6.0, ge=0, description="A session not fully covered exists this long after its close."
    )


class StoresConfig(Section):
    artifacts: StoreConfig = Field(StoreConfig(url=""), description="Artifacts and memo.")
    releases: StoreConfig = Field(StoreConfig(url=""), description="Published checkpoints.")


class MarketConfig(Section):
    calendars: dict[str, str] = Field(
        {},
        description="Calendar by dataset: an exchange_calendars name, or 24/7 (UTC dates).",
    )
    hours: Literal["regular", "all"] = Field(
        "regular", description="Rows of the clock: regular trading hours, or the whole session."
    )


class UniverseConfig(Section):
    instruments: tuple[str, ...] = Field((), description="Raw symbols; empty means all delivered.")


class ClockConfig(Section):
    bars: Interval = Field("1m", description="Step of the bars view.")
    book: Interval = Field("1s", description="Step of the book view.")


class FeaturesConfig(Section):
    book_levels: int = Field(10, ge=1, le=10, description="Levels in the book view, at most.")


class LabelsConfig(Section):
    bars_horizons: tuple[int, ...] = Field(
        (1, 5, 15), description="Forecast horizons in rows of the bars clock, ascending."
    )
    book_horizons: tuple[int, ...] = Field(
        (10, 30, 60), description="Forecast horizons in rows of the book clock, ascending."
    )
    trend_quantile: float = Field(
        0.33, gt=0, lt=0.5, description="Share of training rows in each of the up and down classes."
    )

    @field_validator("bars_horizons", "book_horizons")
    @classmethod
    def _ascending(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or value[0] < 1 or any(b <= a for a, b in pairwise(value)):
            raise ValueError("must be positive and ascending, as [1, 5, 15]")
        return value


class ValidationConfig(Section):
    max_crossed_share: float = Field(0.01, ge=0, le=1, description="Crossed books, of all quotes.")
    max_locked_share: float = Field(0.05, ge=0, le=1, description="Locked books, of all quotes.")
    max_duplicate_share: float = Field(0.5, ge=0, le=1, description="Exact duplicates, of trades.")
    max_quarantined_share: float = Field(
        0.02, ge=0, le=1, description="Quarantined rows, of a table, before the session fails."
    )
    max_gap_minutes: float = Field(
        60.0, gt=0, description="Longest silence in regular hours before a warning."
    )
    max_move_share: float = Field(
        0.05, gt=0, description="Largest move between neighbouring prints before a warning."
    )
    outlier_share: float = Field(
        0.1,
        gt=0,
        description="A print is quarantined if it is further than this share from the prints "
        "before it and beyond outlier_sigmas.",
    )
    outlier_sigmas: float = Field(
        20.0,
        gt=0,
        description="A print is quarantined if it is further than this many robust standard "
        "deviations from the prints before it and beyond outlier_share.",
    )
    non_positive_prices: tuple[str, ...] = Field(
        (
            "GLBX.MDP3",
            "IFEU.IMPACT",
            "IFLL.IMPACT",
            "IFUS.IMPACT",
            "NDEX.IMPACT",
            "XEEE.EOBI",
            "XEUR.EOBI",
        ),
        description="Datasets whose prices may be zero or negative: futures and spreads.",
    )


class WalkForwardConfig(Section):
    train_sessions: int = Field(2, ge=1, description="Sessions a window trains on.")
    test_sessions: int = Field(1, ge=1, description="Sessions a window is tested on.")
    step_sessions: int = Field(1, ge=1, description="Sessions between window starts.")
    expanding: bool = Field(False, description="Train on all sessions since the first.")
    embargo: Interval = Field("1m", description="Gap left after purging, before the test span.")
    validation_share: float = Field(
        0.2, gt=0, lt=1, description="Last share of the training rows, for early stopping."
    )


class CostsConfig(Section):
    fee_bps: float = Field(0.1, ge=0, description="Fee, of traded value.")
    slippage_bps: float = Field(0.1, ge=0, description="Slippage beyond the touch, of value.")
    half_spread_bps: float = Field(
        0.5, ge=0, description="Half spread where there are no quotes, of value."
    )


class TrainingConfig(Section):
    device: Annotated[str, _matching("auto|cpu|cuda(:[0-9]+)?", "auto, cpu, cuda or cuda:N")] = (
        Field("auto", description="auto (CUDA where there is one), cpu or cuda:N.")
    )
    require_device: bool = Field(False, description="Refuse to fall back to the CPU.")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="Of training; auto is bf16 on CUDA devices that have it, else fp32."
    )
    threads: int = Field(1, ge=1, description="CPU threads; one keeps results reproducible.")


class EvaluationConfig(Section):
    bootstrap_samples: int = Field(1000, ge=100, description="Stationary bootstrap draws.")
    significance: float = Field(0.05, gt=0, lt=0.5, description="Level at which skill counts.")


class ReleaseConfig(Section):
    max_left_out_sessions: int = Field(1, ge=0, description="Gaps allowed in the training data.")


class AutomationConfig(Section):
    nightly_time: Annotated[
        str, _matching("([01][0-9]|2[0-3]):[0-5][0-9]", "a time of day, as 22:30")
    ] = Field("22:30", description="When nightly_retrain runs, in nightly_timezone.")
    nightly_timezone: str = Field(
        "America/New_York", description="IANA time zone of nightly_time, as Europe/London."
    )
    enabled: bool = Field(
        True, description="nightly_retrain and new_market_data are on until switched off in the UI."
    )
    landing_interval_seconds: int = Field(
        30, ge=5, description="Seconds between two looks at the landing."
    )

    @field_validator("nightly_timezone")
    @classmethod
    def _zone(cls, value: str) -> str:
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError):
            raise ValueError(
                "must be an IANA time zone, as America/New_York or Europe/London"
            ) from None
        return value


class ModelConfig(BaseModel):
    """One family. Every other key is a setting of the family itself."""

    model_config = ConfigDict(extra="allow", frozen=True)

    enabled: bool = Field(True, description="false leaves the model out of the pipeline.")
    family: str = Field(
        "", description="module:object of a family outside this package; empty for a built-in one."
    )

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the family, and of its training loop in the table ``train``."""
        return dict(self.model_extra or {})


def built_in_families() -> list[str]:
    """Names of the families of this package: the files of ``models/`` that define a FAMILY."""
    files = (Path(__file__).parents[1] / "models").glob("*.py")
    return sorted(f.stem for f in files if "\nFAMILY = " in f.read_text(encoding="utf-8"))


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every value in nested tables, in their order."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


class Config(Section):
    """The whole configuration; see ``foxhunt config show`` for each value and its origin."""

    preset: Literal["demo", "full"] = Field("full", description="Sizes of models and windows.")
    seed: int = Field(7, ge=0, lt=2**31, description="Seed of everything random.")
    first_party: tuple[str, ...] = Field(
        (), description="Your packages whose code counts towards code versions."
    )
    landing: LandingConfig = LandingConfig()
    stores: StoresConfig = StoresConfig()
    market: MarketConfig = MarketConfig()
    universe: UniverseConfig = UniverseConfig()
    validation: ValidationConfig = ValidationConfig()
    clock: ClockConfig = ClockConfig()
    features: FeaturesConfig = FeaturesConfig()
    labels: LabelsConfig = LabelsConfig()
    walk_forward: WalkForwardConfig = WalkForwardConfig()
    costs: CostsConfig = CostsConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    release: ReleaseConfig = ReleaseConfig()
    automation: AutomationConfig = AutomationConfig()
    models: dict[Name, ModelConfig] = Field({}, description="Models by name.")

    @model_validator(mode="after")
    def _places_known(self) -> Config:
        places = {
            "landing": self.landing,
            "stores.artifacts": self.stores.artifacts,
            "stores.releases": self.stores.releases,
        }
        for name, store in places.items():
            if "://" in store.url and not re.match(r"s3://[^/]", store.url):
                raise ValueError(
                    f"{name}.url = {store.url!r} is neither a folder nor s3://bucket/prefix"
                )
        return self

    @model_validator(mode="after")
    def _models_known(self) -> Config:
        for name, model in self.models.items():
            for key, value in leaves(model.settings):
                if isinstance(value, float) and not math.isfinite(value):
                    raise ValueError(f"models.{name}.{key} = {value} must be a finite number")
            if name in RESERVED:
                raise ValueError(f"models.{name}: no model can be called {name}; choose another")
            if model.family and not re.fullmatch(r"[\w.]+:\w+", model.family):
                raise ValueError(f'models.{name}.family = {model.family!r} must be "module:object"')
            if not model.family and name not in built_in_families():
                raise ValueError(
                    f"models.{name}: there is no built-in family {name}; built-in are "
                    f"{', '.join(built_in_families())}. For one of your own set "
                    f'models.{name}.family = "module:object"'
                )
        return self

    def section(self, path: str) -> Any:
        """The value at a dotted path, as plain JSON data."""
        value: Any = self.model_dump(mode="json")
        for part in path.split("."):
            value = value[part]
        return value
