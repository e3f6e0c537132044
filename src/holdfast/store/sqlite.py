"""The embedded store: one SQLite file, no server, several processes at once.

One write connection per process, used by one thread at a time; readers have connections of their
own, and none of them crosses a fork. WAL with `synchronous=FULL`, set and read back: what was
acknowledged survives a power cut.
SQLite comes with `apsw`, because many Pythons carry a library with a known corruption bug.

Not here: what events mean, how concurrent appends form batches (`group.py`), the rule of the fence
(`base.refusals`).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import apsw

from holdfast.core.events import ALL
from holdfast.core.log import Blob, Record
from holdfast.errors import (
    InvalidInput,
    KeyTaken,
    NotFound,
    ReadOnlyStore,
    StorageFull,
    StoreBroken,
    StoreError,
    StoreUnavailable,
    UnsafeStore,
)
from holdfast.store import sql
from holdfast.store.base import (
    LIVE,
    MICROSECONDS,
    NO_PROGRESS,
    Append,
    Creation,
    Filter,
    Finding,
    Kind,
    NewRun,
    RowChange,
    RunRow,
    Snapshot,
    Standing,
    Wanted,
    check_append,
    check_filter,
    check_new_run,
    check_text,
    check_wanted,
    refusals,
    rotation_of,
    system_clock,
)
from holdfast.store.group import GroupCommit
from holdfast.store.sqlite_file import BUSY_MS, Reserve, in_our_words, open_database, open_reader
from holdfast.store.sqlite_fleet import SQLiteLimits, SQLiteSchedules

if TYPE_CHECKING:
    import asyncio

POLL_SECONDS_MAX: Final = 0.25
SAFE_LIBRARY: Final = (3, 51, 3)  # earlier ones can lose pages when a commit meets a checkpoint

Rows = list[tuple[Any, ...]]

_Q: Final = sql.queries("sqlite")
_NO_PROGRESS: Final = json.dumps(NO_PROGRESS)
_KINDS: Final = {cls.stored_as.encode(): cls.stored_as for cls in ALL.values()}
_INSERT_ONE: Final = _Q["insert_event"]
_INSERTS: Final = tuple(
    (size, _INSERT_ONE + ", (?, ?, ?, ?, ?, ?, ?)" * (size - 1))
    for size in (128, 64, 32, 16, 8, 4, 2, 1)
)


class SQLiteStore:
    """A Store in one SQLite file (or in memory, with ":memory:", for tests).

    `synchronous="NORMAL"` trades the last commits before a power cut for speed. It is never chosen
    for you, and `holdfast doctor` shows it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: str = "FULL",
        clock: Callable[[], int] = system_clock,
    ) -> None:
        if synchronous not in ("FULL", "NORMAL"):
            raise UnsafeStore(
                f"synchronous must be FULL, or NORMAL to risk the last commits, not {synchronous!r}"
            )
        self.path = str(path)
        self._in_memory = self.path == ":memory:"
        self.url = f"sqlite:///{self.path}"
        self.synchronous = synchronous
        self.now = clock
        self._pid = os.getpid()
        self._write = threading.RLock()
        self._changed = threading.Condition()
        self._waiting = 0
        self._changes = 0
        self._ends: dict[str, Standing] = {}
        self._ends_version: tuple[apsw.Connection, Any] | None = None
        self._broken: StoreError | None = None
        self._closed = False
        self._readers: list[apsw.Connection] = []
        self._reading_ended = threading.Condition()
        self._readings = 0
        self._fork_is_safe = False
        self._connection: apsw.Connection | None = None
        self._connection, self._readonly = open_database(self.path, synchronous)
        self._group = GroupCommit(self._commit)
        self._creations = GroupCommit(self._create_batch)
        self._reserve = Reserve(
            Path(self.path + "-reserve"), active=not (self._in_memory or self._readonly)
        )
        self.schedules = SQLiteSchedules(self._transaction, self._reading, self._notify, self.now)
        self.limits = SQLiteLimits(self._transaction, self.now)
        if not self._in_memory:
            _FORKS.watched.add(self)

    def close(self) -> None:
        self._creations.close()
        self._group.close()
        with self._write:
            self._closed = True
            _FORKS.watched.discard(self)
            self._close_connections()
            self._reserve.close()

    # ── connections ──────────────────────────────────────────────────────────────────────

    @property
    def _db(self) -> apsw.Connection:
        """The write connection; its user holds `_write`. It is opened anew after a fork."""
        if self._in_memory and os.getpid() != self._pid:
            raise StoreUnavailable("an in-memory store does not survive a fork; use a file")
        if self._connection is None:
            self._refuse_if_closed()
            self._connection, self._readonly = open_database(self.path, self.synchronous)
        return self._connection

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")

    def _close_connections(self) -> None:
        connections, self._readers = self._readers, []
        if self._connection is not None:
            connections.append(self._connection)
            self._connection = None
        for connection in connections:
            with contextlib.suppress(apsw.Error):
                connection.close()

    def _before_fork(self) -> None:
        """Close every connection: no SQLite connection may cross a fork.

        SQLite keeps its file locks by process, and a child would inherit the belief that it holds
        its parent's. The next process to close would take itself for the last, and delete the
        write-ahead log under the child. So nothing is open while the fork happens; each side opens
        its own connection when it next needs one.
        """
        seconds = BUSY_MS / 1000
        quiet = self._write.acquire(timeout=seconds)
        self._reading_ended.acquire()
        done = self._reading_ended.wait_for(lambda: not self._readings, timeout=seconds)
        open_transaction = self._connection is not None and self._connection.in_transaction
        self._fork_is_safe = quiet and done and not open_transaction
        if self._fork_is_safe:
            self._close_connections()  # and both locks are kept until the fork has happened
            return
        self._reading_ended.release()
        if quiet:
            self._write.release()

    def _after_fork_in_parent(self) -> None:
        if self._fork_is_safe:
            self._reading_ended.release()
            self._write.release()

    def _after_fork_in_child(self) -> None:
        """Nobody but the forking thread lives on here: locks and queues of others begin anew."""
        self._write = threading.RLock()
        self._changed = threading.Condition()
        self._waiting = 0
        self._reading_ended = threading.Condition()
        self._readings = 0
        self._group = GroupCommit(self._commit)
        self._creations = GroupCommit(self._create_batch)
        if not self._fork_is_safe:
            self._broken = StoreBroken(
                f"{self.path}: this process was forked in the middle of a transaction; "
                "use the store in its parent, or start the process in another way (spawn)"
            )

    def _ready(self) -> apsw.Connection:
        """The write connection, fit to begin a transaction; its user holds `_write`."""
        if self._broken is not None:
            raise StoreBroken(*self._broken.args)
        db = self._db
        if self._readonly:
            raise ReadOnlyStore(f"{self.path} is read-only; nothing was written")
        if db.in_transaction:
            # Whoever holds the write lock and finds a transaction has opened it himself, for a tool.
            raise StoreError(
                "a tool with `tx` cannot write to its run before its receipt is written"
            )
        return db

    def _roll_back(self, db: apsw.Connection, error: BaseException) -> None:
        """Leave no transaction open; raise SQLite's errors in our words."""
        with contextlib.suppress(apsw.Error):
            if db.in_transaction:
                db.execute("ROLLBACK")
        if isinstance(error, apsw.Error):
            raise self._failed(error, db) from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[apsw.Connection]:
        """The write connection inside BEGIN IMMEDIATE … COMMIT; rolled back on any exception."""
        with self._write:
            db = self._ready()
            try:
                db.execute("BEGIN IMMEDIATE")
                yield db
                if db.in_transaction:  # not after a tool's receipt, which commits
                    db.execute("COMMIT")
            except BaseException as error:
                self._roll_back(db, error)
                raise

    def _failed(self, error: apsw.Error, db: apsw.Connection) -> StoreError:
        """What a failed transaction means; one that makes further commits unsafe breaks the store."""
        meaning = in_our_words(self.path, error, db.system_errno)
        if isinstance(error, apsw.IOError) and isinstance(meaning, StoreUnavailable):
            # After a failed fsync the kernel may have dropped the pages it could not write, so a
            # second fsync that succeeds proves nothing. Only a fresh open reads what is really there.
            self._broken = StoreBroken(
                f"{meaning} The disk failed, so this process writes no more; open the store again "
                "once the disk is well, and run `holdfast doctor`"
            )
            return self._broken
        return meaning

    @contextlib.contextmanager
    def _reading(self) -> Iterator[apsw.Connection]:
        if self._in_memory:
            with self._write:
                yield self._db
            return
        with self._reading_ended:
            self._readings += 1
        try:
            try:
                connection = self._readers.pop()
            except IndexError:  # asked for, not looked up before: another thread may take the last
                connection = self._new_reader()
            try:
                yield connection
            except apsw.Error as error:
                raise in_our_words(self.path, error, connection.system_errno) from error
            finally:
                self._readers.append(connection)
        finally:
            with self._reading_ended:
                self._readings -= 1
                self._reading_ended.notify_all()

    def _new_reader(self) -> apsw.Connection:
        self._refuse_if_closed()
        try:
            return open_reader(self.path, immutable=self._readonly == "immutable")
        except apsw.Error as error:
            raise in_our_words(self.path, error) from error

    # ── writing ──────────────────────────────────────────────────────────────────────────

    def create(
        self,
        run: NewRun,
        records: Sequence[Record],
        *,
        blobs: Sequence[Blob] = (),
        worker: str = "",
        lease_us: int = 0,
    ) -> tuple[RunRow, bool]:
        creation = Creation(run, records, blobs, worker, lease_us)
        check_new_run(creation)
        conflict = self._create_batch([creation])[0]
        if conflict is not None:
            raise conflict
        return creation.made

    async def create_async(self, creation: Creation) -> tuple[RunRow, bool]:
        check_new_run(creation)
        await self._creations.append_async(creation)
        return creation.made

    def _create_batch(self, batch: Sequence[Creation]) -> Sequence[Exception | None]:
        with self._transaction() as db:
            made = [self._create(db, creation) for creation in batch]
        self._notify()
        return [creation.settle(*came) for creation, came in zip(batch, made, strict=True)]

    def _create(self, db: apsw.Connection, creation: Creation) -> tuple[RunRow, bool]:
        run, worker, now = creation.run, creation.worker, self.now()
        key = db.execute(
            _Q["create_run"],
            {
                "id": run.id,
                "agent": run.agent,
                "status": "running" if worker else "pending",
                "now": now,
                "epoch": 1 if worker else 0,
                "owner": worker,
                "due_at": now + creation.lease_us if worker else now,
                "claims": 1 if worker else 0,
                "claimed_seq": len(creation.records) - 1 if worker else -1,
                "input_digest": run.input_digest,
                "code_version": run.code_version,
                "parent": run.parent,
                "priority": run.priority,
            },
        ).get
        if key is not None:
            self._insert(db, [(key, *record) for record in creation.records])
            self._insert_blobs(db, key, creation.blobs)
        return RunRow(*db.execute(_Q["run"], (run.id,)).get), key is not None

    def append(self, work: Append) -> None:
        check_append(work)
        self._group.append(work)

    def submit(self, work: Append) -> Callable[[], None]:
        check_append(work)
        return self._group.submit(work)

    def append_async(self, work: Append) -> asyncio.Future[None]:
        check_append(work)
        return self._group.append_async(work)

    def _commit(self, batch: Sequence[Append]) -> Sequence[Exception | None]:
        """Commit a batch; called by one thread at a time."""
        try:
            refused = self._write_batch(batch)
        except StorageFull:
            if not any(work.urgent for work in batch):
                raise
            # A receipt's effect has happened: it gets the space that was held back for it.
            self._reserve.give_up()
            refused = [
                error
                if work.urgent
                else StorageFull(f"{self.path}: the disk is full; nothing was written")
                for work, error in zip(batch, self._write_urgent(batch), strict=True)
            ]
        self._notify()
        return refused

    def _write_urgent(self, batch: Sequence[Append]) -> Iterator[Exception | None]:
        urgent = iter(self._write_batch([work for work in batch if work.urgent]))
        for work in batch:
            yield next(urgent) if work.urgent else None

    def _write_batch(self, batch: Sequence[Append]) -> list[Exception | None]:
        for work in batch:
            if not work.urgent:
                self._reserve.hold()
                break
        with self._write:  # written out, not `_transaction`: this is the hot path
            db = self._ready()
            try:
                db.execute("BEGIN IMMEDIATE")
                standing = self._standing(db, batch)
                refused = refusals(
                    batch,
                    standing,
                    lambda work: self._claim_key(db, work, standing[work.run_id].key),
                )
                self._write_accepted(db, batch, refused, standing)
                db.execute("COMMIT")
            except BaseException as error:
                self._roll_back(db, error)
                raise
            self._remember(batch, refused, standing)
        return refused

    def _write_accepted(
        self,
        db: apsw.Connection,
        batch: Sequence[Append],
        refused: Sequence[Exception | None],
        standing: dict[str, Standing],
    ) -> None:
        rows: list[tuple[Any, ...]] = []
        for work, error in zip(batch, refused, strict=True):
            if error is not None:
                continue
            key = standing[work.run_id].key
            rows += [(key, *record) for record in work.records]
            if work.blobs:
                self._insert_blobs(db, key, work.blobs)
            if work.change is not None:
                self._change(db, key, work.change)
        self._insert(db, rows)

    def _standing(self, db: apsw.Connection, batch: Sequence[Append]) -> dict[str, Standing]:
        """Where each log stands now, inside the transaction.

        What this connection wrote last is remembered. SQLite says whether any other connection, of
        this process or another, has committed since; if one has, everything is read again. What is
        given out is forgotten until it is committed, however the transaction ends.
        """
        version = (db, db.execute("PRAGMA data_version").get)
        if version != self._ends_version:
            self._ends.clear()
            self._ends_version = version
        ends = self._ends
        found: dict[str, Standing] = {}
        unknown: list[str] = []
        for work in batch:
            run_id = work.run_id
            at = ends.pop(run_id, None)
            if at is not None:
                found[run_id] = at
            elif run_id not in found:
                unknown.append(run_id)
        if unknown:
            self._read_ends(db, unknown, found)
        return found

    @staticmethod
    def _read_ends(db: apsw.Connection, run_ids: list[str], found: dict[str, Standing]) -> None:
        alone = len(run_ids) == 1
        params = (run_ids[0] if alone else json.dumps(run_ids),)
        rows: Rows = db.execute(_Q["fence_one" if alone else "fence"], params).fetchall()
        for run_id, key, epoch, head, hash_ in rows:
            found[run_id] = Standing(epoch, head, hash_, key)

    def _remember(
        self,
        batch: Sequence[Append],
        refused: Sequence[Exception | None],
        standing: dict[str, Standing],
    ) -> None:
        """The transaction is committed: the logs end with what it wrote."""
        ends = self._ends
        if len(ends) >= 100_000:
            ends.clear()
        for work, error in zip(batch, refused, strict=True):
            if error is None and work.records and work.change is None:
                last, at = work.records[-1], standing[work.run_id]
                ends[work.run_id] = Standing(at.epoch, last.seq, last.hash, at.key)

    @staticmethod
    def _insert(db: apsw.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Events with their runs' keys, many to a statement.

        At each statement the interpreter's lock is given away, and has to be won back from an event
        loop that is busy making the next events. So there are as few as can be had with statements
        of a few fixed sizes, which stay prepared.
        """
        if len(rows) == 1:
            db.execute(_INSERT_ONE, rows[0])
            return
        at = 0
        for size, statement in _INSERTS:
            while len(rows) - at >= size:
                chunk = rows[at] if size == 1 else list(chain.from_iterable(rows[at : at + size]))
                db.execute(statement, chunk)
                at += size

    @staticmethod
    def _insert_blobs(db: apsw.Connection, key: int, blobs: Sequence[Blob]) -> None:
        for blob in blobs:
            db.execute(_Q["insert_blob"], (key, blob.hash, blob.data))

    @staticmethod
    def _claim_key(db: apsw.Connection, work: Append, key: int) -> KeyTaken | None:
        taken = db.execute(_Q["insert_key"], (work.claims_key, key, work.records[-1].seq)).get
        if taken:
            return None
        run_id, seq = db.execute(_Q["find_key"], (work.claims_key,)).get
        return KeyTaken(work.claims_key, run_id, seq)

    def _change(self, db: apsw.Connection, key: int, change: RowChange) -> None:
        now = self.now()
        if change.status is not None:
            db.execute(
                _Q["settle"],
                {
                    "status": change.status,
                    "due_at": change.due_at,
                    "waiting_for": change.waiting_for,
                    "now": now,
                    "key": key,
                },
            )
        if change.wake:
            db.execute(_Q["wake"], {"now": now, "key": key})
        for run_id in change.wakes:
            db.execute(_Q["wake_by_id"], {"now": now, "id": run_id})

    @contextlib.contextmanager
    def open_append(self, run_id: str, epoch: int) -> Iterator[_OpenAppend]:
        with self._transaction() as db:
            standing = self._standing(db, [Append(run_id, -1, ())])
            after = standing[run_id].head if run_id in standing else -1
            if error := refusals([Append(run_id, after, (), epoch)], standing)[0]:
                raise error
            opened = _OpenAppend(self, db)
            yield opened
            if not opened.done:
                raise StoreError("a transaction for a tool ended without its receipt")
        self._notify()

    # ── leases ───────────────────────────────────────────────────────────────────────────

    def claim(self, run_id: str, *, worker: str, lease_us: int) -> RunRow | None:
        with self._transaction() as db:
            key = db.execute(_Q["run_key"], (run_id,)).get
            found = self._claim(db, [key], worker, lease_us)
        return found[0] if found else None

    def _claim(
        self, db: apsw.Connection, keys: Sequence[int | None], worker: str, lease_us: int
    ) -> list[RunRow]:
        now = self.now()
        params = {"keys": json.dumps(keys), "worker": worker, "now": now, "until": now + lease_us,
                  "no_progress": _NO_PROGRESS}  # fmt: skip
        found = [RunRow(*row) for row in db.execute(_Q["claim"], params)]
        for row in found:
            self._ends.pop(row.id, None)  # its epoch has grown
        return found

    def claim_due(
        self,
        *,
        worker: str,
        lease_us: int,
        limit: int,
        wanted: Sequence[Wanted] | None = None,
        but: Sequence[str] = (),
    ) -> list[RunRow]:
        if limit <= 0:
            return []
        asked = self._wanted(wanted)
        with self._reading() as db:  # a look without the write lock: an idle worker disturbs nobody
            if not self._due(db, asked, 1, but):
                return []
        with self._transaction() as db:
            keys = [key for _, key in self._due(db, asked, limit, but)]
            found = self._claim(db, keys, worker, lease_us)
        place = {key: place for place, key in enumerate(keys)}
        return sorted(found, key=lambda row: place[row.cursor])

    def _wanted(self, wanted: Sequence[Wanted] | None) -> Sequence[Wanted]:
        if wanted is None:
            return [Wanted(kind.agent, kind.code_version) for kind in self.kinds()]
        return check_wanted(wanted)

    def _due(
        self, db: apsw.Connection, wanted: Sequence[Wanted], limit: int, but: Sequence[str]
    ) -> list[tuple[int, int]]:
        """The place in the queue and the key of the first runs that may be taken."""
        now = self.now()
        found: list[tuple[int, int, Wanted]] = []
        free: dict[str, int] = {}
        for one in wanted:
            room = limit
            if one.max_running is not None:
                running = db.execute(_Q["running"], {"agent": one.agent, "now": now}).get
                room = free[one.agent] = max(0, min(limit, one.max_running - running))
            params = {"agent": one.agent, "code_version": one.code_version, "now": now, "limit": room,
                      "but": json.dumps(list(but)) if but else None}  # fmt: skip
            found += [(rank, key, one) for rank, key in db.execute(_Q["due"], params)]
        chosen: list[tuple[int, int]] = []
        for rank, key, one in sorted(found):
            if one.max_running is not None:
                free[one.agent] -= 1
                if free[one.agent] < 0:
                    continue
            chosen.append((rank, key))
        return chosen[:limit]

    def renew(self, held: Sequence[tuple[str, int]], *, lease_us: int) -> set[str]:
        now = self.now()
        lost = set()
        with self._transaction() as db:
            for run_id, epoch in held:
                params = {"id": run_id, "epoch": epoch, "now": now, "until": now + lease_us}
                if db.execute(_Q["renew"], params).get is None:
                    lost.add(run_id)
        return lost

    def release(self, run_id: str, epoch: int, *, died: bool = False) -> bool:
        params = {"id": run_id, "epoch": epoch, "now": self.now(), "forgiven": int(not died)}
        with self._transaction() as db:
            freed = db.execute(_Q["release"], params).get
        self._notify()
        return freed is not None

    # ── reading ──────────────────────────────────────────────────────────────────────────

    def get(self, run_id: str) -> RunRow | None:
        with self._reading() as db:
            found: Rows = db.execute(_Q["run"], (run_id,)).fetchall()
        return RunRow(*found[0]) if found else None

    def read(self, run_id: str, *, after: int = -1, limit: int | None = None) -> list[Record]:
        with self._reading() as db:
            found: Rows = db.execute(
                _Q["read"], (run_id, after, -1 if limit is None else limit)
            ).fetchall()
        # A damaged name may be no text any more; its hash then tells, as for other damage.
        # (`tuple.__new__` because NamedTuple's own constructor is written in Python.)
        new, known = tuple.__new__, _KINDS
        return [
            new(Record, (seq, time, epoch, known.get(kind) or kind.decode(errors="replace"), data, hash_))
            for seq, time, epoch, kind, data, hash_ in found
        ]  # fmt: skip

    def heads(self, run_ids: Sequence[str]) -> dict[str, int]:
        with self._reading() as db:
            found: Rows = db.execute(_Q["heads"], (json.dumps(list(run_ids)),)).fetchall()
        return dict(found)

    def last(self, run_id: str, kind: str) -> int:
        with self._reading() as db:
            seq: int = db.execute(_Q["last"], (run_id, kind)).get
        return seq

    def runs(
        self, which: Filter = Filter(), *, limit: int = 50, cursor: int | None = None
    ) -> list[RunRow]:
        name = (
            "list_by_status"
            if which.status
            else "list_by_agent"
            if which.agent
            else "list_by_parent"
            if which.parent
            else "list"
        )
        check_filter(which)
        params = {**which._asdict(), "limit": max(0, limit), "cursor": cursor}
        with self._reading() as db:
            found: Rows = db.execute(_Q[name], params).fetchall()
        return [RunRow(*row) for row in found]

    def next_due(self, wanted: Sequence[Wanted] | None = None) -> int | None:
        if wanted is None:
            return min((kind.due_at for kind in self.kinds()), default=None)
        with self._reading() as db:
            times = self._due_times(db, wanted)
        return min(times, default=None)

    @staticmethod
    def _due_times(db: apsw.Connection, wanted: Sequence[Wanted]) -> list[int]:
        """For each kind of run the next time at which one is due, if any."""
        times = [
            db.execute(_Q["next_due"], {"agent": one.agent, "code_version": one.code_version}).get
            for one in check_wanted(wanted)
        ]
        return [due for due in times if due is not None]

    def _next_to_do(self, wanted: Sequence[Wanted] | None) -> int | None:
        """When the next of these runs is due, or the next schedule of their agents."""
        if wanted is None:
            return self.next_due()
        agents = json.dumps([one.agent for one in wanted])
        with self._reading() as db:
            times = self._due_times(db, wanted)
            scheduled: int | None = db.execute(_Q["next_schedule"], {"agents": agents}).get
        return min(times if scheduled is None else [*times, scheduled], default=None)

    def kinds(self) -> list[Kind]:
        with self._reading() as db:
            return [Kind(*row) for row in db.execute(_Q["kinds"])]

    def find_key(self, key: str) -> tuple[str, int] | None:
        check_text("idempotency key", key)
        with self._reading() as db:
            found: Rows = db.execute(_Q["find_key"], (key,)).fetchall()
        return found[0] if found else None

    def blob(self, run_id: str, hash: str) -> bytes | None:
        with self._reading() as db:
            data: bytes | None = db.execute(_Q["blob"], (run_id, hash)).get
        return data

    # ── snapshots, deletion, waiting ─────────────────────────────────────────────────────

    def save_snapshot(
        self, run_id: str, snapshot: Snapshot, *, keep: int = 3, max_age_us: int | None = None
    ) -> None:
        with self._transaction() as db:
            key = db.execute(_Q["run_key"], (run_id,)).get
            if key is None:
                raise NotFound(f"there is no run {run_id!r}")
            db.execute(_Q["save_snapshot"], (key, *snapshot))
            live = snapshot.code_version.startswith(LIVE)
            rotation = rotation_of(live, keep, max_age_us, self.now())
            db.execute(_Q["rotate_snapshots"], {"run": key, **rotation})

    def rotate_snapshots(self, run_id: str, *, keep: int = 3, max_age_us: int | None = None) -> int:
        deleted = 0
        with self._transaction() as db:
            key = db.execute(_Q["run_key"], (run_id,)).get
            for live in (False, True):
                rotation = rotation_of(live, keep, max_age_us, self.now())
                gone: Rows = db.execute(_Q["rotate_snapshots"], {"run": key, **rotation}).fetchall()
                deleted += len(gone)
        return deleted

    def snapshot(
        self, run_id: str, *, at_most: int | None = None, live: bool = False
    ) -> Snapshot | None:
        with self._reading() as db:
            newest = 2**62 if at_most is None else at_most
            found: Rows = db.execute(_Q["snapshot"], (run_id, newest, live)).fetchall()
        return Snapshot(*found[0]) if found else None

    def delete(self, run_id: str) -> bool:
        with self._transaction() as db:
            self._ends.pop(run_id, None)
            key = db.execute(_Q["delete_run"], (run_id,)).get
            if key is None:
                return False
            for name in ("delete_events", "delete_blobs", "delete_snapshots", "delete_keys"):
                db.execute(_Q[name], (key,))
        return True

    def _notify(self) -> None:
        if self._waiting:  # somebody who begins to wait just now looks for himself
            with self._changed:
                self._changes += 1
                self._changed.notify_all()

    def wait(self, run_id: str, *, after: int, timeout: float) -> bool:
        def grown() -> bool:
            with self._reading() as db:
                return bool(db.execute(_Q["head"], (run_id,)).get > after)

        return self._poll(grown, timeout)

    def wait_due(
        self,
        wanted: Sequence[Wanted] | None = None,
        *,
        timeout: float,
        or_when: Callable[[], bool] | None = None,
    ) -> bool:
        """Asks again at each change made here, when the next timer ends, and now and then for what
        other processes do; the longer nothing happens, the less often."""
        end = time.monotonic() + timeout
        pause = 0.005
        with self._changed:
            self._waiting += 1
        try:
            while True:
                seen = self._changes
                when, now = self._next_to_do(wanted), self.now()
                if (when is not None and when <= now) or (or_when is not None and or_when()):
                    return True
                left = end - time.monotonic()
                if left <= 0:
                    return False
                if when is not None:
                    left = min(left, (when - now) / MICROSECONDS)
                with self._changed:
                    if self._changes == seen:
                        self._changed.wait(min(pause * random.uniform(0.8, 1.2), left))  # noqa: S311 (only to spread)
                pause = min(pause * 1.5, POLL_SECONDS_MAX)
        finally:
            with self._changed:
                self._waiting -= 1

    def nudge(self) -> None:
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def _poll(self, true: Callable[[], bool], timeout: float) -> bool:
        """Ask again at each change made here, and now and then for changes by other processes."""
        end = time.monotonic() + timeout
        pause = 0.005
        with self._changed:
            self._waiting += 1
        try:
            while not true():
                left = end - time.monotonic()
                if left <= 0:
                    return False
                with self._changed:
                    self._changed.wait(min(pause, left))
                pause = min(pause * 1.5, POLL_SECONDS_MAX)
            return True
        finally:
            with self._changed:
                self._waiting -= 1

    # ── self-examination ─────────────────────────────────────────────────────────────────

    def examine(self) -> list[Finding]:
        library = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
        with self._write:
            journal, level = self._db.pragma("journal_mode"), self._db.pragma("synchronous")
            version = self._db.pragma("user_version")
            problem = self._integrity_problem(self._db)
        mode = None if self._in_memory else Path(self.path).stat().st_mode & 0o777
        return [
            Finding("store", self.url, True),
            Finding("schema", str(version), True),
            Finding(
                "SQLite library",
                apsw.sqlite_lib_version(),
                library >= SAFE_LIBRARY,
                "this version can lose commits; update apsw",
            ),
            Finding(
                "journal", str(journal), journal == "wal" or self._in_memory, "WAL could not be set"
            ),
            Finding(
                "durability",
                {2: "FULL", 1: "NORMAL"}.get(level, str(level)),
                level == 2,
                "the last commits can be lost when power fails; open with synchronous='FULL'",
            ),
            # SQLite's pages carry no checksums; a damaged one is noticed by the chain, or by its shape.
            Finding("checksums", "hash chain of every run", True),
            Finding(
                "integrity",
                problem or "ok",
                not problem,
                "the file is damaged; stop all workers, `holdfast export` what verifies, restore a backup",
            ),
            Finding(
                "file mode",
                "memory" if mode is None else oct(mode)[2:],
                mode in (None, 0o600),
                "others on this machine can read it; chmod 600",
            ),
        ]

    @staticmethod
    def _integrity_problem(db: apsw.Connection) -> str:
        """The first thing that SQLite finds wrong with the file, or nothing."""
        try:
            (said,) = next(iter(db.execute("PRAGMA integrity_check(1)")))
        except apsw.Error as error:
            return str(error)
        return "" if said == "ok" else str(said)


_TOOLS_OWN_ERRORS: Final = (
    apsw.SQLError,
    apsw.ConstraintError,
    apsw.MismatchError,
    apsw.BindingsError,
    apsw.TooBigError,
)


class _OpenAppend:
    """See `base.OpenAppend`: the tool's statements, then its receipt, then COMMIT."""

    def __init__(self, store: SQLiteStore, db: apsw.Connection) -> None:
        self._store, self._db = store, db
        self.tx = self
        self.done = False

    def execute(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement with parameters; its rows."""
        self._refuse_if_over()
        self._db.authorizer = _refuse_transaction_control
        try:
            return self._db.execute(sql, params).fetchall()
        except apsw.AuthError:
            raise InvalidInput(
                "a tool with `tx` must not begin, commit or roll back: Holdfast does, with the receipt"
            ) from None
        except _TOOLS_OWN_ERRORS as error:  # the tool's failure, not the store's
            raise InvalidInput(f"the tool's statement failed: {error}") from error
        finally:
            self._db.authorizer = None

    def _refuse_if_over(self) -> None:
        if self.done:
            raise StoreError("this transaction is over: its receipt has been written")
        if not self._db.in_transaction:  # as after INSERT OR ROLLBACK
            raise InvalidInput(
                "a statement of the tool rolled its transaction back; nothing was written"
            )

    def commit(self, work: Append) -> None:
        check_append(work)
        self._refuse_if_over()
        store, db = self._store, self._db
        standing = store._standing(db, [work])
        error = refusals(
            [work], standing, lambda work: store._claim_key(db, work, standing[work.run_id].key)
        )[0]
        if error is not None:
            raise error
        key = standing[work.run_id].key
        store._insert(db, [(key, *record) for record in work.records])
        store._insert_blobs(db, key, work.blobs)
        if work.change is not None:
            store._change(db, key, work.change)
        db.execute("COMMIT")
        self.done = True


def _refuse_transaction_control(action: int, *_: str | None) -> int:
    return apsw.SQLITE_DENY if action == apsw.SQLITE_TRANSACTION else apsw.SQLITE_OK


class _Forks(threading.local):
    """Has every open store close its connections around a fork.

    What is registered to run at a fork stays registered, so this is done once for all stores: hooks
    of each store's own would be kept, and called, long after it is gone. A thread that forks keeps
    the stores that it has stopped, so that it sets exactly these going again.
    """

    watched: ClassVar[weakref.WeakSet[SQLiteStore]] = weakref.WeakSet()
    stopped: Sequence[SQLiteStore] = ()

    def before(self) -> None:
        self.stopped = tuple(self.watched)
        for store in self.stopped:
            store._before_fork()

    def after_in_parent(self) -> None:
        for store in self.stopped:
            store._after_fork_in_parent()
        self.stopped = ()

    def after_in_child(self) -> None:
        for store in self.stopped:
            store._after_fork_in_child()
        self.stopped = ()


_FORKS: Final = _Forks()
os.register_at_fork(
    before=_FORKS.before,
    after_in_parent=_FORKS.after_in_parent,
    after_in_child=_FORKS.after_in_child,
)
