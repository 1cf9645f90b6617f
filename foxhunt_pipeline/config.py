"""One typed configuration.

Layers, later ones winning: built-in defaults, a preset (``presets/*.toml``), ``foxhunt.toml``,
``FOXHUNT_*`` variables (``FOXHUNT_WALK_FORWARD__TRAIN_SESSIONS=4``). Every value remembers the
layer that it came from. A wrong key or value is an error that names it and lists what is allowed.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic import ValidationError as PydanticError

from foxhunt_pipeline.errors import ConfigError

CONFIG_FILE = "foxhunt.toml"
STATE_FOLDER = ".foxhunt"
PREFIX = "FOXHUNT_"
SHORTHANDS = {"FOXHUNT_LANDING": "landing.url"}
"""Variables with a short name, and the key each sets."""
NOT_KEYS = {"FOXHUNT_STATE", "FOXHUNT_CONFIG", "FOXHUNT_TEST_DATA", "FOXHUNT_REQUIRE_TEST_DATA"}
"""Variables with the prefix that are not configuration values."""

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Interval = Annotated[str, Field(pattern=r"^[1-9][0-9]*(ms|s|m|h)$")]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class StoreConfig(Section):
    """A folder or an S3 prefix. Credentials come from the default AWS chain, never from here."""

    url: str = Field(description="Folder, or s3://bucket/prefix.")
    endpoint_url: str | None = Field(None, description="S3 endpoint; unset means AWS.")
    region: str = Field("us-east-1", description="S3 region.")
    addressing_style: Literal["auto", "path", "virtual"] = Field(
        "auto", description="path for most S3-compatible servers."
    )
    ca_bundle: str | None = Field(None, description="CA certificates of the endpoint, PEM.")
    checksum: Literal["when_supported", "when_required"] = Field(
        "when_supported", description="when_required for servers without S3 checksums."
    )

    @property
    def is_s3(self) -> bool:
        return self.url.startswith("s3://")


class LandingConfig(StoreConfig):
    url: str = Field("", description="Where DBN files arrive: folder, or s3://bucket/prefix.")
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
    bars_horizons: tuple[int, ...] = Field((1, 5, 15), description="Rows of the bars clock.")
    book_horizons: tuple[int, ...] = Field((10, 30, 60), description="Rows of the book clock.")
    trend_quantile: float = Field(
        0.33, gt=0, lt=0.5, description="Share of training rows in each of the up and down classes."
    )

    @field_validator("bars_horizons", "book_horizons")
    @classmethod
    def _ascending(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or value[0] < 1 or any(b <= a for a, b in pairwise(value)):
            raise ValueError("horizons must be positive and ascending")
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
        0.1, gt=0, description="A print is quarantined beyond this share of the prints before it,"
    )
    outlier_sigmas: float = Field(
        20.0, gt=0, description="and beyond this many of their robust standard deviations."
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
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]+)?)$")] = Field(
        "auto", description="auto, cpu or cuda:N."
    )
    require_device: bool = Field(False, description="Refuse to fall back to the CPU.")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="auto is bf16 on CUDA devices that have it, else fp32."
    )
    threads: int = Field(1, ge=1, description="CPU threads; one keeps results reproducible.")


class EvaluationConfig(Section):
    bootstrap_samples: int = Field(1000, ge=100, description="Stationary bootstrap draws.")
    significance: float = Field(0.05, gt=0, lt=0.5, description="Level at which skill counts.")


class ReleaseConfig(Section):
    max_left_out_sessions: int = Field(1, ge=0, description="Gaps allowed in the training data.")


class AutomationConfig(Section):
    nightly_time: Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")] = "22:30"
    nightly_timezone: str = "America/New_York"
    enabled: bool = Field(
        True, description="nightly_retrain and new_market_data are on until switched off in the UI."
    )
    landing_interval_seconds: int = Field(30, ge=5, description="Between looks at the landing.")

    @field_validator("nightly_timezone")
    @classmethod
    def _zone(cls, value: str) -> str:
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError):
            raise ValueError(
                "not an IANA time zone, as America/New_York or Europe/London"
            ) from None
        return value


class ModelConfig(BaseModel):
    """One family. Every other key is a setting of the family itself."""

    model_config = ConfigDict(extra="allow", frozen=True)

    enabled: bool = True
    family: str = Field(
        "", description="module:object of a family outside this package; empty for a built-in one."
    )

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


def built_in(name: str) -> Path:
    """File of a built-in family of that name, whether or not it exists."""
    return Path(__file__).parent / "models" / f"{name}.py"


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
    models: dict[Name, ModelConfig] = Field({}, description="Families by name.")

    @model_validator(mode="after")
    def _models_known(self) -> Config:
        for name, model in self.models.items():
            if not model.family and not built_in(name).is_file():
                raise ValueError(
                    f"there is no built-in family {name} ({built_in(name).name}); for one of "
                    f'your own give models.{name}.family = "module:object"'
                )
        return self

    def section(self, path: str) -> Any:
        """The value at a dotted path, as plain JSON data."""
        value: Any = self.model_dump(mode="json")
        for part in path.split("."):
            value = value[part]
        return value


@dataclass(frozen=True)
class Settings:
    """A resolved configuration with its folders and the origin of every value."""

    config: Config
    state: Path
    """State folder: Dagster storage, index, artifacts and releases unless stored elsewhere."""
    root: Path
    """Folder that relative paths of the configuration start from."""
    origins: Mapping[str, str]

    @property
    def landing_url(self) -> str:
        return self._place(self.config.landing.url, "landing")

    @property
    def artifacts(self) -> StoreConfig:
        return self._store(self.config.stores.artifacts, "artifacts")

    @property
    def releases(self) -> StoreConfig:
        return self._store(self.config.stores.releases, "releases")

    def origin(self, key: str) -> str:
        """Where a value came from: ``default``, ``preset demo``, a file or a variable."""
        return self.origins.get(key, "default")

    def values(self) -> Iterator[tuple[str, Any, str]]:
        """(key, value, origin) of every value, in the order of the configuration."""
        for key, value in leaves(self.config.model_dump(mode="json")):
            yield key, value, self.origin(key)

    def _store(self, store: StoreConfig, folder: str) -> StoreConfig:
        return store.model_copy(update={"url": self._place(store.url, folder)})

    def _place(self, url: str, folder: str) -> str:
        if url.startswith("s3://"):
            return url
        return str((self.root / Path(url).expanduser()) if url else self.state / folder)


def load(folder: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Resolve the configuration of ``folder`` (default: ``$FOXHUNT_CONFIG`` or here).

    Raises :class:`ConfigError` naming the wrong key or value and listing what is allowed.
    """
    environ = os.environ if environ is None else environ
    file = _config_file(folder, environ)
    root = file.parent if file else (folder or Path.cwd())
    layers: list[tuple[str, dict[str, Any]]] = []
    if file:
        layers.append((file.name, _read_toml(file)))
    layers.extend(_environment(environ))
    preset = next((layer["preset"] for _, layer in reversed(layers) if "preset" in layer), "full")
    if preset in ("demo", "full"):
        text = (resources.files("foxhunt_pipeline") / "presets" / f"{preset}.toml").read_text()
        layers.insert(0, (f"preset {preset}", tomllib.loads(text)))
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, layer in layers:
        _merge(merged, layer)
        origins.update({key: origin for key, _ in leaves(layer)})
    try:
        config = Config.model_validate(merged)
    except PydanticError as error:
        raise _explain(error, origins) from None
    state = environ.get("FOXHUNT_STATE")
    return Settings(
        config=config,
        state=Path(state).expanduser().absolute() if state else (root / STATE_FOLDER).absolute(),
        root=root.absolute(),
        origins=origins,
    )


