"""When a schedule is due: the syntax, the calendar, and the days on which clocks jump."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import hypothesis.strategies as st
import pytest
from hypothesis import given

from holdfast.core.cron import following, next_after, parse
from holdfast.errors import InvalidInput

BERLIN = ZoneInfo("Europe/Berlin")


def us(text: str) -> int:
    """A time in UTC, as 2026-03-29T01:00, in microseconds."""
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000


def shown(at: int) -> str:
    return f"{datetime.fromtimestamp(at // 1_000_000, UTC):%m-%d %H:%M}"


def times(cron: str, after: str, count: int, zone: ZoneInfo = BERLIN) -> list[str]:
    """The next times in UTC."""
    return [shown(at) for at in itertools.islice(following(parse(cron), zone, us(after)), count)]


@pytest.mark.parametrize(
    ("cron", "due"),
    [
        ("* * * * *", ["01-01 00:01", "01-01 00:02"]),
        ("*/20 5 * * *", ["01-01 05:00", "01-01 05:20"]),
        ("5/20 5 * * *", ["01-01 05:05", "01-01 05:25"]),
        ("0 9-17/4 * * *", ["01-01 09:00", "01-01 13:00"]),
        ("30 6 * * mon-fri", ["01-01 06:30", "01-02 06:30"]),
        ("0 0 * * 7", ["01-04 00:00", "01-11 00:00"]),
        ("0 0 * * SUN,3", ["01-04 00:00", "01-07 00:00"]),
        ("0 0 13 * fri", ["01-02 00:00", "01-09 00:00"]),
        ("0 0 31 * *", ["01-31 00:00", "03-31 00:00"]),
        ("0 0 29 feb *", ["02-29 00:00", "02-29 00:00"]),
        ("@weekly", ["01-04 00:00", "01-11 00:00"]),
        ("@Monthly", ["02-01 00:00", "03-01 00:00"]),
    ],
)
def test_expressions_mean_what_cron_means_by_them(cron: str, due: list[str]) -> None:
    assert due == times(cron, "2026-01-01T00:00", 2, ZoneInfo("UTC"))


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "a * * * *",
        "*/0 * * * *",
        "5-1 * * * *",
        "1,,2 * * * *",
        "- * * * *",
        "0 0 30 feb *",
        "@often",
        "٣ * * * *",
        "1.5 * * * *",
        "-1 * * * *",
    ],
)
def test_an_invalid_expression_or_one_that_is_never_due_is_refused(cron: str) -> None:
    with pytest.raises(InvalidInput):
        parse(cron)


def test_a_time_in_the_missing_hour_is_due_at_the_moment_after_it() -> None:
    """On 29 March 2026 clocks in Berlin go from 2:00 to 3:00, which is 1:00 UTC."""
    assert ["03-28 01:30", "03-29 01:00", "03-30 00:30"] == times(
        "30 2 * * *", "2026-03-28T00:00", 3
    )
    assert ["03-29 01:00", "03-30 00:00"] == times("0,20,40 2 * * *", "2026-03-28T12:00", 2)
    assert ["03-29 01:00", "03-30 00:30"] == times("30 2,3 * * *", "2026-03-28T12:00", 4)[::2]


def test_a_time_in_the_double_hour_is_due_once_at_its_first() -> None:
    """On 25 October 2026 clocks in Berlin go from 3:00 to 2:00, which is 1:00 UTC."""
    assert ["10-24 00:30", "10-25 00:30", "10-26 01:30"] == times(
        "30 2 * * *", "2026-10-23T12:00", 3
    )


def test_an_hourly_schedule_follows_elapsed_time() -> None:
    """No gap in spring, no hour left out in autumn."""
    for day, first in (("2026-03-28T23:59", "03-29"), ("2026-10-24T23:59", "10-25")):
        expected = [f"{first} {hour:02}:{minute}" for hour in range(4) for minute in ("00", "30")]
        assert expected == times("*/30 * * * *", day, 8)


def test_clock_changes_of_half_an_hour_or_a_whole_day_are_handled() -> None:
    """Lord Howe jumps by 30 minutes; Samoa had no 30 December 2011, a Friday."""
    assert ["10-03 15:30", "10-04 15:15"] == times(
        "15 2 * * *", "2026-10-03T12:00", 2, ZoneInfo("Australia/Lord_Howe")
    )
    assert ["12-29 22:00", "12-30 10:00", "12-30 22:00"] == times(
        "0 12 * * *", "2011-12-29T10:00", 3, ZoneInfo("Pacific/Apia")
    )


@given(
    minute=st.sampled_from(("*", "0", "15,45", "*/20", "59")),
    hour=st.sampled_from(("*", "0", "2", "23", "1-3", "*/6")),
    day=st.sampled_from(("*", "1", "25,29", "28-31")),
    weekday=st.sampled_from(("*", "sun", "mon-fri", "0,6")),
    zone=st.sampled_from(
        ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe")
    ),
    start=st.integers(us("2026-01-01T00:00") // 60_000_000, us("2027-12-01T00:00") // 60_000_000),
)
def test_it_is_due_in_every_minute_that_matches_and_in_no_other(
    minute: str, hour: str, day: str, weekday: str, zone: str, start: int
) -> None:
    """Against a look at each minute of three days: what the clock shows there matches, but for times that
    are shown twice, or never, where the rules above hold."""
    cron, tz = parse(f"{minute} {hour} {day} * {weekday}"), ZoneInfo(zone)
    begin = datetime.fromtimestamp(start * 60, UTC)
    expected = set()
    for n in range(1, 3 * 24 * 60):
        moment = begin + timedelta(minutes=n)
        wall = moment.astimezone(tz)
        if wall.minute in cron.minutes and wall.hour in cron.hours and cron.matches(wall.date()):
            expected.add(moment)
    end = begin + timedelta(minutes=3 * 24 * 60)
    found = set()
    for at in following(cron, tz, start * 60_000_000):
        moment = datetime.fromtimestamp(at // 1_000_000, UTC)
        if moment >= end:
            break
        found.add(moment)

    assert [] == [at for at in expected ^ found if cron.every_hour or not is_near_a_jump(at, tz)]


def is_near_a_jump(moment: datetime, zone: ZoneInfo) -> bool:
    """Whether clocks are put forward or back within two hours."""
    offsets = {
        (moment + timedelta(hours=h)).astimezone(zone).utcoffset() for h in (-2, -1, 0, 1, 2)
    }
    return len(offsets) > 1


def test_the_next_time_is_always_later() -> None:
    at = us("2026-01-01T00:00")
    for _ in range(500):
        following_at = next_after(parse("*/7 2,3 * * *"), BERLIN, at)
        assert following_at > at
        at = following_at
