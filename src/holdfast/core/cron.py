"""When is a schedule due? Cron expressions in a time zone, as a pure function.

Five fields: minute, hour, day of month, month, day of week (0 or 7 is Sunday), with lists, ranges, steps
and names; or @hourly, @daily, @weekly, @monthly, @yearly. If both days are restricted, either may match,
as cron has always done.

Clocks that are put forward or back: a schedule that names its hours is due once on each day that it
names. A time that does not exist is due at the first moment after the gap; of a time that exists twice,
the first counts. A schedule for every hour (`*` or `*/n` as the hour) follows elapsed time: it is due in both
hours of a repeated hour, and not in a skipped one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Final

from holdfast.errors import InvalidInput

MICROSECONDS: Final = 1_000_000
DAYS_MAX: Final = 366 * 9
"""How far ahead a date is sought: 29 February can be eight years away."""

_NICKNAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FIELDS: Final = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of month", 1, 31),
    ("month", 1, 12),
    ("day of week", 0, 7),
)
_NAMES: Final = {
    "month": ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    "day of week": ("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
}


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed expression."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool
    every_hour: bool

    def matches(self, day: date) -> bool:
        """Whether it is due at all on this day."""
        if day.month not in self.months:
            return False
        by_date, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return by_date and by_weekday
        return by_date or by_weekday


def parse(text: str) -> Cron:
    """The expression, or InvalidInput that says what is wrong with it."""
    if not isinstance(text, str):
        raise InvalidInput(
            f"a cron expression is text, for example '30 6 * * mon-fri', not {text!r}"
        )
    fields = _NICKNAMES.get(text.strip().lower(), text).split()
    if len(fields) != len(_FIELDS):
        raise InvalidInput(
            f"{text!r} is not a cron expression: use five fields (minute, hour, day of month, month, "
            f"day of week), for example '30 6 * * mon-fri', or one of {', '.join(_NICKNAMES)}"
        )
    minutes, hours, days, months, weekdays = (
        _values(text, field, *of) for field, of in zip(fields, _FIELDS, strict=True)
    )
    cron = Cron(
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        days,
        months,
        frozenset(d % 7 for d in weekdays),
        any_day=fields[2].startswith("*"),
        any_weekday=fields[4].startswith("*"),
        every_hour=fields[1].startswith("*"),
    )
    first = date(2000, 1, 1)
    if not any(cron.matches(first + timedelta(days=n)) for n in range(DAYS_MAX)):
        raise InvalidInput(f"{text!r} is never due: no month has such a day")
    return cron


def _values(text: str, field: str, name: str, low: int, high: int) -> frozenset[int]:
    """The numbers that one field stands for."""
    found: set[int] = set()
    for part in field.split(","):
        span, slash, step_text = part.partition("/")
        step = _number(text, step_text, name, 1, high) if slash else 1
        if span == "*":
            first, last = low, high if name != "day of week" else 6
        else:
            start, dash, end = span.partition("-")
            first = _number(text, start, name, low, high)
            last = _number(text, end, name, low, high) if dash else (high if slash else first)
        if first > last:
            raise InvalidInput(f"{text!r}: in the {name}, {part!r} is reversed")
        found.update(range(first, last + 1, step))
    return frozenset(found)


def _number(text: str, word: str, name: str, low: int, high: int) -> int:
    names = _NAMES.get(name, ())
    if word.lower() in names:
        return names.index(word.lower()) + (1 if name == "month" else 0)
    if word.isascii() and word.isdigit() and low <= int(word) <= high:
        return int(word)
    raise InvalidInput(f"{text!r}: the {name} {word!r} is not a number from {low} to {high}")


def following(cron: Cron, zone: tzinfo, after_us: int) -> Iterator[int]:
    """The times at which it is due after a moment, in order, in microseconds since 1970."""
    after = datetime.fromtimestamp(after_us // MICROSECONDS, UTC)
    day = after.astimezone(zone).date() - timedelta(days=1)
    last = after_us
    idle = 0
    while idle <= DAYS_MAX:
        times = _times(cron, zone, day) if cron.matches(day) else []
        for at in times:
            if at > last:
                last = at
                idle = 0
                yield at
        idle += 1
        if day >= date.max - timedelta(days=2):
            return
        day += timedelta(days=1)


def next_after(cron: Cron, zone: tzinfo, after_us: int) -> int:
    """The first time at which it is due after a moment."""
    for at in following(cron, zone, after_us):
        return at
    raise InvalidInput("this schedule is never due again")


def _times(cron: Cron, zone: tzinfo, day: date) -> list[int]:
    """The moments of one day, in order, each once."""
    found: set[int] = set()
    for hour in cron.hours:
        for minute in cron.minutes:
            found.update(_moments(datetime.combine(day, time(hour, minute)), zone, cron.every_hour))
    return sorted(found)


def _moments(wall: datetime, zone: tzinfo, every_hour: bool) -> list[int]:
    """The moments at which clocks show this time: one; two, or none, when they are put back or forward."""
    first, second = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if first == second:
        return [_us(first)]
    if first < second:  # the clocks show it twice
        return [_us(first), _us(second)] if every_hour else [_us(first)]
    if every_hour:
        return []
    # They never show it. `second` lies before the jump and `first` behind it: find the jump.
    before = second.astimezone(zone).utcoffset()
    low, high = _us(second), _us(first)
    while high - low > MICROSECONDS:
        middle = (low + high) // 2 // MICROSECONDS * MICROSECONDS
        shown = datetime.fromtimestamp(middle // MICROSECONDS, UTC).astimezone(zone)
        low, high = (middle, high) if shown.utcoffset() == before else (low, middle)
    return [high]


def _us(moment: datetime) -> int:
    return round(moment.timestamp()) * MICROSECONDS
