"""What code may wait for (a time, signals, people), as requests; and what it gets when the wait is over.

Not here: the wait itself (`waits.py`), what an agent calls (`run.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core import events as e
from holdfast.core import values
from holdfast.core.events import Value
from holdfast.core.parts import text, texts
from holdfast.core.policy import microseconds
from holdfast.errors import InvalidInput, Rejected
from holdfast.runtime.log.session import Session

RequestKind = Literal["timer", "signal", "approval", "answer"]


class WaitCondition(Struct, frozen=True):
    """What the code is waiting for."""

    wait: RequestKind
    name: str = ""
    seconds_us: int | None = None
    show: Any = None
    options: tuple[str, ...] = ()
    of: tuple[str, ...] = ()


class Approval(Struct, frozen=True):
    """One of several things to wait for: a person's yes or no."""

    prompt: str
    show: Any = None


class Question(Struct, frozen=True):
    """One of several things to wait for: a person's answer."""

    prompt: str
    options: Sequence[str] = ()


class Timer(Struct, frozen=True):
    """One of several things to wait for: a time from now."""

    seconds: float
    name: str = "timer"


# ── what is asked for ────────────────────────────────────────────────────────────────────────


def timer(seconds: float) -> WaitCondition:
    return WaitCondition("timer", seconds_us=microseconds(seconds, "run.sleep"))


def signals(names: Sequence[Any], timeout: float | None) -> WaitCondition:
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise InvalidInput("a signal needs a non-empty name")
    us = None if timeout is None else microseconds(timeout, "timeout")
    return WaitCondition("signal", name=",".join(names), seconds_us=us, of=tuple(names))


def approval(prompt: str, show: Any, timeout: float | None) -> WaitCondition:
    us = None if timeout is None else microseconds(timeout, "timeout")
    prompt = text(prompt, "run.approve: the prompt")
    return WaitCondition("approval", name=prompt, seconds_us=us, show=show)


def question(prompt: str, options: Iterable[str], timeout: float | None) -> WaitCondition:
    us = None if timeout is None else microseconds(timeout, "timeout")
    prompt, options = text(prompt, "run.ask: the prompt"), texts(options, "run.ask: options")
    return WaitCondition("answer", name=prompt, seconds_us=us, options=options)


def any_of(
    waits: Sequence[str | Approval | Question | Timer], timeout: float | None
) -> list[WaitCondition]:
    """Each thing as its own request; signals are one request together."""
    names = [x for x in waits if isinstance(x, str)]
    if len(waits) == len(names):
        return [signals(names, timeout)]
    if timeout is not None and all(isinstance(x, Timer) for x in waits):
        raise InvalidInput("wait_any: use another Timer instead of a timeout next to timers only")
    requests = [signals(names, timeout)] if names else []
    for x in waits:
        match x:
            case Approval():
                requests.append(approval(x.prompt, x.show, timeout))
            case Question():
                requests.append(question(x.prompt, x.options, timeout))
            case Timer():
                name = text(x.name, "Timer.name")
                requests.append(replace(timer(x.seconds), name=name))
            case str():
                pass
            case _:
                raise InvalidInput(
                    f"wait_any takes names of signals, Approval, Question and Timer, not {x!r}"
                )
    return requests


# ── what comes of it ─────────────────────────────────────────────────────────────────────────


def value_of(session: Session, ended: e.WaitEnded) -> Any:
    """A signal's value or a person's answer; None when time was up."""
    return None if ended.is_over("time") else _content(session, ended.value)


def choice_of(
    session: Session, requests: list[WaitCondition], ended: tuple[int, e.WaitEnded]
) -> tuple[str, Any] | None:
    """Which of several came first, by its name, and what came with it; None when time was up."""
    number, end = ended
    if end.wait == "timer":
        return requests[number].name, None
    if end.is_over("time"):
        return None
    if end.wait == "approval":
        return requests[number].name, end.outcome == "approved"
    asked = requests[number]
    name = _signal_name(session, asked, end.outcome) if end.wait == "signal" else asked.name
    return name, _content(session, end.value)


def _signal_name(session: Session, asked: WaitCondition, came: str) -> str:
    """The signal that came, by the name that the code is waiting for: a fork may have inherited it under a
    name with the id of the run that it was forked from."""
    lineage = session.journal.life.lineage
    same = (name for name in asked.of if lineage.is_same_text(came, name))
    return came if came in asked.of else next(same, came)


def consent_of(session: Session, prompt: str, ended: e.WaitEnded) -> bool:
    """True, or Rejected with the person and the reason."""
    if ended.is_over("time"):
        raise Rejected(prompt, "Rejected", "no decision in time")
    if ended.outcome == "rejected":
        said = _content(session, ended.value)
        why = f": {said['why']}" if said["why"] else ""
        raise Rejected(prompt, "Rejected", f"rejected by {said['by'] or 'a person'}{why}")
    return True


def _content(session: Session, value: Value | None) -> Any:
    """What came with the end of a wait."""
    return None if value is None else values.decode(session.unwrap(value))
