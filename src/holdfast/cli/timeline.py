"""Events as sentences: what `trace` prints, and what `run` says while it works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from holdfast.cli.text import clock, compact, count, cut, one_line, span, visible
from holdfast.core import events as e
from holdfast.core.events import Event, Value
from holdfast.views import to_plain


@dataclass(frozen=True, slots=True)
class Said:
    """An event in words: what it is about, what happened, and the colour that fits."""

    what: str
    text: str
    colour: str | None = None


def sentence(event: Event) -> Said:
    """One event in words. Its fields are untrusted data: nothing of it can control
    a terminal."""
    said = _SENTENCES[type(event)](event)
    return Said(visible(said.what), visible(said.text), said.colour)


def _by(x: Any) -> str:
    text = (f" by {x.by}" if x.by else "") + (f": {x.why}" if getattr(x, "why", "") else "")
    return visible(text)


def _value(value: Value | None, limit: int = 80) -> str:
    return "" if value is None else compact(value, limit)


def _args(value: Value | None) -> str:
    plain = None if value is None else to_plain(value)
    return one_line(plain, 90) if isinstance(plain, dict) else _value(value)


def _call(x: Any) -> str:
    return f"step {x.step} {visible(x.name)}"


# ── the run's own life ───────────────────────────────────────────────────────────────────────


def _created(x: e.RunCreated) -> Said:
    origin = (
        f", forked from {visible(x.forked_from)} after step {x.forked_step}{_by(x)}"
        if x.forked_from
        else ""
    )
    said = f"created: {visible(x.agent)} {_args(x.input)}".rstrip()
    return Said("run", said + origin)


def _completed(x: e.RunCompleted) -> Said:
    return Said("run", f"completed → {_value(x.result)}", "green")


def _failed(x: e.RunFailed) -> Said:
    return Said("run", f"failed ({x.reason}): {_error(x.error)}", "red")


def _suspended(x: e.RunSuspended) -> Said:
    return Said("run", f"suspended, waiting for {visible(x.waiting_for)}", "yellow")


def _error(error: e.ErrorInfo) -> str:
    return cut(visible(f"{error.type}: {error.message}"), 160)


# ── calls ────────────────────────────────────────────────────────────────────────────────────


def _started(x: e.CallStarted) -> Said:
    attempt = f", attempt {x.attempt}" if x.attempt > 1 else ""
    return Said(_call(x), f"started{attempt} ({x.effect}): {_args(x.args)}")


def _succeeded(x: e.CallSucceeded) -> Said:
    lost = f" (its result could not be stored: {visible(x.unavailable)})" if x.unavailable else ""
    return Said(_call(x), f"done in {span(x.duration_us)} → {_value(x.result)}{lost}", "green")


def _attempt_failed(x: e.CallFailed) -> Said:
    again = "" if x.retry_at is None else "; will be retried"
    colour = "red" if x.retry_at is None else "yellow"
    return Said(_call(x), f"attempt {x.attempt} failed: {_error(x.error)}{again}", colour)


def _limits(x: e.LimitsChanged) -> str:
    deadline = [] if x.deadline_at is None else [f"deadline {clock(x.deadline_at)}"]
    return ", ".join([*deadline, *(f"{name} {limit:g}" for name, limit in x.budget.items())])


def _doubted(x: e.CallDoubted) -> Said:
    return Said(_call(x), f"in doubt: {visible(x.because)}", "magenta")


def _resolved(x: e.CallResolved) -> Said:
    result = f" → {_value(x.result)}" if x.result is not None else ""
    return Said(_call(x), f"doubt resolved, {x.how}{result}{_by(x)}", "magenta")


def _evidence(x: e.CallEvidence) -> Said:
    return Said(
        _call(x),
        f"{visible(x.worker)} (epoch {x.epoch}), which had lost its lease, reports: {x.outcome}",
    )


# ── waits ────────────────────────────────────────────────────────────────────────────────────


def _wait_began(x: e.WaitBegan) -> Said:
    shown = f" {_args(x.show)}" if x.show is not None else ""
    options = f" ({', '.join(map(visible, x.options))})" if x.options else ""
    until = f", until {clock(x.until)}" if x.until is not None else ""
    said = f"{x.wait} {visible(x.name)}{options}{shown}".rstrip()
    return Said("wait", said + until, "yellow")


def _wait_ended(x: e.WaitEnded) -> Said:
    if x.is_over("cut"):
        return Said("wait", f"{x.wait} cancelled: the agent's code stopped waiting for it")
    return Said("wait", f"{x.wait} ended: {visible(x.outcome)} {_value(x.value)}".rstrip())


def _approved(x: e.ApprovalDecided) -> Said:
    word, colour = ("approved", "green") if x.approved else ("rejected", "red")
    return Said("person", word + _by(x), colour)


def _iterated(x: e.IterationEnded) -> Said:
    phase = f", {visible(x.phase)}" if x.phase else ""
    changed = _value(x.state if x.delta is None else x.delta) if x.state or x.delta else ""
    return Said("iteration", f"{x.iteration} ended{phase} {changed}".rstrip(), "cyan")


_SENTENCES: Final[dict[type[Event], Callable[[Any], Said]]] = {
    e.RunCreated: _created,
    e.RunClaimed: lambda x: Said("run", f"claimed by {visible(x.worker)}", "cyan"),
    e.RunSuspended: _suspended,
    e.RunCompleted: _completed,
    e.RunFailed: _failed,
    e.RunCancelled: lambda x: Said("run", f"cancelled{_by(x)}", "red"),
    e.RunReopened: lambda x: Said("person", f"resumed{_by(x)}"),
    e.LimitsChanged: lambda x: Said("person", f"limits changed{_by(x)}: {_limits(x)}"),
    e.StepsAccepted: lambda x: Said("person", f"new steps accepted{_by(x)}"),
    e.RunRestarted: lambda x: Said("person", f"restarted, state kept{_by(x)}"),
    e.RunPaused: lambda x: Said("person", f"paused{_by(x)}", "yellow"),
    e.RunQuarantined: lambda x: Said("run", f"quarantined: {visible(x.reason)}", "red"),
    e.CancelRequested: lambda x: Said("person", f"cancellation requested{_by(x)}", "red"),
    e.UndoRequested: lambda x: Said("person", f"undo requested{_by(x)}", "yellow"),
    e.CallStarted: _started,
    e.CallSucceeded: _succeeded,
    e.CallFailed: _attempt_failed,
    e.CallDoubted: _doubted,
    e.CallResolved: _resolved,
    e.CallEvidence: _evidence,
    e.WaitBegan: _wait_began,
    e.WaitEnded: _wait_ended,
    e.TimeoutFired: lambda x: Said("timeout", f"a timeout in the agent's code cancelled branch {x.branch or 'main'}"),
    e.SignalReceived: lambda x: Said("signal", f"{visible(x.name)} {_value(x.value)}{_by(x)}"),
    e.ApprovalDecided: _approved,
    e.AnswerGiven: lambda x: Said("person", f"answered {_value(x.value)}{_by(x)}", "green"),
    e.StateChanged: lambda x: Said("state", f"{x.op} {visible(x.key)} {_value(x.value)}"),
    e.StatePatched: lambda x: Said(
        "person", f"patched the state {_value(x.patch or x.operations or x.changes)}{_by(x)}"
    ),
    e.KnowledgePatched: lambda x: Said("patch", _value(x.patch)),
    e.IterationEnded: _iterated,
    e.ValueRecorded: lambda x: Said("value", f"{visible(x.name)} = {_value(x.value)}"),
    e.StageEntered: lambda x: Said("stage", visible(x.stage), "cyan"),
    e.PlanMade: lambda x: Said("plan", f"{count(len(x.steps), 'step')}: {cut(', '.join(map(visible, x.steps)), 90)}"),
    e.PlanStepBegan: lambda x: Said("plan", f"doing {visible(x.step)}"),
    e.PlanStepEnded: lambda x: Said("plan", f"did {visible(x.step)}"),
    e.DecisionMade: lambda x: Said("decision", f"{visible(x.name)}: {_value(x.choice)}"
                                   + (f", because {visible(x.why)}" if x.why else "")),
    e.FactLearned: lambda x: Said("fact", f"{visible(x.key)} = {_value(x.value)}"
                                  + (f" (from {visible(x.source)})" if x.source else "")),
    e.QuestionRaised: lambda x: Said("question", f"open: {visible(x.question)}"),
    e.QuestionClosed: lambda x: Said("question", f"closed: {visible(x.question)}"),
    e.NoteTaken: lambda x: Said("note", f"{visible(x.key)} = {_value(x.value)}"),
    e.MessageAdded: lambda x: Said("message", f"{visible(x.role)}: {_value(x.content)}"),
    e.ArtifactSaved: lambda x: Said("artifact", f"{visible(x.name)} ({visible(x.type)}, {x.bytes:,} bytes)"),
    e.ContextShown: lambda x: Said("context", f"a model was shown {_value(x.slice)}"),
    e.LogWritten: lambda x: Said("log", f"{visible(x.level)}: {visible(x.text)}"),
}  # fmt: skip

# Every kind of event has its words; a new one is missed here, at import, and not on a user's screen.
assert _SENTENCES.keys() == set(e.ALL.values())
