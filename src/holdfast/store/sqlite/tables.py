"""What a SQLite file has next to its runs: what a fleet shares (registered agents, schedules and limits), and snapshots.

Every method is one short transaction; those that count before they take a seat or turn are serialised by SQLite's
write lock. Snapshots are cached folds, each family rotated by count and age. Not here: when a schedule is due
(`core/cron.py`), how callers wait for a limit (`runtime`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, get_type_hints

from holdfast.errors import NotFound
from holdfast.store import sql
from holdfast.store.base import LIVE, RegisteredAgent, Schedule, Snapshot, rotation_of
from holdfast.store.checks import check_registered, check_text
from holdfast.store.sqlite.connections import Connections

_Q: Final = sql.queries("sqlite")


class SQLiteAgents:
    """See `base.Agents`."""

    def __init__(self, connections: Connections) -> None:
        self._transaction, self._rows = connections.transaction, connections.rows

    def register(self, agents: Sequence[RegisteredAgent]) -> None:
        for agent in agents:
            check_registered(agent)
        with self._transaction() as db:
            db.executemany(_Q["register_agent"], agents)

    def all(self) -> list[RegisteredAgent]:
        return [RegisteredAgent(*row) for row in self._rows(_Q["agents"])]

    def with_runs(self) -> list[str]:
        return [name for (name,) in self._rows(_Q["agent_names"])]


class SQLiteSchedules:
    """See `base.Schedules`."""

    def __init__(
        self, connections: Connections, notify: Callable[[], None], now: Callable[[], int]
    ) -> None:
        self._transaction, self._rows = connections.transaction, connections.rows
        self._notify, self._now = notify, now

    def put(self, schedule: Schedule) -> None:
        with self._transaction() as db:
            db.execute(_Q["put_schedule"], schedule)
        self._notify()

    def all(self) -> list[Schedule]:
        return [Schedule(*row) for row in self._rows(_Q["schedules"])]

    def due(self, agents: Sequence[str], *, limit: int = 100) -> list[Schedule]:
        params = {"agents": json.dumps(list(agents)), "now": self._now(), "limit": limit}
        return [Schedule(*row) for row in self._rows(_Q["due_schedules"], params)]

    def advance(self, schedule: Schedule, *, next_at: int, last_at: int) -> bool:
        params = {
            "id": schedule.id,
            "expected": schedule.next_at,
            "next_at": next_at,
            "last_at": last_at,
        }
        with self._transaction() as db:
            return db.execute(_Q["advance_schedule"], params).get is not None

    def delete(self, schedule_id: str) -> bool:
        check_text("schedule", schedule_id)
        with self._transaction() as db:
            return db.execute(_Q["delete_schedule"], (schedule_id,)).get is not None


class SQLiteLimits:
    """See `base.SharedLimits`."""

    def __init__(self, connections: Connections, now: Callable[[], int]) -> None:
        self._transaction, self._now = connections.transaction, now

    def take_turn(
        self, name: str, holder: str, *, count: int, per_us: int, slack_us: int
    ) -> int | None:
        who = {"name": name, "holder": holder}
        span = per_us + slack_us  # so that one that starts a little late is still within the limit
        with self._transaction() as db:
            now = self._now()
            own = db.execute(_Q["own_turn"], who).get
            if own is not None and own > now:
                at: int = own
                return at
            if own is not None and own + slack_us >= now:
                db.execute(_Q["begin_turn"], who)
                return None
            db.execute(_Q["drop_turn"], who)
            db.execute(_Q["forget_turns"], {"name": name, "before": now - 2 * span})
            last = db.execute(_Q["last_turn"], {"name": name, "count": count}).get
            at = now if last is None else max(now, last + span)
            db.execute(
                _Q["insert_turn"], {"name": name, "at": at, "holder": holder if at > now else ""}
            )
        return at if at > now else None

    def take_seat(self, name: str, holder: str, *, run_id: str, epoch: int, limit: int) -> bool:
        who = {"name": name, "holder": holder}
        with self._transaction() as db:
            db.execute(_Q["free_seats"], {"name": name, "now": self._now()})
            taken, ours = db.execute(_Q["seats"], who).get
            if ours:
                return True
            if taken >= limit:
                return False
            db.execute(_Q["insert_seat"], {**who, "run_id": run_id, "epoch": epoch})
        return True

    def leave_seat(self, name: str, holder: str) -> None:
        with self._transaction() as db:
            db.execute(_Q["leave_seat"], (name, holder))


_TYPES: Final[tuple[Any, ...]] = tuple(get_type_hints(Snapshot).values())


class SQLiteSnapshots:
    """See `base.Snapshots`."""

    def __init__(self, connections: Connections, now: Callable[[], int]) -> None:
        self._transaction, self._rows, self._now = connections.transaction, connections.rows, now

    def save(
        self, run_id: str, snapshot: Snapshot, *, keep: int = 3, max_age_us: int | None = None
    ) -> None:
        with self._transaction() as db:
            key = db.execute(_Q["run_key"], (run_id,)).get
            if key is None:
                raise NotFound(f"no run {run_id!r}")
            db.execute(_Q["save_snapshot"], (key, *snapshot))
            live = snapshot.code_version.startswith(LIVE)
            rotation = rotation_of(live, keep, max_age_us, self._now())
            db.execute(_Q["rotate_snapshots"], {"run": key, **rotation})

    def newest(
        self, run_id: str, *, at_most: int | None = None, live: bool = False
    ) -> Snapshot | None:
        last = 2**62 if at_most is None else at_most
        found = self._rows(_Q["snapshot"], (run_id, last, live))
        # A damaged one is not a snapshot: a cache is done without.
        is_sound = found and all(map(isinstance, found[0], _TYPES))
        return Snapshot(*found[0]) if is_sound else None

    def rotate(self, run_id: str, *, keep: int = 3, max_age_us: int | None = None) -> int:
        deleted = 0
        with self._transaction() as db:
            key, now = db.execute(_Q["run_key"], (run_id,)).get, self._now()
            for live in (False, True):
                rotation = rotation_of(live, keep, max_age_us, now)
                deleted += len(
                    db.execute(_Q["rotate_snapshots"], {"run": key, **rotation}).fetchall()
                )
        return deleted
