"""Match what the code asks for with what the log contains.

An agent that resumes runs its code again from the first line. Each call or wait it makes has a place:
its branch, and its position within the branch. The log contains, for every place it has reached, an
`Entry`: what was asked there, and its outcome. So a request is one of

- *recorded*: the same request, with an outcome: the outcome is returned, nothing is executed;
- *open*: the same request, started but without an outcome: what then depends on what the tool declares;
- *new*: the log contains nothing at this place;
- *diverged*: the log contains something else there, and the run stops before anything new happens.

Facts that code notes between its calls (state, stage, decisions …) are matched by what they are about,
so that running the code again does not note them twice, and new code may note more.

A person may *accept new steps*: then what was recorded before binds by name and occurrence, and what
the code asks for that has no namesake in it is made, at a place beside.

One thing may rightly differ without that: a run that failed is resumed, and its failed call succeeds. What the code
did after the failure (notified somebody, cleaned up) is then in the log at places where it now does
something else. So after a call that was *retried*, what was recorded before the resumption binds only
as far as the code asks for the same; where it first asks for something else, it leaves that path and
continues at places behind it. What it had finished there is still never done again.

Pure: records go in, answers come out. Reading the log page by page is the runtime's part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from holdfast.core import events as e
from holdfast.core.ancestors import ForkAncestry, ancestry_of
from holdfast.core.events import Event, Noted
from holdfast.core.state import RunState

Place = tuple[str, int]
"""A branch, and a position within it."""


def request_id(place: Place) -> str:
    """How people name a request, or a call, at a place."""
    return f"{place[0]}#{place[1]}"


class Entry(msgspec.Struct, eq=False, gc=False):
    """What the log contains at one place.

    (One is made for each step of a log that is read: C makes it, and the collector does not walk it.)
    """

    name: str = ""
    digest: str = ""
    step: int = 0
    intent: e.CallStarted | None = None
    intent_at: int = 0
    intent_seq: int = 0
    intent_epoch: int = 0
    first_intent_at: int = 0
    failures: Sequence[e.CallFailed] = ()
    done: e.CallSucceeded | None = None
    resolved: e.CallResolved | None = None
    doubted: e.CallDoubted | None = None
    wait: e.WaitBegan | None = None
    wait_seq: int = 0
    wait_at: int = 0
    ended: e.WaitEnded | None = None
    ended_at: int = 0
    approval: e.ApprovalDecided | None = None
    approval_seq: int = 0
    approval_at: int = 0
    answer: e.AnswerGiven | None = None
    answer_seq: int = 0
    granted: bool = False
    """A failed run was resumed: this call may be tried again, with a fresh set of attempts."""
    granted_seq: int = 0
    iteration: e.IterationEnded | None = None
    timeout: e.TimeoutFired | None = None
    attempts_before: int = 0
    settled_attempts: int = 0
    """How many attempts there were when a person, a check or a policy last said to try again."""
    first_seq: int = 0
    seq: int = 0
    """The seq of its last event: what the code may see when it has returned from here."""

    @property
    def args_digest(self) -> str:
        """The name of what the call was made with; empty if the log does not say."""
        named = "" if self.done is None else e.args_digest(self.done)
        return named or self.digest

    @property
    def args(self) -> e.Value | None:
        """What the call was made with; None if the log has no more than its digest."""
        if self.intent is not None:
            return self.intent.args
        if self.done is not None:
            return self.done.args
        return self.failures[-1].args if self.failures else None

    @property
    def is_wait(self) -> bool:
        """Whether code waited here; an approval may also precede a call."""
        return self.wait is not None and self.intent is None and not self.wait.tool

    @property
    def final(self) -> bool:
        """Whether it has an outcome that the code will be given."""
        if self.done is not None or (self.ended is not None and self.is_wait) or self.timeout:
            return True
        return self.settled_as("done") or self.failed_finally

    def settled_as(self, how: str) -> bool:
        """Whether a doubt about it was resolved this way."""
        return self.resolved is not None and self.resolved.how == how

    @property
    def failed_finally(self) -> bool:
        """Whether it failed and no other attempt is due."""
        if self.granted or self.settled_as("retry"):
            return False
        if self.settled_as("failed"):
            return True
        return bool(self.failures) and self.failures[-1].retry_at is None and not self.open_attempt

    @property
    def is_cut_off(self) -> bool:
        """Whether the code stopped waiting for it. It was given no answer then, and is given none again."""
        if self.ended is not None:
            return self.ended.is_over("cut")
        return bool(self.failures) and self.failures[-1].cut and self.failed_finally

    @property
    def forks_above(self) -> tuple[int, ...]:
        """What was recorded of the branches above when the code stopped waiting; see `CallFailed`."""
        if self.ended is not None:
            return self.ended.forks_above
        return self.failures[-1].forks_above if self.failures else ()

    @property
    def open_attempt(self) -> bool:
        """Whether the newest attempt has an intent and no receipt: it may have happened."""
        if self.intent is None or self.done is not None or self.resolved is not None:
            return False
        return not any(f.attempt == self.intent.attempt for f in self.failures)

    @property
    def attempts(self) -> int:
        """How many attempts the log contains of."""
        last_failed = self.failures[-1].attempt if self.failures else 0
        return max(last_failed, self.intent.attempt if self.intent else 0)


def _is_before(place: Place, index: int) -> bool:
    """Whether a place is not after this one of the main branch, from which all others are started."""
    branch, at = place
    if branch:
        started = _started_at(branch)
        return started is not None and started <= index
    return at <= index


def is_main(path: str) -> bool:
    """Whether a path is that of the agent's own line of execution, or of what was added to it."""
    return "-" not in path


