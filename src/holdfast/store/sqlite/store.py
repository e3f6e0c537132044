"""The embedded store: one SQLite file, no server, several processes at once.

WAL with `synchronous=FULL`, set and read back: what was acknowledged survives a power cut. SQLite
comes with `apsw`, because many Pythons carry a library with a known corruption bug.

Not here: appends (`appends.py`), connections, transactions and forks (`connections.py`), the file
itself (`file.py`), schedules, limits and snapshots (`tables.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final, get_type_hints

import apsw

from holdfast.core.events import ALL
from holdfast.core.log import Record
from holdfast.errors import StoreDamaged, UnsafeStore
from holdfast.store import sql
from holdfast.store.base import (
    NO_PROGRESS,
    STATUSES,
    Append,
    ClaimFilter,
    Creation,
    Filter,
    Finding,
    Kind,
    OpenAppend,
    RunRow,
    system_clock,
)
from holdfast.store.checks import (
    check_claim_filters,
    check_filter,
    check_new_run,
    check_text,
)
from holdfast.store.group import AppendGroup, GroupCommit, Ticket
from holdfast.store.sqlite.appends import Appends, Reserve, insert_run
from holdfast.store.sqlite.connections import Connections
from holdfast.store.sqlite.file import DAMAGED, examine
from holdfast.store.sqlite.tables import (
    SQLiteAgents,
    SQLiteLimits,
    SQLiteSchedules,
    SQLiteSnapshots,
)
from holdfast.store.wakeups import Wakeups

POLL_SECONDS: Final = (0.005, 0.25)
"""How often is looked for what other processes do: the shortest pause and the longest."""

_Q: Final = sql.queries("sqlite")
_NO_PROGRESS: Final = json.dumps(NO_PROGRESS)
_ROW_TYPES: Final[tuple[Any, ...]] = tuple(get_type_hints(RunRow).values())
"""Of the columns of a run's row, in the order of `RunRow`."""
_KINDS: Final = {cls.stored_as.encode(): cls.stored_as for cls in ALL.values()}


