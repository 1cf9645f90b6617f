"""The configuration written out: as a file to edit, and as documentation.

``python -m foxhunt_pipeline.cli.reference > docs/configuration.md`` writes the documentation.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

from foxhunt_pipeline.config import (
    Config,
    ModelConfig,
    allowed,
    built_in_families,
    describe,
    leaves,
)

_INTRODUCTION = """\
# Configuration

Values come from, later ones winning: built-in defaults, a preset (`demo` or `full`), the file
`foxhunt.toml`, and `FOXHUNT_*` variables. `foxhunt init` writes the file with every key in it,
`foxhunt config show` prints each value with where it came from. A wrong key or value is an error
that names it and lists what is allowed.

A variable's name is the key in capitals with `__` for each dot:
`FOXHUNT_WALK_FORWARD__TRAIN_SESSIONS=4`. Lists and tables are written as in TOML:
`FOXHUNT_UNIVERSE__INSTRUMENTS='["SPY", "IBM"]'`. An empty variable is none.

| variable | meaning |
|---|---|
| `FOXHUNT_CONFIG` | The file to read instead of `foxhunt.toml` in the working folder. |
| `FOXHUNT_STATE` | The state folder, from the working folder; else `.foxhunt` beside the file. |
| `FOXHUNT_LANDING` | Short for `landing.url`. |
| `DAGSTER_HOME` | Dagster's home; else `dagster` in the state folder. |

Relative paths of values start at the folder of `foxhunt.toml`, or at the working folder where
there is none. Credentials of S3 come from the default AWS chain (variables, profile, role) and
are never part of the configuration."""

_MODELS = """\
## models

One table for each model, by name: `[models.tlob]`. A preset adds the built-in families. Every key
beside these two is a setting of the family, and the table `train` holds settings of the training
loop of supervised families."""


def template(landing: str = "") -> str:
    """A ``foxhunt.toml`` with every key at its default, commented out but for the landing."""
    return "\n".join(_template(landing)) + "\n"


def _template(landing: str) -> Iterator[str]:
    yield "# foxhunt_pipeline. Every key is here with its default; uncomment what you change."
    yield "# Each may also be set as a variable: FOXHUNT_WALK_FORWARD__TRAIN_SESSIONS=4"
    section = ""
    for key, value in _defaults():
        table, _, name = key.rpartition(".")
        if table != section:
            section = table
            yield f"\n[{table}]"
        yield f"# {describe(key)} ({allowed(key)})"
        if key == "landing.url" and landing:
            yield f"{name} = {json.dumps(landing)}"
        else:
            yield f"# {name} = {_toml(value)}"
    yield "\n# Models by name; every other key is a setting of the family itself."
    yield "# [models.tlob]"
    yield "# context = 64"
    yield '# [models.mine]\n# family = "my_module:FAMILY"'


def markdown() -> str:
    """The documentation of every key, from the model itself."""
    return "\n".join(_markdown()) + "\n"


def _markdown() -> Iterator[str]:
    yield _INTRODUCTION
    section = None
    for key, value in _defaults():
        table, _, name = key.rpartition(".")
        if table != section:
            section = table
            yield f"\n## {table or 'Top level'}\n"
            yield from _HEAD
        yield _row(name, allowed(key), _toml(value), describe(key))
    yield f"\n{_MODELS}\n"
    yield from _HEAD
    for name, info in ModelConfig.model_fields.items():
        key = f"models.any.{name}"
        yield _row(name, allowed(key), _toml(info.default), describe(key))
    yield from _families()


def _families() -> Iterator[str]:
    from importlib import import_module

    from foxhunt_pipeline.training.settings import TrainSettings

    tables = {
        f"models.{name}": import_module(f"foxhunt_pipeline.models.{name}").FAMILY.config
        for name in built_in_families()
    }
    for title, settings in (tables | {"models.*.train": TrainSettings}).items():
        yield f"\n## {title}\n"
        yield "| key | default | meaning |"
        yield "|---|---|---|"
        meanings = _docstrings(settings)
        for field in fields(settings):
            default = "" if field.default is MISSING else f"`{_toml(field.default)}`"
            yield f"| `{field.name}` | {default} | {meanings.get(field.name, '')} |"


def _docstrings(settings: type[Any]) -> dict[str, str]:
    """The string below each field of a class: what it means."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(settings))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for line, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(line, ast.AnnAssign)
            and isinstance(line.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            found[line.target.id] = " ".join(str(after.value.value).split())
    return found


def _defaults() -> Iterator[tuple[str, Any]]:
    defaults = Config().model_dump(mode="json")
    del defaults["models"]
    yield from leaves(defaults)


_HEAD = ("| key | allowed | default | meaning |", "|---|---|---|---|")


def _row(name: str, kind: str, default: str, meaning: str) -> str:
    return f"| `{name}` | {kind} | `{default}` | {meaning} |"


def _toml(value: object) -> str:
    if value is None:
        return '""'
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    return "{}" if value == {} else json.dumps(value)


if __name__ == "__main__":
    print(markdown(), end="")
