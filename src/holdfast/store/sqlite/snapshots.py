"""Snapshots in a SQLite file: cached folds, each family rotated by count and age."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, get_type_hints

from holdfast.errors import NotFound
from holdfast.store import sql
from holdfast.store.base import LIVE, Snapshot, rotation_of
from holdfast.store.sqlite.connections import Connections

_Q: Final = sql.queries("sqlite")
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
            key = db.execute(_Q["run_key"], (run_id,)).get
            for live in (False, True):
                rotation = rotation_of(live, keep, max_age_us, self._now())
                deleted += len(
                    db.execute(_Q["rotate_snapshots"], {"run": key, **rotation}).fetchall()
                )
        return deleted
