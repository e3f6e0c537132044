"""A live run: its lease, its log, what its code sees of it, and what has stopped it.

A session is the one place that knows both sides of a run in this process: the log, as far as it is read (`reader.py`) and
as far as it is written (`writer.py`), and the agent's view of it (`view.py`). It decides nothing; the flow does.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, field

from holdfast.core import events as e
from holdfast.core.entry import Entry, Place
from holdfast.core.events import Event, Noted, Value
from holdfast.core.journal import Journal
from holdfast.core.journal_feed import feed_answered, feed_own, iterated
from holdfast.core.log import Blob, origin
from holdfast.core.policy import Checkpoint
from holdfast.core.waits import OpenWait, first_ends
from holdfast.errors import (
    Abandon,
    Diverged,
    HoldfastError,
    LeaseLost,
    LogDamaged,
    LogRegressed,
    Stop,
    Suspend,
)
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.log.clock import elapsed
from holdfast.runtime.log.lineage import AwaitedChildren, Lineage
from holdfast.runtime.log.reader import LogReader
from holdfast.runtime.log.view import UNWRITTEN, AgentView
from holdfast.runtime.log.writer import Batch, LogWriter
from holdfast.store.artifacts import read_artifact
from holdfast.store.base import RunRow, Store

if TYPE_CHECKING:  # only runs of async agents have lines
    from concurrent.futures import Executor

    from holdfast.runtime.lines.lines import Lines
    from holdfast.runtime.lines.turns import Turn


N = TypeVar("N", bound=Noted)
E = TypeVar("E", bound=Event)


class RunConfig(Struct, frozen=True):
    """What the agent declared about the calls of its runs."""

    stages: tuple[str, ...] = ()
    model: Any = None
    run_child: Callable[..., Any] | None = None
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    commits_receipts: bool = True
    """Whether its strategy commits every receipt at once."""
    agents: dict[str, AgentSpec] = field(default_factory=dict)
    """The agents that this process knows, by name."""
    calls_of: Callable[[str], dict[str, Any]] | None = None
    """The steps and tools that the code of the run with this id has called, by name."""
    undo_of_child: Callable[[str], Callable[..., Any]] | None = None
    """How to undo a child run of the agent with this name."""
    end_children: Callable[[str, e.CancelRequested], None] | None = None
    """Called with the id of a run that is cancelled, or fails by its deadline or budget."""
    threads: Executor | None = None
    """Where an async run reads the store; None: in the event loop's own threads."""


