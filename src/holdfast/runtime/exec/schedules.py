"""Schedules: define them, and create the runs that are due. One run for each time, with any number of workers.

A run's id is made of the schedule's id and the time it is for, so that two workers that see the same
time due create the same run; a worker that dies between creating a run and advancing its schedule leaves
nothing that the next one would do twice.

Not here: when a schedule is due (`core/cron.py`), where it is kept (`store`).
"""

from __future__ import annotations

import logging
import zoneinfo
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.core import cron, values
from holdfast.core.log import check_run_id
from holdfast.errors import HoldfastError, InputConflict, InvalidInput, StoreError
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.exec.engine import Engine
from holdfast.store.base import MICROSECONDS, Schedule, Store
from holdfast.store.checks import check_priority

CATCH_UP: Final = ("latest", "all", "none")
LATE_US: Final = 60 * MICROSECONDS
"""With catch_up="none", a time that is missed by more is passed over."""
AT_ONCE_MAX: Final = 1000
"""How many runs one schedule creates in one go; the rest follows in the next."""

_log: Final = logging.getLogger("holdfast.worker")


def zone_of(name: str) -> zoneinfo.ZoneInfo:
    """The time zone of this name, or InvalidInput."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, TypeError, ValueError, OSError) as error:
        raise InvalidInput(
            f"{name!r} is an unknown time zone; use a name such as Europe/Berlin or UTC. If this system has "
            "no time zones, `pip install tzdata`"
        ) from error


def run_id_for(schedule_id: str, at: int) -> str:
    """The id of the run that a schedule creates for a time."""
    return f"{schedule_id}@{datetime.fromtimestamp(at // MICROSECONDS, UTC):%Y%m%dT%H%MZ}"


def define(
    store: Store,
    spec: AgentSpec,
    expression: str,
    *,
    zone: str,
    input: Mapping[str, Any],
    schedule_id: str,
    priority: int,
    catch_up: str,
) -> Schedule:
    """Keep a schedule. The same one again changes nothing; another one of the same id replaces it, and
    counts from now."""
    if len(check_run_id(schedule_id)) > 150:
        raise InvalidInput(f"the schedule id {schedule_id!r} is longer than 150 characters")
    if catch_up not in CATCH_UP:
        raise InvalidInput(f"catch_up must be one of {', '.join(CATCH_UP)}, not {catch_up!r}")
    if not isinstance(input, Mapping):
        raise InvalidInput(
            f"input takes the agent's arguments by name, for example input={{'n': 1}}, not {input!r}"
        )
    parsed, where = cron.parse(expression), zone_of(zone)
    data, _ = spec.encode_input((), input)
    now = store.now()
    made = Schedule(
        schedule_id,
        spec.name,
        " ".join(expression.split()),
        zone,
        data,
        check_priority(priority),
        catch_up,
        now,
        cron.next_after(parsed, where, now),
    )
    for found in store.schedules.all():
        if found.id == made.id and found[1:7] == made[1:7]:
            return found
    store.schedules.put(made)
    return made


def fire_due(engine: Engine, agents: Mapping[str, AgentSpec]) -> int:
    """Create the runs of these agents' schedules that are due. How many."""
    created = 0
    for schedule in engine.store.schedules.due(sorted(agents)):
        try:
            created += _fire(engine, agents[schedule.agent], schedule)
        except StoreError:
            raise
        except HoldfastError as error:  # one that cannot be read must not delay the others
            _log.warning("schedule %s: %s", schedule.id, error)
    return created


def _fire(engine: Engine, spec: AgentSpec, schedule: Schedule) -> int:
    parsed, zone = cron.parse(schedule.cron), zone_of(schedule.zone)
    now = engine.store.now()
    due, next_at = _due_times(parsed, zone, schedule, now)
    created = 0
    given = values.decode(schedule.input)
    for at in due:
        try:
            run_id = run_id_for(schedule.id, at)
            new = engine.claims.create(spec, run_id, given, claim=False, priority=schedule.priority)
            new.wait()
            created += 1
        except InputConflict as conflict:
            _log.warning("schedule %s: %s", schedule.id, conflict)
    last_at = due[-1] if due else schedule.last_at or schedule.next_at
    engine.store.schedules.advance(schedule, next_at=next_at, last_at=last_at)
    return created


def _due_times(
    parsed: cron.Cron, zone: zoneinfo.ZoneInfo, schedule: Schedule, now: int
) -> tuple[Sequence[int], int]:
    """The times for which a run is to be created now, and the next time after them."""
    if schedule.catch_up == "all":
        due = [schedule.next_at]
        for at in cron.following(parsed, zone, schedule.next_at):
            if at > now or len(due) == AT_ONCE_MAX:
                return due, at
            due.append(at)
    # Only the newest is wanted: look back from now, not forward through years of downtime.
    back = now
    newest: deque[int] = deque(maxlen=1)
    for days in (1, 40, 370, 366 * 9):
        back = max(schedule.next_at - 1, now - days * 86_400 * MICROSECONDS)
        newest.extend(at for at in _until(parsed, zone, back, now))
        if newest or back == schedule.next_at - 1:
            break
    if schedule.catch_up == "none" and newest and now - newest[0] > LATE_US:
        newest.clear()
    return list(newest), cron.next_after(parsed, zone, now)


def _until(parsed: cron.Cron, zone: zoneinfo.ZoneInfo, after: int, now: int) -> Sequence[int]:
    found = []
    for at in cron.following(parsed, zone, after):
        if at > now:
            break
        found.append(at)
    return found
