"""Trading dates against a plain reading of their definition."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foxhunt_pipeline.errors import ConfigError, DataError
from foxhunt_pipeline.market.calendars import CALENDARS, calendar_for

HOLIDAYS_2023 = {
    dt.date(2023, m, d)
    for m, d in (
        [(1, 2), (1, 16), (2, 20), (4, 7), (5, 29), (6, 19), (7, 4), (9, 4), (11, 23), (12, 25)]
    )
}
"""Full-day closings of the New York Stock Exchange, https://www.nyse.com/markets/hours-calendars"""
CME_HOLIDAYS_2023 = {dt.date(2023, 1, 2), dt.date(2023, 4, 7), dt.date(2023, 12, 25)}
"""As ``exchange_calendars`` has them."""
YEAR_2023 = st.integers(1672704000 * 10**9, 1703808000 * 10**9)


def ns(text: str) -> int:
    return int(np.datetime64(text, "ns").astype(np.int64))


def rolled(day: dt.date, closed: set[dt.date]) -> dt.date:
    while day.weekday() > 4 or day in closed:
        day += dt.timedelta(days=1)
    return day


@settings(max_examples=300, deadline=None)
@given(YEAR_2023)
def test_equities_belong_to_the_next_trading_date_in_new_york(instant: int) -> None:
    local = dt.datetime.fromtimestamp(instant // 10**9, ZoneInfo("America/New_York"))
    expected = rolled(local.date(), HOLIDAYS_2023)
    assert str(calendar_for("XNAS.ITCH").session_of(instant)) == str(expected)


@settings(max_examples=300, deadline=None)
@given(YEAR_2023)
def test_futures_roll_at_four_in_chicago(instant: int) -> None:
    local = dt.datetime.fromtimestamp(instant // 10**9, ZoneInfo("America/Chicago"))
    expected = rolled((local + dt.timedelta(hours=8)).date(), CME_HOLIDAYS_2023)
    assert str(calendar_for("GLBX.MDP3").session_of(instant)) == str(expected)


@pytest.mark.parametrize("dataset", ["LEAN.EQUITY", "GLBX.MDP3", "BINANCE.DEMO", "IFUS.IMPACT"])
def test_sessions_tile_time_and_hold_their_regular_hours(dataset: str) -> None:
    calendar = calendar_for(dataset)
    dates = calendar.sessions("2023-12-15", "2024-03-20")
    ends = None
    for date in dates:
        start, end = calendar.bounds(date)
        assert ends in (None, start)
        ends = end
        opens, closes = calendar.regular_hours(date)
        assert start <= calendar.core(date)[0] <= opens < closes <= end
        inside = np.array([start, opens, closes - 1, end - 1])
        assert (calendar.session_of(inside) == np.datetime64(date)).all()
        assert calendar.session_of(end) > np.datetime64(date)


def test_hours_know_daylight_saving_and_early_closes() -> None:
    equities = calendar_for("XNAS.ITCH")
    assert equities.regular_hours("2013-10-07") == (ns("2013-10-07T13:30"), ns("2013-10-07T20:00"))
    assert equities.regular_hours("2023-11-24") == (ns("2023-11-24T14:30"), ns("2023-11-24T18:00"))
    assert equities.bounds("2023-03-13")[1] - equities.bounds("2023-03-13")[0] == 71 * 3600 * 10**9
    futures = calendar_for("GLBX.MDP3")
    assert futures.regular_hours("2024-01-15") == (ns("2024-01-14T23:00"), ns("2024-01-15T18:00"))
    assert futures.regular_hours("2024-01-16")[1] == ns("2024-01-16T22:00")


def test_crypto_days_are_utc_days() -> None:
    calendar = calendar_for("BINANCE.DEMO")
    days = calendar.session_of([ns("2024-08-10T23:59:59.999999999"), ns("2024-08-11T00:00")])
    assert days.astype(str).tolist() == ["2024-08-10", "2024-08-11"]
    assert calendar.regular_hours("2024-08-10") == calendar.bounds("2024-08-10")


def test_configuration_wins_and_the_unknown_is_said() -> None:
    assert calendar_for("GLBX.MDP3", {"GLBX.MDP3": "24/7"}).name == "24/7"
    assert calendar_for("NEW.FEED", {"NEW.FEED": "NYSE"}).name == "XNYS"
    unknown = calendar_for("NEW.FEED")
    assert (unknown.name, unknown.assumed) == ("24/7", True)
    assert not calendar_for("BINANCE.DEMO").assumed
    with pytest.raises(ConfigError, match=r"NEW.FEED = 'XXXX' is not a calendar. Allowed: .*XNYS"):
        calendar_for("NEW.FEED", {"NEW.FEED": "XXXX"})
    with pytest.raises(DataError, match="2023-12-25 is not a trading date of the calendar XNYS"):
        calendar_for("XNAS.ITCH").bounds("2023-12-25")


def test_every_known_dataset_has_a_calendar_that_exists() -> None:
    for dataset in CALENDARS:
        assert calendar_for(dataset, {dataset: CALENDARS[dataset]}).sessions(
            "2024-01-02", "2024-01-12"
        )
