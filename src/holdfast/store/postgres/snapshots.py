"""Snapshots in PostgreSQL: cached folds, each family rotated by count and age."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import NotFound
from holdfast.store.base import LIVE, Snapshot, rotation_of
from holdfast.store.postgres.connections import Connection
from holdfast.store.postgres.schedules import ConnectionRunner


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