class SQLiteStore:
    """A Store in one SQLite file (or in memory, with ":memory:", for tests).

    `synchronous="NORMAL"` trades the last commits before a power cut for speed. It is never chosen
    for you, and `holdfast doctor` shows it. `has_reserve=False` holds no space back for receipts, for when the disk
    is full: a store that is deleted after a test needs none.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: str = "FULL",
        clock: Callable[[], int] = system_clock,
        has_reserve: bool = True,
    ) -> None:
        if synchronous not in ("FULL", "NORMAL"):
            raise UnsafeStore(
                f"synchronous must be FULL, or NORMAL to risk the last commits, not {synchronous!r}"
            )
        self.path = str(path)
        self.url = f"sqlite:///{self.path}"
        self.now = clock
        self._connections = Connections(self.path, synchronous, in_child=self._open_queues)
        self._transaction = self._connections.transaction
        self._reading = self._connections.reading
        self._rows = self._connections.rows
        has_reserve &= not (self._connections.in_memory or self._connections.readonly)
        self._reserve = Reserve(Path(self._connections.file + "-reserve"), active=has_reserve)
        self.agents = SQLiteAgents(self._connections)
        self.schedules = SQLiteSchedules(self._connections, self.nudge, clock)
        self.limits = SQLiteLimits(self._connections, clock)
        self.snapshots = SQLiteSnapshots(self._connections, clock)
        self._open_queues()

    def _open_queues(self) -> None:
        """The queues, and those who wait: they belong to one process."""
        self._wakeups = Wakeups()
        self._appends = Appends(
            self._connections, self._reserve, wakeups=self._wakeups, now=self.now
        )
        self._group = AppendGroup(self._appends.commit)
        self._creations = GroupCommit(self._create_batch)

    def close(self) -> None:
        self._creations.close()
        self._group.close()
        self._connections.close()
        self._reserve.close()

    # ── writing ──────────────────────────────────────────────────────────────────────────

    def create(self, creation: Creation) -> Ticket[Creation]:
        check_new_run(creation)
        return self._creations.submit(creation)

    def append(self, work: Append) -> None:
        self._group.append(work)

    def submit(self, work: Append) -> Ticket[Append]:
        return self._group.submit(work)

    def _create_batch(self, batch: Sequence[Creation]) -> Sequence[Exception | None]:
        with self._transaction() as db:
            now = self.now()
            made = [self._create(db, creation, now) for creation in batch]
        self._wakeups.notify_all()
        return [creation.settle(*outcome) for creation, outcome in zip(batch, made, strict=True)]

    def _create(self, db: apsw.Connection, creation: Creation, now: int) -> tuple[RunRow, bool]:
        is_new = insert_run(db, creation, now)
        return self._row(db.execute(_Q["run"], (creation.run.id,)).get), is_new

    def _row(self, columns: tuple[Any, ...]) -> RunRow:
        """A run's row as it was read. SQLite checks types when it writes, and not when it reads."""
        row = RunRow(*columns)
        if row.status not in STATUSES or not _reads_as(columns, _ROW_TYPES):
            raise StoreDamaged(
                f"{self.path}: the row of run {row.id!r} cannot be decoded. {DAMAGED}"
            )
        return row

    def open_append(self, run_id: str, epoch: int) -> AbstractContextManager[OpenAppend]:
        return self._appends.open(run_id, epoch)

    # ── leases ───────────────────────────────────────────────────────────────────────────

    def claim(
        self, run_id: str, *, worker: str, lease_us: int, quota: ClaimFilter | None = None
    ) -> RunRow | None:
        with self._transaction() as db:
            now = self.now()
            if quota is not None and quota.max_running is not None:
                params = {"agent": quota.agent, "now": now}
                if db.execute(_Q["running"], params).get >= quota.max_running:
                    return None
            key = db.execute(_Q["run_key"], (run_id,)).get
            found = self._claim(db, [key], worker, now, lease_us)
        return found[0] if found else None

    def _claim(
        self,
        db: apsw.Connection,
        keys: Sequence[int | None],
        worker: str,
        now: int,
        lease_us: int,
    ) -> list[RunRow]:
        params = {
            "keys": json.dumps(keys),
            "worker": worker,
            "now": now,
            "until": now + lease_us,
            "no_progress": _NO_PROGRESS,
        }
        found = [self._row(row) for row in db.execute(_Q["claim"], params)]
        for row in found:
            self._connections.ends.pop(row.id, None)  # its epoch has grown
        return found

    def claim_due(
        self,
        *,
        worker: str,
        lease_us: int,
        limit: int,
        filters: Sequence[ClaimFilter],
        exclude: Sequence[str] = (),
    ) -> list[RunRow]:
        if limit <= 0:
            return []
        checked = check_claim_filters(filters)
        with self._reading() as db:
            # Without the write lock: an idle worker disturbs no other process.
            if not _due(db, checked, self.now(), 1, exclude):
                return []
        with self._transaction() as db:
            now = self.now()
            keys = [key for _, key in _due(db, checked, now, limit, exclude)]
            found = self._claim(db, keys, worker, now, lease_us)
        place = {key: place for place, key in enumerate(keys)}
        return sorted(found, key=lambda row: place[row.cursor])

    def renew(self, leases: Sequence[tuple[str, int]], *, lease_us: int) -> set[str]:
        now = self.now()
        lost = set()
        with self._transaction() as db:
            for run_id, epoch in leases:
                params = {"id": run_id, "epoch": epoch, "now": now, "until": now + lease_us}
                if db.execute(_Q["renew"], params).get is None:
                    lost.add(run_id)
        return lost

    def release(self, run_id: str, epoch: int, *, died: bool = False) -> bool:
        params = {"id": run_id, "epoch": epoch, "now": self.now(), "forgiven": int(not died)}
        with self._transaction() as db:
            freed = db.execute(_Q["release"], params).get
        self._wakeups.notify(run_id)
        return freed is not None

    # ── reading ──────────────────────────────────────────────────────────────────────────

    def get(self, run_id: str) -> RunRow | None:
        check_text("run id", run_id)
        found = self._rows(_Q["run"], (run_id,))
        return self._row(found[0]) if found else None

    def read(self, run_id: str, *, after: int = -1, limit: int | None = None) -> list[Record]:
        found = self._rows(_Q["read"], (run_id, after, -1 if limit is None else limit))
        # A damaged name may no longer be text; its hash detects it, as for other damage.
        # (`tuple.__new__` because NamedTuple's own constructor is written in Python.)
        new, known = tuple.__new__, _KINDS
        return [
            new(Record, (seq, time, epoch, known.get(kind) or _text(kind), data, hash_))
            for seq, time, epoch, kind, data, hash_ in found
        ]

    def head(self, run_id: str) -> int:
        return self._number("head", run_id)

    def heads(self, run_ids: Sequence[str]) -> dict[str, int]:
        found = self._rows(_Q["heads"], (json.dumps(list(run_ids)),))
        for row in found:
            if not _reads_as(row, (str, int)):
                raise StoreDamaged(f"{self.path}: the end of a log cannot be decoded. {DAMAGED}")
        return dict(found)

    def last_restart(self, run_id: str) -> int:
        return self._number("last_restart", run_id)

    def _number(self, query: str, run_id: str) -> int:
        number: int = self._rows(_Q[query], (run_id,))[0][0]
        return number

    def runs(
        self, filter: Filter = Filter(), *, limit: int = 50, cursor: int | None = None
    ) -> list[RunRow]:
        check_filter(filter)
        params = {**filter._asdict(), "limit": max(0, limit), "cursor": cursor}
        return [self._row(row) for row in self._rows(_Q[sql.listing(filter)], params)]

    def _next_to_do(self, filters: Sequence[ClaimFilter]) -> int | None:
        """When the next of these runs is due, or the next schedule of their agents."""
        agents = json.dumps([one.agent for one in filters])
        with self._reading() as db:
            times = _due_times(db, filters)
            scheduled: int | None = db.execute(_Q["next_schedule"], {"agents": agents}).get
        return min(times if scheduled is None else [*times, scheduled], default=None)

    def kinds(self) -> list[Kind]:
        return [Kind(*row) for row in self._rows(_Q["kinds"])]

    def find_key(self, key: str) -> tuple[str, int] | None:
        check_text("idempotency key", key)
        found = self._rows(_Q["find_key"], (key,))
        if found and not _reads_as(found[0], (str, int)):
            raise StoreDamaged(f"{self.path}: the row of key {key!r} cannot be decoded. {DAMAGED}")
        return (found[0][0], found[0][1]) if found else None

    def blob(self, run_id: str, hash: str) -> bytes | None:
        found = self._rows(_Q["blob"], (run_id, hash))
        return found[0][0] if found else None

    # ── deletion, waiting ─────────────────────────────────────────────────────

    def delete(self, run_id: str) -> bool:
        with self._transaction() as db:
            self._connections.ends.pop(run_id, None)
            key = db.execute(_Q["delete_run"], (run_id,)).get
            if key is None:
                return False
            for name in ("delete_events", "delete_blobs", "delete_snapshots", "delete_keys"):
                db.execute(_Q[name], (key,))
        return True

    def wait(self, run_id: str, *, after: int, timeout: float) -> bool:
        def grown() -> bool:
            return self.head(run_id) > after

        return self._wakeups.wait_until(grown, run_id, timeout, pauses=POLL_SECONDS)

    def wait_due(
        self,
        filters: Sequence[ClaimFilter],
        *,
        timeout: float,
        stop_when: Callable[[], bool] | None = None,
    ) -> bool:
        return self._wakeups.wait_due(
            partial(self._next_to_do, filters),
            self.now,
            stop_when,
            timeout,
            pauses=lambda: POLL_SECONDS,
        )

    def nudge(self) -> None:
        self._wakeups.notify_all()

    # ── self-examination ─────────────────────────────────────────────────────────────────

    def examine(self) -> list[Finding]:
        with self._connections.write:
            found = examine(self._connections.db, self._connections.file)
        return [Finding("store", self.url, True), *found]


