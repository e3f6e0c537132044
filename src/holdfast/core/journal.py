"""What the log contains, by place: the index that requests of the code are matched with (`match.py`).

An agent that resumes runs its code again from the first line. Each call or wait it makes has a place: its branch, and
its position within the branch. For every place that the log has reached there is an `Entry`: what was asked there, and
its outcome.

Facts that code notes between its calls (state, stage, decisions …) are matched by what they are about, so that running
the code again does not note them twice, and new code may note more.

Pure: events go in, answers come out. Reading the log page by page is the runtime's part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from holdfast.core import events as e
from holdfast.core.ancestors import ForkAncestry, ancestry_of
from holdfast.core.branch_path import BranchPath, Extent
from holdfast.core.entry import Entry, Place
from holdfast.core.events import Event, Noted
from holdfast.core.retries import Retries
from holdfast.core.state import RunState


class PendingSignal(Struct):
    """A signal in the log that no wait has taken yet."""

    seq: int
    event: e.SignalReceived


class RunLife:
    """What is recorded about a run as a whole, as far as its log has been read: its limits, and whether it was cancelled,
    paused, undone or has ended."""

    def __init__(self) -> None:
        self.created: e.RunCreated | None = None
        """Its first event, with what was changed of its limits since."""
        self.created_at = 0
        self.lineage = ForkAncestry()
        self.cancel: e.CancelRequested | None = None
        self.undo: e.UndoRequested | None = None
        self.undoing = False
        self.undo_started: e.UndoStarted | None = None
        self.paused: e.RunPaused | None = None
        self.terminal: Event | None = None
        self.may_stop_calls = False
        """Whether the log contains anything at all that could keep a new call from beginning."""

    @property
    def is_undone(self) -> bool:
        """Whether the run is being undone: then nothing new of it starts."""
        return self.undo is not None or self.undoing

    def feed(self, time: int, event: Event) -> None:
        """Take in an event about the run as a whole."""
        match event:
            case e.CancelRequested():
                self.cancel, self.may_stop_calls = event, True
            case e.UndoRequested():
                self.undo, self.terminal, self.may_stop_calls = event, None, True
            case e.UndoStarted():
                self.undo_started, self.undoing, self.may_stop_calls = event, True, True
            case e.RunCreated():
                self.created, self.created_at = event, time
                self.lineage = ancestry_of(event)
                if event.deadline_at is not None or event.budget:
                    self.may_stop_calls = True
            case e.RunPaused():
                self.paused, self.may_stop_calls = event, True
            case e.RunReopened():
                if self.terminal is not None and self.cancel is not None and self.cancel.reason:
                    self.cancel = None  # it failed because its parent did, and may try again
                self.paused = self.terminal = None
            case e.RunRestarted():
                self.terminal = self.cancel = self.paused = self.undo = self.undo_started = None
                self.undoing = False
            case e.LimitsChanged():
                self.set_limits(event.deadline_at, event.budget)
            case e.RunCompleted() | e.RunFailure() | e.RunCancellation():
                self.terminal = event

    def starts_to_undo(self) -> None:
        """A call that undoes another one has been started."""
        self.undoing = self.may_stop_calls = True

    def set_limits(self, deadline_at: int | None, budget: Mapping[str, float]) -> None:
        """What its first event says of its limits, with what was changed since."""
        assert self.created is not None
        self.created = msgspec.structs.replace(
            self.created,
            deadline_at=self.created.deadline_at if deadline_at is None else deadline_at,
            budget={**self.created.budget, **budget},
        )
        self.may_stop_calls = True


class Journal:
    """What the log contains, by place, as far as it has been read."""

    def __init__(self) -> None:
        self.entries: dict[Place, Entry] = {}
        """Calls and waits that the log contains and the code has not been answered yet."""
        self.life = RunLife()
        self.retries = Retries()
        self.extent = Extent()
        self.facts: dict[Place, dict[tuple[str, str], deque[tuple[int, Noted]]]] = {}
        self.signals: deque[PendingSignal] = deque()
        self.steps = 0
        self.accepted = 0
        """The seq of the event by which new steps were accepted among all that is recorded before it."""
        self.restarted = 0
        """The seq of the event since which the code runs: its creation, or its last restart."""
        self.has_unseen_patch = False
        self.outcomes: deque[tuple[int, Place]] = deque()
        self.timeouts = 0
        """How many recorded timeouts have not fired again."""
        self.keep_past = False
        """Whether a loop is replayed from its first iteration, and not continued with from its last."""

    @property
    def forgets(self) -> bool:
        """Whether what is before the end of an iteration is over: so it is for a loop."""
        created = self.life.created
        return created is not None and created.loop and not self.keep_past

    # ── asking ───────────────────────────────────────────────────────────────────────────

    def entry(self, branch: str, index: int) -> Entry | None:
        """What is at this place."""
        return self.entries.get((branch, index))

    def reaches(self, branch: str, index: int) -> bool:
        """Whether the log (as far as read) holds this place or a later one of the branch."""
        return self.extent.reaches(branch, index)

    def forget(self, branch: str, index: int) -> None:
        """The code has been given the outcome of this place and will not ask again."""
        entry = self.entries.pop((branch, index), None)
        if entry is not None and entry.timeout is not None:
            self.timeouts -= 1
        if self.facts:
            self.facts.pop((branch, index), None)
        if entry is not None and entry.granted_seq:
            self.retries.answered((branch, index), entry)

    def noted(self, event: Noted) -> tuple[int, Noted] | None:
        """The next recorded fact about the same at the same place, and its seq; each once."""
        by_subject = self.facts.get((event.branch, event.after))
        waiting = by_subject and by_subject.get((event.kind, event.subject))
        if not waiting:
            return None
        binding = self.retries.binds_after(event.branch, event.after)
        while waiting:
            seq, found = waiting.popleft()
            if seq > binding or found == event:
                return seq, found
        return None

    def begin_at(self, state: RunState) -> None:
        """Know what a run's state knows at the end of an iteration: the log before it is not read."""
        self.restarted, self.steps = state.seq, state.steps
        if state.budget or state.deadline_at is not None:
            self.life.set_limits(state.deadline_at, state.budget)
        self.signals = deque(
            PendingSignal(s.seq, e.SignalReceived(id=s.id, name=s.name, value=s.value))
            for s in state.signals
        )
        if state.iteration_index >= 0:
            self.extent.add("", state.iteration_index)

    def unasked(self) -> list[tuple[Place, Entry]]:
        """Calls and waits that the log contains, and that the code should have asked for."""
        return [
            (place, x)
            for place, x in self.entries.items()
            if not (BranchPath(place[0]).is_undo or self.retries.is_past(place, x))
        ]

    def next_outcome(self) -> tuple[int, Place] | None:
        """The first outcome in the log (as far as it is read) that the code has not been given yet.

        Not what a failed run did after its failure, when that call is made again: the code may take
        another path then.
        """
        outcomes, entries = self.outcomes, self.entries
        while outcomes:
            seq, place = outcomes[0]
            entry = entries.get(place)
            if (
                entry is not None
                and entry.seq == seq
                and entry.final
                and not BranchPath(place[0]).is_undo
                and not self.retries.is_unbound(place, entry, entries)
            ):
                return outcomes[0]
            outcomes.popleft()
        return None

    def take_signal(self, seq: int) -> None:
        """The signal that this event brought has ended a wait."""
        self.signals = deque(m for m in self.signals if m.seq != seq)

    # ── what the code has added ──────────────────────────────────────────────────────────

    def accepts(self, branch: str, index: int) -> bool:
        """Whether calls may be added before what is recorded here."""
        entry = self.entries.get((branch, index))
        return entry is not None and entry.first_seq < self.accepted

    def expects(self, name: str) -> bool:
        """Whether the code has yet to ask for something of this name: then it does not only add.

        What was added itself, since new steps were accepted, is found at its own place.
        """
        return any(
            x.name == name and (not self.accepted or x.first_seq < self.accepted)
            for x in list(self.entries.values())
        )
