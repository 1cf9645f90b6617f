"""The layers of the configuration, laid over one another."""

from __future__ import annotations

import copy
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import ValidationError as PydanticError

from foxhunt_pipeline.config.explain import explain, field_at
from foxhunt_pipeline.config.schema import Config, StoreConfig, leaves
from foxhunt_pipeline.errors import ConfigError

CONFIG_FILE = "foxhunt.toml"
STATE_FOLDER = ".foxhunt"
PREFIX = "FOXHUNT_"
SHORTHANDS = {"FOXHUNT_LANDING": "landing.url"}
"""Variables with a short name, and the key each sets."""
NOT_KEYS = {"FOXHUNT_STATE", "FOXHUNT_CONFIG", "FOXHUNT_TEST_DATA", "FOXHUNT_REQUIRE_TEST_DATA"}
"""Variables with the prefix that are not configuration values."""
PRESETS = get_args(Config.model_fields["preset"].annotation)

S = TypeVar("S", bound=StoreConfig)


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
        below = (origin for k, origin in self.origins.items() if k.startswith(f"{key}."))
        return self.origins.get(key) or next(below, "default")

    def values(self) -> Iterator[tuple[str, Any, str]]:
        """(key, value, origin) of every value, in the order of the configuration."""
        for key, value in leaves(self.config.model_dump(mode="json")):
            yield key, value, self.origin(key)

    def _store(self, store: StoreConfig, folder: str) -> StoreConfig:
        return store.model_copy(update={"url": self._place(store.url, folder)})

    def _place(self, url: str, folder: str) -> str:
        if "://" in url:
            return url
        return str((self.root / Path(url).expanduser()) if url else self.state / folder)


def load(folder: Path | str | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Resolve the configuration of ``folder`` (default: ``$FOXHUNT_CONFIG`` or here).

    Raises :class:`ConfigError` naming the wrong key or value and listing what is allowed.
    """
    environ = os.environ if environ is None else environ
    file = _config_file(None if folder is None else Path(folder), environ)
    root = (file.parent if file else Path(folder or ".")).absolute()
    layers = [(file.name, _read_toml(file))] if file else []
    layers += _environment(environ)
    preset = next((layer["preset"] for _, layer in reversed(layers) if "preset" in layer), "full")
    if preset in PRESETS:
        layers.insert(0, (f"preset {preset}", _preset(preset)))
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, layer in layers:
        _merge(merged, layer)
        origins.update({key: origin for key, _ in leaves(layer)})
    try:
        config = Config.model_validate(merged)
    except PydanticError as error:
        raise explain(error, origins) from None
    state = Path(environ.get("FOXHUNT_STATE") or root / STATE_FOLDER)
    return Settings(_rooted(config, root), state.expanduser().absolute(), root, origins)


def _config_file(folder: Path | None, environ: Mapping[str, str]) -> Path | None:
    named = environ.get("FOXHUNT_CONFIG")
    if folder is None and named:
        path = Path(named).expanduser()
        if not path.is_file():
            raise ConfigError(
                f"FOXHUNT_CONFIG names {path}, which is not a file.",
                remedy="Let it name a foxhunt.toml, or unset it.",
            )
        return path
    if folder is not None and not folder.is_dir():
        raise ConfigError(
            f"{folder} is not a folder.", remedy=f"Name the folder that holds {CONFIG_FILE}."
        )
    path = (folder or Path()) / CONFIG_FILE
    return path if path.is_file() else None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}.", remedy="Mend the line.") from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}.", remedy="Give this user the right to."
        ) from None


def _preset(name: str) -> dict[str, Any]:
    file = resources.files("foxhunt_pipeline") / "presets" / f"{name}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _environment(environ: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in NOT_KEYS or environ[name] == "":
            continue
        path = (SHORTHANDS.get(name) or name[len(PREFIX) :].lower().replace("__", ".")).split(".")
        layer: Any = _literal(path, environ[name])
        for part in reversed(path):
            layer = {part: layer}
        yield name, layer


def _literal(path: list[str], text: str) -> Any:
    """A variable's value: TOML where that gives a list, table or quoted text; else the text,
    for the key's type to read. Settings of a family have no type here and are TOML's."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    if isinstance(value, str | list | dict):
        return value
    plain = isinstance(value, bool | int | float) and field_at(path) is None
    return value if plain else text


def _merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)


def _rooted(config: Config, root: Path) -> Config:
    """The configuration with the paths of certificates made absolute."""

    def at(store: S) -> S:
        if store.ca_bundle is None:
            return store
        bundle = str(root / Path(store.ca_bundle).expanduser())
        return store.model_copy(update={"ca_bundle": bundle})

    stores = config.stores
    places = {"artifacts": at(stores.artifacts), "releases": at(stores.releases)}
    return config.model_copy(
        update={"landing": at(config.landing), "stores": stores.model_copy(update=places)}
    )
