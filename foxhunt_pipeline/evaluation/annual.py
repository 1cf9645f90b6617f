"""How many sessions a year has, for annualised figures."""

from __future__ import annotations

from collections.abc import Mapping

from foxhunt_pipeline.datasets.manifest import DatasetManifest
from foxhunt_pipeline.market.calendars import calendar_for


def sessions_per_year(manifest: DatasetManifest, view: str, calendars: Mapping[str, str]) -> float:
    """Trading dates in the calendar year of the dataset's newest session: about 252 for shares,
    365 for a market that never closes; the larger where a view mixes them.

    calendars: the configuration's ``market.calendars``.
    """
    year = manifest.sessions[-1][:4]
    datasets = {s.dataset for s in manifest.streams.values() if s.view == view}
    return float(
        max(
            len(calendar_for(name, calendars).sessions(f"{year}-01-01", f"{year}-12-31"))
            for name in datasets
        )
    )