def _due(
    db: apsw.Connection,
    filters: Sequence[ClaimFilter],
    now: int,
    limit: int,
    exclude: Sequence[str],
) -> list[tuple[int, int]]:
    """The place in the queue and the key of the first runs that may be claimed."""
    candidates: list[tuple[int, int, ClaimFilter]] = []
    free: dict[str, int] = {}
    for one in filters:
        room = limit
        if one.max_running is not None:
            running = db.execute(_Q["running"], {"agent": one.agent, "now": now}).get
            room = free[one.agent] = max(0, min(limit, one.max_running - running))
        params = {
            "agent": one.agent,
            "code_version": one.code_version,
            "now": now,
            "limit": room,
            "exclude": json.dumps(list(exclude)) if exclude else None,
        }
        candidates += [(rank, key, one) for rank, key in db.execute(_Q["due"], params)]
    chosen: list[tuple[int, int]] = []
    for rank, key, one in sorted(candidates):
        if one.max_running is not None:
            free[one.agent] -= 1
            if free[one.agent] < 0:
                continue
        chosen.append((rank, key))
    return chosen[:limit]


def _due_times(db: apsw.Connection, filters: Sequence[ClaimFilter]) -> list[int]:
    """For each kind of run the next time at which one is due, if any."""
    times = [
        db.execute(_Q["next_due"], {"agent": one.agent, "code_version": one.code_version}).get
        for one in check_claim_filters(filters)
    ]
    return [due for due in times if due is not None]


def _reads_as(columns: tuple[Any, ...], types: tuple[Any, ...]) -> bool:
    """Whether the columns of a row are of these types. SQLite checks that only when it writes."""
    return all(map(isinstance, columns, types))


def _text(stored: Any) -> str:
    """The kind of an event that is not known, whatever is stored there: its hash shows that it is damaged."""
    return stored.decode(errors="replace") if isinstance(stored, bytes) else repr(stored)
