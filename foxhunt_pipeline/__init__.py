"""An incremental machine-learning pipeline for Databento market data."""

from __future__ import annotations

import time
from typing import Final

STARTED_NS: Final = time.time_ns()
"""When this process began to load the package, UTC nanoseconds. A source file saved later may
not be the one that was imported."""
