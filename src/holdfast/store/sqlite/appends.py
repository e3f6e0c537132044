"""Appending to logs in a SQLite file: a batch of many runs' appends is one transaction.

Where each log ends is remembered from one commit to the next, so that the fence usually costs no
read. When the disk is full, receipts still get the space that was held back for them.

Not here: how batches form (`group.py`), the rule of the fence (`fence.py`), connections and what
becomes of a failed transaction (`connections.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final

import apsw

from holdfast.core.log import Blob
from holdfast.errors import InvalidInput, KeyTaken, StorageFull
from holdfast.store import sql
from holdfast.store.base import Append, Creation, RowChange
from holdfast.store.fence import LogPosition, refusals
from holdfast.store.sqlite.connections import Connections
from holdfast.store.sqlite.file import in_our_words
from holdfast.store.tool_transaction import (
    ToolTransaction,
    cannot_commit,
    not_the_tools,
    without_receipt,
)
from holdfast.store.wakeups import Wakeups

_Q: Final = sql.queries("sqlite")
_INSERT_ONE: Final = _Q["insert_event"]
_INSERTED_MAX: Final = 250
RESERVE_BYTES: Final = 4 * 1024 * 1024
_TOOLS_OWN_ERRORS: Final = (
    apsw.SQLError,
    apsw.ConstraintError,
    apsw.MismatchError,
    apsw.BindingsError,
    apsw.TooBigError,
)


class Reserve:
    """Space held back next to the database, so that a receipt can be written when the disk is full."""

    def __init__(self, path: Path, *, active: bool) -> None:
        self._path, self._active = path, active
        self._fd = -1

    def hold(self) -> None:
        """Ensure the reserve, or raise StorageFull: no effect starts whose receipt might find no space."""
        if not self._active:
            return
        if self._fd >= 0:  # asked at every commit: another process may have needed it meanwhile
            found = os.fstat(self._fd)
            if found.st_nlink > 0 and found.st_size >= RESERVE_BYTES:
                return
        self.close()
        try:
            self._fd = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            os.posix_fallocate(self._fd, 0, RESERVE_BYTES)
        except OSError as error:
            raise in_our_words(
                f"{self._path.parent}: no space for the {RESERVE_BYTES // 1024} KiB reserved for receipts",
                error,
            ) from None

    def give_up(self) -> None:
        """Free the reserve for a receipt: cut short, not removed, because others have it open."""
        with contextlib.suppress(OSError):
            if self._active:
                os.truncate(self._path, 0)

    def close(self) -> None:
        """Let go of the file; the space stays held back by its name."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Appends:
    """Writes batches of appends, and the receipts of tools that take `tx`."""

    def __init__(
        self,
        connections: Connections,
        reserve: Reserve,
        *,
        wakeups: Wakeups,
        now: Callable[[], int],
    ) -> None:
        self._connections, self._reserve = connections, reserve
        self._wakeups, self._now = wakeups, now

    def commit(self, batch: Sequence[Append]) -> Sequence[Exception | None]:
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
                else StorageFull(f"{self._connections.path}: the disk is full; nothing was written")
                for work, error in zip(batch, self._write_urgent(batch), strict=True)
            ]
        if self._wakeups.waiters:  # checked here: usually there are none
            self._wakeups.notify_appended(batch)
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
        connections = self._connections
        with connections.write:  # written out, not `transaction`: this is the hot path
            db = connections.ready()
            try:
                connections.begin(db)
                positions = self._positions(db, batch)
                refused, ends = refusals(
                    batch,
                    positions,
                    lambda work: _claim_key(db, work, positions[work.run_id].key),
                )
                self._write_accepted(db, batch, refused, positions, ends)
                connections.commit(db)
            except BaseException as error:
                connections.roll_back(db, error)
                raise
            connections.ends.update(ends)  # the logs end with what was committed
        return refused

    def _write_accepted(
        self,
        db: apsw.Connection,
        batch: Sequence[Append],
        refused: Sequence[Exception | None],
        positions: dict[str, LogPosition],
        ends: dict[str, LogPosition],
    ) -> None:
        """Write what was not refused; of the runs whose rows are changed, forget in `ends` where they end."""
        rows: list[tuple[Any, ...]] = []
        changes: list[tuple[str, int, RowChange]] = []
        for work, error in zip(batch, refused, strict=True):
            if error is not None:
                continue
            key = positions[work.run_id].key
            for record in work.records:
                rows.append((key, *record))  # noqa: PERF401 - most have one: a list of it would cost more
            if work.blobs:
                insert_blobs(db, key, work.blobs)
            if work.change is not None:
                changes.append((work.run_id, key, work.change))
        insert_events(db, rows)
        if changes:
            self._change(db, changes, ends)

    def _positions(self, db: apsw.Connection, batch: Sequence[Append]) -> dict[str, LogPosition]:
        """Where each log ends now, inside the transaction.

        What this connection wrote last is known, the rest is read. What is given out is forgotten until it is
        committed, however the transaction ends.
        """
        ends = self._connections.ends
        positions: dict[str, LogPosition] = {}
        unknown: list[str] = []
        for work in batch:
            run_id = work.run_id
            at = ends.pop(run_id, None)
            if at is not None:
                positions[run_id] = at
            elif run_id not in positions:
                unknown.append(run_id)
        if unknown:
            if len(ends) >= 100_000:
                ends.clear()
            _read_ends(db, unknown, positions)
        return positions

    def _change(
        self,
        db: apsw.Connection,
        changes: Sequence[tuple[str, int, RowChange]],
        ends: dict[str, LogPosition],
    ) -> None:
        """Change the rows of runs, given by id and key, and of those that they wake, all at one time."""
        now = self._now()
        for run_id, key, change in changes:
            if change.status is not None:
                db.execute(
                    _Q["settle"],
                    {
                        "status": change.status,
                        "due_at": change.due_at,
                        "waiting_for": change.waiting_for,
                        "waiting_kinds": change.waiting_kinds,
                        "now": now,
                        "key": key,
                    },
                )
            if change.wake:
                db.execute(_Q["wake"], {"now": now, "key": key})
            for woken_id in change.wakes:
                db.execute(_Q["wake_by_id"], {"now": now, "id": woken_id})
            for changed_id in (run_id, *change.wakes):  # to be read again
                ends.pop(changed_id, None)
                self._connections.ends.pop(changed_id, None)

    @contextlib.contextmanager
    def open(self, run_id: str, epoch: int) -> Iterator[_OpenAppend]:
        """See `base.Store.open_append`."""
        with self._connections.transaction() as db:
            positions = self._positions(db, [Append(run_id, -1, ())])
            after = positions[run_id].head if run_id in positions else -1
            refused, _ = refusals([Append(run_id, after, (), epoch)], positions)
            if refused[0] is not None:
                raise refused[0]
            opened = _OpenAppend(self, db)
            yield opened
            if not opened.done:
                raise without_receipt()

    def _finish(self, db: apsw.Connection, work: Append) -> None:
        """End a tool's transaction with its receipt, or raise and leave it to be rolled back."""
        positions = self._positions(db, [work])
        refused, ends = refusals(
            [work], positions, lambda work: _claim_key(db, work, positions[work.run_id].key)
        )
        if refused[0] is not None:
            raise refused[0]
        self._write_accepted(db, [work], refused, positions, ends)
        self._connections.commit(db)
        self._wakeups.notify_appended([work])


