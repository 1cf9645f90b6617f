"""Intervals as the configuration writes them: ``500ms``, ``1s``, ``5m``, ``1h``.

A module of its own, so that stages which only need to read an interval do not depend on the
whole configuration.
"""

from __future__ import annotations

_UNITS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


def interval_ns(interval: str) -> int:
    """Nanoseconds of an interval like ``500ms``, ``1s``, ``5m`` or ``1h``."""
    unit = interval.lstrip("0123456789")
    return int(interval[: -len(unit)]) * _UNITS[unit]
