"""Fold a run's events into its state: `fold`.

State is never stored as the truth; it is this fold of the log, and a snapshot is only its cache. The
fold is pure, total (every event it is given has a meaning, none raises) and its result immutable, so
the state before and after any step is the fold of a prefix.

`Draft` is a fold that can continue; the runtime keeps one for a live run. What the code asked for (calls and waits) is
folded here.

Not here: the run's own life (`fold_life.py`), what the agent notes (`fold_knowledge.py`), the fields (`draft.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from holdfast.core import events as e
from holdfast.core.draft import DraftState, Handlers
from holdfast.core.effect import Effect
from holdfast.core.events import ChildUsage, Event, Usage, add_usage
from holdfast.core.fold_knowledge import KNOWLEDGE
from holdfast.core.fold_life import LIFE
from holdfast.core.log import Record, read_event
from holdfast.core.policy import BUDGET_PRESSURE, budget_use
from holdfast.core.state import (
    UNSETTLED,
    Attempt,
    Call,
    Evidence,
    ReceivedSignal,
    Resolution,
    RunState,
    Waiting,
)


def fold(start: RunState, records: Iterable[Record]) -> RunState:
    """The state after these records, which follow those that made `start`."""
    draft = Draft.of(start)
    for record in records:
        draft.apply(record.seq, record.time, read_event(draft.id or "?", record))
    return draft.freeze()


class Draft(DraftState):
    """A fold that can continue: apply events one by one, freeze when a RunState is wanted."""

    def apply(self, seq: int, time: int, event: Event) -> None:
        """Apply one event."""
        self.seq, self.updated_at = seq, time
        _APPLY[type(event)](self, event)
        if self.budget and BUDGET_PRESSURE not in self.flags:
            self._flag_pressure()

    def open_since(self) -> int:
        """When the oldest of what is open started, for `RunSuspended`; the time of the last event if nothing is."""
        begun = [wait.since for wait in self.open.waits.values()]
        begun += [c.started_at for c in self.open.calls.values() if c.status in UNSETTLED]
        return min(begun, default=self.updated_at)

    def _flag_pressure(self) -> None:
        """Raise the flag when the budget runs low, by what the log contains: the same on every replay."""
        elapsed = self.updated_at - self.created_at
        use = budget_use(self.budget, steps=self.steps, elapsed_us=elapsed, usage=self.usage)
        if use.pressure:
            self.flags.append(BUDGET_PRESSURE)


def _started(draft: DraftState, x: e.CallStarted) -> None:
    time = draft.updated_at
    before = draft.open.calls.get((x.branch, x.index))
    attempts = before.attempts if before else ()
    draft.steps = max(draft.steps, x.step)
    draft.open.calls[x.branch, x.index] = Call(
        step=x.step,
        name=x.name,
        index=x.index,
        status="running",
        branch=x.branch,
        effect=x.effect,
        key=x.key,
        digest=x.digest,
        risk=x.risk,
        tool_version=x.tool_version,
        args=x.args,
        attempts=(*attempts, Attempt(x.attempt, time)),
        started_at=before.started_at if before else time,
        first_seq=before.first_seq if before else draft.seq,
        last_seq=draft.seq,
        undoable=x.undoable,
        undoes=x.undoes,
        child=x.child,
        resolution=before.resolution if before else None,
    )
    draft.open.waits.pop((x.branch, x.index), None)


def _receipt(draft: DraftState, x: e.CallSucceeded | e.CallFailure) -> Call:
    """The call that a receipt belongs to; it starts here when it had no intent."""
    time = draft.updated_at
    before = draft.open.calls.get((x.branch, x.index))
    digest = e.args_digest(x)
    if before is not None and (before.digest == digest or not digest):
        if before.attempts and before.attempts[-1].number == x.attempt:
            return before
        started = Attempt(x.attempt, time - x.duration_us)
        return msgspec.structs.replace(before, attempts=(*before.attempts, started))
    return Call(
        step=x.step,
        name=x.name,
        index=x.index,
        status="running",
        branch=x.branch,
        effect=Effect.REPEATABLE,
        digest=digest,
        args=x.args,
        attempts=(Attempt(x.attempt, time - x.duration_us),),
        started_at=time - x.duration_us,
        first_seq=draft.seq,
        last_seq=draft.seq,
    )


def _succeeded(draft: DraftState, x: e.CallSucceeded) -> None:
    # Not max(): this is the most frequent event, and a comparison is faster than a call.
    draft.steps = x.step if x.step > draft.steps else draft.steps
    if x.usage is not None:
        _add_usage(draft, x.usage)
    if x.spent is not None:
        _spent(draft, x.spent)
    if draft.open.waits:  # a step that needed an approval has no intent
        draft.open.waits.pop((x.branch, x.index), None)
    if not draft.keep_calls:
        if draft.open.calls:
            draft.open.calls.pop((x.branch, x.index), None)
        return
    call = _receipt(draft, x)
    _store_call(
        draft,
        call,
        status="done",
        result=x.result,
        error=None,
        ended_at=draft.updated_at,
        duration_us=x.duration_us,
        usage=x.usage,
        unavailable=x.unavailable,
    )
    if call.undoes:
        _mark_undone(draft, call.undoes)


def _spent(draft: DraftState, child: ChildUsage) -> None:
    draft.child_steps += child.steps
    _add_usage(draft, child.usage)


def _add_usage(draft: DraftState, used: Usage) -> None:
    draft.usage = add_usage(draft.usage, used)


def _store_call(draft: DraftState, call: Call, *, ended_at: int | None, **changes: Any) -> None:
    draft.open.calls[call.branch, call.index] = msgspec.structs.replace(
        call, last_seq=draft.seq, ended_at=ended_at, **changes
    )


def _mark_undone(draft: DraftState, step: int) -> None:
    for place, call in draft.open.calls.items():
        if call.step == step:
            draft.open.calls[place] = msgspec.structs.replace(call, undone=True)
            return


def _attempt_failed(draft: DraftState, x: e.CallFailure) -> None:
    time = draft.updated_at
    draft.steps = max(draft.steps, x.step)
    if x.spent is not None:
        _spent(draft, x.spent)
    if x.usage is not None:
        _add_usage(draft, x.usage)
    call = _receipt(draft, x)
    draft.open.waits.pop((x.branch, x.index), None)  # it was rejected, or not decided in time
    last = msgspec.structs.replace(
        call.attempts[-1], ended_at=time, error=x.error, retry_at=x.retry_at
    )
    status = "failed" if x.retry_at is None else "retrying"
    _store_call(
        draft,
        call,
        status=status,
        error=x.error,
        duration_us=x.duration_us,
        ended_at=time if status == "failed" else None,
        attempts=(*call.attempts[:-1], last),
    )


def _doubted(draft: DraftState, x: e.CallDoubted) -> None:
    call = draft.open.calls.get((x.branch, x.index))
    if call is not None:
        _store_call(draft, call, status="in_doubt", error=x.error or call.error, ended_at=None)


def _resolved(draft: DraftState, x: e.CallResolved) -> None:
    time = draft.updated_at
    call = draft.open.calls.get((x.branch, x.index))
    if call is None:
        return
    status = {"done": "done", "failed": "failed"}.get(x.how, "retrying")
    _store_call(
        draft,
        call,
        status=status,
        result=x.result,
        error=x.error,
        unavailable="",
        resolution=Resolution(x.how, x.by, x.why, time),
        ended_at=time if status != "retrying" else None,
    )
    if not draft.keep_calls and status == "done":
        draft.open.calls.pop((x.branch, x.index))


def _evidence(draft: DraftState, x: e.CallEvidence) -> None:
    call = next((c for c in draft.open.calls.values() if c.step == x.step), None)
    if call is not None and call.key == x.key and call.digest == x.digest:
        found = Evidence(x.worker, x.epoch, x.outcome, draft.updated_at, x.result, x.error)
        _store_call(draft, call, ended_at=call.ended_at, evidence=(*call.evidence, found))


def _wait_began(draft: DraftState, x: e.WaitBegan) -> None:
    draft.open.waits[x.branch, x.index] = Waiting(
        index=x.index,
        wait=x.wait,
        name=x.name,
        since=draft.updated_at,
        branch=x.branch,
        until=x.until,
        show=x.show,
        options=x.options,
        digest=x.digest,
        tool=x.tool,
        tool_version=x.tool_version,
        of=x.of,
    )


def _wait_ended(draft: DraftState, x: e.WaitEnded) -> None:
    draft.open.waits.pop((x.branch, x.index), None)
    draft.open.signals.pop(x.source, None)


def _signal(draft: DraftState, x: e.SignalReceived) -> None:
    draft.open.signals[draft.seq] = ReceivedSignal(x.id, x.name, x.value, draft.seq)


def _approval(draft: DraftState, x: e.ApprovalDecided) -> None:
    _mark_decided(draft, x.branch, x.index)
    how = "approved" if x.approved else "rejected"
    edited = " with edited arguments" if x.args is not None else ""
    draft.add_line("approval", x.by, x.why, how + edited)


def _answer(draft: DraftState, x: e.AnswerGiven) -> None:
    _mark_decided(draft, x.branch, x.index)
    draft.add_line("answer", x.by, x.why, "answered")


def _mark_decided(draft: DraftState, branch: str, index: int) -> None:
    wait = draft.open.waits.get((branch, index))
    if wait is not None:
        draft.open.waits[branch, index] = msgspec.structs.replace(wait, decided=True)


def _nothing(_draft: DraftState, _x: Event) -> None:
    """An event that matters to the code that reads it again, and changes nothing in the state."""


_APPLY: Final[Handlers] = {
    **LIFE,
    **KNOWLEDGE,
    e.CallStarted: _started,
    e.CallSucceeded: _succeeded,
    e.CallFailure: _attempt_failed,
    e.CallDoubted: _doubted,
    e.CallResolved: _resolved,
    e.CallEvidence: _evidence,
    e.WaitBegan: _wait_began,
    e.WaitEnded: _wait_ended,
    e.SignalReceived: _signal,
    e.ApprovalDecided: _approval,
    e.AnswerGiven: _answer,
    e.ValueRecorded: _nothing,
    e.TimeoutFired: _nothing,
    e.UndoStarted: _nothing,
}
