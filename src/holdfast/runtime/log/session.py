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
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct, field

from holdfast.core import events as e
from holdfast.core import log
from holdfast.core.entry import Entry, Place
from holdfast.core.events import Event, Noted, Usage, Value, plain
from holdfast.core.fold import Draft, message_of
from holdfast.core.journal import Journal
from holdfast.core.knowledge import change
from holdfast.core.log import Blob, Head, Record
from holdfast.core.parts import Message
from holdfast.core.policy import Checkpoint
from holdfast.core.state import Queued, RunState
from holdfast.core.still_open import open_since
from holdfast.core.waits import OpenWait, first_ends
from holdfast.errors import (
    Abandon,
    Diverged,
    HoldfastError,
    InvalidInput,
    LeaseLost,
    LogDamaged,
    LogRegressed,
    NotFound,
    Stop,
    Suspend,
    UnknownEvent,
)
from holdfast.runtime.declare.specs import AgentSpec
from holdfast.runtime.log.clock import elapsed
from holdfast.runtime.log.lineage import Lineage
from holdfast.runtime.log.writer import Batch, LogWriter
from holdfast.store.artifacts import read_artifact
from holdfast.store.base import TERMINAL_STATUSES, UNCLAIMABLE_STATUSES, RunRow, Store

if TYPE_CHECKING:  # only runs of async agents have lines
    from holdfast.runtime.lines.lines import Lines
    from holdfast.runtime.lines.turns import Turn

PAGE: Final = 1000
UNWRITTEN: Final = 2**63
"""The place of what is not in the log yet: after everything that is."""

_data: Final = itemgetter(4)
"""What a record holds."""


def place_name(branch: str, index: int) -> str:
    """A place in the log, for people."""
    if index < 0:
        return "a timeout" + (f" of branch {branch}" if branch else "")
    return f"call {index + 1}" + (f" of branch {branch}" if branch else "")


N = TypeVar("N", bound=Noted)
E = TypeVar("E", bound=Event)
S = TypeVar("S")


class Setting(Struct, frozen=True):
    """What the agent declared about the calls of its runs."""

    stages: tuple[str, ...] = ()
    model: Any = None
    run_child: Callable[..., Any] | None = None
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    agents: dict[str, AgentSpec] = field(default_factory=dict)
    """The agents that this process knows, by name."""
    calls_of: Callable[[str], dict[str, Any]] | None = None
    """The steps and tools that the code of the run with this id has called, by name."""
    undo_of_child: Callable[[str], Callable[..., Any]] | None = None
    """How to undo a child run of the agent with this name."""
    end_children: Callable[[str, e.CancelRequested], None] | None = None
    """Called with the id of a run that is cancelled, or fails by its deadline or budget."""


TRY_CHILD_US: Final = 5_000_000
"""How long a child that could not be claimed is left to workers."""


