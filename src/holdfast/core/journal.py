"""What the log contains, by place: the index that requests of the code are matched with (`match.py`).

An agent that resumes runs its code again from the first line. Each call or wait it makes has a place: its branch, and
its position within the branch. For every place that the log has reached there is an `Entry`: what was asked there, and
its outcome.

Facts that code notes between its calls (state, stage, decisions …) are matched by what they are about, so that running
the code again does not note them twice, and new code may note more.

A run that failed is resumed, and its failed call succeeds. What the code did after the failure (sent a notification,
cleaned up) is then in the log at places where it now does something else. So after a call that was *retried*, what was
recorded before the resumption binds only as far as the code asks for the same. Where it first asks for something else, it
leaves that path and continues at places behind it. What it had finished there is still never done again (`Retries`).

Pure: events go in, answers come out. Reading the log page by page is the runtime's part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping

import msgspec
from msgspec import Struct, field

from holdfast.core import events as e
from holdfast.core.ancestors import ForkAncestry, ancestry_of
from holdfast.core.branch_path import BranchPath
from holdfast.core.entry import Entry, Place
from holdfast.core.events import Event, Noted
from holdfast.core.state import RunState

# ── how far the log goes ─────────────────────────────────────────────────────────────────────


class Extent(Struct, eq=False, gc=False):
    """The last position of each branch that is recorded, and how many branches were started before each.

    (A Struct, as are the others below: every live run has one, and C makes it.)
    """

    last: dict[str, int] = {}
    """By branch: the last position at which anything is recorded."""
    forks: dict[Place, int] = {}
    """By place: how many branches the code had started since the one before it."""

    def clear(self) -> None:
        self.last.clear()
        self.forks.clear()

    def reaches(self, branch: str, index: int) -> bool:
        """Whether the log contains this place or a later one of the branch."""
        return self.last.get(branch, -1) >= index

    def add(self, branch: str, index: int, forks: int = 0) -> None:
        """Something is recorded at this place."""
        if forks:
            self.forks[branch, index] = forks
        if index > self.last.get(branch, -1):
            self.last[branch] = index

    def has_started(self, branch: str, index: int, number: int) -> bool:
        """Whether the code started so many branches here, or the log does not say: it ends before."""
        return not self.reaches(branch, index) or self.forks.get((branch, index), 0) >= number

    def goes_on(self, place: Place, forks_above: tuple[int, ...]) -> bool:
        """Whether the log contains anything that the code did after this place, in its branch or in those above.

        `forks_above` says how many branches each of those above had started by then, the nearest first: further ones
        were started later. A log of version 0.1 does not say so.
        """
        path, index = BranchPath(place[0]), place[1]
        if self.reaches(path, index + 1) or any(at > index for at, _ in self._started_from(path)):
            return True
        counts = iter(forks_above)
        while path:
            started, path = path.started_at, path.parent
            count = next(counts, None)
            if started is None:
                continue
            if self.reaches(path, started):
                return True
            if count is not None and any(
                at == started and number > count for at, number in self._started_from(path)
            ):
                return True
        return False

    def _started_from(self, path: BranchPath) -> Iterator[tuple[int, int]]:
        """Of each branch that is recorded and was started from this one: its position and its number."""
        for below in map(path.child_above, self.last):
            if below is not None and below.started_at is not None:
                yield below.started_at, below.number


# ── what a failed run may do again ───────────────────────────────────────────────────────────


Entries = dict[Place, Entry]


class RetriedCall(Struct, frozen=True, gc=False):
    """A call of a failed run that was tried again: its place in its branch, and when the run was resumed."""

    index: int
    since: int


class Retries(Struct, eq=False, gc=False):
    """The calls of a failed run that may be tried again, and those that were."""

    failed_steps: set[int] = set()
    """The calls that a run has failed with."""
    retried: dict[str, RetriedCall] = {}
    """By branch: the last call that was tried again."""
    abandoned_calls: dict[str, list[tuple[int, Entry]]] = {}
    """Finished calls on paths that the code has left, by branch."""
    _granted: list[Place] = []
    """Failed calls that may be tried again."""

    def clear(self) -> None:
        self.retried.clear()
        self.abandoned_calls.clear()
        self._granted.clear()

    # ── when a failed run is resumed ─────────────────────────────────────────────────────

    def reopen(self, seq: int, entries: Entries, extent: Extent) -> None:
        """A failed run continues from its failed step, which may be tried again. So may what its code stopped waiting
        for last, because of that failure."""
        for place, entry in entries.items():
            is_last = entry.is_cut_off and not extent.goes_on(place, entry.forks_above)
            if entry.failed_finally and (entry.step in self.failed_steps or is_last):
                entry.granted, entry.granted_seq = True, seq
                self._granted.append(place)
                entry.attempts_before = entry.attempts
        self.failed_steps = set()
        given_up = [(p, x) for p, x in entries.items() if x.is_wait and x.is_cut_off]
        last = [
            place
            for place, x in given_up
            if not extent.goes_on(_last_together(place, entries), x.forks_above)
        ]
        for place in last:
            del entries[place]  # it starts over

    # ── what does not bind ───────────────────────────────────────────────────────────────

    def answered(self, place: Place, entry: Entry) -> None:
        """The code has been given the outcome of this place."""
        if entry.granted_seq:
            self.retried[place[0]] = RetriedCall(place[1], entry.granted_seq)

    def binds_after(self, branch: str, after: int) -> int:
        """The seq since which a fact that was noted in this branch after so many calls binds the code."""
        retried = self.retried.get(branch)
        return retried.since if retried is not None and after > retried.index else 0

    def is_past(self, place: Place, entry: Entry) -> bool:
        """Whether this was recorded after a failure, and before the failed call was retried."""
        if not self.retried:
            return False
        place = entry.position(place)
        for branch, retried in self.retried.items():
            index = BranchPath(branch).position_of(place)
            if entry.first_seq < retried.since and index is not None and index > retried.index:
                return True
        return False

    def is_unbound(self, place: Place, entry: Entry, entries: Entries) -> bool:
        """Whether the code need not ask for this: it follows a call that was, or will be, retried."""
        if self.is_past(place, entry):
            return True
        place = entry.position(place)
        for branch, index in self._granted:
            other = entries.get((branch, index))
            if other is not None and other.granted and entry.first_seq < other.granted_seq:
                at = BranchPath(branch).position_of(place)
                if at is not None and at > index:
                    return True
        return False

    def place_beyond(self, branch: str, index: int, entries: Entries) -> int | None:
        """The code asks for something other than is recorded here: where it continues, if it may.

        It may after a call that was retried, if this was recorded before the run was resumed.
        """
        entry = entries.get((branch, index))
        if entry is None or not self.is_past((branch, index), entry):
            return None
        past = self._past(entries)
        return 1 + max(place[1] for place, _ in past if place[0] == branch)

    def leave(self, branch: str, entries: Entries) -> None:
        """The code has left the path that it took after a failure. What it finished there is kept."""
        for place, x in self._past(entries):
            del entries[place]
            is_call = x.iteration is None and x.timeout is None and not x.is_wait
            if place[0] == branch and is_call and x.final and not x.failed_finally:
                self.abandoned_calls.setdefault(branch, []).append((place[1], x))

    def _past(self, entries: Entries) -> list[tuple[Place, Entry]]:
        known = list(entries.items())  # at once: other threads of the run read the log, too
        return [(place, x) for place, x in known if self.is_past(place, x)]

    def done_before(
        self, branch: str, is_same: Callable[[Entry], bool]
    ) -> tuple[int, Entry] | None:
        """The same call, finished on a path that the code has left: it is not made again."""
        return next((x for x in self.abandoned_calls.get(branch, ()) if is_same(x[1])), None)

    def use(self, place: Place) -> None:
        """The code has asked again for a call that it finished on a path that it has left."""
        branch, index = place
        self.abandoned_calls[branch] = [x for x in self.abandoned_calls[branch] if x[0] != index]


def _last_together(place: Place, entries: Entries) -> Place:
    """The last of the waits that started together with this one."""
    path, index = place
    entry, following = entries[place], entries.get((path, index + 1))
    if following is None or entry.wait_seq + 1 != following.wait_seq:
        return place
    return _last_together((path, index + 1), entries)


# ── the journal ──────────────────────────────────────────────────────────────────────────────


class PendingSignal(Struct, gc=False):
    """A signal in the log that no wait has taken yet."""

    seq: int
    event: e.SignalReceived


class RunLife(Struct, eq=False, gc=False):
    """What is recorded about a run as a whole, as far as its log has been read: its limits, and whether it was cancelled,
    paused, undone or has ended."""

    created: e.RunCreated | None = None
    """Its first event, with what was changed of its limits since."""
    created_at: int = 0
    lineage: ForkAncestry = field(default_factory=ForkAncestry)
    cancel: e.CancelRequested | None = None
    undo: e.UndoRequested | None = None
    undoing: bool = False
    undo_started: e.UndoStarted | None = None
    paused: e.RunPaused | None = None
    terminal: Event | None = None
    may_stop_calls: bool = False
    """Whether the log contains anything at all that could keep a new call from beginning."""

    @property
    def is_undone(self) -> bool:
        """Whether the run is being undone: then nothing new of it starts."""
        return self.undo is not None or self.undoing

    def begin(self, time: int, event: e.RunCreated) -> None:
        """Take in the first event of the log."""
        self.created, self.created_at = event, time
        self.lineage = ancestry_of(event)
        if event.deadline_at is not None or event.budget:
            self.may_stop_calls = True

    def feed(self, event: Event) -> None:
        """Take in another event about the run as a whole."""
        match event:
            case e.CancelRequested():
                self.cancel, self.may_stop_calls = event, True
            case e.UndoRequested():
                self.undo, self.terminal, self.may_stop_calls = event, None, True
            case e.UndoStarted():
                self.undo_started, self.undoing, self.may_stop_calls = event, True, True
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


class Journal(Struct, eq=False, gc=False):
    """What the log contains, by place, as far as it has been read."""

    entries: dict[Place, Entry] = {}
    """Calls and waits that the log contains and the code has not been answered yet."""
    life: RunLife = field(default_factory=RunLife)
    retries: Retries = field(default_factory=Retries)
    extent: Extent = field(default_factory=Extent)
    facts: dict[Place, dict[tuple[str, str], deque[tuple[int, Noted]]]] = {}
    signals: list[PendingSignal] = []
    steps: int = 0
    accepted: int = 0
    """The seq of the event by which new steps were accepted among all that is recorded before it."""
    restarted: int = 0
    """The seq of the event since which the code runs: its creation, or its last restart."""
    has_unseen_patch: bool = False
    outcomes: deque[tuple[int, Place]] = field(default_factory=deque)
    timeouts: int = 0
    """How many recorded timeouts have not fired again."""
    keep_past: bool = False
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
        place, entries, outcomes = (branch, index), self.entries, self.outcomes
        entry = entries.pop(place, None)
        while outcomes and outcomes[0][1] not in entries:  # else a long log would be kept here
            outcomes.popleft()
        if self.facts:
            self.facts.pop(place, None)
        if entry is None:
            return
        if entry.timeout is not None:
            self.timeouts -= 1
        if entry.granted_seq:
            self.retries.answered(place, entry)

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
        self.signals = [
            PendingSignal(s.seq, e.SignalReceived(id=s.id, name=s.name, value=s.value))
            for s in state.signals
        ]
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
        self.signals = [m for m in self.signals if m.seq != seq]

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
