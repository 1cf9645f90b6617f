"""What a key means and allows, and what to say of a wrong one."""

from __future__ import annotations

import difflib
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel
from pydantic import ValidationError as PydanticError
from pydantic.fields import FieldInfo

from foxhunt_pipeline.config.schema import Config, Matching
from foxhunt_pipeline.errors import ConfigError

_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_NAMES = {bool: "true or false", int: "integer", float: "number", str: "text"}
_SHAPES = {
    "model_type": "must be a table",
    "dict_type": "must be a table",
    "tuple_type": 'must be a list, as ["a", "b"] or [1, 5]',
    "string_type": "must be text",
}


def field_at(path: Sequence[str]) -> FieldInfo | None:
    """The field of a key; for an entry of a list or table, the field of that; else None."""
    info: FieldInfo | None = None
    place: Any = Config
    for part in path:
        if isinstance(place, type) and issubclass(place, BaseModel):
            if part not in place.model_fields:
                return None
            info = place.model_fields[part]
            place = info.annotation
        elif get_origin(place) is dict:
            place = get_args(place)[1]
    return info


def describe(key: str) -> str:
    """What a configuration key means, or an empty string."""
    info = field_at(key.split("."))
    return (info.description or "") if info else ""


def allowed(key: str) -> str:
    """The values that a configuration key may have, for people; empty for a key that is none."""
    info = field_at(key.split("."))
    return kind(info.annotation, info.metadata) if info else ""


def kind(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """An annotation in words: ``integer, at least 1``."""
    for check in metadata:
        if isinstance(check, AfterValidator) and isinstance(check.func, Matching):
            return check.func.expected
    if hasattr(annotation, "__metadata__"):
        return kind(annotation.__origin__, annotation.__metadata__)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        return kind(next(a for a in arguments if a is not type(None)))
    if origin is tuple:
        return f"list of {kind(arguments[0])}"
    if origin is dict:
        return f"table of {kind(arguments[1])} by name"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    bounds = [
        f"{words} {getattr(m, name)}"
        for m in metadata
        for name, words in _BOUNDS.items()
        if getattr(m, name, None) is not None
    ]
    return ", ".join([_NAMES.get(annotation, "value"), *bounds])


def unknown_key(key: str, known: Collection[str], origin: str = "") -> ConfigError:
    """The error for a key that there is not, beside those that there are."""
    close = difflib.get_close_matches(key.rpartition(".")[2], known, n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    return ConfigError(
        f"{key} is not a configuration key{_from(origin)}.",
        remedy=f"{hint}Allowed here: {', '.join(sorted(known))}.",
    )


def explain(error: PydanticError, origins: Mapping[str, str]) -> ConfigError:
    """The first of the mistakes that pydantic found, as the user's own key and value."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"] if part != "[key]"]
    key = ".".join(path)
    origin = _origin(key, origins)
    if first["type"] == "extra_forbidden":
        return unknown_key(key, _keys_beside(path), origin)
    message = _SHAPES.get(first["type"]) or str(first["msg"])
    message = message.removeprefix("Value error, ").replace("Input should", "must")
    if not key:
        return ConfigError(f"{message}.", remedy="See docs/configuration.md.")
    if "[key]" in first["loc"]:
        return ConfigError(f"{key}{_from(origin)}: the name {message}.", remedy="Rename it.")
    said = first["type"] in ("value_error", "literal_error") or not allowed(key)
    words = ["" if said else f"Allowed: {allowed(key)}.", describe(key)]
    return ConfigError(
        f"{key} = {first['input']!r}{_from(origin)}: {message.removesuffix('.')}.",
        remedy=" ".join(filter(None, words)),
    )


def _keys_beside(path: Sequence[str]) -> list[str]:
    if len(path) == 1:
        return list(Config.model_fields)
    info = field_at(path[:-1])
    return list(getattr(info.annotation, "model_fields", {})) if info else []


def _origin(key: str, origins: Mapping[str, str]) -> str:
    """The origin of a key, else of what lies below it or holds it, or an empty string."""
    near = (o for k, o in origins.items() if k.startswith(f"{key}.") or key.startswith(f"{k}."))
    return origins.get(key) or next(near, "")


def _from(origin: str) -> str:
    return f" (from {origin})" if origin else ""
