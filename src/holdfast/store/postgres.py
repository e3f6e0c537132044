"""The store for many machines: PostgreSQL, with or without a transaction pooler before it.

Appends of concurrent runs share one statement, which checks every fence and writes every event or
none (`append_events` in `sql/postgres`). Leases and timers go by the database's clock. One connection
is kept for appends and one for leases, so that nothing else in this process can hold them up.

An append whose answer was lost is sent again. That is safe because it says where the log must end:
if the first one was committed, the second does not fit, and the hash that stands in its place tells
that it is ours. The second waits for the first one's locks, so the first is over by then.

Not here: how the server is reached and its errors (`link.py`), being woken (`listen.py`), the schema
(`migrate.py`), the rule of the fence (`base.refusals`).
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

import psycopg
from psycopg import pq

from holdfast.core.log import Blob, Record, check_run_id
from holdfast.errors import (
    Conflict,
    HoldfastError,
    InputConflict,
    InvalidInput,
    KeyTaken,
    NotFound,
    ReadOnlyStore,
    StoreError,
    StoreUnavailable,
)
from holdfast.store import sql
from holdfast.store.arrays import blobs as blob_array
from holdfast.store.arrays import longs, texts
from holdfast.store.base import (
    Append,
    Filter,
    Finding,
    NewRun,
    RunRow,
    Snapshot,
    Standing,
    refusals,
)
from holdfast.store.group import GroupCommit
from holdfast.store.link import Connection, Link, Pool, Route
from holdfast.store.listen import ANY, Bell, Listener
from holdfast.store.migrate import Schema

PATIENCE_SECONDS: Final = 5.0
POLL_SECONDS_MAX: Final = 0.25
RENEWAL_SECONDS_MAX: Final = 5.0
REFUSALS_MAX: Final = 100
OLDEST_SERVER: Final = 140_000

_SCHEMA_NAME: Final = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,39}")


class PostgresStore:
    """A Store in one schema of a PostgreSQL database, made and migrated when first opened.

    `patience` is how many seconds a lost connection is sought again before StoreUnavailable.
    `clock` replaces the database's clock in tests.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "holdfast",
        clock: Callable[[], int] | None = None,
        pool_size: int = 5,
        patience: float = PATIENCE_SECONDS,
        require_fsync: bool = True,
    ) -> None:
        if not _SCHEMA_NAME.fullmatch(schema):
            raise InvalidInput(
                f"{schema!r} is not a schema name: use up to 40 small letters, digits and _, not beginning with pg_"
            )
        self._dsn, self._clock = dsn, clock
        self._options: dict[str, Any] = {"patience": patience, "require_fsync": require_fsync}
        self._pool_size = max(1, pool_size)
        self._channel = f"{schema}_runs"
        # The one thing that cannot be a parameter; its pattern was checked above.
        self._q = {name: _in_schema(text, schema) for name, text in sql.queries("postgres").items()}
        steps = [
            step._replace(sql=_in_schema(step.sql, schema)) for step in sql.migrations("postgres")
        ]
        self._schema = Schema(schema, self._q, steps)
        self._left_behind: list[object] = []
        self._closed = False
        self._set_out()
        self.url = self._route.url
        try:
            self._readonly = self._pool.run(self._prepare)
        except BaseException:
            self.close()
            raise

    def _set_out(self) -> None:
        """Everything that belongs to one process."""
        self._pid = os.getpid()
        self._route = Route(self._dsn, **self._options)
        self._bell = Bell()
        self._listener = Listener(self._route.connect, self._channel, self._bell)
        self._pool = Pool(self._route, self._pool_size)
        self._writer = Link(self._route)
        self._leases = Link(self._route, answer_seconds_max=RENEWAL_SECONDS_MAX)
        self._group = GroupCommit(self._commit)

    def _prepare(self, db: Connection, _unsure: bool) -> bool:
        self._schema.prepare(db, self._route.user or db.info.user)
        return not self._schema.may_write(db)

    def _survive_fork(self) -> None:
        """A connection must not cross a fork: the child opens its own and leaves ours alone."""
        if os.getpid() == self._pid:
            return
        # Kept, so that nothing closes them here: the sockets are still the parent's.
        self._left_behind += [
            self._route,
            self._pool,
            self._writer,
            self._leases,
            self._listener,
            self._group,
        ]
        self._set_out()
        self._pool.run(lambda db, _: db.rows("SELECT 1"))  # sets the clock

    def now(self) -> int:
        return self._route.clock.now() if self._clock is None else self._clock()

    @property
    def _fixed_now(self) -> int | None:
        """What statements are given as the time: nothing, so that they ask the database's clock."""
        return None if self._clock is None else self._clock()

    def close(self) -> None:
        if os.getpid() != self._pid or self._closed:
            return
        self._closed = True
        self._group.close()
        self._route.close()
        self._listener.stop()
        for link in (self._writer, self._leases, self._pool):
            link.close()

    # ── writing ──────────────────────────────────────────────────────────────────────────

    def _check_writable(self) -> None:
        self._survive_fork()
        if self._readonly:
            raise ReadOnlyStore(
                f"{self.url}: this role may read but not write; nothing was written"
            )

    def create(
        self,
        run: NewRun,
        records: Sequence[Record],
        *,
        blobs: Sequence[Blob] = (),
        worker: str = "",
        lease_us: int = 0,
    ) -> tuple[RunRow, bool]:
        check_run_id(run.id)
        self._check_writable()
        epoch = 1 if worker else 0
        params = {
            "id": run.id,
            "agent": run.agent,
            "worker": worker,
            "epoch": epoch,
            "lease": lease_us if worker else 0,
            "claimed_seq": len(records) - 1 if worker else -1,
            "input_digest": run.input_digest,
            "code_version": run.code_version,
            "parent": run.parent,
            "priority": run.priority,
            "now": self._fixed_now,
            "channel": self._channel,
            "blob_hashes": texts([blob.hash for blob in blobs]),
            "blob_datas": blob_array([blob.data for blob in blobs]),
            **_columns(records),
        }

        def create(db: Connection, unsure: bool) -> tuple[RunRow, bool]:
            made = db.change(self._q["create_run"], params)
            if made:
                return RunRow(*made[0][:-1]), True
            row = RunRow(*db.rows(self._q["run"], (run.id,))[0])
            asked = Append(run.id, -1, records)
            return row, unsure and row.owner == worker and self._are_stored(db, [asked])[0]

        row, created = self._pool.run(create)
        if not created:
            if row.agent != run.agent:
                raise InputConflict(run.id, f"agent ({row.agent})")
            if row.input_digest != run.input_digest:
                raise InputConflict(run.id, "input")
        self._bell.ring(run.id)
        return row, created

    def append(self, work: Append) -> None:
        self._check_writable()
        self._group.append(work)

    def append_async(self, work: Append) -> Awaitable[None]:
        self._check_writable()
        return self._group.append_async(work)

    def _commit(self, batch: Sequence[Append]) -> Sequence[Exception | None]:
        """Commit a batch; called by one thread at a time."""
        outcome: list[Exception | None] = [None] * len(batch)
        left = list(range(len(batch)))
        while left:
            going, left = _going_together(batch, left)
            for i, error in zip(going, self._write([batch[i] for i in going]), strict=True):
                outcome[i] = error
        for work in batch:
            self._ring(work)
        return outcome

    def _ring(self, work: Append) -> None:
        self._bell.ring(work.run_id)
        if work.change is not None:
            for run_id in work.change.wakes:
                self._bell.ring(run_id)

    def _write(self, works: Sequence[Append]) -> Sequence[Exception | None]:
        """Commit appends of which each run has one chain; for each None or why not."""
        try:
            return self._writer.run(lambda db, unsure: self._write_fitting(db, works, unsure))
        except HoldfastError as error:
            # PostgreSQL refuses a statement for one bad value in it: find out whose it is.
            if type(error) is StoreError and len(works) > 1:
                return [self._write([work])[0] for work in works]
            return [error] * len(works)

    def _write_fitting(
        self, db: Connection, works: Sequence[Append], unsure: bool
    ) -> Sequence[Exception | None]:
        """Write all that fit. All are sent; if some do not fit none is written, and the rest is sent."""
        outcome: list[Exception | None] = [None] * len(works)
        left = list(range(len(works)))
        for _ in range(REFUSALS_MAX):
            sending = [works[i] for i in left]
            if not sending or self._write_all(db, sending):
                return outcome
            refused = self._refused(db, sending)
            stored = self._are_stored(db, sending) if unsure else [False] * len(sending)
            for i, error, there in zip(left, refused, stored, strict=True):
                outcome[i] = None if there else error
            left = [
                i
                for i, error, there in zip(left, refused, stored, strict=True)
                if error is None and not there
            ]
        raise StoreUnavailable(
            f"{self.url}: other writers were faster {REFUSALS_MAX} times in a row"
        )

    def _write_all(self, db: Connection, works: Sequence[Append]) -> bool:
        """Write all of them durably, or none; whether they fitted."""
        if all(_is_plain(work) for work in works):
            return bool(
                db.execute(self._q["append"], self._arrays(works), binary=True).fetchall()[0][0]
            )
        with db.pipeline():
            db.begin()
            fits = self._put(db, works)
            db.execute("COMMIT" if fits else "ROLLBACK")
        return fits

    def _put(self, db: Connection, works: Sequence[Append]) -> bool:
        """Inside a transaction and a pipeline: write appends and what goes with them, if they fit."""
        changes = [(work.run_id, work.change) for work in works if work.change is not None]
        woken = [run_id for run_id, change in changes if change.wake]
        woken += [run_id for _, change in changes for run_id in change.wakes]
        # All locks first and in one order, also those of runs that are only woken.
        db.execute(self._q["lock"], ([*(work.run_id for work in works), *woken],))
        answers = [db.execute(self._q["append"], self._arrays(works, woken), binary=True)]
        answers += [
            db.execute(self._q["insert_key"], (work.claims_key, work.records[-1].seq, work.run_id))
            for work in sorted(works, key=lambda work: work.claims_key)
            if work.claims_key
        ]
        if not all(row and row[0] for row in [answer.fetchone() for answer in answers]):
            return False
        kept = [(work.run_id, *blob) for work in works for blob in work.blobs]
        if kept:
            ids, hashes, datas = zip(*kept, strict=True)
            db.execute(self._q["insert_blobs"], (texts(ids), texts(hashes), blob_array(datas)))
        settled = [
            (i, c.status, c.due_at, c.waiting_for) for i, c in changes if c.status is not None
        ]
        if settled:
            columns = [list(column) for column in zip(*settled, strict=True)]
            db.execute(self._q["settle"], (self._fixed_now, *columns))
        if woken:
            db.execute(self._q["wake"], (self._fixed_now, woken))
        return True

    def _arrays(self, works: Sequence[Append], woken: Sequence[str] = ()) -> tuple[Any, ...]:
        """The parameters of `append_events`: the logs, then the events with their log's place."""
        logs: dict[str, list[int]] = {}  # id: place, fence, after
        places: list[int] = []
        records: list[Record] = []
        notes = list(woken)
        for work in works:
            log = logs.get(work.run_id)
            if log is None:
                logs[work.run_id] = log = [len(logs) + 1, -1, work.after]
            if work.epoch is not None:
                log[1] = work.epoch
            # Others are told of what they may be waiting for; a worker's plain step is not that.
            if work.epoch is None or work.change is not None:
                notes.append(work.run_id)
            places += [log[0]] * len(work.records)
            records += work.records
        return (
            texts(list(logs)),
            longs([log[1] for log in logs.values()]),
            longs([log[2] for log in logs.values()]),
            longs(places),
            *_columns(records).values(),
            self._channel,
            texts(notes),
        )

    def _refused(self, db: Connection, works: Sequence[Append]) -> list[Exception | None]:
        """Why appends did not fit; None for those that would have."""
        found = db.rows(self._q["standing"], ([work.run_id for work in works],))
        refused = refusals(works, {run_id: Standing(epoch, head) for run_id, epoch, head in found})
        for i, work in enumerate(works):
            if refused[i] is None and work.claims_key:
                taken = db.rows(self._q["find_key"], (work.claims_key,))
                if taken:
                    refused[i] = KeyTaken(work.claims_key, *taken[0])
        return refused

    def _are_stored(self, db: Connection, works: Sequence[Append]) -> list[bool]:
        """Whether these very records stand in their logs, by the hashes of the last ones."""
        places = [(work.run_id, last.seq) for work in works for last in work.records[-1:]]
        params = ([run_id for run_id, _ in places], [seq for _, seq in places])
        found = db.rows(self._q["stored_hashes"], params)
        stored = {(run_id, seq, digest) for run_id, seq, digest in found}
        return [
            any((work.run_id, last.seq, last.hash) in stored for last in work.records[-1:])
            for work in works
        ]

    @contextlib.contextmanager
    def open_append(self, run_id: str, epoch: int) -> Iterator[_OpenAppend]:
        self._check_writable()
        with self._pool.link() as link, link.held() as db:
            # The run's row is not locked while the tool works: its lease must be renewed meanwhile.
            # The fence is looked at now, so as not to work in vain, and checked in the commit.
            with db.pipeline():
                db.begin(idle_seconds_max=0)
                found = db.execute(self._q["standing"], ([run_id],))
            standing = {row[0]: Standing(*row[1:]) for row in found.fetchall()}
            after = standing[run_id].head if standing else -1
            error = refusals([Append(run_id, after, (), epoch)], standing)[0]
            if error is not None:
                raise error
            opened = _OpenAppend(self, db)
            yield opened
            if not opened.done:
                raise StoreError("a transaction for a tool ended without its receipt")

    def _finish(self, db: Connection, work: Append) -> None:
        """End a tool's transaction with its receipt, or leave nothing of it."""
        if db.info.transaction_status == pq.TransactionStatus.INERROR:
            raise StoreError(
                "a statement of this tool failed, so its transaction cannot be committed"
            )
        try:
            with db.pipeline():
                db.set_up_transaction()
                fits = self._put(db, [work])
                db.execute("COMMIT" if fits else "ROLLBACK")
            refused = None if fits else self._refused(db, [work])[0]
        except psycopg.Error as error:
            if not db.closed:
                raise self._route.translated(error) from error
            if not self._was_stored(work):
                raise StoreUnavailable(
                    f"{self._route.describe(error)}. Nothing was written"
                ) from error
            return
        if not fits:
            raise refused or Conflict(work.run_id, work.after, work.after)

    def _was_stored(self, work: Append) -> bool:
        """How a transaction ended whose answer was lost. It held the run's lock until its end, so
        whoever gets the lock now sees the end."""

        def look(db: Connection, _unsure: bool) -> bool:
            with db.pipeline():
                db.begin()
                db.execute(self._q["lock"], ([work.run_id],))
            there = self._are_stored(db, [work])[0]
            db.execute("ROLLBACK")
            return there

        link = Link(self._route)  # not from the pool, which may be empty because of this very tool
        try:
            return link.run(look)
        finally:
            link.close()

    # ── leases ───────────────────────────────────────────────────────────────────────────

    def claim(self, run_id: str, *, worker: str, lease_us: int) -> RunRow | None:
        self._check_writable()
        params = {
            "id": run_id,
            "worker": worker,
            "lease": lease_us,
            "now": self._fixed_now,
            "token": secrets.randbits(62) + 1,
        }

        def claim(db: Connection, unsure: bool) -> list[tuple[Any, ...]]:
            found = db.change(self._q["claim"], params)
            return found or (db.rows(self._q["claimed_by"], params) if unsure else [])

        found = self._pool.run(claim)
        return RunRow(*found[0]) if found else None

    def claim_due(
        self, *, worker: str, lease_us: int, limit: int, agents: Sequence[str] | None = None
    ) -> list[RunRow]:
        self._check_writable()
        params = {
            "id": None,
            "worker": worker,
            "lease": lease_us,
            "now": self._fixed_now,
            "token": secrets.randbits(62) + 1,
            "limit": max(0, limit),
            "agents": None if agents is None else list(agents),
        }

        def claim(db: Connection, unsure: bool) -> list[tuple[Any, ...]]:
            found = db.rows(self._q["claimed_by"], params) if unsure else []
            return found or db.change(self._q["claim_due"], params)

        return [RunRow(*row) for row in self._pool.run(claim)]

    def renew(self, held: Sequence[tuple[str, int]], *, lease_us: int) -> set[str]:
        self._check_writable()
        if not held:
            return set()
        times = {"now": self._fixed_now, "lease": lease_us}

        def renew(db: Connection, _unsure: bool) -> set[str]:
            params = {
                "ids": [run_id for run_id, _ in held],
                "epochs": [epoch for _, epoch in held],
                **times,
            }
            with self._route.clock.asking() as told:
                found = db.change(self._q["renew"], params)
                if found and self._clock is None:
                    told(found[0][1])
            lost = {run_id for run_id, _ in held} - {run_id for run_id, _ in found}
            for run_id, epoch in held:
                if run_id in lost and db.change(
                    self._q["renew_one"], {"id": run_id, "epoch": epoch, **times}
                ):
                    lost.discard(run_id)
            return lost

        return self._leases.run(renew)

    def release(self, run_id: str, epoch: int) -> bool:
        self._check_writable()
        params = {"id": run_id, "epoch": epoch, "now": self._fixed_now, "channel": self._channel}

        def release(db: Connection, unsure: bool) -> bool:
            freed = db.change(self._q["release"], params)
            return bool(freed or (unsure and db.rows(self._q["released"], params)))

        freed = self._pool.run(release)
        self._bell.ring(run_id)
        return freed

    # ── reading ──────────────────────────────────────────────────────────────────────────

    def _rows(
        self, name: str, params: Sequence[Any] | dict[str, Any] = ()
    ) -> list[tuple[Any, ...]]:
        self._survive_fork()
        return self._pool.run(lambda db, _: db.rows(self._q[name], params))

    def get(self, run_id: str) -> RunRow | None:
        found = self._rows("run", (run_id,))
        return RunRow(*found[0]) if found else None

    def read(self, run_id: str, *, after: int = -1, limit: int | None = None) -> list[Record]:
        return [Record(*row) for row in self._rows("read", (run_id, after, limit))]

    def runs(
        self, which: Filter = Filter(), *, limit: int = 50, cursor: int | None = None
    ) -> list[RunRow]:
        if which.status:
            name = "list_by_status"
        elif which.agent:
            name = "list_by_agent"
        elif which.parent:
            name = "list_by_parent"
        else:
            name = "list"
        params = {**which._asdict(), "limit": max(0, limit), "cursor": cursor}
        return [RunRow(*row) for row in self._rows(name, params)]

    def next_due(self) -> int | None:
        due: int | None = self._rows("next_due")[0][0]
        return due

    def find_key(self, key: str) -> tuple[str, int] | None:
        found = self._rows("find_key", (key,))
        return (found[0][0], found[0][1]) if found else None

    def blob(self, run_id: str, hash: str) -> bytes | None:
        found = self._rows("blob", (run_id, hash))
        return bytes(found[0][0]) if found else None

    # ── snapshots, deletion, waiting ─────────────────────────────────────────────────────

    def save_snapshot(self, run_id: str, snapshot: Snapshot, *, keep: int = 3) -> None:
        self._check_writable()

        def save(db: Connection, _unsure: bool) -> None:
            with db.pipeline():
                db.begin()
                found = db.execute(self._q["lock_for_snapshot"], (run_id,)).fetchone()
                if found is None:
                    raise NotFound(f"there is no run {run_id!r}")
                db.execute(self._q["save_snapshot"], (*found, *snapshot))
                db.execute(self._q["rotate_snapshots"], {"run": found[0], "keep": max(1, keep)})
                db.execute("COMMIT")

        self._pool.run(save)

    def snapshot(self, run_id: str, *, at_most: int | None = None) -> Snapshot | None:
        found = self._rows("snapshot", (run_id, 2**62 if at_most is None else at_most))
        return Snapshot(*found[0]) if found else None

    def delete(self, run_id: str) -> bool:
        self._check_writable()

        def delete(db: Connection, unsure: bool) -> bool:
            with db.pipeline():
                db.begin()
                there = db.execute(self._q["lock_to_delete"], (run_id,))
                gone = db.execute(self._q["delete_run"], (run_id,))
                db.execute("COMMIT")
            return bool(gone.fetchall()) or (unsure and not there.fetchall())

        return self._pool.run(delete)

    def wait(self, run_id: str, *, after: int, timeout: float) -> bool:
        def grown() -> bool:
            return bool(self._rows("head", (run_id,))[0][0] > after)

        return self._poll(run_id, grown, timeout)

    def wait_due(self, *, timeout: float) -> bool:
        def due() -> bool:
            when = self.next_due()
            return when is not None and when <= self.now()

        return self._poll(ANY, due, timeout)

    def _poll(self, subject: str, true: Callable[[], bool], timeout: float) -> bool:
        """Ask again whenever somebody rings, and now and then in case nobody can."""
        end = time.monotonic() + timeout
        pause = 0.01
        with self._bell.waiting(subject) as rung:
            self._listener.start()
            while not true():
                left = end - time.monotonic()
                if left <= 0:
                    return False
                if not rung.wait(min(pause, left)):
                    pause = min(pause * 1.5, POLL_SECONDS_MAX)
                rung.clear()
        return True

    # ── self-examination ─────────────────────────────────────────────────────────────────

    def examine(self) -> list[Finding]:
        number, version, fsync, pages, commit, checksums, standby = self._rows("settings")[0]
        schema = self._pool.run(lambda db, _: self._schema.number(db))
        weak = commit in ("off", "local", "remote_write")
        return [
            Finding("store", self.url, True),
            Finding("schema", f"{self._schema.name} {schema}", True),
            Finding("PostgreSQL", version, number >= OLDEST_SERVER, "not tested with versions before 14"),
            Finding("primary", "no" if standby else "yes", not standby,
                    "this is a standby: it can be read, but no worker can use it"),
            Finding("rights", "read" if self._readonly else "read, write", not self._readonly,
                    "this role cannot write; workers need INSERT, UPDATE and DELETE"),
            Finding("fsync", fsync, fsync == "on", "a power cut can lose everything; set fsync=on"),
            Finding("full_page_writes", pages, pages == "on",
                    "a power cut can tear pages, unless the file system never does; set it on"),
            Finding("synchronous_commit", f"{commit}, on for our transactions" if weak else commit, True),
            Finding("data_checksums", checksums, checksums == "on",
                    "a damaged page is noticed late; enable with pg_checksums"),
        ]  # fmt: skip


