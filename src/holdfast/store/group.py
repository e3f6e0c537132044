"""Group commit: appends of many runs share one transaction, one fsync, one round trip.

Nothing is delayed, and no timer is used. The first caller finds that no commit is running and commits
at once, on its own thread. Those who arrive meanwhile form the next batch, which one of them commits
for all. Callers on an event loop cannot do that work themselves; a thread of ours does it for them,
started at the end of the loop's turn so that everything appended in that turn goes together.

This module knows nothing of databases: the store gives it a function that commits a batch. New runs
are committed together in the same way.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import msgspec

from holdfast.core.log import Record
from holdfast.errors import StoreUnavailable
from holdfast.store.base import Append
from holdfast.store.checks import check_append

if TYPE_CHECKING:
    import asyncio
    import contextvars

ROWS_MAX: Final = 250
"""Enough to share an fsync well, and few enough that the next batch forms while one is committed
(500 runs on PostgreSQL, seven rounds in turn: 25,800 appends/s, against 19,700 with all of them in
one batch; on SQLite no difference)."""
BYTES_MAX: Final = 16 * 1024 * 1024
TURN_SECONDS_MAX: Final = 1.0
_CLOSED: Final = "the store is closed"


class Work(Protocol):
    """What is committed: records, and whatever the store knows to do with them."""

    @property
    def records(self) -> Sequence[Record]: ...


W = TypeVar("W", bound=Work)

CommitBatch = Callable[[Sequence[W]], Sequence[Exception | None]]
"""Commit a batch; for each piece of work None, or why it was refused. Raises only if all were."""


class Durable(Protocol):
    """The future of an append."""

    task: tuple[Callable[..., Any], contextvars.Context] | None
    """How to let the task continue that awaits it, and the context that it runs in."""

    def __await__(self) -> Generator[Any, None, Any]: ...
    def settle(self, ticket: Ticket[Any]) -> None:
        """The append is settled: let the task that awaits this continue, now."""
        ...


class Ticket(msgspec.Struct, Generic[W], eq=False):
    """See `base.Ticket`. `turn` is released when it is resolved, or when its caller must lead.

    (A Struct, because one is made for every append, and C makes it.)
    """

    work: W
    group: GroupCommit[W]
    settled: bool = False
    error: BaseException | None = None
    turn: threading.Lock | None = None
    loop: asyncio.AbstractEventLoop | None = None
    future: Durable | None = None

    def wait(self) -> W:
        self.group.finish(self)
        if self.error is not None:
            raise self.error
        return self.work

    def __await__(self) -> Generator[Any, None, W]:
        running_loop, durable = _loops()
        self.loop = loop = running_loop()
        future: Durable = durable(loop=loop)
        self.future, future.task = future, None
        self.group.lead_after_turn_of(loop)
        if self.settled:  # by another thread, which may not have seen the future
            self.future = None
            future.settle(self)
        return future.__await__()

    def push(self) -> None:
        self.group.start_thread_leading()


@cache
def _loops() -> tuple[Callable[[], asyncio.AbstractEventLoop], Callable[..., Any]]:
    """What is needed of `asyncio`: the running loop, and the future of an append.

    A task that is cancelled while it awaits one is cancelled when the append has come to its end: what is on its way to the
    log cannot be called back. All tasks of a batch continue in one callback of the loop, which costs a third of a callback
    each.
    """
    import asyncio  # here, as commands that only look have no use for it

    class DurableFuture(asyncio.Future[Any]):
        __slots__ = ("task",)

        task: tuple[Callable[..., Any], contextvars.Context] | None

        def cancel(self, msg: Any = None) -> bool:  # noqa: ARG002
            return False

        def add_done_callback(
            self, fn: Callable[..., Any], *, context: contextvars.Context | None = None
        ) -> None:
            if self.task is not None or context is None:
                super().add_done_callback(fn, context=context)
            else:
                self.task = fn, context

        def settle(self, ticket: Ticket[Any]) -> None:
            if ticket.error is None:
                self.set_result(ticket.work)
            else:
                self.set_exception(ticket.error)
                self.exception()  # a task that is gone does not have to hear of it
            task, self.task = self.task, None
            if task is not None:
                task[1].run(task[0], self)

    return asyncio.get_running_loop, DurableFuture


class GroupCommit(Generic[W]):
    """Collects concurrent appends into batches. Exactly one thread commits at a time."""

    def __init__(self, commit: CommitBatch[W]) -> None:
        self._commit = commit
        self._mutex = threading.Lock()
        self._inbox: deque[Ticket[W]] = deque()
        """What was submitted, in order. It is queued before anything is committed. (Submitting takes no lock, which
        another thread may hold while it is waiting for the interpreter.)"""
        self._queue: deque[Ticket[W]] = deque()
        self._batch: list[Ticket[W]] = []
        self._leader: Ticket[W] | threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The last loop whose turn ends with a call of `_end_turn`."""
        self._closed = False
        self._thread: threading.Thread | None = None
        self._thread_leads = False
        self._wake_thread = threading.Semaphore(0)

    def append(self, work: W) -> None:
        """Commit `work`, alone or with others; returns when it is durable."""
        ticket = Ticket(work, self)
        try:
            if self._closed:
                raise StoreUnavailable(_CLOSED)
            self._inbox.append(ticket)
            self.finish(ticket)
        except BaseException:  # Ctrl-C between the two
            self._leave(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error

    def submit(self, work: W) -> Ticket[W]:
        """Take a place in the queue. Wait for the ticket, or await it, to have it committed."""
        if self._closed:
            raise StoreUnavailable(_CLOSED)
        ticket = Ticket(work, self)
        self._inbox.append(ticket)
        return ticket

    def finish(self, ticket: Ticket[W]) -> None:
        """Commit it, alone or with others, or wait until another caller has."""
        try:
            self._stand_in_line(ticket)
            if ticket.turn is not None:
                self._await_turn(ticket, ticket.turn)
            if not ticket.settled:
                self._lead(ticket)
        except BaseException:  # Ctrl-C, at any place: other waiters must not hang
            self._leave(ticket)
            raise

    def lead_after_turn_of(self, loop: asyncio.AbstractEventLoop) -> None:
        """For callers on an event loop: a thread of ours commits what they submit, at the end of the loop's turn."""
        if self._loop is not loop:
            self._loop = loop
            loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._loop = None
        self.start_thread_leading()

    def end_turn_before_others(self) -> None:
        """Other tasks are about to continue on this loop: what was submitted until now is committed meanwhile, and not
        with what they submit."""
        if self._loop is not None:
            self._end_turn()

    def _queue_inbox(self) -> None:
        while self._inbox:
            self._queue.append(self._inbox.popleft())

    def close(self) -> None:
        """Let what is queued finish, then refuse more."""
        self.start_thread_leading()  # what a loop queued that ended before its next turn
        with self._mutex:
            self._closed = True
            thread = self._thread
        self._wake_thread.release()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # ── waiting ──────────────────────────────────────────────────────────────────────────

    def _stand_in_line(self, ticket: Ticket[W]) -> None:
        """Lead if no other caller does. Not before: a caller that is interrupted until now must not be leading."""
        with self._mutex:
            self._queue_inbox()
            if ticket.settled:
                return
            if self._leader is None:
                if self._closed:
                    self._refuse_queued()
                    return
                self._leader = ticket
                if len(self._queue) == 1:  # it is alone, as most are that block
                    self._batch = [ticket]
                    self._queue.popleft()
                else:
                    self._take()
            else:
                ticket.turn = threading.Lock()
                ticket.turn.acquire()

    def _await_turn(self, ticket: Ticket[W], turn: threading.Lock) -> None:
        # It may have been settled just before the lock was there. After that every committer wakes us, unless an
        # interrupt hit it in the middle.
        while not (ticket.settled or turn.acquire(timeout=TURN_SECONDS_MAX)):
            if self._leader is ticket:
                return

    def _leave(self, ticket: Ticket[W]) -> None:
        """Take an interrupted caller out of the queue; if it was leading, another one does."""
        with self._mutex:
            self._queue_inbox()
            if ticket in self._queue:
                self._queue.remove(ticket)
            if self._leader is not ticket:
                return
            batch, self._batch = list(self._batch), []
        interrupted = StoreUnavailable("interrupted; the outcome was not seen")
        self._resolve(batch, [t.error if t.settled else interrupted for t in batch])
        self._hand_over()

    # ── leading ──────────────────────────────────────────────────────────────────────────

    def _lead(self, own_ticket: Ticket[W] | None) -> None:
        """Commit batches until `own_ticket` is resolved (a thread of ours: until none is left)."""
        while own_ticket is None or not own_ticket.settled:
            if not self._batch:
                with self._mutex:
                    self._take()
                if not self._batch:
                    break
            batch = self._batch
            if own_ticket is not None and batch == [own_ticket]:
                try:  # only the caller has to be notified, and it is here
                    own_ticket.error = self._commit((own_ticket.work,))[0]
                except Exception as error:  # noqa: BLE001 - the caller gets it
                    own_ticket.error = error
                own_ticket.settled = True
            else:
                self._settle(batch)
            self._batch = []
        self._hand_over()

    def _take(self) -> None:
        """Move the next batch out of the queue; each ticket is always in one of the two."""
        batch: list[Ticket[W]] = []
        queue, self._batch = self._queue, batch
        rows = size = 0
        while queue and rows < ROWS_MAX and size < BYTES_MAX:
            batch.append(queue[0])
            for record in queue.popleft().work.records:
                rows += 1
                size += len(record[4])

    def _settle(self, batch: list[Ticket[W]]) -> None:
        errors: Sequence[BaseException | None]
        try:
            errors = self._commit([ticket.work for ticket in batch])
        except Exception as error:  # noqa: BLE001 - each caller gets it
            errors = [error] * len(batch)
        self._resolve(batch, errors)

    @staticmethod
    def _resolve(batch: list[Ticket[Any]], errors: Sequence[BaseException | None]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[Ticket[Any]]] = {}
        for ticket, error in zip(batch, errors, strict=True):
            ticket.error = error
            ticket.settled = True
            loop = ticket.loop
            if loop in by_loop:
                by_loop[loop].append(ticket)
            elif loop is not None:
                by_loop[loop] = [ticket]
            elif ticket.turn is not None and ticket.turn.locked():
                ticket.turn.release()
        for loop, tickets in by_loop.items():
            try:
                # Once for all: each call writes to a pipe.
                loop.call_soon_threadsafe(_wake, tickets, batch)
            except RuntimeError:
                continue  # the loop was closed meanwhile; no task is waiting there any more

    def _hand_over(self) -> None:
        """Hand the lead to a waiter, or give it up."""
        with self._mutex:
            if not self._queue:
                self._leader = None
                return
            self._leader = heir = next((t for t in self._queue if t.turn is not None), None)
            if heir is not None and heir.turn is not None:
                heir.turn.release()
                return
            orphans = any(ticket.loop is not None for ticket in self._queue)
        if orphans:
            self.start_thread_leading()

    def start_thread_leading(self) -> None:
        with self._mutex:
            self._queue_inbox()
            if self._leader is not None or not self._queue:
                return
            if self._closed:
                self._refuse_queued()
                return
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="holdfast-commit", daemon=True
                )
                self._thread.start()
            self._leader = self._thread
            self._thread_leads = True
        self._wake_thread.release()

    def _refuse_queued(self) -> None:
        """What was submitted in the very moment in which another thread closed the store."""
        late, self._queue = list(self._queue), deque()
        self._resolve(late, [StoreUnavailable(_CLOSED)] * len(late))

    def _serve(self) -> None:
        while True:
            self._wake_thread.acquire()
            with self._mutex:
                lead, self._thread_leads = self._thread_leads, False
                closed = self._closed
            if lead:
                self._lead(None)
            elif closed:
                return


