"""What a run's events add up to: `fold`.

State is never stored as the truth; it is this fold of the log, and a snapshot is only its cache. The
fold is pure, total (every event it is given has a meaning, none raises) and its result immutable, so
the state before and after any step can be had by folding a prefix.

`Draft` is the fold in the making; the runtime keeps one for a live run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from holdfast.core import events as e
from holdfast.core import knowledge
from holdfast.core import patch as patches
from holdfast.core.effect import Effect
from holdfast.core.events import Event, Spent, Usage, Value, added, plain
from holdfast.core.log import Record, read_event
from holdfast.core.loop_state import Document
from holdfast.core.parts import Artifact, Fact, Message, PlanStep, ToolCall
from holdfast.core.patch import StatePatch
from holdfast.core.policy import BUDGET_PRESSURE, budget_use
from holdfast.core.state import (
    Attempt,
    Call,
    Decision,
    Evidence,
    Failure,
    Line,
    Queued,
    Resolution,
    RunState,
    Signal,
    Waiting,
)
from holdfast.core.values import FrozenDict
from holdfast.errors import InvalidInput
from holdfast.waiting import WaitingFor


def fold(start: RunState, records: Iterable[Record]) -> RunState:
    """The state after these records, which follow those that made `start`."""
    draft = Draft(start)
    for record in records:
        draft.apply(record.seq, record.time, read_event(draft.id or "?", record))
    return draft.freeze()


class _Open(Struct):
    """A Draft's own, changeable copies of a state's collections."""

    state: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    calls: dict[tuple[str, int], Call] = field(default_factory=dict)
    waits: dict[tuple[str, int], Waiting] = field(default_factory=dict)
    signals: dict[int, Signal] = field(default_factory=dict)
    queued: dict[str, Queued] = field(default_factory=dict)
    past_calls: list[Call] = field(default_factory=list)


_LISTS: Final = (
    "decisions",
    "facts",
    "messages",
    "artifacts",
    "lines",
    "plan",
    "questions",
    "flags",
    "stage_history",
    "workers",
)
_PLAIN: Final = tuple(
    f
    for f in RunState.__struct_fields__
    if f not in _LISTS
    and f not in ("state", "notes", "calls", "waits", "signals", "queued", "loop")
)
_plain_of: Final = attrgetter(*_PLAIN)
_lists_of: Final = attrgetter(*_LISTS)


class Draft:
    """A fold that can continue: apply events one by one, freeze when a RunState is wanted.

    With `keep_calls=False` finished calls are forgotten, so that a live run of any length needs no
    more memory than what its agent can still read.
    """

    id: str
    agent: str
    status: str
    code_version: str
    input: Value | None
    result: Value | None
    failure: Failure | None
    stage: str
    stages: tuple[str, ...]
    stage_history: list[str]
    context: Value | None
    plan: list[PlanStep]
    steps: int
    child_steps: int
    left_out: int
    decisions: list[Decision]
    facts: list[Fact]
    questions: list[str]
    messages: list[Message]
    artifacts: list[Artifact]
    flags: list[str]
    lines: list[Line]
    usage: Usage
    items: dict[str, int]
    is_recorded: bool
    budget: dict[str, float]
    deadline_at: int | None
    waiting_for: str
    waiting: tuple[WaitingFor, ...]
    wake_at: int | None
    diverged: e.Divergence | None
    cancel_requested: bool
    parent: str
    forked_from: str
    inherited_effects: tuple[str, ...]
    is_loop: bool
    iteration: int
    iteration_index: int
    workers: list[str]
    restarts: int
    created_at: int
    updated_at: int
    seq: int

    def __init__(self, start: RunState | None = None, *, keep_calls: bool = True) -> None:
        start = start if start is not None else RunState()
        self.keep_calls = keep_calls
        vars(self).update(zip(_PLAIN, _plain_of(start), strict=True))
        vars(self).update(zip(_LISTS, map(list, _lists_of(start)), strict=True))
        self.open = _Open(
            state=dict(start.state),
            notes=dict(start.notes),
            calls={(c.branch, c.index): c for c in start.calls if c.index >= 0},
            waits={(w.branch, w.index): w for w in start.waits},
            signals={s.seq: s for s in start.signals},
            queued={x.id: x for x in start.queued},
            past_calls=[c for c in start.calls if c.index < 0],
        )
        self.loop = Document(start.loop)

    def freeze(self, *, loop: bool = True) -> RunState:
        """The state now, as an immutable value; without the loop's own state if that is not wanted."""
        parts = self.open
        same: dict[str, Any] = {name: getattr(self, name) for name in _PLAIN}
        lists: dict[str, Any] = {name: tuple(getattr(self, name)) for name in _LISTS}
        return RunState(
            **same,
            **lists,
            state=FrozenDict(parts.state),
            notes=FrozenDict(parts.notes),
            calls=tuple(sorted([*parts.past_calls, *parts.calls.values()], key=lambda c: c.step)),
            waits=tuple(parts.waits.values()),
            signals=tuple(parts.signals.values()),
            queued=tuple(parts.queued.values()),
            loop=self.loop.frozen() if loop else None,
        )

    def apply(self, seq: int, time: int, event: Event) -> None:
        """Take one event in."""
        self.seq, self.updated_at = seq, time
        _APPLY[type(event)](self, event)
        if self.budget and BUDGET_PRESSURE not in self.flags:
            self._flag_pressure()

    def _flag_pressure(self) -> None:
        """Raise the flag when the budget runs low, by what the log contains: the same on every replay."""
        elapsed = self.updated_at - self.created_at
        use = budget_use(self.budget, steps=self.steps, elapsed_us=elapsed, usage=self.usage)
        if use.pressure:
            self.flags.append(BUDGET_PRESSURE)

    # the run's own life

    def _created(self, x: e.RunCreated) -> None:
        time = self.updated_at
        self.id, self.agent, self.input = x.run_id, x.agent, x.input
        self.code_version, self.deadline_at, self.budget = x.code_version, x.deadline_at, x.budget
        self.stages, self.parent, self.forked_from = x.stages, x.parent, x.forked_from
        self.inherited_effects, self.is_loop = x.inherited_effects, x.loop
        self.is_recorded = x.recorded
        self.created_at, self.status = time, "pending"

    def _claimed(self, x: e.RunClaimed) -> None:
        self._set_status("running")
        self.workers.append(x.worker)
        del self.workers[:-10]

    def _suspended(self, x: e.RunSuspended) -> None:
        waits = x.waits or (WaitingFor("other", x.waiting_for),)
        self._set_status("waiting", x.waiting_for, tuple(map(self._since, waits)), x.wake_at)
        self.diverged = x.diverged

    def _set_status(
        self,
        status: str,
        waiting_for: str = "",
        waiting: tuple[WaitingFor, ...] = (),
        wake_at: int | None = None,
    ) -> None:
        self.status, self.waiting_for, self.waiting = status, waiting_for, waiting
        self.wake_at, self.diverged = wake_at, None

    def _since(self, x: WaitingFor) -> WaitingFor:
        """The same with the time since when: of a request, since it was made."""
        asked = (w.since for w in self.open.waits.values() if x.request_id and w.id == x.request_id)
        return msgspec.structs.replace(x, since=next(asked, self.updated_at))

    def _completed(self, x: e.RunCompleted) -> None:
        self.result = x.result
        self._set_status("completed")
        self.open.waits.clear()

    def _failed(self, x: e.RunFailed) -> None:
        time = self.updated_at
        call = next((c for c in self.open.calls.values() if c.step == x.step), None)
        self._set_status("failed")
        self.failure = Failure(
            time=time,
            error=x.error,
            reason=x.reason,
            step=x.step,
            tool=call.name if call else "",
            input=call.args if call else None,
            state=FrozenDict(self.open.state),
            also=x.also,
        )

    def _cancelled(self, x: e.RunCancelled) -> None:
        time = self.updated_at
        self._set_status("cancelled")
        self._line(time, "cancel", x.by, x.why, "cancelled")

    def _reopened(self, x: e.RunReopened) -> None:
        time = self.updated_at
        self.status, self.failure, self.waiting_for, self.waiting = "pending", None, "", ()
        self._line(time, "resume", x.by, x.why, "resumed")

    def _accepted(self, x: e.StepsAccepted) -> None:
        self._line(self.updated_at, "accept", x.by, x.why, "new steps of the code were accepted")

    def _limits(self, x: e.LimitsChanged) -> None:
        if x.deadline_at is not None:
            self.deadline_at = x.deadline_at
        self.budget = {**self.budget, **x.budget}
        self._line(self.updated_at, "limits", x.by, x.why, "its limits were changed")

    def _restarted(self, x: e.RunRestarted) -> None:
        """The code starts over: earlier calls are history (index −1), and the state stays."""
        time = self.updated_at
        parts = self.open
        past = [msgspec.structs.replace(c, index=-1) for c in parts.calls.values()]
        parts.past_calls += past if self.keep_calls else []
        parts.calls.clear()
        parts.waits.clear()
        self.status, self.failure, self.result = "pending", None, None
        self.waiting_for, self.waiting = "", ()
        self.cancel_requested, self.diverged = False, None
        self.restarts += 1
        self.loop = Document(None)
        self.iteration, self.iteration_index = 0, -1
        self._line(time, "rerun", x.by, x.why, "restarted, with its state kept")

    def _paused(self, x: e.RunPaused) -> None:
        time = self.updated_at
        self.status, self.waiting_for = "paused", "a person to resume it"
        self.waiting = (WaitingFor("resume", since=time),)
        self._line(time, "pause", x.by, x.why, "paused")

    def _quarantined(self, x: e.RunQuarantined) -> None:
        waits = x.waits or (WaitingFor("quarantine", reason=x.reason),)
        self.status, self.waiting_for = "quarantined", x.reason
        self.waiting = tuple(map(self._since, waits))

    def _cancel_requested(self, x: e.CancelRequested) -> None:
        time = self.updated_at
        self.cancel_requested = not x.reason
        self._line(time, "cancel", x.by, x.why, "cancellation requested")

    def _undo_requested(self, x: e.UndoRequested) -> None:
        time = self.updated_at
        self.status = "pending"
        self._line(time, "undo", x.by, x.why, "undo requested")

    def _line(self, time: int, level: str, by: str, why: str, what: str) -> None:
        text = what + (f" by {by}" if by else "") + (f": {why}" if why else "")
        self.lines.append(Line(time, level, text))

    # calls

    def _started(self, x: e.CallStarted) -> None:
        seq, time = self.seq, self.updated_at
        before = self._call(x.branch, x.index)
        attempts = before.attempts if before else ()
        self._count(x.step)
        self.open.calls[x.branch, x.index] = Call(
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
            first_seq=before.first_seq if before else seq,
            last_seq=seq,
            undoable=x.undoable,
            undoes=x.undoes,
            child=x.child,
            resolution=before.resolution if before else None,
        )
        self.open.waits.pop((x.branch, x.index), None)

    def _call(self, branch: str, index: int) -> Call | None:
        return self.open.calls.get((branch, index))

    def _receipt(self, x: e.CallSucceeded | e.CallFailed) -> Call:
        """The call that a receipt belongs to; it starts here when it had no intent."""
        seq, time = self.seq, self.updated_at
        before = self._call(x.branch, x.index)
        self._count(x.step)
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
            first_seq=seq,
            last_seq=seq,
        )

    def _count(self, step: int) -> None:
        self.steps = max(self.steps, step)

    def _succeeded(self, x: e.CallSucceeded) -> None:
        seq, time = self.seq, self.updated_at
        if x.usage is not None:
            self._add_usage(x.usage)
        if x.spent is not None:
            self._spent(x.spent)
        if self.open.waits:  # a step that needed a yes has no intent
            self.open.waits.pop((x.branch, x.index), None)
        if not self.keep_calls:
            self.steps = x.step if x.step > self.steps else self.steps
            if self.open.calls:
                self.open.calls.pop((x.branch, x.index), None)
            return
        call = self._receipt(x)
        self._store_call(
            call,
            status="done",
            result=x.result,
            error=None,
            seq=seq,
            time=time,
            duration_us=x.duration_us,
            usage=x.usage,
            unavailable=x.unavailable,
        )
        if call.undoes:
            self._mark_undone(call.undoes)

    def _spent(self, child: Spent) -> None:
        self.child_steps += child.steps
        self._add_usage(child.usage)

    def _add_usage(self, used: Usage) -> None:
        self.usage = added(self.usage, used)

    def _store_call(self, call: Call, *, seq: int, time: int | None, **changes: Any) -> None:
        self.open.calls[call.branch, call.index] = msgspec.structs.replace(
            call, last_seq=seq, ended_at=time, **changes
        )

    def _mark_undone(self, step: int) -> None:
        for place, call in self.open.calls.items():
            if call.step == step:
                self.open.calls[place] = msgspec.structs.replace(call, undone=True)
                return

    def _attempt_failed(self, x: e.CallFailed) -> None:
        seq, time = self.seq, self.updated_at
        if x.spent is not None:
            self._spent(x.spent)
        if x.usage is not None:
            self._add_usage(x.usage)
        call = self._receipt(x)
        self.open.waits.pop((x.branch, x.index), None)  # it was rejected, or not decided in time
        last = msgspec.structs.replace(
            call.attempts[-1], ended_at=time, error=x.error, retry_at=x.retry_at
        )
        status = "failed" if x.retry_at is None else "retrying"
        self._store_call(
            call,
            status=status,
            error=x.error,
            seq=seq,
            duration_us=x.duration_us,
            time=time if status == "failed" else None,
            attempts=(*call.attempts[:-1], last),
        )

    def _doubted(self, x: e.CallDoubted) -> None:
        seq = self.seq
        call = self._call(x.branch, x.index)
        if call is not None:
            self._store_call(
                call, status="in_doubt", error=x.error or call.error, seq=seq, time=None
            )

    def _resolved(self, x: e.CallResolved) -> None:
        seq, time = self.seq, self.updated_at
        call = self._call(x.branch, x.index)
        if call is None:
            return
        status = {"done": "done", "failed": "failed"}.get(x.how, "retrying")
        self._store_call(
            call,
            status=status,
            result=x.result,
            error=x.error,
            unavailable="",
            resolution=Resolution(x.how, x.by, x.why, time),
            seq=seq,
            time=time if status != "retrying" else None,
        )
        if not self.keep_calls and status == "done":
            self.open.calls.pop((x.branch, x.index))

    def _evidence(self, x: e.CallEvidence) -> None:
        seq = self.seq
        call = next((c for c in self.open.calls.values() if c.step == x.step), None)
        if call is not None and call.key == x.key and call.digest == x.digest:
            found = Evidence(x.worker, x.epoch, x.outcome, self.updated_at, x.result, x.error)
            self._store_call(call, seq=seq, time=call.ended_at, evidence=(*call.evidence, found))

    # iterations

    def _iterated(self, x: e.IterationEnded) -> None:
        self.iteration, self.iteration_index = x.iteration, x.index
        if x.state is not None:
            self.loop = Document(plain(x.state))
        elif x.delta is not None:
            self.loop.apply(plain(x.delta))
        for taken in x.taken:
            self.open.queued.pop(taken, None)
        for why in x.refused:
            self.lines.append(Line(self.updated_at, "patch", f"a patch was not applied: {why}"))

    # waits

    def _wait_began(self, x: e.WaitBegan) -> None:
        time = self.updated_at
        self.open.waits[x.branch, x.index] = Waiting(
            index=x.index,
            wait=x.wait,
            name=x.name,
            since=time,
            branch=x.branch,
            until=x.until,
            show=x.show,
            options=x.options,
            digest=x.digest,
            tool=x.tool,
            tool_version=x.tool_version,
            of=x.of,
        )

    def _wait_ended(self, x: e.WaitEnded) -> None:
        self.open.waits.pop((x.branch, x.index), None)
        self.open.signals.pop(x.source, None)

    def _signal(self, x: e.SignalReceived) -> None:
        seq = self.seq
        self.open.signals[seq] = Signal(x.id, x.name, x.value, seq)

    def _approval(self, x: e.ApprovalDecided) -> None:
        time = self.updated_at
        self._mark_decided(x.branch, x.index)
        how = "approved" if x.approved else "rejected"
        edited = " with edited arguments" if x.args is not None else ""
        self._line(time, "approval", x.by, x.why, how + edited)

    def _answer(self, x: e.AnswerGiven) -> None:
        time = self.updated_at
        self._mark_decided(x.branch, x.index)
        self._line(time, "answer", x.by, x.why, "answered")

    def _mark_decided(self, branch: str, index: int) -> None:
        wait = self.open.waits.get((branch, index))
        if wait is not None:
            self.open.waits[branch, index] = msgspec.structs.replace(wait, decided=True)

    # what was noted

    def _state(self, x: e.StateChanged) -> None:
        knowledge.change(self.open.state, x.op, x.key, plain(x.value))

    def _patched(self, x: e.StatePatched) -> None:
        time = self.updated_at
        for op in knowledge.operations(x.changes):
            knowledge.change(self.open.state, op["op"], op["key"], op.get("value"))
        if self.is_loop and (x.patch is not None or x.operations is not None):
            self.open.queued[x.id] = Queued(x.id, x.patch, x.operations, x.by)
        elif x.patch is not None:
            self._take_in(x.patch)
        elif x.operations is not None:
            self._operate(x.operations)
        self._line(time, "patch", x.by, x.why, "state patched")

    def _knowledge(self, x: e.KnowledgePatched) -> None:
        self._take_in(x.patch)

    @property
    def state(self) -> dict[str, Any]:
        """The explicit memory."""
        return self.open.state

    @property
    def notes(self) -> dict[str, Any]:
        """The private scratchpad."""
        return self.open.notes

    def _take_in(self, patch: Value) -> None:
        try:
            read = msgspec.convert(plain(patch), StatePatch)
        except (ValueError, InvalidInput):  # a foreign log may hold anything
            return
        self._know(patches.changed(read, self, time=self.updated_at))

    def _operate(self, ops: Value) -> None:
        try:
            self._know(knowledge.operated(self, plain(ops)))
        except (ValueError, InvalidInput):
            return

    def _know(self, new: dict[str, Any]) -> None:
        for name, value in new.items():
            if name in ("state", "notes"):
                setattr(self.open, name, dict(value))
            else:
                setattr(self, name, list(value))

    def _value(self, x: e.ValueRecorded) -> None:
        pass  # it matters to the code that reads it again, not to the state

    def _stage(self, x: e.StageEntered) -> None:
        self.stage = x.stage
        self.stage_history.append(x.stage)

    def _plan(self, x: e.PlanMade) -> None:
        self.plan[:] = [PlanStep(name) for name in x.steps]

    def _plan_began(self, x: e.PlanStepBegan) -> None:
        self._plan_status(x.step, "doing")

    def _plan_ended(self, x: e.PlanStepEnded) -> None:
        self._plan_status(x.step, "done")

    def _plan_status(self, name: str, status: str) -> None:
        for i, step in enumerate(self.plan):
            if step.name == name and step.status != "done":
                self.plan[i] = PlanStep(name, status)
                return
        self.plan.append(PlanStep(name, status))

    def _decision(self, x: e.DecisionMade) -> None:
        time = self.updated_at
        self.decisions.append(Decision(x.name, plain(x.choice), x.why, x.options, self.steps, time))

    def _fact(self, x: e.FactLearned) -> None:
        time = self.updated_at
        self.facts.append(Fact(x.key, plain(x.value), x.source, time))

    def _question(self, x: e.QuestionRaised) -> None:
        if x.question not in self.questions:
            self.questions.append(x.question)

    def _question_closed(self, x: e.QuestionClosed) -> None:
        if x.question in self.questions:
            self.questions.remove(x.question)

    def _note(self, x: e.NoteTaken) -> None:
        self.open.notes[x.key] = plain(x.value)

    def _message(self, x: e.MessageAdded) -> None:
        self.messages.append(message_of(x, self.updated_at))

    def _artifact(self, x: e.ArtifactSaved) -> None:
        time = self.updated_at
        self.artifacts.append(
            Artifact(x.name, x.type, x.blob, x.bytes, x.summary, self.steps, time)
        )

    def _context(self, x: e.ContextShown) -> None:
        self.context = x.slice

    def _item(self, x: e.ItemPut) -> None:
        count = self.items.get(x.collection, 0) + x.adds - (x.value is None)
        self.items = {**self.items, x.collection: count}

    def _nothing(self, _x: Event) -> None:
        """An event that says how the code took its way, and nothing about the state."""

    def _log(self, x: e.LogWritten) -> None:
        time = self.updated_at
        self.lines.append(Line(time, x.level, x.text))