class Session:
    """One run, executing in this process under one epoch. (With slots: it has more attributes than Python keeps compactly.)"""

    __slots__ = (
        "__weakref__",
        "_mutex",
        "_not_yet_kept",
        "boundary",
        "children",
        "config",
        "ending",
        "epoch",
        "is_unwinding",
        "journal",
        "lease_ends",
        "lineage",
        "lines",
        "log",
        "lost",
        "only_replay",
        "patience_us",
        "redacting",
        "run_id",
        "secrets",
        "settled",
        "sleep",
        "specs",
        "stand_in",
        "stop_signal",
        "store",
        "suspensions",
        "view",
        "waits",
        "worker",
        "writer",
    )

    def __init__(
        self,
        store: Store,
        row: RunRow,
        *,
        worker: str,
        config: RunConfig,
        boundary: Callable[[str], None] | None = None,
        stand_in: Callable[[Any], Any] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        patience_us: int = 5_000_000,
    ) -> None:
        self.store = store
        self.run_id = row.id
        self.epoch = row.epoch
        self.worker = worker
        self.config = config
        self.boundary = boundary
        """Called before and after every commit and effect: tests stop the process here."""
        self.stand_in = stand_in
        """What is executed instead of an effect: tests put mocks here, and the log contains no difference."""
        self.lineage = Lineage()
        """Its policy, and its parents and children that execute here; see `lineage.govern`."""
        self.sleep = sleep
        self.patience_us = patience_us
        """Waits up to this long stay in the process; longer ones suspend the run."""
        self.journal = Journal()
        self.waits: dict[Place, OpenWait] = {}
        """What its branches are waiting for, including those that are suspended."""
        self.suspensions: dict[Place, Suspend] = {}
        """The same for people."""
        self.children = AwaitedChildren(store, row, self.waits, config.agents)
        self.lines: Lines | None = None
        """The tasks of an async agent."""
        self.stop_signal: BaseException | None = None
        self.lost: BaseException | None = None
        """The run is not ours any more, for this reason: its code ends here, whatever it awaits."""
        self.settled = False
        self.ending = False
        """Its code has been stopped, and the run is being ended: another such signal changes nothing."""
        self.is_unwinding = False
        self.specs: dict[str, Any] = {}
        self.redacting: dict[str, tuple[Any, frozenset[str], Any]] = {}
        """By name: a spec, what the policy redacts in addition, and the spec with both."""
        self.secrets: set[str] = set()
        self.only_replay: HoldfastError | None = None
        self.lease_ends = math.inf
        """Until when the run is surely ours, by `elapsed`; the lease keeper says so."""
        self._mutex = threading.RLock()
        empty = origin(row.id)
        self.writer = LogWriter(self, empty, self._mutex)
        self.view = AgentView(self.writer, self._mutex, store.now)
        self.log = LogReader(
            store,
            row.id,
            row.epoch,
            empty,
            journal=self.journal,
            view=self.view,
            writer=self.writer,
            mutex=self._mutex,
            on_read=self._look_at_waits,
        )
        self._not_yet_kept: dict[str, bytes] = {}

    # ── reading the log ──────────────────────────────────────────────────────────────────

    def recorded_own(self, batch: Batch) -> None:
        """A batch of ours is durable. A receipt goes to the code, which does not ask for it again."""
        journal, view, log, lines = self.journal, self.view, self.log, self.lines
        is_shown = lines is None or (lines.is_lone_outcome_due and not lines.needs_order)
        events = batch.all_events if batch.buffered else batch.events
        for (seq, at, _, _, data, _), event in zip(batch.records, events, strict=True):
            if type(event) is e.CallSucceeded:
                feed_answered(journal, event)
                if event.usage is not None:
                    view.usage_is_at(event, seq)
            elif isinstance(event, e.CallFailure) and event.retry_at is None:
                feed_answered(journal, event)
            elif isinstance(event, e.IterationEnded):
                iterated(journal, seq, event)
            elif isinstance(event, Noted):
                view.ahead.append((seq, event))  # the code sees it all the while
            else:
                feed_own(journal, seq, at, event)
            view.record(seq, at, event, is_shown=is_shown)
            log.unsaved_bytes += len(data)
        if batch.records and batch.head is not None:
            log.head = batch.head
        if batch.turn is not None:
            batch.turn.seq = batch.seq
        if self._not_yet_kept and batch.work is not None:
            for blob in batch.work.blobs:
                self._not_yet_kept.pop(blob.hash, None)

    def refresh(self) -> bool:
        """Read what others have written since; whether there was anything. Nothing of ours is on its way."""
        try:
            return self.log.refresh()
        except LogRegressed as lost:
            raise self.stop(Abandon(lost)) from None

    def catch_up(self) -> bool:
        """See what came from outside, if nothing of ours is on its way; whether anything came."""
        with self._mutex:
            self.log.read_all()
            try:
                return self.writer.is_idle and self.refresh()
            except LeaseLost as lost:
                raise self.stop(Abandon(lost)) from None

    def _look_at_waits(self) -> None:
        """What was read may be what a line is waiting for, whichever line or thread has read it."""
        if self.lines is not None:
            self.lines.parking.look_again_soon()

    def end_waits(self, places: Sequence[Place]) -> Sequence[e.WaitEnded] | None:
        """The ends of these waits, if one has come. A signal that ends one is for no other branch."""
        with self._mutex:
            ends = first_ends(self.journal, places, self.store.now())
            for ended in ends or ():
                if ended.wait == "signal" and ended.source:
                    self.journal.take_signal(ended.source)
            return ends

    # ── what the code notes ──────────────────────────────────────────────────────────────

    def note(self, event: N, blobs: Sequence[Blob] = ()) -> N:
        """Record a fact with the next commit; or the one that the log contains at this place already."""
        with self._mutex:
            self.check_alive()
            self.log.reaches(event.branch, event.after)
            found = self.journal.noted(event)
            if found is not None and isinstance(found[1], type(event)):
                self.view.ahead.append((found[0], found[1]))
                return found[1]
            self.writer.buffer(event, blobs)
            self._not_yet_kept.update((blob.hash, blob.data) for blob in blobs)
            return event

    def buffer(self, event: Event, blobs: Sequence[Blob] = ()) -> Turn | None:
        """Record a fact with the next commit, in its place among what was noted. A receipt is given to the
        code before that: its turn is after all outcomes that are on their way to the log."""
        with self._mutex:
            self.check_alive()
            self.log.read_all()
            self.writer.buffer(event, blobs)
            if not isinstance(event, e.CallSucceeded):
                return None
            self.view.count_unshown(event, UNWRITTEN)
            if self.lines is None or self.lines.thread != threading.get_ident():
                return None
            turn = self.lines.turns.outcome()
            if turn is not None:
                turn.seq = self.log.head.seq
            return turn

    def announce(self, event: Event) -> None:
        """Record a fact of the run's own life with the next commit."""
        with self._mutex:
            self.writer.first.append(event)

    @property
    def has_news(self) -> bool:
        """Whether a fact of the run's own life waits to be recorded."""
        return bool(self.writer.first)

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
            self.log.steps += 1
            return self.log.steps

    @property
    def steps(self) -> int:
        """How many calls have entered the log."""
        return self.log.steps

    # ── ending ───────────────────────────────────────────────────────────────────────────

    def check_alive(self) -> None:
        """Raise what stopped this session, at every call that its code still makes."""
        if self.stop_signal is not None:
            raise self.stop_signal

    def stop(self, signal: BaseException) -> BaseException:
        """Whatever the code does from here on, it gets this signal at each call."""
        if self.stop_signal is None and not (self.ending and isinstance(signal, Stop)):
            self.stop_signal = signal
        return signal

    def lose(self, signal: BaseException) -> None:
        """This process no longer owns the run. Code that awaits something other than a call is not interrupted: it is
        ended when the calls in progress have ended. Callable from any thread."""
        self.stop(signal)
        self.lost = signal
        if self.lines is not None:
            self.lines.supervisor.notify_soon()

    @property
    def is_ending(self) -> bool:
        """Whether what is cancelled now is so because the whole run ends here, not by its own code."""
        return self.is_unwinding or self.stop_signal is not None

    def check_lease(self) -> None:
        """Before an effect: the lease must still be ours, by a margin."""
        if self.stop_signal is not None:
            raise self.stop_signal
        if self.lease_ends <= elapsed():
            raise self.stop(Abandon(LeaseLost(self.run_id, self.epoch, self.epoch + 1)))

    @property
    def read_to(self) -> int:
        """The last event that is known here."""
        return self.log.head.seq

    def discard_notes(self) -> None:
        """Notes of code that diverged are not this run's."""
        with self._mutex:
            self.writer.discard()

    def diverged(
        self, where: str | Place, recorded: str, attempted: str, *, adds: bool = False
    ) -> BaseException:
        """The code asks for something other than the log contains at this place. If the run has been stopped, that is
        why: code that continues although it was cancelled (after a timeout of its own) may do anything."""
        if self.stop_signal is not None:
            return self.stop_signal
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
        recorded = recorded_text(self.journal.entries[place], self.unwrap)
        return self.diverged(place, recorded, attempted)


# ── places of the log in words, for messages about code that diverged ────────────────────────


def place_name(branch: str, index: int) -> str:
    """A place in the log, for people."""
    if index < 0:
        return "a timeout" + (f" of branch {branch}" if branch else "")
    return f"call {index + 1}" + (f" of branch {branch}" if branch else "")


def recorded_text(entry: Entry, read: Callable[[Value], bytes]) -> str:
    """What is recorded at a place, for people. `read` gets a value that is kept outside the log."""
    if entry.iteration is not None:
        return f"the end of iteration {entry.iteration.iteration}"
    if entry.is_wait and entry.wait is not None:
        return f"wait for {entry.wait.wait} {entry.wait.name!r}".rstrip()
    if entry.timeout is not None:
        return "a timeout of the code (asyncio.timeout, or that of asyncio.wait)"
    args = entry.args
    text = read(args).decode() if args is not None else f"arguments with digest {entry.args_digest}"
    return f"{entry.name}({text if len(text) <= 200 else text[:199] + '…'})"
