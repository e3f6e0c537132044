"""Write a run's log: batches of events, in the order in which they were built.

Branches of a run commit at the same time, and each batch is chained to the one before it. If another process
has appended an event, the first batch is refused, and so is every batch behind it. They are then sent again in
the same order, so that no effect is recorded before what it rests on:

    buffered -> sent -> committed
                 |  ^
                 v  | rebuilt in order, when no batch is on its way
               refused -> failed: its condition says no; what it had buffered goes to the next batch

One lock covers sealing a batch and giving it to the store, so the order in the log is the order of sealing.

Not here: reading the log (`reader.py`), waiting for a batch (`driver.py`).
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec

from holdfast.core import events as e
from holdfast.core import log
from holdfast.core.events import Event
from holdfast.core.journal import Journal
from holdfast.core.log import Blob
from holdfast.errors import (
    Abandon,
    Conflict,
    HoldfastError,
    KeyTaken,
    StoreError,
    Unwind,
    Woken,
)
from holdfast.store.base import Append, RowChange, Store
from holdfast.waiting import WaitingFor
from holdfast.words.waiting import run_waiting

_OWN_REFUSALS: Final = (Conflict, KeyTaken, Woken)
"""Errors that say something about one batch, and nothing about the store or the lease."""


class KnownLog(Protocol):
    """What is known of the log: `LogReader` is one."""

    head: log.Head
    knows_all: bool

    def read_all(self) -> None: ...


class WrittenRun(Protocol):
    """What is asked of the run whose log is written: `Session` is one."""

    run_id: str
    epoch: int
    store: Store
    journal: Journal
    stop_signal: BaseException | None

    @property
    def log(self) -> KnownLog: ...
    def check_alive(self) -> None: ...
    def refresh(self) -> bool: ...
    def recorded_own(self, batch: Batch) -> None: ...
    def stop(self, signal: BaseException) -> BaseException: ...


class BatchState(enum.Enum):
    """Where a batch is on its way into the log."""

    QUEUED = "queued"
    SENT = "sent"
    REFUSED = "refused"
    COMMITTED = "committed"
    FAILED = "failed"


QUEUED: Final = BatchState.QUEUED  # in Python 3.11 it takes long to look up a member of an Enum
SENT: Final = BatchState.SENT
COMMITTED: Final = BatchState.COMMITTED
FAILED: Final = BatchState.FAILED


class Batch(msgspec.Struct, eq=False):
    """Events to make durable, with what changes in the same transaction; and, on their way, what has become of them."""

    events: Sequence[Event]
    change: RowChange | None = None
    blobs: Sequence[Blob] = ()
    claims_key: str = ""
    urgent: bool = False
    is_receipt: bool = False
    """A receipt is recorded even if the run has been stopped since its call began."""
    is_outcome: bool = False
    """The agent's code is given what these events record: it gets its turn in the order of the log."""
    condition: Callable[[Any], None] | None = None
    """Asked with the session when the batch is built, and before it is sent again: another branch may have read
    meanwhile what came from outside. If it raises an Unwind or a StoreError, the batch fails with that."""
    rebuilds: bool = True
    """Whether it may be sent again after a conflict. Not if its events depend on what was read before."""
    at: int = 0
    """The time of its events; 0: when they are sealed."""
    is_submitted: bool = True
    """Whether the writer gives it to the store. Otherwise its caller commits `work` in a transaction of its own."""

    # Set by the writer.
    buffered: Sequence[Event] = ()
    """Events that were buffered before it: they are recorded first."""
    buffered_blobs: Sequence[Blob] = ()
    turn: Any = None
    state: BatchState = QUEUED
    work: Append | None = None
    records: Sequence[log.Record] = ()
    head: log.Head | None = None
    """Where the log ends with its records."""
    seq: int = -1
    """The seq of its last event."""
    ticket: Any = None
    error: BaseException | None = None
    waiters: tuple[Callable[[], None], ...] = ()

    @property
    def all_events(self) -> Sequence[Event]:
        """The events of all its records, in their order."""
        return [*self.buffered, *self.events] if self.buffered else self.events


