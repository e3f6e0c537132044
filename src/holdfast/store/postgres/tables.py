"""What a PostgreSQL schema has next to its runs: what a fleet shares (registered agents, schedules and limits), and snapshots.

A transaction that counts before it takes a seat or turn locks the limit's name first, with an advisory lock
that ends with it (so it works behind a transaction pooler). An attempt without a response may be
repeated: at worst a turn is lost, and a limit is never exceeded. Snapshots are cached folds, each family rotated by count
and age.

Not here: when a schedule is due (`core/cron.py`), how callers wait for a limit (`runtime`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from holdfast.errors import NotFound
from holdfast.store.base import LIVE, RegisteredAgent, Schedule, Snapshot, rotation_of
from holdfast.store.checks import check_registered, check_text
from holdfast.store.postgres.connections import Connection

T = TypeVar("T")


class ConnectionRunner(Protocol):
    """Do work on some connection of the store's pool; see `link.Link.run`."""

    def __call__(self, work: Callable[[Connection, bool], T], *, write: bool = True) -> T: ...


class PostgresAgents:
    """See `base.Agents`."""

    def __init__(self, run: ConnectionRunner, queries: dict[str, str]) -> None:
        self._run, self._q = run, queries

    def register(self, agents: Sequence[RegisteredAgent]) -> None:
        ordered = sorted(map(check_registered, agents))  # so that two workers never deadlock

        def register(db: Connection, _unsure: bool) -> None:
            with db.pipeline():
                db.begin()
                for agent in ordered:
                    db.execute(self._q["register_agent"], agent)
                db.execute("COMMIT")

        self._run(register)

    def all(self) -> list[RegisteredAgent]:
        found = self._run(lambda db, _: db.rows(self._q["agents"], None), write=False)
        return [RegisteredAgent(*row) for row in found]

    def with_runs(self) -> list[str]:
        found = self._run(lambda db, _: db.rows(self._q["agent_names"], None), write=False)
        return [name for (name,) in found]


class PostgresSchedules:
    """See `base.Schedules`."""

    def __init__(
        self,
        run: ConnectionRunner,
        queries: dict[str, str],
        fixed_now: Callable[[], int | None],
        changed: Callable[[], None],
    ) -> None:
        self._run, self._q, self._fixed_now, self._changed = run, queries, fixed_now, changed

    def put(self, schedule: Schedule) -> None:
        def put(db: Connection, _unsure: bool) -> None:
            db.execute(self._q["put_schedule"], schedule)

        self._run(put)
        self._changed()

    def all(self) -> list[Schedule]:
        return self._rows("schedules", None)

    def due(self, agents: Sequence[str], *, limit: int = 100) -> list[Schedule]:
        params = {"agents": list(agents), "now": self._fixed_now(), "limit": limit}
        return self._rows("due_schedules", params)

    def _rows(self, name: str, params: Any) -> list[Schedule]:
        found = self._run(lambda db, _: db.rows(self._q[name], params), write=False)
        return [Schedule(*row) for row in found]

    def advance(self, schedule: Schedule, *, next_at: int, last_at: int) -> bool:
        params = {
            "id": schedule.id,
            "expected": schedule.next_at,
            "next_at": next_at,
            "last_at": last_at,
        }
        return bool(self._run(lambda db, _: db.change(self._q["advance_schedule"], params)))

    def delete(self, schedule_id: str) -> bool:
        params = (check_text("schedule", schedule_id),)

        def delete(db: Connection, unsure: bool) -> bool:
            return bool(db.change(self._q["delete_schedule"], params)) or unsure

        return self._run(delete)


class PostgresLimits:
    """See `base.SharedLimits`."""

    def __init__(
        self,
        run: ConnectionRunner,
        queries: dict[str, str],
        fixed_now: Callable[[], int | None],
        space: str,
    ) -> None:
        self._run, self._q, self._fixed_now, self._space = run, queries, fixed_now, space

    def take_turn(
        self, name: str, holder: str, *, count: int, per_us: int, slack_us: int
    ) -> int | None:
        params = {
            "name": name,
            "holder": holder,
            "count": count,
            "span": per_us + slack_us,
            "slack": slack_us,
            "now": self._fixed_now(),
        }
        (at, now), *_ = self._locked("turn", name, params, "forget_turns", "take_turn")
        return at if at > now else None

    def take_seat(self, name: str, holder: str, *, run_id: str, epoch: int, limit: int) -> bool:
        params = {
            "name": name,
            "holder": holder,
            "run_id": run_id,
            "epoch": epoch,
            "limit": limit,
            "now": self._fixed_now(),
        }
        return bool(self._locked("seat", name, params, "free_seats", "take_seat"))

    def _locked(self, what: str, name: str, params: dict[str, Any], *queries: str) -> list[Any]:
        """The rows of the last of some statements, in one transaction that has locked the name."""

        def work(db: Connection, _unsure: bool) -> list[Any]:
            with db.pipeline():
                db.begin()
                db.execute(self._q["lock_names"], (f"{self._space} {what}", [name]))
                done = [db.execute(self._q[query], params) for query in queries]
                db.execute("COMMIT")
            return done[-1].fetchall()

        return self._run(work)

    def leave_seat(self, name: str, holder: str) -> None:
        self._run(lambda db, _: db.change(self._q["leave_seat"], (name, holder)))


class PostgresSnapshots:
    """See `base.Snapshots`."""

    def __init__(
        self, run: ConnectionRunner, queries: dict[str, str], now: Callable[[], int]
    ) -> None:
        self._run, self._q, self._now = run, queries, now

    def save(
        self, run_id: str, snapshot: Snapshot, *, keep: int = 3, max_age_us: int | None = None
    ) -> None:
        live = snapshot.code_version.startswith(LIVE)
        rotation = rotation_of(live, keep, max_age_us, self._now())

        def save(db: Connection, _unsure: bool) -> None:
            with db.pipeline():
                db.begin()
                found = db.execute(self._q["lock_for_snapshot"], (run_id,)).fetchone()
                if found is None:
                    raise NotFound(f"no run {run_id!r}")
                db.execute(self._q["save_snapshot"], (*found, *snapshot))
                db.execute(self._q["rotate_snapshots"], {"run": found[0], **rotation})
                db.execute("COMMIT")

        self._run(save)

    def newest(
        self, run_id: str, *, at_most: int | None = None, live: bool = False
    ) -> Snapshot | None:
        params = (run_id, 2**62 if at_most is None else at_most, live)
        found = self._run(lambda db, _: db.rows(self._q["snapshot"], params), write=False)
        return Snapshot(*found[0]) if found else None

    def rotate(self, run_id: str, *, keep: int = 3, max_age_us: int | None = None) -> int:
        rotations = [rotation_of(live, keep, max_age_us, self._now()) for live in (False, True)]

        def rotate(db: Connection, _unsure: bool) -> int:
            found = db.execute(self._q["lock_for_snapshot"], (run_id,)).fetchone()
            if found is None:
                return 0
            gone = [
                db.execute(self._q["rotate_snapshots"], {"run": found[0], **rotation}).fetchall()
                for rotation in rotations
            ]
            return sum(map(len, gone))

        return self._run(rotate)