def _config_file(folder: Path | None, environ: Mapping[str, str]) -> Path | None:
    named = environ.get("FOXHUNT_CONFIG")
    if folder is None and named:
        path = Path(named).expanduser()
        if not path.is_file():
            raise ConfigError(
                f"FOXHUNT_CONFIG names {path}, which is not a file.",
                remedy="Run foxhunt init there, or unset the variable.",
            )
        return path
    path = (folder or Path.cwd()) / CONFIG_FILE
    return path if path.is_file() else None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}.", remedy="Mend the line.") from None


def _environment(environ: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in NOT_KEYS or environ[name] == "":
            continue
        key = SHORTHANDS.get(name) or name[len(PREFIX) :].lower().replace("__", ".")
        layer: dict[str, Any] = {}
        place = layer
        *parents, last = key.split(".")
        for part in parents:
            place = place.setdefault(part, {})
        place[last] = _literal(environ[name])
        yield name, layer


def _literal(text: str) -> Any:
    """A variable's value: TOML where it is TOML (numbers, lists, booleans), else the text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = json.loads(json.dumps(value)) if isinstance(value, Mapping) else value


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every value in nested tables, in their order."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _explain(error: PydanticError, origins: Mapping[str, str]) -> ConfigError:
    first = error.errors()[0]
    loc = [str(part) for part in first["loc"] if part != "[key]"]
    key = ".".join(loc)
    origin = origins.get(key) or next(
        (origins[k] for k in origins if k.startswith(key + ".") or key.startswith(k + ".")), ""
    )
    where = f" (from {origin})" if origin else ""
    if first["type"] == "extra_forbidden":
        allowed = _allowed(loc[:-1])
        close = difflib.get_close_matches(loc[-1], allowed, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        return ConfigError(
            f"{key} is not a configuration key{where}.",
            remedy=f"{hint} Allowed here: {', '.join(sorted(allowed))}.".strip(),
        )
    message = str(first["msg"]).removeprefix("Value error, ")
    named = f"{key} = {first['input']!r}{where}: " if key else ""
    return ConfigError(f"{named}{message}.", remedy=_describe(loc))


def _field(loc: list[str]) -> Any:
    model: Any = Config
    info: Any = None
    for part in loc:
        fields = getattr(model, "model_fields", {})
        if part not in fields:
            return None
        info = fields[part]
        model = info.annotation
    return info


def _allowed(loc: list[str]) -> list[str]:
    if not loc:
        return list(Config.model_fields)
    info = _field(loc)
    return list(getattr(info.annotation, "model_fields", {})) if info else []


def _describe(loc: list[str]) -> str:
    info = _field(loc)
    return f"{info.description}" if info and info.description else ""


def describe(key: str) -> str:
    """What a configuration key means, or an empty string."""
    return _describe(key.split("."))


def model_settings(config: Config, name: str) -> dict[str, Any]:
    """Settings of one family, as given in the configuration."""
    return config.models[name].settings
