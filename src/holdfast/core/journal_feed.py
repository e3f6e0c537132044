"""How events change the journal: what each kind of event adds to what is known of its place.

`feed` takes in an event of the log. What this process has written itself needs less: see `feed_own` and `feed_answered`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from holdfast.core import events as e
from holdfast.core.branch_path import MAIN
from holdfast.core.entry import Entry, Place
from holdfast.core.events import Event, Noted
from holdfast.core.journal import Journal, PendingSignal


def feed(journal: Journal, seq: int, time: int, event: Event) -> None:
    """Take in the next event of the log."""
    _FEED[type(event)](journal, seq, time, event)


def feed_answered(journal: Journal, event: e.CallSucceeded | e.CallFailure) -> None:
    """Take in the receipt of a call that gets its answer as it is written, and never asks. (Its step was counted when it
    was given.)"""
    branch, index = event.branch, event.index
    extent = journal.extent  # `Extent.add` written out, here and below: it is done for every step
    if event.forks:
        extent.forks[branch, index] = event.forks
    if index > extent.last.get(branch, -1):
        extent.last[branch] = index
    if journal.entries or journal.facts:
        journal.forget(branch, index)


def _nothing(journal: Journal, _seq: int, _time: int, _event: Event) -> None:
    """A fact that no call or wait is about."""


def _noting(journal: Journal, seq: int, _time: int, event: Noted) -> None:
    by_subject = journal.facts.setdefault((event.branch, event.after), {})
    by_subject.setdefault((event.kind, event.subject), deque()).append((seq, event))


def _timeout(journal: Journal, seq: int, _time: int, event: e.TimeoutFired) -> None:
    """A timeout has its own place: several may fire in one branch between two calls."""
    place = (event.branch, -1 - seq)
    journal.entries[place] = Entry("asyncio.timeout", timeout=event, first_seq=seq, seq=seq)
    journal.outcomes.append((seq, place))
    journal.timeouts += 1


def _signal(journal: Journal, seq: int, _time: int, event: e.SignalReceived) -> None:
    journal.signals.append(PendingSignal(seq, event))


def _iteration(journal: Journal, seq: int, _time: int, event: e.IterationEnded) -> None:
    if not iterated(journal, seq, event):
        entry = _at(journal, seq, "", event.index, "", event.forks)
        entry.iteration, entry.seq = event, seq


def _patched(journal: Journal, _seq: int, _time: int, _event: Event) -> None:
    journal.has_unseen_patch = True


def _created(journal: Journal, _seq: int, time: int, event: e.RunCreated) -> None:
    journal.life.begin(time, event)


def _life(journal: Journal, seq: int, _time: int, event: Event) -> None:
    has_failed = journal.life.terminal is not None
    journal.life.feed(event)
    match event:
        case e.UndoRequested():
            journal.retries.reopen(seq, journal.entries, journal.extent)
        case e.RunReopened() if has_failed:  # else it was paused or quarantined
            journal.retries.reopen(seq, journal.entries, journal.extent)
        case e.RunRestarted():
            _restart(journal, seq)
        case e.StepsAccepted():
            journal.accepted = seq
        case e.RunCompleted() | e.RunCancellation():
            journal.retries.failed_steps = set()
        case e.RunFailure(step=step, also=also):
            journal.retries.failed_steps = {step, *also}


def _call(
    journal: Journal,
    seq: int,
    event: e.CallSucceeded | e.CallFailure | e.CallStarted | e.CallResolved | e.CallDoubted,
) -> Entry:
    forks = 0 if isinstance(event, e.CallResolved | e.CallDoubted) else event.forks
    entry = _at(journal, seq, event.branch, event.index, event.name, forks)
    entry.seq = seq
    entry.step = event.step
    entry.granted = False
    journal.steps = max(journal.steps, event.step)
    return entry


def _started(journal: Journal, seq: int, time: int, event: e.CallStarted) -> None:
    entry = _call(journal, seq, event)
    if event.undoes:
        journal.life.starts_to_undo()
    entry.digest = event.digest
    if entry.intent_seq and journal.life.lineage.is_inherited(entry.intent_seq):
        entry.first_intent_at = 0  # the key of a fork is a new one
    entry.intent, entry.intent_seq = event, seq
    entry.first_intent_at = entry.first_intent_at or time
    entry.doubted = None
    entry.resolved = None


def feed_receipt(journal: Journal, seq: int, _time: int, event: e.CallSucceeded) -> None:
    """Take in the receipt of a call that was done."""
    place = branch, index = event.branch, event.index
    if place in journal.entries:
        entry = _call(journal, seq, event)
        entry.done = event
    else:  # `_call` written out
        step = event.step
        journal.entries[place] = Entry(event.name, "", step, done=event, first_seq=seq, seq=seq)
        extent = journal.extent
        if event.forks:
            extent.forks[place] = event.forks
        if index > extent.last.get(branch, -1):
            extent.last[branch] = index
        journal.steps = step if step > journal.steps else journal.steps
    journal.outcomes.append((seq, place))
    if journal.has_unseen_patch:
        journal.has_unseen_patch = event.buffered


def _failed(journal: Journal, seq: int, time: int, event: e.CallFailure) -> None:
    entry = _call(journal, seq, event)
    entry.digest = e.args_digest(event) or entry.digest
    entry.failures, entry.ended_at = (*entry.failures, event), time
    if entry.settled_as("retry"):
        entry.resolved = None  # it was tried again, or given up before that
    if event.retry_at is None:
        journal.outcomes.append((seq, (event.branch, event.index)))
    journal.has_unseen_patch = False


def _doubted(journal: Journal, seq: int, _time: int, event: e.CallDoubted) -> None:
    entry = _call(journal, seq, event)
    entry.doubted = event
    entry.resolved = None  # what was said about it did not resolve it


def _resolved(journal: Journal, seq: int, _time: int, event: e.CallResolved) -> None:
    entry = _call(journal, seq, event)
    entry.resolved = event
    entry.doubted = None
    if entry.done is not None:
        # Its result was not kept: what the code did without it does not bind.
        entry.granted_seq = seq
    if event.how == "retry":
        entry.first_intent_at = 0  # a person decided: the key is used again
        entry.settled_attempts = entry.attempts
    else:
        journal.outcomes.append((seq, (event.branch, event.index)))


def _wait(
    journal: Journal,
    seq: int,
    time: int,
    event: e.WaitBegan | e.WaitEnded | e.ApprovalDecided | e.AnswerGiven,
) -> None:
    match event:
        case e.WaitBegan():
            entry = _at(journal, seq, event.branch, event.index, event.name, event.forks)
            entry.wait, entry.wait_seq, entry.wait_at, entry.seq = event, seq, time, seq
            entry.digest = event.digest
            entry.approval = None  # a new request asks again
        case e.WaitEnded():
            entry = _at(journal, seq, event.branch, event.index, "")
            entry.ended, entry.ended_at, entry.seq = event, time, seq
            journal.outcomes.append((seq, (event.branch, event.index)))
            journal.has_unseen_patch = False
            journal.take_signal(event.source)
        case e.ApprovalDecided():
            entry = _at(journal, seq, event.branch, event.index, "")
            if entry.approval is None:  # the first decision wins, by log order
                entry.approval, entry.approval_seq = event, seq
        case e.AnswerGiven():
            entry = _at(journal, seq, event.branch, event.index, "")
            if entry.answer is None:
                entry.answer, entry.answer_seq = event, seq


def _at(journal: Journal, seq: int, branch: str, index: int, name: str, forks: int = 0) -> Entry:
    place = (branch, index)
    entry = journal.entries.get(place)
    if entry is None:
        entry = journal.entries[place] = Entry()
        entry.name, entry.first_seq = name, seq
    journal.extent.add(branch, index, forks)
    return entry


def _restart(journal: Journal, seq: int) -> None:
    journal.restarted = seq
    journal.entries.clear()
    journal.facts.clear()
    journal.extent.clear()
    journal.retries.clear()
    journal.outcomes.clear()
    journal.timeouts = 0
    journal.accepted = 0


def feed_own(journal: Journal, seq: int, time: int, event: Event) -> None:
    """Take in an event that was written here. The end of a wait is delivered to the code by its writer."""
    if isinstance(event, e.TimeoutFired):
        return  # the code has its outcome
    feed(journal, seq, time, event)
    if isinstance(event, e.WaitEnded):
        journal.outcomes.pop()


def iterated(journal: Journal, seq: int, event: e.IterationEnded) -> bool:
    """An iteration is over. Whether a loop continues from here, and never comes back to what was before.

    Not if the state was patched from outside, and the code had not seen that yet: then it continues from
    an earlier iteration, which sees it where it was seen first.
    """
    journal.extent.add("", event.index)
    if not event.buffered:
        journal.has_unseen_patch = False
    goes_on = journal.forgets and not journal.has_unseen_patch
    if goes_on:
        journal.restarted = seq
        journal.entries = {
            p: x for p, x in journal.entries.items() if not _is_before(x.position(p), event.index)
        }
        journal.timeouts = sum(x.timeout is not None for x in journal.entries.values())
        journal.facts = {p: x for p, x in journal.facts.items() if not _is_before(p, event.index)}
        forks = journal.extent.forks
        journal.extent.forks = {p: n for p, n in forks.items() if not _is_before(p, event.index)}
    return goes_on


def _is_before(place: Place, index: int) -> bool:
    """Whether a place is not after this one of the main branch, from which all others are started."""
    at = MAIN.position_of(place)
    return at is not None and at <= index


_Feed = Callable[[Journal, int, int, Any], None]
_FEED: Final[dict[type[Event], _Feed]] = {
    **dict.fromkeys(e.ALL.values(), _nothing),
    **{cls: _noting for cls in e.ALL.values() if issubclass(cls, Noted)},
    **dict.fromkeys(
        (
            e.RunPaused,
            e.RunReopened,
            e.RunRestarted,
            e.RunCompleted,
            e.RunFailure,
            e.RunCancellation,
            e.CancelRequested,
            e.UndoRequested,
            e.UndoStarted,
            e.StepsAccepted,
            e.LimitsChanged,
        ),
        _life,
    ),
    e.RunCreated: _created,
    e.CallStarted: _started,
    e.CallSucceeded: feed_receipt,
    e.CallFailure: _failed,
    e.CallDoubted: _doubted,
    e.CallResolved: _resolved,
    **dict.fromkeys((e.WaitBegan, e.WaitEnded, e.ApprovalDecided, e.AnswerGiven), _wait),
    e.SignalReceived: _signal,
    e.TimeoutFired: _timeout,
    e.IterationEnded: _iteration,
    e.StatePatched: _patched,
}