_APPLY: Final[dict[type[Event], Callable[[Draft, Any], None]]] = {
    e.RunCreated: Draft._created, e.RunClaimed: Draft._claimed, e.RunSuspended: Draft._suspended,
    e.RunCompleted: Draft._completed, e.RunFailed: Draft._failed, e.RunCancelled: Draft._cancelled,
    e.RunReopened: Draft._reopened, e.RunRestarted: Draft._restarted, e.RunPaused: Draft._paused,
    e.RunQuarantined: Draft._quarantined, e.CancelRequested: Draft._cancel_requested,
    e.UndoRequested: Draft._undo_requested, e.CallStarted: Draft._started,
    e.CallSucceeded: Draft._succeeded, e.CallFailed: Draft._attempt_failed,
    e.CallDoubted: Draft._doubted, e.CallResolved: Draft._resolved, e.CallEvidence: Draft._evidence,
    e.WaitBegan: Draft._wait_began, e.WaitEnded: Draft._wait_ended,
    e.SignalReceived: Draft._signal, e.ApprovalDecided: Draft._approval, e.AnswerGiven: Draft._answer,
    e.StateChanged: Draft._state, e.StatePatched: Draft._patched, e.ValueRecorded: Draft._value,
    e.StageEntered: Draft._stage, e.PlanMade: Draft._plan, e.PlanStepBegan: Draft._plan_began,
    e.PlanStepEnded: Draft._plan_ended, e.DecisionMade: Draft._decision, e.FactLearned: Draft._fact,
    e.QuestionRaised: Draft._question, e.QuestionClosed: Draft._question_closed,
    e.NoteTaken: Draft._note, e.MessageAdded: Draft._message, e.ArtifactSaved: Draft._artifact,
    e.LogWritten: Draft._log, e.IterationEnded: Draft._iterated, e.KnowledgePatched: Draft._knowledge,
    e.ContextShown: Draft._context, e.StepsAccepted: Draft._accepted, e.LimitsChanged: Draft._limits, e.TimeoutFired: Draft._nothing,
    e.ItemPut: Draft._item, e.UndoStarted: Draft._nothing,
}  # fmt: skip


def message_of(x: e.MessageAdded, time: int) -> Message:
    """The message that an event has added."""
    metadata = None if x.metadata is None else plain(x.metadata)
    calls = tuple(map(_tool_call, x.tool_calls))
    return Message(x.role, plain(x.content), time, metadata, calls, x.tool_call_id)


def _tool_call(x: e.AskedTool) -> ToolCall:
    result = None if x.result is None else plain(x.result)
    return ToolCall(x.id, x.name, plain(x.arguments), result, x.error, x.duration)