class _OpenAppend:
    """See `base.OpenAppend`: the tool's statements, then its receipt, then COMMIT."""

    def __init__(self, store: PostgresStore, db: Connection) -> None:
        self._store, self._db = store, db
        self.tx = self
        self.done = False

    def execute(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement with parameters; its rows."""
        if self.done:
            raise StoreError("this transaction is over: its receipt has been written")
        cursor = self._db.execute(sql, params)
        if self._db.info.transaction_status == pq.TransactionStatus.IDLE:
            raise StoreError(
                "a tool with `tx` must not commit or roll back: Holdfast does, with the receipt"
            )
        return cursor.fetchall() if cursor.description else []

    def commit(self, work: Append) -> None:
        self._store._finish(self._db, work)
        self.done = True
        self._store._ring(work)


def _in_schema(text: str, schema: str) -> str:
    return text.replace("holdfast.", f'"{schema}".').replace(
        "SCHEMA holdfast", f'SCHEMA "{schema}"'
    )


def _columns(records: Sequence[Record]) -> dict[str, bytes]:
    """Records as arrays, one a column, in the order of their fields."""
    seqs, times, epochs, kinds, datas, hashes = zip(*records, strict=True) if records else ((),) * 6
    return {
        "seqs": longs(seqs),
        "times": longs(times),
        "epochs": longs(epochs),
        "kinds": texts(kinds),
        "datas": blob_array(datas),
        "hashes": blob_array(hashes),
    }


def _is_plain(work: Append) -> bool:
    return work.change is None and not work.blobs and not work.claims_key


def _going_together(batch: Sequence[Append], left: Sequence[int]) -> tuple[list[int], list[int]]:
    """Which appends go into the next statement, and which have to wait for the one after.

    Of one run only those that follow each other without a gap: `append_events` compares a log's end
    once. Nothing overtakes an earlier append of its run.
    """
    going: list[int] = []
    later: list[int] = []
    last: dict[str, Append | None] = {}
    for i in left:
        work = batch[i]
        if work.run_id in last:
            before = last[work.run_id]
            if before is None or not _follows(before, work):
                last[work.run_id] = None
                later.append(i)
                continue
        last[work.run_id] = work
        going.append(i)
    return going, later


def _follows(before: Append, work: Append) -> bool:
    return (
        before.change is None
        and work.after == before.after + len(before.records)
        and work.epoch == before.epoch
    )
