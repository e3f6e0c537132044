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
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from holdfast.core import events as e
from holdfast.core.branch_path import MAIN, BranchPath
from holdfast.core.entry import Entry, Place
from holdfast.core.events import Event, Noted
from holdfast.core.extent import Extent
from holdfast.core.life import Life
from holdfast.core.retries import Retries
from holdfast.core.state import RunState


class Mail(Struct):
    """A signal in the log that no wait has taken yet."""

    seq: int
    event: e.SignalReceived


class Journal:
    """What the log contains, by place, as far as it has been read."""

    def __init__(self) -> None:
        self.entries: dict[Place, Entry] = {}
        """Calls and waits that the log contains and the code has not been answered yet."""
        self.life = Life()
        self.retries = Retries()
        self.extent = Extent()
        self._noted: dict[Place, dict[tuple[str, str], deque[tuple[int, Noted]]]] = {}
        self.mail: deque[Mail] = deque()
        self.steps = 0
        self.accepted = 0
        """The seq of the event by which new steps were accepted among all that is recorded before it."""
        self.restarted = 0
        """The seq of the event since which the code runs: its creation, or its last restart."""
        self._unseen_patch = False
        self._outcomes: deque[tuple[int, Place]] = deque()
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
        if self._noted:
            self._noted.pop((branch, index), None)
        if entry is not None and entry.granted_seq:
            self.retries.answered((branch, index), entry)

    def noted(self, event: Noted) -> tuple[int, Noted] | None:
        """The next recorded fact about the same at the same place, and its seq; each once."""
        by_subject = self._noted.get((event.branch, event.after))
        waiting = by_subject and by_subject.get((event.kind, event.subject))
        if not waiting:
            return None
        binding = self.retries.binds_after(event.branch, event.after)
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
        self.extent.add("", event.index)
        if not event.buffered:
            self._unseen_patch = False
        goes_on = self.forgets and not self._unseen_patch
        if goes_on:
            self.restarted = seq
            self.entries = {
                p: x for p, x in self.entries.items() if not _is_before(x.position(p), event.index)
            }
            self.timeouts = sum(x.timeout is not None for x in self.entries.values())
            self._noted = {p: x for p, x in self._noted.items() if not _is_before(p, event.index)}
            forks = self.extent.forks
            self.extent.forks = {p: n for p, n in forks.items() if not _is_before(p, event.index)}
        return goes_on

    def begin_at(self, state: RunState) -> None:
        """Know what a run's state knows at the end of an iteration: the log before it is not read."""
        self.restarted, self.steps = state.seq, state.steps
        if state.budget or state.deadline_at is not None:
            self.life.set_limits(state.deadline_at, state.budget)
        self.mail = deque(
            Mail(s.seq, e.SignalReceived(id=s.id, name=s.name, value=s.value))
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
        outcomes, entries = self._outcomes, self.entries
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

    # ── reading ──────────────────────────────────────────────────────────────────────────

    def feed(self, seq: int, time: int, epoch: int, event: Event) -> None:
        """Take in the next event of the log."""
        _FEED[type(event)](self, seq, time, epoch, event)

    def feed_answered(self, event: e.CallSucceeded | e.CallFailed) -> None:
        """Take in the receipt of a call that gets its answer as it is written, and never asks."""
        branch, index = event.branch, event.index
        extent = self.extent  # `Extent.add` written out, here and below: it is done for every step
        if event.forks:
            extent.forks[branch, index] = event.forks
        if index > extent.last.get(branch, -1):
            extent.last[branch] = index
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
        has_failed = self.life.terminal is not None
        self.life.feed(time, event)
        match event:
            case e.UndoRequested():
                self.retries.reopen(seq, self.entries, self.extent)
            case e.RunReopened() if has_failed:  # else it was paused or quarantined
                self.retries.reopen(seq, self.entries, self.extent)
            case e.RunRestarted():
                self._restart(seq)
            case e.StepsAccepted():
                self.accepted = seq
            case e.RunCompleted() | e.RunCancelled():
                self.retries.failed_steps = set()
            case e.RunFailed(step=step, also=also):
                self.retries.failed_steps = {step, *also}

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
            self.life.starts_to_undo()
        entry.digest = event.digest
        if entry.intent_seq and self.life.lineage.is_inherited(entry.intent_seq):
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
            extent = self.extent
            if event.forks:
                extent.forks[place] = event.forks
            if index > extent.last.get(branch, -1):
                extent.last[branch] = index
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
        entry = self.entries.get(place)
        if entry is None:
            entry = self.entries[place] = Entry()
            entry.name, entry.first_seq = name, seq
        self.extent.add(branch, index, forks)
        return entry

    def _restart(self, seq: int) -> None:
        self.restarted = seq
        self.entries.clear()
        self._noted.clear()
        self.extent.clear()
        self.retries.clear()
        self._outcomes.clear()
        self.timeouts = 0
        self.accepted = 0


def _is_before(place: Place, index: int) -> bool:
    """Whether a place is not after this one of the main branch, from which all others are started."""
    at = MAIN.position_of(place)
    return at is not None and at <= index


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
