"""A run's events as sentences: one for each kind of event, for every interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from holdfast.core import events as e
from holdfast.core.events import Event, Value
from holdfast.core.state import signed, to_plain
from holdfast.words.text import clock, compact, count, cut, one_line, span, visible


class Sentence(Struct, frozen=True):
    """An event in words: what it is about, what happened, and the colour that fits."""

    what: str
    text: str
    colour: str | None = None


def sentence(event: Event) -> Sentence:
    """One event in words. Its fields are untrusted data: nothing of it can control a terminal."""
    said = _SENTENCES[type(event)](event)
    return Sentence(visible(said.what), visible(said.text), said.colour)


def _by(x: Any) -> str:
    return visible(signed("", x.by, getattr(x, "why", "")))


def _value(value: Value | None, limit: int = 80) -> str:
    return "" if value is None else compact(value, limit)


def _args(value: Value | None) -> str:
    plain = None if value is None else to_plain(value)
    return one_line(plain, 90) if isinstance(plain, dict) else _value(value)


def _call(x: Any) -> str:
    return f"step {x.step} {visible(x.name)}"


# ── the run's own life ───────────────────────────────────────────────────────────────────────


def _created(x: e.RunCreated) -> Sentence:
    origin = (
        f", forked from {visible(x.forked_from)} after step {x.forked_step}{_by(x)}"
        if x.forked_from
        else ""
    )
    said = f"created: {visible(x.agent)} {_args(x.input)}".rstrip()
    return Sentence("run", said + origin)


def _completed(x: e.RunCompleted) -> Sentence:
    return Sentence("run", f"completed → {_value(x.result)}", "green")


def _failed(x: e.RunFailure) -> Sentence:
    return Sentence("run", f"failed ({x.reason}): {_error(x.error)}", "red")


def _suspended(x: e.RunSuspended) -> Sentence:
    return Sentence("run", f"suspended, waiting for {visible(x.waiting_for)}", "yellow")


def _error(error: e.ErrorInfo) -> str:
    return cut(visible(f"{error.type}: {error.message}"), 160)


# ── calls ────────────────────────────────────────────────────────────────────────────────────


def _started(x: e.CallStarted) -> Sentence:
    attempt = f", attempt {x.attempt}" if x.attempt > 1 else ""
    args = _args(x.args)
    return Sentence(_call(x), f"started{attempt} ({x.effect}){args and f': {args}'}")


def _succeeded(x: e.CallSucceeded) -> Sentence:
    lost = f" (its result could not be stored: {visible(x.unavailable)})" if x.unavailable else ""
    return Sentence(_call(x), f"done in {span(x.duration_us)} → {_value(x.result)}{lost}", "green")


def _attempt_failed(x: e.CallFailure) -> Sentence:
    again = "" if x.retry_at is None else "; will be retried"
    colour = "red" if x.retry_at is None else "yellow"
    return Sentence(_call(x), f"attempt {x.attempt} failed: {_error(x.error)}{again}", colour)


def _doubted(x: e.CallDoubted) -> Sentence:
    return Sentence(_call(x), f"in doubt: {visible(x.because)}", "magenta")


def _limits(x: e.LimitsChanged) -> str:
    deadline = [] if x.deadline_at is None else [f"deadline {clock(x.deadline_at)}"]
    return ", ".join([*deadline, *(f"{name} {limit:g}" for name, limit in x.budget.items())])


def _resolved(x: e.CallResolved) -> Sentence:
    result = f" → {_value(x.result)}" if x.result is not None else ""
    return Sentence(_call(x), f"doubt resolved, {x.how}{result}{_by(x)}", "magenta")


def _evidence(x: e.CallEvidence) -> Sentence:
    return Sentence(
        _call(x),
        f"{visible(x.worker)} (epoch {x.epoch}), which had lost its lease, reports: {x.outcome}",
    )


# ── waits ────────────────────────────────────────────────────────────────────────────────────


def _wait_began(x: e.WaitBegan) -> Sentence:
    shown = f" {_args(x.show)}" if x.show is not None else ""
    options = f" ({', '.join(map(visible, x.options))})" if x.options else ""
    until = f", until {clock(x.until)}" if x.until is not None else ""
    said = f"{x.wait} {visible(x.name)}{options}{shown}".rstrip()
    return Sentence("wait", said + until, "yellow")


def _wait_ended(x: e.WaitEnded) -> Sentence:
    if x.is_over("cut"):
        return Sentence("wait", f"{x.wait} cancelled: the agent's code stopped waiting for it")
    return Sentence("wait", f"{x.wait} ended: {visible(x.outcome)} {_value(x.value)}".rstrip())


def _approved(x: e.ApprovalDecided) -> Sentence:
    word, colour = ("approved", "green") if x.approved else ("rejected", "red")
    edited = "" if x.args is None else f", with edited arguments {_args(x.args)}"
    return Sentence("person", word + edited + _by(x), colour)


def _iterated(x: e.IterationEnded) -> Sentence:
    phase = f", {visible(x.phase)}" if x.phase else ""
    changed = _value(x.state if x.delta is None else x.delta) if x.state or x.delta else ""
    return Sentence("iteration", f"{x.iteration} ended{phase} {changed}".rstrip(), "cyan")


def _item(x: e.ItemPut) -> Sentence:
    if x.value is None:
        said = "deleted"
    elif x.is_bytes:
        said = f"{x.value.bytes:,} bytes"
    else:
        said = _value(x.value)
    again = f" (version {x.number})" if x.number > 1 else ""
    return Sentence(visible(x.collection), f"{visible(x.key)}{again}: {said}{_by(x)}")


_SENTENCES: Final[dict[type[Event], Callable[[Any], Sentence]]] = {
    e.RunCreated: _created,
    e.RunClaimed: lambda x: Sentence("run", f"claimed by {visible(x.worker)}", "cyan"),
    e.RunSuspended: _suspended,
    e.RunCompleted: _completed,
    e.RunFailure: _failed,
    e.RunCancellation: lambda x: Sentence("run", f"cancelled{_by(x)}", "red"),
    e.RunReopened: lambda x: Sentence("person", f"resumed{_by(x)}"),
    e.StepsAccepted: lambda x: Sentence("person", f"new steps accepted{_by(x)}"),
    e.LimitsChanged: lambda x: Sentence("person", f"limits changed{_by(x)}: {_limits(x)}"),
    e.RunRestarted: lambda x: Sentence("person", f"restarted, state kept{_by(x)}"),
    e.RunPaused: lambda x: Sentence("person", f"paused{_by(x)}", "yellow"),
    e.RunQuarantined: lambda x: Sentence("run", f"quarantined: {visible(x.reason)}", "red"),
    e.CancelRequested: lambda x: Sentence("person", f"cancellation requested{_by(x)}", "red"),
    e.UndoRequested: lambda x: Sentence("person", f"undo requested{_by(x)}", "yellow"),
    e.UndoStarted: lambda x: Sentence(
        "run", f"undoing what it did: {visible(x.message)}", "yellow"
    ),
    e.CallStarted: _started,
    e.CallSucceeded: _succeeded,
    e.CallFailure: _attempt_failed,
    e.CallDoubted: _doubted,
    e.CallResolved: _resolved,
    e.CallEvidence: _evidence,
    e.WaitBegan: _wait_began,
    e.WaitEnded: _wait_ended,
    e.TimeoutFired: lambda x: Sentence(
        "timeout", f"a timeout in the agent's code fired in branch {x.branch or 'main'}"
    ),
    e.SignalReceived: lambda x: Sentence("signal", f"{visible(x.name)} {_value(x.value)}{_by(x)}"),
    e.ApprovalDecided: _approved,
    e.AnswerGiven: lambda x: Sentence("person", f"answered {_value(x.value)}{_by(x)}", "green"),
    e.StateChanged: lambda x: Sentence("state", f"{x.op} {visible(x.key)} {_value(x.value)}"),
    e.StatePatched: lambda x: Sentence(
        "person", f"patched the state {_value(x.patch or x.operations or x.changes)}{_by(x)}"
    ),
    e.KnowledgePatched: lambda x: Sentence("patch", _value(x.patch)),
    e.IterationEnded: _iterated,
    e.ValueRecorded: lambda x: Sentence("value", f"{visible(x.name)} = {_value(x.value)}"),
    e.StageEntered: lambda x: Sentence("stage", visible(x.stage), "cyan"),
    e.PlanMade: lambda x: Sentence(
        "plan", f"{count(len(x.steps), 'step')}: {cut(', '.join(map(visible, x.steps)), 90)}"
    ),
    e.PlanStepBegan: lambda x: Sentence("plan", f"doing {visible(x.step)}"),
    e.PlanStepEnded: lambda x: Sentence("plan", f"did {visible(x.step)}"),
    e.DecisionMade: lambda x: Sentence(
        "decision",
        f"{visible(x.name)}: {_value(x.choice)}" + (f", because {visible(x.why)}" if x.why else ""),
    ),
    e.FactLearned: lambda x: Sentence(
        "fact",
        f"{visible(x.key)} = {_value(x.value)}"
        + (f" (from {visible(x.source)})" if x.source else ""),
    ),
    e.QuestionRaised: lambda x: Sentence("question", f"open: {visible(x.question)}"),
    e.QuestionClosed: lambda x: Sentence("question", f"closed: {visible(x.question)}"),
    e.NoteTaken: lambda x: Sentence("note", f"{visible(x.key)} = {_value(x.value)}"),
    e.MessageAdded: lambda x: Sentence("message", f"{visible(x.role)}: {_value(x.content)}"),
    e.ArtifactSaved: lambda x: Sentence(
        "artifact", f"{visible(x.name)} ({visible(x.type)}, {x.bytes:,} bytes)"
    ),
    e.ContextShown: lambda x: Sentence("context", f"a model was shown {_value(x.slice)}"),
    e.ItemPut: _item,
    e.LogWritten: lambda x: Sentence("log", f"{visible(x.level)}: {visible(x.text)}"),
}

# Every kind of event has its words; a new one is missed here, at import, and not on a user's screen.
assert _SENTENCES.keys() == set(e.ALL.values())
