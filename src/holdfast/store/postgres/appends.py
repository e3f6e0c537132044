"""Appending to logs in PostgreSQL, in batches.

Appends of concurrent runs share one statement, which checks every fence and writes every event or
none (`append_events` in `sql/postgres`). If one does not fit, it is taken out and the others are
sent again.

An append whose response was lost is sent again too. That is safe because an append names the expected end
of the log: if the first one was committed, the second does not fit, and the hash at that position
shows that it is ours. The second waits for the locks of the first, so the first has ended by then.

Not here: how batches form (`group.py`), the rule of the fence (`fence.py`), lost connections
(`connections.py`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import psycopg
from psycopg import pq

from holdfast.core.log import Record
from holdfast.errors import (
    Conflict,
    InvalidInput,
    KeyTaken,
    LeaseLost,
    StoreError,
    StoreUnavailable,
)
from holdfast.store.base import Append
from holdfast.store.fence import LogPosition, refusals
from holdfast.store.postgres.arrays import BinaryValue, Text, blobs, longs, texts
from holdfast.store.postgres.connections import Connection, Link, Route, is_about_one
from holdfast.store.postgres.timeline import StoreContext
from holdfast.store.tool_transaction import (
    ToolTransaction,
    cannot_commit,
    not_the_tools,
    without_receipt,
)

REFUSALS_MAX: Final = 100

_SYNTAX: Final = "42601"
_ENDS_INSIDE: Final = "2D000"
"""A COMMIT or ROLLBACK inside a function or a DO block."""
_PREPARING: Final = "exec_parse_message"
"""The server's routine that takes one statement and refuses a second. The parser, whose errors have the same
SQLSTATE, has routines of its own. (Error field R of the protocol, which is not translated.)"""
_BLANKS: Final = " \t\r\n\f\v;"
_TRANSACTION_CONTROL: Final = re.compile(
    r"(BEGIN|START|COMMIT|END|ABORT|ROLLBACK(?!\s+(WORK\s+|TRANSACTION\s+)?TO\b)|PREPARE\s+TRANSACTION)\b",
    re.IGNORECASE,
)


class Appends:
    """Writes batches of appends, and the receipts of tools that take `tx`."""

    def __init__(self, route: Route, context: StoreContext) -> None:
        self._route, self._link = route, Link(route)
        self._q, self._wakeups, channel, self._fixed_now, self._history = context
        self._append = self._q["append"].encode()
        self._channel = Text(channel.encode())

    def close(self) -> None:
        self._link.close()

    def commit(self, batch: Sequence[Append]) -> Sequence[Exception | None]:
        """Commit a batch; called by one thread at a time."""
        if _are_independent(batch):
            outcome = self._write(batch)
        else:
            outcome = self._write_in_order(batch)
        self._history.remember_appended(batch, outcome)
        self._wakeups.notify_appended(batch)
        return outcome

    def _write_in_order(self, batch: Sequence[Append]) -> Sequence[Exception | None]:
        """Commit appends of which some have to wait for others."""
        outcome: list[Exception | None] = [None] * len(batch)
        pending = list(range(len(batch)))
        while pending:
            going, pending = _going_together(batch, pending)
            for i, error in zip(going, self._write([batch[i] for i in going]), strict=True):
                outcome[i] = error
        return outcome

    def _write(self, works: Sequence[Append]) -> Sequence[Exception | None]:
        """Commit appends of which each run has one chain; for each None or why not."""
        try:
            return self._link.run(lambda db, unsure: self._write_fitting(db, works, unsure))
        except StoreError as error:
            # A statement fails as a whole for one bad value or one locked run: find out whose.
            if len(works) > 1 and is_about_one(error):
                return [self._write([work])[0] for work in works]
            return [error] * len(works)

    def _write_fitting(
        self, db: Connection, works: Sequence[Append], unsure: bool
    ) -> Sequence[Exception | None]:
        """Write all that fit. All are sent; if some do not fit none is written, and the rest is sent."""
        outcome: list[Exception | None] = [None] * len(works)
        pending = list(range(len(works)))
        for _ in range(REFUSALS_MAX):
            sending = [works[i] for i in pending]
            if not sending or self._write_all(db, sending):
                return outcome
            refused = self._refused(db, sending)
            stored = self.are_stored(db, sending) if unsure else [False] * len(sending)
            for i, error, there in zip(pending, refused, stored, strict=True):
                outcome[i] = None if there else error
            pending = [
                i
                for i, error, there in zip(pending, refused, stored, strict=True)
                if error is None and not there
            ]
        raise StoreUnavailable(
            f"{self._route.url}: other writers were first {REFUSALS_MAX} times in a row"
        )

    def _write_all(self, db: Connection, works: Sequence[Append]) -> bool:
        """Write all of them durably, or none; whether they fitted."""
        if all(map(_is_plain, works)):
            return db.ask(self._append, self._arrays(works))
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
        if any(change.wakes for _, change in changes):
            # All locks first and in one order, also those of runs that are only woken.
            db.execute(self._q["lock"], ([*(work.run_id for work in works), *woken],))
        append = psycopg.RawCursor(db)
        append.execute(self._append, self._arrays(works, woken))
        answers: list[psycopg.Cursor[Any]] = [append]
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
            db.execute(self._q["insert_blobs"], (texts(ids), texts(hashes), blobs(datas)))
        settled = [
            (i, c.status, c.due_at, c.waiting_for, c.woken, c.waiting_kinds)
            for i, c in changes
            if c.status is not None
        ]
        if settled:
            fields = [list(field) for field in zip(*settled, strict=True)]
            done = db.execute(self._q["settle"], (self._fixed_now(), *fields))
            if any(c.woken is not None for _, c in changes) and len(done.fetchall()) < len(settled):
                return False
        if woken:
            db.execute(self._q["wake"], (self._fixed_now(), woken))
        return True

    def _arrays(self, works: Sequence[Append], woken: Sequence[str] = ()) -> list[BinaryValue]:
        """The parameters of `append_events`: the logs, then the events with their log's place."""
        logs: dict[str, int] = {}  # id: place
        fences: list[int] = []
        afters: list[int] = []
        befores: list[bytes] = []
        places: list[int] = []
        records: list[Record] = []
        notes = list(woken)
        for work in works:
            place = logs.get(work.run_id)
            if place is None:
                logs[work.run_id] = place = len(logs) + 1
                fences.append(-1 if work.epoch is None else work.epoch)
                afters.append(work.after)
                befores.append(work.before)
            # Waiters are notified of what they may be waiting for; a worker's plain step is not that.
            if work.epoch is None or work.change is not None:
                notes.append(work.run_id)
            places += [place] * len(work.records)
            records += work.records
        return [
            texts(list(logs)),
            longs(fences),
            longs(afters),
            blobs(befores),
            longs(places),
            *columns(records).values(),
            self._channel,
            texts(notes),
        ]

    def _refused(self, db: Connection, works: Sequence[Append]) -> list[Exception | None]:
        """Why appends did not fit; None for those that would have."""
        found = db.rows(self._q["positions"], ([work.run_id for work in works],))
        positions = {run_id: LogPosition(*at) for run_id, *at in found}

        def taken(work: Append) -> KeyTaken | None:
            holder = db.rows(self._q["find_key"], (work.claims_key,))
            return KeyTaken(work.claims_key, *holder[0]) if holder else None

        refused, _ = refusals(works, positions, taken)
        return [
            self._history.lost.get(work.run_id, error) if isinstance(error, LeaseLost) else error
            for work, error in zip(works, refused, strict=True)
        ]

    def are_stored(self, db: Connection, works: Sequence[Append]) -> list[bool]:
        """Whether these very records are in their logs, by the hashes of the last ones."""
        places = [(work.run_id, last.seq) for work in works for last in work.records[-1:]]
        params = ([run_id for run_id, _ in places], [seq for _, seq in places])
        found = db.rows(self._q["stored_hashes"], params)
        stored = {(run_id, seq, digest) for run_id, seq, digest in found}
        return [
            any((work.run_id, last.seq, last.hash) in stored for last in work.records[-1:])
            for work in works
        ]

    @contextlib.contextmanager
    def open(self, link: Link, run_id: str, epoch: int) -> Iterator[_OpenAppend]:
        """See `base.Store.open_append`."""
        # The run's row is not locked while the tool works: its lease must be renewed meanwhile. The
        # fence is looked at now, so as not to work without effect, and checked in the commit.
        positions = link.run(lambda db, _: self._begin_for_tool(db, run_id))
        with link.held() as db:
            after = positions[run_id].head if positions else -1
            refused, _ = refusals([Append(run_id, after, (), epoch)], positions)
            if refused[0] is not None:
                raise refused[0]
            opened = _OpenAppend(self, link, db)
            yield opened
            if not opened.done:
                raise without_receipt()

    def _begin_for_tool(self, db: Connection, run_id: str) -> dict[str, LogPosition]:
        with db.pipeline():
            db.begin(idle_seconds_max=0)
            found = db.execute(self._q["positions"], ([run_id],), binary=True)
        return {name: LogPosition(*at) for name, *at in found.fetchall()}

    def _finish(self, db: Connection, work: Append) -> None:
        """End a tool's transaction with its receipt, or leave nothing of it."""
        if db.info.transaction_status == pq.TransactionStatus.INERROR:
            raise cannot_commit()
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
        the next holder of the lock sees the end."""

        def look(db: Connection, _unsure: bool) -> bool:
            with db.pipeline():
                db.begin()
                db.execute(self._q["lock"], ([work.run_id],))
            there = self.are_stored(db, [work])[0]
            db.execute("ROLLBACK")
            return there

        link = Link(self._route)  # not from the pool, which may be empty because of this very tool
        try:
            return link.run(look)
        finally:
            link.close()


class _OpenAppend(ToolTransaction):
    def __init__(self, appends: Appends, link: Link, db: Connection) -> None:
        super().__init__()
        self._appends, self._link, self._db = appends, link, db

    def _execute(self, sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        if _ends_transaction(sql):
            raise not_the_tools()
        try:
            with self._db.pipeline():
                # Where the protocol takes one statement at a time, and no second.
                cursor = self._db.execute(sql, params)
        except psycopg.Error as error:
            # Others are the database's own words, which a tool may catch.
            if error.sqlstate == _ENDS_INSIDE:
                raise not_the_tools() from error
            if error.sqlstate == _SYNTAX and error.diag.source_function == _PREPARING:
                raise InvalidInput("`tx.execute` takes one statement at a time") from error
            raise
        return cursor.fetchall() if cursor.description else []

    def _finish(self, work: Append) -> None:
        with self._link.timed():
            self._appends._finish(self._db, work)
        self._appends._history.remember_appended([work], [None])
        self._appends._wakeups.notify_appended([work])


def _ends_transaction(statement: str) -> bool:
    """Whether one SQL statement would start or end a transaction (a savepoint is the tool's own)."""
    rest = statement.lstrip(_BLANKS)
    while rest.startswith(("--", "/*")):
        rest = _after_comment(rest).lstrip(_BLANKS)
    return bool(_TRANSACTION_CONTROL.match(rest))


def _after_comment(text: str) -> str:
    if text.startswith("--"):
        return re.sub(r"[^\r\n]*", "", text, count=1)
    depth = 0  # in PostgreSQL comments stand within comments
    for mark in re.finditer(r"/\*|\*/", text):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return text[mark.end() :]
    return ""


def columns(records: Sequence[Record]) -> dict[str, BinaryValue]:
    """Records as arrays, one a column, in the order of their fields."""
    seqs, times, epochs, kinds, datas, hashes = zip(*records, strict=True) if records else ((),) * 6
    return {
        "seqs": longs(seqs),
        "times": longs(times),
        "epochs": longs(epochs),
        "kinds": texts(kinds),
        "datas": blobs(datas),
        "hashes": blobs(hashes),
    }


def _is_plain(work: Append) -> bool:
    return work.change is None and not work.blobs and not work.claims_key


def _are_independent(batch: Sequence[Append]) -> bool:
    """Whether all of a batch can go into one statement: the usual case of `_going_together`."""
    if len(batch) == 1:
        return True
    for work in batch:
        if work.change is not None or work.claims_key:
            return False
    return len({work.run_id for work in batch}) == len(batch)


def _going_together(batch: Sequence[Append], pending: Sequence[int]) -> tuple[list[int], list[int]]:
    """Which appends go into the next statement, and which have to wait for the one after.

    Of one run only those that follow each other without a gap: `append_events` compares a log's end
    once. Of those that claim one key the first. A suspension after the append that wakes its run: they must
    not be one transaction, in which runs are resolved before others are woken. Nothing overtakes an earlier append
    of its run.
    """
    going: list[int] = []
    later: list[int] = []
    last: dict[str, Append | None] = {}
    keys: set[str] = set()
    woken: set[str] = set()
    for i in pending:
        work, change = batch[i], batch[i].change
        before = last.get(work.run_id)
        fits = work.run_id not in last or (before is not None and _follows(before, work))
        if change is not None:
            fits = fits and (change.woken is None or work.run_id not in woken)
            woken.update(change.wakes)
        if fits and work.claims_key not in keys:
            last[work.run_id] = work
            going.append(i)
        else:
            last[work.run_id] = None
            later.append(i)
        if work.claims_key:
            keys.add(work.claims_key)
    return going, later


def _follows(before: Append, work: Append) -> bool:
    return (
        before.change is None
        and work.epoch == before.epoch
        and work.after == before.after + len(before.records)
        and (not work.before or bool(before.records and before.records[-1].hash == work.before))
    )