class _OpenAppend(ToolTransaction):
    def __init__(self, appends: Appends, db: apsw.Connection) -> None:
        super().__init__()
        self._appends, self._db = appends, db

    def _execute(self, sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        self._refuse_if_over()
        self._db.authorizer = _refuse_transaction_control
        try:
            return self._db.execute(sql, params).fetchall()
        except apsw.AuthError:
            raise not_the_tools() from None
        except _TOOLS_OWN_ERRORS as error:  # the tool's failure, not the store's
            raise InvalidInput(f"the tool's statement failed: {error}") from error
        finally:
            self._db.authorizer = None

    def _refuse_if_over(self) -> None:
        if not self._db.in_transaction:  # as after INSERT OR ROLLBACK
            raise cannot_commit()

    def _finish(self, work: Append) -> None:
        self._refuse_if_over()
        self._appends._finish(self._db, work)


def _refuse_transaction_control(action: int, *_: str | None) -> int:
    return apsw.SQLITE_DENY if action == apsw.SQLITE_TRANSACTION else apsw.SQLITE_OK


def _read_ends(db: apsw.Connection, run_ids: list[str], positions: dict[str, LogPosition]) -> None:
    alone = len(run_ids) == 1
    params = (run_ids[0] if alone else json.dumps(run_ids),)
    rows: list[tuple[Any, ...]] = db.execute(
        _Q["fence_one" if alone else "fence"], params
    ).fetchall()
    for run_id, key, epoch, head, hash_, woken in rows:
        positions[run_id] = LogPosition(epoch, head, hash_, key, woken)


def insert_events(db: apsw.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    """Events with their runs' keys, all of a batch in one statement.

    At each statement the interpreter's lock is given away, and has to be won back from an event loop that is
    busy making the next events and gives it up only every 5 ms. So it is worth half a millisecond to prepare one
    for just so many rows, if SQLite does not have it already.
    """
    if len(rows) == 1:
        db.execute(_INSERT_ONE, rows[0])
        return
    for at in range(0, len(rows), _INSERTED_MAX):
        some = rows[at : at + _INSERTED_MAX]
        db.execute(_insert(len(some)), list(chain.from_iterable(some)))


@cache
def _insert(rows: int) -> str:
    return _INSERT_ONE + ", (?, ?, ?, ?, ?, ?, ?)" * (rows - 1)


def insert_run(db: apsw.Connection, creation: Creation, now: int) -> bool:
    """A new run with its first events; False if its id is taken."""
    run, worker = creation.run, creation.worker
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
        insert_events(db, [(key, *record) for record in creation.records])
        insert_blobs(db, key, creation.blobs)
        for name, seq in creation.keys:
            db.execute(_Q["insert_key"], (name, key, seq))
    return key is not None


def insert_blobs(db: apsw.Connection, key: int, blobs: Sequence[Blob]) -> None:
    for blob in blobs:
        db.execute(_Q["insert_blob"], (key, blob.hash, blob.data))


def _claim_key(db: apsw.Connection, work: Append, key: int) -> KeyTaken | None:
    taken = db.execute(_Q["insert_key"], (work.claims_key, key, work.records[-1].seq)).get
    if taken:
        return None
    run_id, seq = db.execute(_Q["find_key"], (work.claims_key,)).get
    return KeyTaken(work.claims_key, run_id, seq)
