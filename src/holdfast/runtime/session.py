"""A live run: its lease, the end of its log, what of the log its code has been shown.

A session is the one place that knows both sides of a run in this process: the log, as far as it is
read and as far as it is written, and the agent's view of it. It decides nothing; the flow does.

What the code may see (`draft`) trails what is known (`journal`): an event from outside becomes
visible when the code's next call returns, which is the same place on every replay.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, TypeVar

import msgspec

from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.core.events import Event, Noted, Usage, Value, plain
from holdfast.core.fold import Draft, message_of
from holdfast.core.knowledge import change
from holdfast.core.log import Blob, Head, Record
from holdfast.core.parts import Message
from holdfast.core.policy import Checkpoint
from holdfast.core.replay import Entry, Journal
from holdfast.core.state import Queued, RunState
from holdfast.errors import (
    Abandon,
    Conflict,
    Diverged,
    HoldfastError,
    InvalidInput,
    LeaseLost,
    LogRegressed,
    NotFound,
    RunWaiting,
    UnknownEvent,
)
from holdfast.runtime.clock import elapsed
from holdfast.store.base import Append, RowChange, RunRow, Store

PAGE: Final = 1000
UNWRITTEN: Final = 2**63
"""The place of what is not in the log yet: after everything that is."""

_data: Final = itemgetter(4)
"""What a record holds."""

N = TypeVar("N", bound=Noted)
E = TypeVar("E", bound=Event)
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Setting:
    """What the agent declared about the calls of its runs."""

    approve: tuple[str, ...] = ()
    approval_ttl: float | None = None
    stages: tuple[str, ...] = ()
    model: Any = None
    run_child: Callable[..., Any] | None = None
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    undo_child: Callable[..., Any] | None = None


class Pending(msgspec.Struct, eq=False):
    """An append on its way, and what is needed to build it again if the log has grown meanwhile."""

    session: Session
    work: Append
    events: Sequence[Event]
    generation: int
    own: int
    """How many of the events, at the end, are those of the commit itself: the others were buffered."""


@dataclass(frozen=True, slots=True)
class Saved:
    """Where a loop may go on without reading what stands before: its state, and the end of that log."""

    state: RunState
    head: Head
    first: Record
    """The record of its creation, which says what the run may do."""
    bytes: int = 0


class Session:
    """One run, executing in this process under one epoch."""

    def __init__(
        self,
        store: Store,
        row: RunRow,
        *,
        worker: str,
        setting: Setting,
        boundary: Callable[[str], None] | None = None,
        stand_in: Callable[[Any], Any] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        patience_us: int = 5_000_000,
    ) -> None:
        self.store = store
        self.run_id = row.id
        self.epoch = row.epoch
        self.worker = worker
        self.setting = setting
        self.boundary = boundary
        self.stand_in = stand_in
        self.takes_plain_steps = setting.checkpoint.at_step and "read" not in setting.approve
        """Whether a step that is safe to repeat is no more than its body and a receipt, written at once."""
        self.is_watched = boundary is not None or stand_in is not None
        """Whether a test looks on, puts mocks in, or stops the process somewhere."""
        self.sleep = sleep
        self.patience_us = patience_us
        """Waits up to this long stay in the process; longer ones suspend the run."""
        self.journal = Journal()
        self.draft = Draft(keep_calls=False)
        self.head = log.origin(row.id)
        self.stopped: BaseException | None = None
        self.settled = False
        self.torn = False
        self.specs: dict[str, Any] = {}
        self.secrets: set[str] = set()
        self.only_replay: HoldfastError | None = None
        self.lease_ends = math.inf
        """Until when the run is surely ours, by `elapsed`; the lease keeper says so."""
        self._mutex = threading.RLock()
        self._generation = 0
        self._steps = 0
        self._first: list[Event] = []
        self._noted: list[Event] = []
        self._noted_blobs: list[Blob] = []
        self._not_yet_kept: dict[str, bytes] = {}
        self._flying: list[Noted] = []
        self._unseen: deque[tuple[int, int, Event]] = deque()
        self._complete = False
        self._foreign = -1
        self._mine: dict[bytes, Event] = {}
        self._fed: set[bytes] = set()
        self._arrived: dict[int, Record] = {}
        self._ahead: list[tuple[int, Noted]] = []
        self._read_head = self.head
        self._held_usage: list[tuple[int, Usage]] = []
        self.unsaved_bytes = 0
        """What the log has grown by since the last snapshot that a loop can go on from."""
        self.saved_bytes = 0

    # ── reading the log ──────────────────────────────────────────────────────────────────

    def begin(self, head: Head, records: Sequence[Record]) -> None:
        """A run that was created a moment ago: its log is known without reading it."""
        self._take_in(records)
        self.head, self._complete = head, True
        self.show(head.seq)

    def load(self, saved: Saved | None = None) -> None:
        """Read the first page; the rest follows as the code asks for it.

        Of a loop only what follows its last iteration is history: everything is read, from where a
        snapshot ends, and all of it but that is shown and forgotten.
        """
        if saved is not None:
            first = saved.first
            self.journal.feed(
                first.seq, first.time, first.epoch, log.read_event(self.run_id, first)
            )
            self.journal.begin_at(saved.state)
            self.draft = Draft(saved.state, keep_calls=False)
            self._steps = saved.state.steps
            self.head = self._read_head = saved.head
            self.saved_bytes = saved.bytes
        self._read_page()
        if self.journal.created is None:
            raise NotFound(f"there is no run {self.run_id!r}")
        if self.journal.forgets:
            while not self._complete:
                self.show(self.journal.restarted)
                self._read_page()
        self._read_to_restart()
        self.show(self.journal.restarted)  # what was known then is what the code begins with

    def _read_to_restart(self) -> None:
        """What stands before the last restart is no history of this execution: read beyond it."""
        if self._complete:
            return
        last = self.store.last_restart(self.run_id)
        while self._read_head.seq < last:
            self._read_page()

    def _read_page(self) -> None:
        with self._mutex:
            if self._complete:
                return
            page = self.store.read(self.run_id, after=self._read_head.seq, limit=PAGE)
            self._take_in(log.verify(self.run_id, self._read_head, page))
            self.unsaved_bytes += sum(map(len, map(_data, page)))
            if len(page) < PAGE:
                self._complete = True
                self.head = self._read_head

    def _take_in(self, records: Iterable[Record], *, foreign: bool = False) -> None:
        """Know these records, which follow what is known. Our own are recognised by their hash."""
        mine, unseen, read = self._mine, self._unseen, e.from_json
        feed, feed_receipt = self.journal.feed, self.journal.feed_receipt
        seq, last = -1, None
        try:
            for record in records:
                seq, time, epoch, kind, data, hash_ = record
                event = mine.pop(hash_, None) if mine else None
                if event is None:
                    event = read(kind, data)
                    if type(event) is e.CallSucceeded:  # nearly all of a log that is read is such
                        feed_receipt(seq, time, epoch, event)
                    else:
                        feed(seq, time, epoch, event)
                    if foreign:
                        self._foreign = seq
                elif isinstance(event, Noted):
                    self._flying.remove(event)
                elif hash_ in self._fed:
                    self._fed.remove(hash_)
                else:
                    self._feed_own(record, event)
                unseen.append((seq, time, event))
                last = record
        except e.Unreadable as error:
            raise UnknownEvent(self.run_id, seq, str(error)) from None
        finally:  # also what stands before a record that cannot be read
            if last is not None:
                self._read_head = Head(last.seq, last.hash, last.time)
                self._steps = max(self._steps, self.journal.steps)

    def _feed_own(self, record: Record, event: Event) -> None:
        """An event of ours is durable. A receipt goes to the code at once, which asks no more."""
        if isinstance(event, e.CallSucceeded) or (
            isinstance(event, e.CallFailed) and event.retry_at is None
        ):
            self.journal.feed_answered(event)
        elif isinstance(event, e.IterationEnded):
            self.journal.iterated(record.seq, event)
        else:
            self.journal.feed(record.seq, record.time, record.epoch, event)

    def read_all(self) -> None:
        """Know the log to its end."""
        while not self._complete:
            self._read_page()

    def refresh(self) -> None:
        """Others have written: read what came since the log was last known to its end."""
        page = self.store.read(self.run_id, after=self._read_head.seq)
        self._take_in(log.verify(self.run_id, self._read_head, page), foreign=True)
        self._arrived = {seq: r for seq, r in self._arrived.items() if seq > self._read_head.seq}
        self.head = self._read_head

    def catch_up(self) -> None:
        """See what came from outside, if nothing of ours is on its way."""
        with self._mutex:
            self.read_all()
            if self.head.seq == self._read_head.seq:
                self.refresh()

    def entry(self, branch: str, index: int) -> Entry | None:
        """What the log holds at this place, with everything that may still change it."""
        found = self.journal.entries.get((branch, index))
        if found is not None and found.done is not None:
            return found
        while not self._complete and (found is None or not found.final or found.failed_finally):
            self._read_page()
            found = self.journal.entry(branch, index)
        return found

    def reaches(self, branch: str, index: int) -> bool:
        """Whether the log holds this place or a later one of the branch: the code is replaying."""
        while not self._complete and not self.journal.reaches(branch, index):
            self._read_page()
        return self.journal.reaches(branch, index)

    def expects(self, name: str) -> bool:
        """Whether the log holds something of this name that the code has not asked for yet."""
        self.read_all()
        return self.journal.expects(name)

    # ── what the code sees ───────────────────────────────────────────────────────────────

    def show(self, seq: int) -> None:
        """Let the code see the log up to this event."""
        unseen, apply = self._unseen, self.draft.apply
        with self._mutex:
            while unseen and unseen[0][0] <= seq:
                apply(*unseen.popleft())
            if self._held_usage:
                self._held_usage = [x for x in self._held_usage if x[0] > self.draft.seq]

    def pending(self, kind: type[E]) -> list[E]:
        """What the code noted and is not shown yet: recorded further on, on its way, or not yet sent."""
        self._ahead = [(seq, x) for seq, x in self._ahead if seq > self.draft.seq]
        found = (*(x for _, x in self._ahead), *self._flying, *self._noted)
        return [x for x in found if isinstance(x, kind)]

    def state(self) -> dict[str, Any]:
        """The user's state as the code sees it: what is shown, and its own changes since."""
        with self._mutex:
            waiting = self.pending(e.StateChanged)
            if not waiting:
                return self.draft.open.state
            seen = dict(self.draft.open.state)
            for x in waiting:
                change(seen, x.op, x.key, plain(x.value))
            return seen

    def view(self) -> RunState:
        """Everything the code sees, with its own notes since."""
        with self._mutex:
            shown, waiting = self.draft.freeze(loop=False), self.pending(Noted)
            if not waiting:
                return shown
            seen = Draft(shown, keep_calls=False)
            for x in waiting:
                seen.apply(self.draft.seq, self.store.now(), x)
            return seen.freeze()

    def messages(self) -> list[Message]:
        """The dialogue as the code sees it; as in `view`, without a copy of all the rest."""
        with self._mutex:
            waiting, now = self.pending(e.MessageAdded), self.store.now()
            return [*self.draft.messages, *(message_of(x, now) for x in waiting)]

    def note(self, event: N, blobs: Sequence[Blob] = ()) -> N:
        """Record a fact with the next commit; or the one that the log holds at this place already."""
        with self._mutex:
            self.check_alive()
            self.reaches(event.branch, event.after)
            found = self.journal.noted(event)
            if found is not None and isinstance(found[1], type(event)):
                self._ahead.append((found[0], found[1]))
                return found[1]
            self._noted.append(event)
            self._noted_blobs.extend(blobs)
            self._not_yet_kept.update((blob.hash, blob.data) for blob in blobs)
            return event

    def hold(self, event: Event, blobs: Sequence[Blob] = ()) -> None:
        """Record a fact with the next commit, in its place among what was noted."""
        with self._mutex:
            self.check_alive()
            self.read_all()
            self._noted.append(event)
            self._noted_blobs.extend(blobs)
            if isinstance(event, e.CallSucceeded):
                self.count_unshown(event, UNWRITTEN)

    def next_iteration(self) -> int:
        """The number of the iteration that ends now."""
        with self._mutex:
            unseen = (*(x for _, _, x in self._unseen), *self._noted)
            return 1 + self.draft.iteration + sum(isinstance(x, e.IterationEnded) for x in unseen)

    def queued(self) -> list[Queued]:
        """Patches from outside that wait for an iteration to end: all that are known and not taken in."""
        with self._mutex:
            waiting = dict(self.draft.open.queued)
            for _, _, event in self._unseen:
                if isinstance(event, e.StatePatched) and (event.patch or event.operations):
                    waiting[event.id] = Queued(event.id, event.patch, event.operations, event.by)
            for event in (*(x for _, _, x in self._unseen), *self._noted):
                if isinstance(event, e.IterationEnded):
                    for taken in event.taken:
                        waiting.pop(taken, None)
            return list(waiting.values())

    @property
    def held(self) -> int:
        """How many facts wait for the next commit."""
        return len(self._noted)

    @property
    def usage(self) -> Usage:
        """What the run has used up, with what is recorded and not shown yet."""
        total = self.draft.usage
        for _, x in self._held_usage:
            total = Usage(
                total.input_tokens + x.input_tokens,
                total.output_tokens + x.output_tokens,
                total.cost_usd + x.cost_usd,
            )
        return total

    def count_unshown(self, receipt: e.CallSucceeded, seq: int) -> None:
        """A receipt that was buffered counts at once, and is shown with the commit that held it."""
        if receipt.usage is not None:
            self._held_usage.append((seq, receipt.usage))

    def announce(self, event: Event) -> None:
        """Record a fact of the run's own life with the next commit."""
        with self._mutex:
            self._first.append(event)

    @property
    def has_news(self) -> bool:
        """Whether a fact of the run's own life waits to be recorded."""
        return bool(self._first)

    def wrap(self, data: bytes) -> tuple[Value, list[Blob]]:
        """Encoded bytes as a Value; when they are big, with the artifact that holds them."""
        value, blob = log.wrap(data)
        return value, [] if blob is None else [blob]

    def unwrap(self, value: Value) -> bytes:
        """The JSON bytes of a Value, fetched when they are kept beside the log."""
        if not value.blob:
            return bytes(value.json)
        data = self._not_yet_kept.get(value.blob) or self.store.blob(self.run_id, value.blob)
        if data is None or values.digest(data) != value.blob:
            raise Abandon(
                NotFound(f"run {self.run_id!r}: artifact {value.blob} is missing or damaged")
            )
        return data

    # ── writing the log ──────────────────────────────────────────────────────────────────

    def next_step(self) -> int:
        """The number of a call that is about to enter the log."""
        with self._mutex:
            self._steps += 1
            return self._steps

    @property
    def steps(self) -> int:
        """How many calls have entered the log."""
        return self._steps

    def build(
        self,
        events: Sequence[Event],
        *,
        change: RowChange | None = None,
        blobs: Sequence[Blob] = (),
        claims_key: str = "",
        urgent: bool = False,
        receipt: bool = False,
    ) -> Pending:
        """Chain the facts noted so far and these events to the log's end, ready to be appended.

        The receipt of a call that was under way is recorded even if the run has been stopped since.
        """
        with self._mutex:
            if not receipt:
                self.check_alive()
            if not self._complete:
                self.read_all()
            new, all_blobs = events, blobs
            if self._noted or self._first:
                new = [*self._first, *self._noted, *events]
                all_blobs = [*self._noted_blobs, *blobs]
                self._flying += [x for x in self._noted if isinstance(x, Noted)]
                self._first, self._noted, self._noted_blobs = [], [], []
            return self._seal(new, change, all_blobs, claims_key, urgent, own=len(events))

    def _seal(
        self,
        new: Sequence[Event],
        change: RowChange | None,
        blobs: Sequence[Blob],
        claims_key: str,
        urgent: bool,
        *,
        own: int,
    ) -> Pending:
        if len(new) == 1:
            return self._seal_one(new[0], change, blobs, claims_key, urgent, own)
        before, epoch = self.head, self.epoch
        self.head, records = log.seal(before, new, epoch=epoch, time=self.store.now())
        for (_, _, _, _, data, hash_), event in zip(records, new, strict=True):
            self._mine[hash_] = event
            self.unsaved_bytes += len(data)
        work = Append(
            self.run_id, before[0], records, epoch, change, blobs, claims_key, urgent, before[1]
        )
        return Pending(self, work, new, self._generation, own)

    def _seal_one(
        self,
        event: Event,
        change: RowChange | None,
        blobs: Sequence[Blob],
        claims_key: str,
        urgent: bool,
        own: int,
    ) -> Pending:
        """The same for one event, which is what most appends are."""
        before, epoch = self.head, self.epoch
        record = log.chained(before, event, epoch, self.store.now())
        self.head = log.head_at(record)
        self._mine[record[5]] = event
        self.unsaved_bytes += len(record[4])
        work = Append(
            self.run_id, before[0], (record,), epoch, change, blobs, claims_key, urgent, before[1]
        )
        return Pending(self, work, (event,), self._generation, own)

    def withdraw(self, *refused: Pending) -> None:
        """These were not written and will not be: what was noted with them waits for the next commit."""
        with self._mutex:
            for pending in refused:
                self._disown(pending.work)
                buffered = pending.events[: len(pending.events) - pending.own]
                noted = [x for x in buffered if not isinstance(x, e.RunClaimed)]
                first = [x for x in buffered if isinstance(x, e.RunClaimed)]
                self._first = [*first, *self._first]
                for x in noted:
                    if isinstance(x, Noted):
                        self._flying.remove(x)
                self._noted = [*noted, *self._noted]
                self._noted_blobs = [*pending.work.blobs, *self._noted_blobs]
            self.refresh()
            self._generation += 1

    def outside(self, event: Event) -> Pending:
        """An event of somebody who does not own the run (any more)."""
        at = self._read_head.seq
        # The log may be longer than we know, or (if the store lost something) shorter.
        page = self.store.read(self.run_id, after=at - 1) or self.store.read(self.run_id)
        if not page:
            raise NotFound(f"there is no run {self.run_id!r}")
        head = Head(page[-1].seq, page[-1].hash, page[-1].time)
        _, records = log.seal(head, [event], epoch=self._read_head_epoch(), time=self.store.now())
        work = Append(self.run_id, head.seq, records, None, before=head.hash)
        return Pending(self, work, [event], self._generation, 1)

    def _read_head_epoch(self) -> int:
        row = self.store.get(self.run_id)
        return self.epoch if row is None else row.epoch

    def learn(self, pending: Pending, conflict: Conflict) -> None:
        """The log has grown from outside: read what came."""
        with self._mutex:
            if conflict.head < self._read_head.seq:
                lost = LogRegressed(
                    self.run_id, conflict.head + 1, "the store lost what it had acknowledged"
                )
                raise self.stop(Abandon(lost))
            if pending.generation == self._generation:  # else another branch has done it already
                self.refresh()
                self._generation += 1
            if self.journal.terminal is not None:
                raise self.stop(
                    Abandon(RunWaiting(self.run_id, "nothing: it has ended", "look at it"))
                )

    def again(self, pending: Pending) -> Pending:
        """The same events, chained to the log as it is now known."""
        with self._mutex:
            self._disown(pending.work)
            old = pending.work
            return self._seal(
                pending.events, old.change, old.blobs, old.claims_key, old.urgent, own=pending.own
            )

    def _disown(self, work: Append) -> None:
        for record in work.records:
            self._mine.pop(record.hash, None)

    def submitted(
        self, build: Callable[[], Pending], submit: Callable[[Append], S]
    ) -> tuple[Pending, S]:
        """Build an append and take its place in the store's queue, in one: so the order in which
        branches are chained to each other is the order in which they are committed."""
        with self._mutex:
            pending = build()
            return pending, submit(pending.work)

    def submitted_receipt(
        self, receipt: e.CallSucceeded, blobs: Sequence[Blob], submit: Callable[[Append], S]
    ) -> tuple[Pending, S]:
        """The same for the receipt of a step: of most appends this is all."""
        with self._mutex:
            if self._noted or self._first or not self._complete:
                pending = self.build((receipt,), blobs=blobs, receipt=True)
            else:
                pending = self._seal_one(receipt, None, blobs, "", False, 1)
            return pending, submit(pending.work)

    def committed(self, pending: Pending) -> None:
        """The append is durable: the code may see it, and everything before it."""
        records = pending.work.records
        with self._mutex:
            if len(records) == 1 and self._took_in_receipt(records[0]):
                return
            for blob in pending.work.blobs:
                self._not_yet_kept.pop(blob.hash, None)
            if records[0].seq == self._read_head.seq + 1 and records[0].hash in self._mine:
                self._take_in(records)
            else:
                self._set_apart(pending)
            # Branches may hear of their commits in another order than the log has them.
            while self._arrived and (following := self._arrived.pop(self._read_head.seq + 1, None)):
                self._take_in((following,))
            self.show(records[-1].seq)
            if self._held_usage:
                self._held_usage = [x for x in self._held_usage if x[0] != UNWRITTEN]

    def _took_in_receipt(self, record: Record) -> bool:
        """The usual case, written out: one receipt of ours, next in the log, with nothing before it that
        the code has not seen. Whether it was that, and is known and shown."""
        seq, time, _, _, _, hash_ = record
        event = self._mine.get(hash_)
        if (
            type(event) is not e.CallSucceeded
            or seq != self._read_head[0] + 1
            or self._unseen
            or self._arrived
            or self._held_usage
            or self._not_yet_kept
            or hash_ in self._fed
        ):
            return False
        del self._mine[hash_]
        self._read_head = log.head_at(record)
        self.journal.feed_answered(event)
        self.draft.apply(seq, time, event)
        return True

    def _set_apart(self, pending: Pending) -> None:
        """What stands before it is still unknown; the branch that wrote it goes on all the same."""
        for record, event in zip(pending.work.records, pending.events, strict=True):
            if record.hash not in self._mine:
                continue  # it was read back from the store before we heard of it here
            self._arrived[record.seq] = record
            if not isinstance(event, Noted):
                self._feed_own(record, event)
                self._fed.add(record.hash)

    # ── ending ───────────────────────────────────────────────────────────────────────────

    def check_alive(self) -> None:
        """Raise what stopped this session, at every call that its code still makes."""
        if self.stopped is not None:
            raise self.stopped

    def stop(self, signal: BaseException) -> BaseException:
        """Whatever the code does from here on, it gets this signal at each call."""
        if self.stopped is None:
            self.stopped = signal
        return signal

    @property
    def knows_all(self) -> bool:
        """Whether the log has been read to its end."""
        return self._complete

    @property
    def is_ending(self) -> bool:
        """Whether what is cancelled now is so because the whole run ends here, not by its own code."""
        return self.torn or self.stopped is not None

    def check_lease(self) -> None:
        """Before an effect: the lease must still be ours, by a margin."""
        if self.stopped is not None:
            raise self.stopped
        if self.lease_ends <= elapsed():
            raise self.stop(Abandon(LeaseLost(self.run_id, self.epoch, self.epoch + 1)))

    def hash_at(self, seq: int) -> bytes:
        """The hash of the last event that is known here; InvalidInput if it is another one."""
        if seq != self._read_head.seq:
            raise InvalidInput(f"event {seq} is not the last one known, {self._read_head.seq}")
        return self._read_head.hash

    @property
    def read_to(self) -> int:
        """The last event that is known here."""
        return self._read_head.seq

    def came_between(self, seen: int) -> bool:
        """Whether somebody else's event came after `seen`, which the code could not react to."""
        with self._mutex:
            return self._foreign > seen

    def make_due(self) -> None:
        """Let any worker take the run at once."""
        row = self.store.claim(self.run_id, worker=self.worker, lease_us=1_000_000)
        if row is not None:
            self.store.release(self.run_id, row.epoch)

    def discard_notes(self) -> None:
        """Notes of code that diverged are not this run's."""
        with self._mutex:
            self._noted, self._noted_blobs = [], []

    def diverged(
        self, where: str, recorded: str, attempted: str, *, adds: bool = False
    ) -> BaseException:
        """The code asks for something else than the log holds."""
        created = self.journal.created
        forked_from = "" if created is None else created.forked_from
        error = Diverged(
            self.run_id, where, recorded, attempted, adds=adds, forked_from=forked_from
        )
        return self.stop(Abandon(error))

    def stood_in(self, effect: S) -> S:
        """What is executed instead: tests put mocks here, and the log knows no difference."""
        return effect if self.stand_in is None else self.stand_in(effect)

    def point(self, name: str) -> None:
        """A boundary: tests stop the process here."""
        if self.boundary is not None:
            self.boundary(name)