def _started_at(path: str) -> int | None:
    """The position from which a branch (`3-1`) or what was added (`3+`) goes off; None of an undo."""
    digits = path.partition(".")[0].partition("-")[0].removesuffix("+")
    return int(digits) if digits.isdigit() else None


@dataclass(slots=True)
class Mail:
    """A signal in the log that no wait has taken yet."""

    seq: int
    event: e.SignalReceived


@dataclass(frozen=True, slots=True)
class Retried:
    """A call of a failed run that was tried again: its place in its branch, and when the run was resumed."""

    index: int
    since: int


class Journal:
    """What the log contains, by place, as far as it has been read."""

    def __init__(self) -> None:
        self.entries: dict[Place, Entry] = {}
        """Calls and waits that the log contains and the code has not been answered yet."""
        self._noted: dict[Place, dict[tuple[str, str], deque[tuple[int, Noted]]]] = {}
        self._last_index: dict[str, int] = {}
        self._failed_steps: set[int] = set()
        self._retried: dict[str, Retried] = {}
        self.left: dict[str, list[tuple[int, Entry]]] = {}
        """Finished calls on paths that the code has left, by branch."""
        self.mail: deque[Mail] = deque()
        self.cancel: e.CancelRequested | None = None
        self.undo: e.UndoRequested | None = None
        self.undoing = False
        self.undo_started: e.UndoStarted | None = None
        self.paused: e.RunPaused | None = None
        self.may_stop_calls = False
        """Whether the log contains anything at all that could keep a new call from beginning."""
        self.created: e.RunCreated | None = None
        self.created_at = 0
        self.lineage = ForkAncestry()
        self.steps = 0
        self.accepted = 0
        """The seq of the event by which new steps were accepted among all that is recorded before it."""
        self._forks: dict[Place, int] = {}
        self.restarted = 0
        """The seq of the event since which the code runs: its creation, or its last restart."""
        self.terminal: Event | None = None
        self._unseen_patch = False
        self._outcomes: deque[tuple[int, Place]] = deque()
        self.timeouts = 0
        """How many recorded timeouts have not fired again."""
        self._granted: list[Place] = []
        """Failed calls that may be tried again."""
        self.keep_past = False
        """Whether a loop is replayed from its first iteration, and not continued with from its last."""

    @property
    def forgets(self) -> bool:
        """Whether what is before the end of an iteration is over: so it is for a loop."""
        return self.created is not None and self.created.loop and not self.keep_past

    @property
    def is_undone(self) -> bool:
        """Whether the run is being undone: then nothing new of it starts."""
        return self.undo is not None or self.undoing

    # ── asking ───────────────────────────────────────────────────────────────────────────

    def entry(self, branch: str, index: int) -> Entry | None:
        """What is at this place."""
        return self.entries.get((branch, index))

    def reaches(self, branch: str, index: int) -> bool:
        """Whether the log (as far as read) holds this place or a later one of the branch."""
        return self._last_index.get(branch, -1) >= index

    def forget(self, branch: str, index: int) -> None:
        """The code has been given the outcome of this place and will not ask again."""
        entry = self.entries.pop((branch, index), None)
        if entry is not None and entry.timeout is not None:
            self.timeouts -= 1
        if self._noted:
            self._noted.pop((branch, index), None)
        if entry is not None and entry.granted_seq:
            self._retried[branch] = Retried(index, entry.granted_seq)

    def noted(self, event: Noted) -> tuple[int, Noted] | None:
        """The next recorded fact about the same at the same place, and its seq; each once."""
        by_subject = self._noted.get((event.branch, event.after))
        waiting = by_subject and by_subject.get((event.kind, event.subject))
        if not waiting:
            return None
        retried = self._retried.get(event.branch)
        binding = retried.since if retried is not None and event.after > retried.index else 0
        while waiting:
            seq, found = waiting.popleft()
            if seq > binding or found == event:
                return seq, found
        return None

    def iterated(self, seq: int, event: e.IterationEnded) -> bool:
        """An iteration is over. Whether a loop continues from here, and never comes back to what was before.

        Not if the state was patched from outside, and the code had not seen that yet: then it continues from
        an earlier iteration, which sees it where it was seen first.
        """
        self._reached("", event.index)
        if not event.buffered:
            self._unseen_patch = False
        goes_on = self.forgets and not self._unseen_patch
        if goes_on:
            self.restarted = seq
            self.entries = {
                p: x
                for p, x in self.entries.items()
                if not _is_before(_position(p, x), event.index)
            }
            self.timeouts = sum(x.timeout is not None for x in self.entries.values())
            self._noted = {p: x for p, x in self._noted.items() if not _is_before(p, event.index)}
            self._forks = {p: n for p, n in self._forks.items() if not _is_before(p, event.index)}
        return goes_on

    def begin_at(self, state: RunState) -> None:
        """Know what a run's state knows at the end of an iteration: the log before it is not read."""
        self.restarted, self.steps = state.seq, state.steps
        if state.budget or state.deadline_at is not None:
            self._set_limits(state.deadline_at, state.budget)
        self.mail = deque(
            Mail(s.seq, e.SignalReceived(id=s.id, name=s.name, value=s.value))
            for s in state.signals
        )
        if state.iteration_index >= 0:
            self._last_index[""] = state.iteration_index

    def unasked(self) -> list[tuple[Place, Entry]]:
        """Calls and waits that the log contains, and that the code should have asked for."""
        return [
            (place, x)
            for place, x in self.entries.items()
            if not place[0].startswith("undo") and not (self._retried and self._is_past(place, x))
        ]

    def next_outcome(self) -> tuple[int, Place] | None:
        """The first outcome in the log (as far as it is read) that the code has not been given yet.

        Not what a failed run did after its failure, when that call is made again: the code may take
        another path then.
        """
        outcomes, entries = self._outcomes, self.entries
        while outcomes:
            seq, place = outcomes[0]
            entry = entries.get(place)
            if (
                entry is not None
                and entry.seq == seq
                and entry.final
                and not place[0].startswith("undo")
                and not self.is_unbound(place, entry)
            ):
                return outcomes[0]
            outcomes.popleft()
        return None

    def feed_own(self, seq: int, time: int, epoch: int, event: Event) -> None:
        """Take in an event that was written here. The end of a wait is delivered to the code by its writer."""
        if isinstance(event, e.TimeoutFired):
            return  # the code has been told
        self.feed(seq, time, epoch, event)
        if isinstance(event, e.WaitEnded):
            self._outcomes.pop()

    def take_signal(self, seq: int) -> None:
        """The signal that this event brought has ended a wait."""
        self.mail = deque(m for m in self.mail if m.seq != seq)

    # ── what the code has added ──────────────────────────────────────────────────────────

    def has_started(self, branch: str, index: int, number: int) -> bool:
        """Whether the code started so many branches here, or the log does not say: it ends before."""
        return not self.reaches(branch, index) or self._forks.get((branch, index), 0) >= number

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
            for x in self.entries.values()
        )

    # ── what a fork inherited ────────────────────────────────────────────────────────────

    def is_inherited(self, entry: Entry) -> bool:
        """Whether all that is recorded here was recorded by the run that this one was forked from."""
        return self.lineage.is_inherited(entry.seq)

    def is_wait_for(self, entry: Entry, wait: str, name: str) -> bool:
        """Whether the code waited here, for this."""
        recorded = entry.wait
        if recorded is None or recorded.tool or recorded.wait != wait:
            return False
        if recorded.name == name:
            return True
        return self.is_inherited(entry) and self.lineage.is_same_text(recorded.name, name)

    # ── paths that were left ─────────────────────────────────────────────────────────────

    def leave(self, branch: str, index: int) -> int | None:
        """The code asks for something other than is recorded here: where it continues, if it may.

        It may after a call that was retried, if this was recorded before the run was resumed.
        """
        entry = self.entries.get((branch, index))
        if entry is None or not self._is_past((branch, index), entry):
            return None
        past = [(place, x) for place, x in self.entries.items() if self._is_past(place, x)]
        for place, x in past:
            del self.entries[place]
            if place[0] == branch and x.final and not (x.is_wait or x.failed_finally):
                self.left.setdefault(branch, []).append((place[1], x))
        return 1 + max(place[1] for place, _ in past if place[0] == branch)

    def done_before(
        self, branch: str, is_same: Callable[[Entry], bool]
    ) -> tuple[int, Entry] | None:
        """The same call, finished on a path that the code has left: it is not made again."""
        for found in self.left.get(branch, ()):
            if is_same(found[1]):
                self.left[branch].remove(found)
                return found
        return None

    def _is_past(self, place: Place, entry: Entry) -> bool:
        """Whether this was recorded after a failure, and before the failed call was retried."""
        place = _position(place, entry)
        for branch, retried in self._retried.items():
            index = _position_in(branch, place)
            if entry.first_seq < retried.since and index is not None and index > retried.index:
                return True
        return False

    def is_unbound(self, place: Place, entry: Entry) -> bool:
        """Whether the code need not ask for this: it follows a call that was, or will be, retried."""
        if self._retried and self._is_past(place, entry):
            return True
        place = _position(place, entry)
        for branch, index in self._granted:
            other = self.entries.get((branch, index))
            if other is not None and other.granted and entry.first_seq < other.granted_seq:
                at = _position_in(branch, place)
                if at is not None and at > index:
                    return True
        return False

    # ── reading ──────────────────────────────────────────────────────────────────────────

    def feed(self, seq: int, time: int, epoch: int, event: Event) -> None:
        """Take in the next event of the log."""
        _FEED[type(event)](self, seq, time, epoch, event)

    def feed_answered(self, event: e.CallSucceeded | e.CallFailed) -> None:
        """Take in the receipt of a call that gets its answer as it is written, and never asks."""
        branch, index = event.branch, event.index
        if index > self._last_index.get(branch, -1):
            self._last_index[branch] = index
        if event.forks:
            self._forks[branch, index] = event.forks
        self.steps = event.step if event.step > self.steps else self.steps
        if self.entries or self._noted:
            self.forget(branch, index)

    def _nothing(self, _seq: int, _time: int, _epoch: int, _event: Event) -> None:
        """A fact that no call or wait is about."""

    def _noting(self, seq: int, _time: int, _epoch: int, event: Noted) -> None:
        by_subject = self._noted.setdefault((event.branch, event.after), {})
        by_subject.setdefault((event.kind, event.subject), deque()).append((seq, event))

    def _timeout(self, seq: int, _time: int, _epoch: int, event: e.TimeoutFired) -> None:
        """A timeout has its own place: several may fire in one branch between two calls."""
        place = (event.branch, -1 - seq)
        self.entries[place] = Entry("asyncio.timeout", timeout=event, first_seq=seq, seq=seq)
        self._outcomes.append((seq, place))
        self.timeouts += 1

    def _signal(self, seq: int, _time: int, _epoch: int, event: e.SignalReceived) -> None:
        self.mail.append(Mail(seq, event))

    def _iteration(self, seq: int, _time: int, _epoch: int, event: e.IterationEnded) -> None:
        if not self.iterated(seq, event):
            entry = self._at(seq, "", event.index, "", event.forks)
            entry.iteration, entry.seq = event, seq

    def _patched(self, _seq: int, _time: int, _epoch: int, _event: Event) -> None:
        self._unseen_patch = True

    def _life(self, seq: int, time: int, _epoch: int, event: Event) -> None:
        match event:
            case e.CancelRequested():
                self.cancel, self.may_stop_calls = event, True
            case e.UndoRequested():
                self.undo, self.terminal, self.may_stop_calls = event, None, True
                self._reopen_failures(seq)
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
                failed, self.paused, self.terminal = self.terminal, None, None
                if (
                    failed is not None
                ):  # else it was paused or quarantined: nothing is to be tried again
                    self._reopen_failures(seq)
            case e.RunRestarted():
                self._restart(seq)
            case e.StepsAccepted():
                self.accepted = seq
            case e.LimitsChanged():
                self._set_limits(event.deadline_at, event.budget)
            case e.RunCompleted() | e.RunFailed() | e.RunCancelled():
                self.terminal = event
                self._failed_steps = set()
                if isinstance(event, e.RunFailed):
                    self._failed_steps = {event.step, *event.also}

    def _set_limits(self, deadline_at: int | None, budget: Mapping[str, float]) -> None:
        """What its first event says of its limits, with what was changed since."""
        assert self.created is not None
        self.created = msgspec.structs.replace(
            self.created,
            deadline_at=self.created.deadline_at if deadline_at is None else deadline_at,
            budget={**self.created.budget, **budget},
        )
        self.may_stop_calls = True

    def _call(
        self, seq: int, event: e.CallSucceeded | e.CallFailed | e.CallStarted | e.CallResolved | e.CallDoubted
    ) -> Entry:  # fmt: skip
        forks = 0 if isinstance(event, e.CallResolved | e.CallDoubted) else event.forks
        entry = self._at(seq, event.branch, event.index, event.name, forks)
        entry.seq = seq
        entry.step = event.step
        entry.granted = False
        self.steps = max(self.steps, event.step)
        return entry

    def _started(self, seq: int, time: int, epoch: int, event: e.CallStarted) -> None:
        entry = self._call(seq, event)
        if event.undoes:
            self.undoing = self.may_stop_calls = True
        entry.digest = event.digest
        if entry.intent_seq and self.lineage.is_inherited(entry.intent_seq):
            entry.first_intent_at = 0  # the key of a fork is a new one
        entry.intent, entry.intent_at, entry.intent_epoch = event, time, epoch
        entry.intent_seq = seq
        entry.first_intent_at = entry.first_intent_at or time
        entry.doubted = None
        entry.resolved = None

    def feed_receipt(self, seq: int, _time: int, _epoch: int, event: e.CallSucceeded) -> None:
        """Take in the receipt of a call that was done."""
        place = branch, index = event.branch, event.index
        if place in self.entries:
            entry = self._call(seq, event)
            entry.done = event
        else:  # `_call` written out
            step = event.step
            self.entries[place] = Entry(event.name, "", step, done=event, first_seq=seq, seq=seq)
            if event.forks:
                self._forks[place] = event.forks
            if index > self._last_index.get(branch, -1):
                self._last_index[branch] = index
            self.steps = max(self.steps, step)
        self._outcomes.append((seq, place))
        if self._unseen_patch:
            self._unseen_patch = event.buffered

    def _failed(self, seq: int, _time: int, _epoch: int, event: e.CallFailed) -> None:
        entry = self._call(seq, event)
        entry.digest = e.args_digest(event) or entry.digest
        entry.failures = (*entry.failures, event)
        if entry.settled_as("retry"):
            entry.resolved = None  # it was tried again, or given up before that
        if event.retry_at is None:
            self._outcomes.append((seq, (event.branch, event.index)))
        self._unseen_patch = False

    def _doubted(self, seq: int, _time: int, _epoch: int, event: e.CallDoubted) -> None:
        entry = self._call(seq, event)
        entry.doubted = event
        entry.resolved = None  # what was said about it did not resolve it

    def _resolved(self, seq: int, _time: int, _epoch: int, event: e.CallResolved) -> None:
        entry = self._call(seq, event)
        entry.resolved = event
        entry.doubted = None
        if (
            entry.done is not None
        ):  # its result was not kept: what the code did without it does not bind
            entry.granted_seq = seq
        if event.how == "retry":
            entry.first_intent_at = 0  # a person decided: the key is used again
            entry.settled_attempts = entry.attempts
        else:
            self._outcomes.append((seq, (event.branch, event.index)))

    def _wait(
        self,
        seq: int,
        time: int,
        _epoch: int,
        event: e.WaitBegan | e.WaitEnded | e.ApprovalDecided | e.AnswerGiven,
    ) -> None:
        match event:
            case e.WaitBegan():
                entry = self._at(seq, event.branch, event.index, event.name, event.forks)
                entry.wait, entry.wait_seq, entry.wait_at, entry.seq = event, seq, time, seq
                entry.digest = event.digest
                entry.approval = None  # a new request asks again
            case e.WaitEnded():
                entry = self._at(seq, event.branch, event.index, "")
                entry.ended, entry.ended_at, entry.seq = event, time, seq
                self._outcomes.append((seq, (event.branch, event.index)))
                self._unseen_patch = False
                self.take_signal(event.source)
            case e.ApprovalDecided():
                entry = self._at(seq, event.branch, event.index, "")
                if entry.approval is None:  # the first decision wins, by log order
                    entry.approval, entry.approval_seq, entry.approval_at = event, seq, time
            case e.AnswerGiven():
                entry = self._at(seq, event.branch, event.index, "")
                if entry.answer is None:
                    entry.answer, entry.answer_seq = event, seq

    def _at(self, seq: int, branch: str, index: int, name: str, forks: int = 0) -> Entry:
        place = (branch, index)
        if forks:
            self._forks[place] = forks
        entry = self.entries.get(place)
        if entry is None:
            entry = self.entries[place] = Entry()
            entry.name, entry.first_seq = name, seq
        self._reached(branch, index)
        return entry

    def _reached(self, branch: str, index: int) -> None:
        if index > self._last_index.get(branch, -1):
            self._last_index[branch] = index

    def _reopen_failures(self, seq: int) -> None:
        """A failed run continues from its failed step, which may be tried again."""
        for place, entry in self.entries.items():
            failed = entry.step in self._failed_steps or (entry.is_cut_off and self._is_last(place))
            if failed and entry.failed_finally:
                entry.granted, entry.granted_seq = True, seq
                self._granted.append(place)
                entry.attempts_before = entry.attempts
        self._failed_steps = set()
        given_up = [p for p, x in self.entries.items() if x.is_wait and x.is_cut_off]
        for place in [p for p in given_up if self._is_last(self._last_beside(p))]:
            del self.entries[place]  # it starts over

    def _last_beside(self, place: Place) -> Place:
        """The last of the waits that started together with this one."""
        path, index = place
        entry, beside = self.entries[place], self.entries.get((path, index + 1))
        if beside is None or entry.wait_seq + 1 != beside.wait_seq:
            return place
        return self._last_beside((path, index + 1))

    def _is_last(self, place: Place) -> bool:
        """Whether nothing that the code did afterwards is recorded, in this branch or in those it started in."""
        path, index = place
        if self.reaches(path, index + 1) or self._has_started_after(path, index):
            return False
        counts = self.entries[place].forks_above
        while path:
            path, _, last = path.rpartition(".")
            started = _started_at(last)
            count, counts = counts[:1], counts[1:]
            if started is None:
                continue
            if self.reaches(path, started) or (count and self._has_started(path, started, *count)):
                return False
        return True

    def _has_started(self, path: str, index: int, count: int) -> bool:
        """Whether the code has started more branches than this before its call at this index."""
        before = f"{path}.{index}-" if path else f"{index}-"
        numbers = (b.removeprefix(before) for b in self._last_index if b.startswith(before))
        return any(int(n.partition(".")[0].removesuffix("+")) > count for n in numbers)

    def _has_started_after(self, path: str, index: int) -> bool:
        """Whether the code has started other branches from this one after its call at this index."""
        for branch in self._last_index:
            parent, _, last = branch.rpartition(".")
            started = _started_at(last)
            if parent == path and started is not None and started > index:
                return True
        return False

    def _restart(self, seq: int) -> None:
        self.restarted = seq
        self.entries.clear()
        self._noted.clear()
        self._last_index.clear()
        self._retried.clear()
        self.left.clear()
        self._forks.clear()
        self._outcomes.clear()
        self.timeouts = 0
        self._granted.clear()
        self.accepted = 0
        self.terminal = self.cancel = self.paused = self.undo = self.undo_started = None
        self.undoing = False


