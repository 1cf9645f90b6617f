"""Imports what the configuration names. Only the engine does this, never a stage."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from foxhunt_pipeline.errors import CodeError
from foxhunt_pipeline.incremental.stages import Stage


def import_entry(stage: Stage) -> ModuleType:
    """Import a stage's entry modules and return the one with its ``build``."""
    for module in stage.reached:
        _import(module)
    return _import(stage.module)


def family_of(stage: Stage) -> Any:
    """The family object of a model's stage."""
    module, _, attribute = stage.family.partition(":")
    return getattr(_import(module), attribute)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise CodeError(
            f"{name} cannot be imported: {error}.", remedy="Install what it needs."
        ) from error
