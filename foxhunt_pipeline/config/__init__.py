"""One typed configuration.

Layers, later ones winning: built-in defaults, a preset (``presets/*.toml``), ``foxhunt.toml``,
``FOXHUNT_*`` variables (``FOXHUNT_WALK_FORWARD__TRAIN_SESSIONS=4``). Every value remembers the
layer that it came from. A wrong key or value is an error that names it and lists what is allowed.
"""

from foxhunt_pipeline.config.explain import allowed, describe, unknown_key
from foxhunt_pipeline.config.layers import CONFIG_FILE, STATE_FOLDER, Settings, load
from foxhunt_pipeline.config.schema import (
    Config,
    LandingConfig,
    ModelConfig,
    StoreConfig,
    built_in_families,
    leaves,
)

__all__ = [
    "CONFIG_FILE",
    "STATE_FOLDER",
    "Config",
    "LandingConfig",
    "ModelConfig",
    "Settings",
    "StoreConfig",
    "allowed",
    "built_in_families",
    "describe",
    "leaves",
    "load",
    "unknown_key",
]