def _position(place: Place, entry: Entry) -> Place:
    """Where in its branch something is recorded."""
    return place if entry.timeout is None else (place[0], entry.timeout.index)


def _position_in(branch: str, place: Place) -> int | None:
    """Where a place is in a branch: its own index, or that at which its branch was started."""
    path, index = place
    if path == branch:
        return index
    prefix = f"{branch}." if branch else ""
    return _started_at(path[len(prefix) :]) if path.startswith(prefix) else None


_Feed = Callable[[Journal, int, int, int, Any], None]
_FEED: Final[dict[type[Event], _Feed]] = {
    **dict.fromkeys(e.ALL.values(), Journal._nothing),
    **{cls: Journal._noting for cls in e.ALL.values() if issubclass(cls, Noted)},
    **dict.fromkeys(
        (
            e.RunCreated, e.RunPaused, e.RunReopened, e.RunRestarted, e.RunCompleted, e.RunFailed,
            e.RunCancelled, e.CancelRequested, e.UndoRequested, e.UndoStarted, e.StepsAccepted,
            e.LimitsChanged,
        ),
        Journal._life,
    ),
    e.CallStarted: Journal._started,
    e.CallSucceeded: Journal.feed_receipt,
    e.CallFailed: Journal._failed,
    e.CallDoubted: Journal._doubted,
    e.CallResolved: Journal._resolved,
    **dict.fromkeys((e.WaitBegan, e.WaitEnded, e.ApprovalDecided, e.AnswerGiven), Journal._wait),
    e.SignalReceived: Journal._signal,
    e.TimeoutFired: Journal._timeout,
    e.IterationEnded: Journal._iteration,
    e.StatePatched: Journal._patched,
}  # fmt: skip