class Saved(Struct, frozen=True):
    """Where a loop may continue without reading what is before: its state, and the end of that log."""

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
        self.lineage = Lineage()
        """Its policy, and its parents and children that execute here; see `lineage.govern`."""
        self.is_watched = boundary is not None or stand_in is not None
        """Whether a test looks on, puts mocks in, or stops the process somewhere."""
        self.sleep = sleep
        self.patience_us = patience_us
        """Waits up to this long stay in the process; longer ones suspend the run."""
        self.journal = Journal()
        self.draft = Draft(keep_calls=False)
        self.read_head = log.origin(row.id)
        """The last event that is known here."""
        self.woken = row.woken
        """How often the run had been woken when its children were last looked at."""
        self.waits: dict[Place, OpenWait] = {}
        """What its branches are waiting for, those that have was suspended too."""
        self.suspensions: dict[Place, Suspend] = {}
        """The same for people."""
        self.lines: Lines | None = None
        """The tasks of an async agent."""
        self.stopped: BaseException | None = None
        self.lost: BaseException | None = None
        """The run is not ours any more, for this reason: its code ends here, whatever it awaits."""
        self.settled = False
        self.ending = False
        """Its code has been stopped, and the run is being ended: another such signal changes nothing."""
        self.torn = False
        self.specs: dict[str, Any] = {}
        self._tried_children: dict[str, int] = {}
        self.redacting: dict[str, tuple[Any, frozenset[str], Any]] = {}
        """By name: a spec, what the policy redacts in addition, and the spec with both."""
        self.secrets: set[str] = set()
        self.only_replay: HoldfastError | None = None
        self.lease_ends = math.inf
        """Until when the run is surely ours, by `elapsed`; the lease keeper says so."""
        self._mutex = threading.RLock()
        self.writer = LogWriter(self, self._mutex)
        self._steps = 0
        self._not_yet_kept: dict[str, bytes] = {}
        self._unseen: deque[tuple[int, int, Event]] = deque()
        self.knows_all = False
        """Whether the log has been read to its end."""
        self._ahead: list[tuple[int, Noted]] = []
        self._held_usage: list[tuple[int, Usage]] = []
        self.unsaved_bytes = 0
        """What the log has grown by since the last snapshot that a loop can continue from."""
        self.saved_bytes = 0

    # ── reading the log ──────────────────────────────────────────────────────────────────

    def begin(self, head: Head, records: Sequence[Record]) -> None:
        """A run that was created a moment ago: its log is known without reading it."""
        self._take_in(records)
        self.writer.head, self.knows_all = head, True
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
            self.writer.head = self.read_head = saved.head
            self.saved_bytes = saved.bytes
        self._read_page()
        if self.journal.life.created is None:
            raise NotFound(f"no run {self.run_id!r}")
        if self.journal.forgets:
            while not self.knows_all:
                self.show(self.journal.restarted)
                self._read_page()
        self._read_to_restart()
        self.show(self.journal.restarted)  # what was known then is what the code starts with

    def _read_to_restart(self) -> None:
        """What is before the last restart is not a history of this execution: read beyond it."""
        if self.knows_all:
            return
        last = self.store.last_restart(self.run_id)
        while self.read_head.seq < last:
            self._read_page()

    def _read_page(self) -> None:
        with self._mutex:
            if self.knows_all:
                return
            page = self.store.read(self.run_id, after=self.read_head.seq, limit=PAGE)
            self._take_in(log.verify(self.run_id, self.read_head, page))
            self.unsaved_bytes += sum(map(len, map(_data, page)))
            if len(page) < PAGE:
                self.knows_all = True
                self.writer.head = self.read_head

    def _take_in(self, records: Iterable[Record]) -> None:
        """Know these records, which follow what is known, and were not written here."""
        unseen, read = self._unseen, e.from_json
        feed, feed_receipt = self.journal.feed, self.journal.feed_receipt
        seq, last = -1, None
        try:
            for record in records:
                seq, time, epoch, kind, data, _ = record
                event = read(kind, data)
                if type(event) is e.CallSucceeded:  # nearly all of a log that is read is such
                    feed_receipt(seq, time, epoch, event)
                else:
                    feed(seq, time, epoch, event)
                unseen.append((seq, time, event))
                last = record
        except e.Unreadable as error:
            raise UnknownEvent(self.run_id, seq, str(error)) from None
        finally:  # also what is before a record that cannot be read
            if last is not None:
                self.read_head = log.head_at(last)
                self._steps = max(self._steps, self.journal.steps)

    def recorded_own(self, batch: Batch) -> None:
        """A batch of ours is durable. A receipt goes to the code, which does not ask for it again."""
        events = batch.events if batch.buffered else batch.commit.events
        for record, event in zip(batch.records, events, strict=True):
            seq, time, epoch, _, data, _ = record
            if type(event) is e.CallSucceeded:
                self.journal.feed_answered(event)
                if event.usage is not None:
                    self._usage_is_at(event, seq)
            elif isinstance(event, e.CallFailed) and event.retry_at is None:
                self.journal.feed_answered(event)
            elif isinstance(event, e.IterationEnded):
                self.journal.iterated(seq, event)
            elif isinstance(event, Noted):
                self._ahead.append((seq, event))  # the code sees it all the while
            else:
                self.journal.feed_own(seq, time, epoch, event)
            self._unseen.append((seq, time, event))
            self.unsaved_bytes += len(data)
        if batch.records and batch.head is not None:
            self.read_head = batch.head
        if batch.turn is not None:
            batch.turn.accepted(batch.seq)
        if self._not_yet_kept and batch.work is not None:
            for blob in batch.work.blobs:
                self._not_yet_kept.pop(blob.hash, None)

    def _usage_is_at(self, receipt: e.CallSucceeded, seq: int) -> None:
        """A receipt's usage counts until it is shown: from where it is recorded now."""
        assert receipt.usage is not None
        if receipt.buffered:
            self._held_usage.remove((UNWRITTEN, receipt.usage))
        self._held_usage.append((seq, receipt.usage))

    def read_all(self) -> None:
        """Know the log to its end."""
        while not self.knows_all:
            self._read_page()

    def refresh(self) -> bool:
        """Read what others have written since; whether there was anything. Nothing of ours is on its way.

        The last event that was known must still be there: a store that lost it has lost what it had
        acknowledged.
        """
        known = self.read_head
        page = self.store.read(self.run_id, after=known.seq - 1)
        if known.seq >= 0 and (not page or page[0].hash != known.hash):
            first = known.seq if page else self.store.head(self.run_id) + 1
            lost = LogRegressed(self.run_id, first, "the store lost what it had acknowledged")
            raise self.stop(Abandon(lost))
        new = page if known.seq < 0 else page[1:]
        self._take_in(log.verify(self.run_id, known, new))
        self.writer.head = self.read_head
        return bool(new)

    def catch_up(self) -> bool:
        """See what came from outside, if nothing of ours is on its way; whether anything came."""
        with self._mutex:
            self.read_all()
            return self.writer.is_idle and self.refresh()

    def end_waits(self, places: Sequence[Place]) -> Sequence[e.WaitEnded] | None:
        """The ends of these waits, if one has come. A signal that ends one is for no other branch."""
        with self._mutex:
            ends = first_ends(self.journal, places, self.store.now())
            for ended in ends or ():
                if ended.wait == "signal" and ended.source:
                    self.journal.take_signal(ended.source)
            return ends

    def look_at_children(self) -> set[str]:
        """The child runs among those waited for that have ended. The run's row is read first, so that an
        end that is not seen here has raised its count of wake-ups by the time it is suspended."""
        children = [wait.child for wait in self.waits.values() if wait.child]
        if not children:
            return set()
        row = self.store.get(self.run_id)
        self.woken = self.woken if row is None else row.woken
        rows = [self.store.get(child) for child in children]
        return {x.id for x in rows if x is not None and x.status in TERMINAL_STATUSES}

    def children_left_alone(self, since: int) -> set[str]:
        """The child runs among those waited for that have been due since this time: no worker is there, or
        none that knows their agents. Each is named once in a while."""
        now, found = self.store.now(), set()
        for child in [wait.child for wait in self.waits.values() if wait.child]:
            row = self.store.get(child)
            if row is None or row.due_at is None or row.status in UNCLAIMABLE_STATUSES:
                continue
            left_alone = row.due_at <= since and row.agent in self.setting.agents
            if left_alone and now >= self._tried_children.get(child, 0):
                self._tried_children[child] = now + TRY_CHILD_US
                found.add(child)
        return found

    def entry(self, branch: str, index: int) -> Entry | None:
        """What the log contains at this place, with everything that may still change it."""
        found = self.journal.entries.get((branch, index))
        if found is not None and found.done is not None:
            return found
        while not self.knows_all and (found is None or not found.final or found.failed_finally):
            self._read_page()
            found = self.journal.entry(branch, index)
        return found

    def reaches(self, branch: str, index: int) -> bool:
        """Whether the log contains this place or a later one of the branch: the code is replaying."""
        while not self.knows_all and not self.journal.reaches(branch, index):
            self._read_page()
        return self.journal.reaches(branch, index)

    def expects(self, name: str) -> bool:
        """Whether the log contains something of this name that the code has not asked for yet."""
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

    def open_since(self) -> int | None:
        """Since when anything of the run is open, at most; None if its log is not known to its end."""
        if not self.knows_all:
            return None
        if self.lines is None:
            self.show(self.read_to)  # its code has unwound: nothing is hidden from it any more
        found = open_since(self.draft)
        return min(found, self._unseen[0][1]) if self._unseen else found

    def pending(self, kind: type[E]) -> list[E]:
        """What the code noted and is not shown yet: recorded further on, on its way, or not yet sent."""
        self._ahead = [(seq, x) for seq, x in self._ahead if seq > self.draft.seq]
        found = (*(x for _, x in self._ahead), *self.writer.in_flight(Noted), *self.writer.noted)
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
        """Record a fact with the next commit; or the one that the log contains at this place already."""
        with self._mutex:
            self.check_alive()
            self.reaches(event.branch, event.after)
            found = self.journal.noted(event)
            if found is not None and isinstance(found[1], type(event)):
                self._ahead.append((found[0], found[1]))
                return found[1]
            self.writer.buffer(event, blobs)
            self._not_yet_kept.update((blob.hash, blob.data) for blob in blobs)
            return event

    def hold(self, event: Event, blobs: Sequence[Blob] = ()) -> Turn | None:
        """Record a fact with the next commit, in its place among what was noted. A receipt is given to the
        code before that: its turn is after all outcomes that are on their way to the log."""
        with self._mutex:
            self.check_alive()
            self.read_all()
            self.writer.buffer(event, blobs)
            if not isinstance(event, e.CallSucceeded):
                return None
            self.count_unshown(event, UNWRITTEN)
            if self.lines is None or self.lines.thread != threading.get_ident():
                return None
            turn = self.lines.turns.outcome()
            if turn is not None:
                turn.accepted(self.read_head.seq)
            return turn

    def next_iteration(self) -> int:
        """The number of the iteration that ends now."""
        with self._mutex:
            unseen = (*(x for _, _, x in self._unseen), *self.writer.noted)
            return 1 + self.draft.iteration + sum(isinstance(x, e.IterationEnded) for x in unseen)

    def queued(self) -> list[Queued]:
        """Patches from outside that wait for an iteration to end: all that are known and not taken in."""
        with self._mutex:
            waiting = dict(self.draft.open.queued)
            for _, _, event in self._unseen:
                if isinstance(event, e.StatePatched) and (event.patch or event.operations):
                    waiting[event.id] = Queued(event.id, event.patch, event.operations, event.by)
            for event in (*(x for _, _, x in self._unseen), *self.writer.noted):
                if isinstance(event, e.IterationEnded):
                    for taken in event.taken:
                        waiting.pop(taken, None)
            return list(waiting.values())

    @property
    def held(self) -> int:
        """How many facts wait for the next commit."""
        return len(self.writer.noted)

    @property
    def child_steps(self) -> int:
        """How many calls its child runs had made, by their receipts."""
        return self.draft.child_steps

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
            self.writer.first.append(event)

    @property
    def has_news(self) -> bool:
        """Whether a fact of the run's own life waits to be recorded."""
        return bool(self.writer.first)

    def wrap(self, data: bytes) -> tuple[Value, list[Blob]]:
        """Encoded bytes as a Value; when they are big, with the artifact that holds them."""
        value, blob = log.wrap(data)
        return value, [] if blob is None else [blob]

    def unwrap(self, value: Value) -> bytes:
        """The JSON bytes of a Value, fetched when they are kept next to the log."""
        if not value.blob:
            return bytes(value.json)
        try:
            return self.artifact(value.blob)
        except LogDamaged as damage:
            raise self.stop(Abandon(damage)) from None

    def artifact(self, hash: str) -> bytes:
        """The bytes of a value outside the log, also before they are committed; or ArtifactDamaged."""
        return self._not_yet_kept.get(hash) or read_artifact(self.store, self.run_id, hash)

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

    # ── ending ───────────────────────────────────────────────────────────────────────────

    def check_alive(self) -> None:
        """Raise what stopped this session, at every call that its code still makes."""
        if self.stopped is not None:
            raise self.stopped

    def stop(self, signal: BaseException) -> BaseException:
        """Whatever the code does from here on, it gets this signal at each call."""
        if self.stopped is None and not (self.ending and isinstance(signal, Stop)):
            self.stopped = signal
        return signal

    def lose(self, signal: BaseException) -> None:
        """The run is not ours any more. Code that awaits something else than a call would not hear of that: it is
        ended when the calls under way have come to their end. From any thread."""
        self.stop(signal)
        self.lost = signal
        if self.lines is not None:
            self.lines.notify_soon()

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
        if seq != self.read_head.seq:
            raise InvalidInput(f"event {seq} is not the last one known, {self.read_head.seq}")
        return self.read_head.hash

    @property
    def read_to(self) -> int:
        """The last event that is known here."""
        return self.read_head.seq

    def discard_notes(self) -> None:
        """Notes of code that diverged are not this run's."""
        with self._mutex:
            self.writer.discard()

    def diverged(
        self, where: str | Place, recorded: str, attempted: str, *, adds: bool = False
    ) -> BaseException:
        """The code asks for something other than the log contains at this place. If the run has been stopped, that is
        why: code that continues although it was cancelled (after a timeout of its own) may do anything."""
        if self.stopped is not None:
            return self.stopped
        place = None if isinstance(where, str) else where
        created = self.journal.life.created
        forked_from = "" if created is None else created.forked_from
        name = where if isinstance(where, str) else place_name(*where)
        error = Diverged(
            self.run_id, name, recorded, attempted, adds=adds, forked_from=forked_from, place=place
        )
        return self.stop(Abandon(error))

    def end_of_replay(self) -> BaseException:
        """A mere replay has come to the end of what is recorded: of all of it, or of a thread's branch."""
        assert self.only_replay is not None
        signal = Abandon(self.only_replay)
        return signal if self.lines is None else self.stop(signal)

    def not_asked(self, place: Place, attempted: str) -> BaseException:
        """The code does not ask for what is recorded at this place."""
        return self.diverged(place, self.shown(self.journal.entries[place]), attempted)

    def shown(self, entry: Entry) -> str:
        """What is recorded at a place, for people."""
        if entry.iteration is not None:
            return f"the end of iteration {entry.iteration.iteration}"
        if entry.is_wait and entry.wait is not None:
            return f"wait for {entry.wait.wait} {entry.wait.name!r}".rstrip()
        if entry.timeout is not None:
            return "a timeout (asyncio.timeout) that cancels the task"
        args = entry.args
        text = (
            self.unwrap(args).decode()
            if args is not None
            else f"arguments with digest {entry.args_digest}"
        )
        return f"{entry.name}({text if len(text) <= 200 else text[:199] + '…'})"

    def stood_in(self, effect: S) -> S:
        """What is executed instead: tests put mocks here, and the log contains no difference."""
        return effect if self.stand_in is None else self.stand_in(effect)

    def point(self, moment: str, name: str) -> None:
        """A boundary: tests stop the process here."""
        if self.boundary is not None:
            self.boundary(moment + name)
