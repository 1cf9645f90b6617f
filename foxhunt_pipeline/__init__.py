"""An incremental machine-learning pipeline for Databento market data.

>>> import foxhunt_pipeline as fx
>>> fx.open_asset("features", session="2024-01-02")  # doctest: +SKIP
>>> fx.open_release("tlob")  # doctest: +SKIP

Names are imported when they are first used (see :mod:`foxhunt_pipeline.exports`): importing the
package is cheap, and exporting one more name changes no code version.
"""

from __future__ import annotations

import importlib
import time
from typing import Any, Final

STARTED_NS: Final = time.time_ns()
"""When this process began to load the package, UTC nanoseconds. A source file saved later may
not be the one that was imported."""


def __getattr__(name: str) -> Any:
    home = importlib.import_module("foxhunt_pipeline.exports").HOME
    if name == "__all__":
        return sorted(home)
    if name not in home:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__getattr__("__all__")]