class LogWriter:
    """The batches of one run that are on their way, and the events that wait for the next one."""

    __slots__ = (
        "_broken",
        "_must_rebuild",
        "_mutex",
        "_queue",
        "_rebuilt",
        "_session",
        "first",
        "head",
        "moves",
        "noted",
        "noted_blobs",
    )

    def __init__(self, session: WrittenRun, head: log.Head, mutex: threading.RLock) -> None:
        self._session, self._mutex = session, mutex
        self.head = head
        """What the next batch is chained to."""
        self.first: list[Event] = []
        """Facts of the run's own life; they are recorded before what its code noted."""
        self.noted: list[Event] = []
        self.noted_blobs: list[Blob] = []
        self.moves = 0
        """Counts up when notes are sent, recorded, refused or discarded: each other change of `noted` adds to it."""
        self._queue: list[Batch] = []
        self._must_rebuild = False
        self._rebuilt: threading.Condition | None = None
        """Where a tool's transaction waits until refused batches have been sent again."""
        self._broken: BaseException | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no batch is on its way."""
        return not self._queue

    def in_flight(self, kind: type[Event]) -> list[Any]:
        """Events of this kind that are sealed, and not known to be durable yet."""
        return [x for batch in self._queue for x in batch.all_events if isinstance(x, kind)]

    def buffer(self, event: Event, blobs: Sequence[Blob] = ()) -> None:
        """Record an event with the next batch, before that batch's own."""
        self.noted.append(event)
        self.noted_blobs.extend(blobs)

    def discard(self) -> None:
        """Forget what the code noted and no batch holds yet."""
        self.moves += 1
        self.noted, self.noted_blobs = [], []

    def commit(self, batch: Batch, turn: Any = None) -> Batch:
        """Seal what is buffered and these events, and give them to the store."""
        session = self._session
        with self._mutex:
            if session.stop_signal is not None and not batch.is_receipt:
                session.check_alive()
            if self._must_rebuild and not batch.is_submitted:
                # Its caller cannot wait: a transaction is open.
                raise Conflict(session.run_id, self.head.seq, self.head.seq)
            if not session.log.knows_all:
                session.log.read_all()
            if batch.condition is not None:
                batch.condition(session)
            if self.noted or self.first:
                self.moves += 1
                batch.buffered, batch.buffered_blobs = [*self.first, *self.noted], self.noted_blobs
                self.first, self.noted, self.noted_blobs = [], [], []
            if turn is not None and batch.is_outcome:
                batch.turn = turn()
            self._queue.append(batch)
            if not self._must_rebuild:
                self._send(batch)
            return batch

    def _send(self, batch: Batch) -> None:
        before, session, events, blobs = self.head, self._session, batch.events, batch.blobs
        if batch.buffered:
            events, blobs = batch.all_events, [*batch.buffered_blobs, *blobs]
        time = batch.at or session.store.now()
        head, records = log.seal(before, events, session.epoch, time)
        self.head = batch.head = head
        batch.records = records
        if records:
            batch.seq = head.seq
        batch.work = work = Append(
            session.run_id,
            before.seq,
            records,
            session.epoch,
            batch.change,
            blobs,
            batch.claims_key,
            batch.urgent,
            before.hash,
        )
        if batch.is_submitted:
            try:
                batch.ticket = session.store.submit(work)
            except HoldfastError as error:
                # Refused before it was queued, for example by a closed store.
                self._must_rebuild = True
                self._broken = error
                self._fail(batch, error)
                return
        batch.state = SENT

    def accepted(self, batch: Batch) -> None:
        """The store has committed this batch, and so every batch that it is chained to."""
        with self._mutex:
            if batch.state is not SENT:
                return  # a later one was accepted first
            while True:
                first = self._queue.pop(0)
                first.state = COMMITTED
                if first.buffered:
                    self.moves += 1
                self._session.recorded_own(first)
                if first is batch:
                    break
            if self._must_rebuild:
                self._rebuild_if_due()

    def refused(self, batch: Batch, error: BaseException) -> None:
        """The store has not written this batch. If it was the last on its way, all are rebuilt."""
        with self._mutex:
            if batch.state is not SENT:
                return
            self._must_rebuild = True
            if isinstance(error, Conflict) and batch.rebuilds:
                batch.state = BatchState.REFUSED
            else:
                if isinstance(error, StoreError) and not isinstance(error, _OWN_REFUSALS):
                    self._broken = error
                self._fail(batch, error)
            self._rebuild_if_due()

    def wait_until_in_order(self, timeout: float | None) -> bool:
        """Before a transaction of one's own: wait until refused batches have been sent again."""
        with self._mutex:
            rebuilt = self._rebuilt = self._rebuilt or threading.Condition(self._mutex)
            return rebuilt.wait_for(lambda: not self._must_rebuild, timeout)

    def sent(self) -> list[Batch]:
        """The batches that the store has, and whose outcome is not known here yet."""
        with self._mutex:
            return [batch for batch in self._queue if batch.state is SENT]

    def on_resend(self, batch: Batch, notify: Callable[[], None]) -> bool:
        """Call `notify` when this batch is sent again or has failed; False if that is so already."""
        with self._mutex:
            if batch.state not in (BatchState.QUEUED, BatchState.REFUSED):
                return False
            batch.waiters = (*batch.waiters, notify)
            return True

    # ── rebuilding ───────────────────────────────────────────────────────────────────────

    def _rebuild_if_due(self) -> None:
        if not self._must_rebuild or self.sent():
            return
        self._must_rebuild = False
        if self._rebuilt is not None:
            self._rebuilt.notify_all()
        try:
            if self._broken is not None:
                raise self._broken
            self._session.refresh()
            self._refuse_if_ended()
        except BaseException as error:  # noqa: BLE001 - whatever it is, every owner must hear of it
            for batch in list(self._queue):
                self._fail(batch, error)
            self.head = self._session.log.head
            return
        self.head = self._session.log.head
        for batch in list(self._queue):
            self._ask_condition(batch)
        for batch in list(self._queue):
            self._send(batch)
            self._notify(batch)

    def _refuse_if_ended(self) -> None:
        session = self._session
        if session.journal.life.terminal is not None:
            ended = run_waiting(
                session.run_id,
                WaitingFor("other", "nothing: it has ended", how=f"hf.get({session.run_id!r})"),
            )
            raise session.stop(Abandon(ended))

    def _ask_condition(self, batch: Batch) -> None:
        try:
            if batch.condition is not None:
                batch.condition(self._session)
        except (Unwind, StoreError) as error:
            self._fail(batch, error)

    def _fail(self, batch: Batch, error: BaseException) -> None:
        """Take a batch out. What was buffered before it is still the run's: the next batch records it."""
        self.moves += 1
        place = self._queue.index(batch)
        del self._queue[place]
        batch.state, batch.error = FAILED, error
        if batch.turn is not None:
            batch.turn.drop()
        if place < len(self._queue):
            heir = self._queue[place]
            heir.buffered = [*batch.buffered, *heir.buffered]
            heir.buffered_blobs = [*batch.buffered_blobs, *heir.buffered_blobs]
        else:
            claims = [x for x in batch.buffered if isinstance(x, e.RunClaimed)]
            self.first = [*claims, *self.first]
            self.noted = [*(x for x in batch.buffered if x not in claims), *self.noted]
            self.noted_blobs = [*batch.buffered_blobs, *self.noted_blobs]
        self._notify(batch)

    @staticmethod
    def _notify(batch: Batch) -> None:
        waiters, batch.waiters = batch.waiters, ()
        for notify in waiters:
            notify()