class AppendGroup(GroupCommit[Append]):
    """Group commit of appends. Each is checked before it is queued: a value that the database refuses would fail
    the others in its batch."""

    def append(self, work: Append) -> None:
        check_append(work)
        super().append(work)

    def submit(self, work: Append) -> Ticket[Append]:
        records, run_id = work.records, work.run_id
        if (  # all but the usual case: one record in its place, and nothing else
            len(records) != 1
            or records[0][0] != work.after + 1
            or work.change is not None
            or work.claims_key
            or (work.epoch or 0) < 0
            or not run_id.isprintable()
        ):
            check_append(work)
        if self._closed:
            raise StoreUnavailable(_CLOSED)
        ticket = Ticket(work, self)
        self._inbox.append(ticket)
        return ticket


def _wake(tickets: list[Ticket[Any]], batch: list[Ticket[Any]]) -> None:
    """Let the tasks continue whose appends these are, of a batch. Neither list keeps what has been dealt with: so many
    objects at a time would wake the garbage collector, and the thread that committed them may be waiting for the
    interpreter all the while."""
    batch.clear()
    tickets[0].group.end_turn_before_others()
    tickets.reverse()
    while tickets:
        ticket = tickets.pop()
        try:
            if ticket.future is not None:
                ticket.future.settle(ticket)
        except BaseException:  # Ctrl-C in one task: the others must not hang
            if tickets and ticket.loop is not None:
                tickets.reverse()
                ticket.loop.call_soon(_wake, tickets, batch)
            raise
