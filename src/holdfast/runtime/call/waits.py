"""Waits: for a time, a signal, a person. Each is two events; between them, a suspended run costs only its row.

A wait has a place in its branch like a call. What ends it is found in the log: a signal that came
(even before the wait started), a decision, or time by the store's clock.

Not here: what an agent calls (`run.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.core.ancestors import ForkAncestry
from holdfast.core.entry import Entry, Place, request_id
from holdfast.core.events import Value
from holdfast.core.log import Blob
from holdfast.core.match import Open, Recorded, is_same_wait
from holdfast.core.parts import text, texts
from holdfast.core.policy import MICROSECONDS, microseconds
from holdfast.core.waits import CUT, LOST, OpenWait, wait_ended
from holdfast.errors import InvalidInput, Rejected, Suspend
from holdfast.runtime.call.commit import catch_up, commit
from holdfast.runtime.call.gate import gate
from holdfast.runtime.call.match import check_all_replayed, find
from holdfast.runtime.call.operations import Begin, Flow, Park, Replay, Sleep, TaskCancelled
from holdfast.runtime.call.recover import forks_above
from holdfast.runtime.call.request import CodeRequest
from holdfast.runtime.log.branches import Branch
from holdfast.runtime.log.session import Session
from holdfast.waiting import WaitingFor
from holdfast.words.waiting import suspended

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


def value_of(session: Session, end: e.WaitEnded) -> Any:
    """A signal's value or a person's answer; None when time was up."""
    return None if end.is_over("time") else _content(session, end.value)


def choice_of(
    session: Session, requests: list[WaitCondition], first_end: tuple[int, e.WaitEnded]
) -> tuple[str, Any] | None:
    """Which of several came first, by its name, and what came with it; None when time was up."""
    number, end = first_end
    if end.wait == "timer":
        return requests[number].name, None
    if end.is_over("time"):
        return None
    if end.wait == "approval":
        return requests[number].name, end.outcome == "approved"
    condition = requests[number]
    name = _signal_name(session, condition, end.outcome) if end.wait == "signal" else condition.name
    return name, _content(session, end.value)


def _signal_name(session: Session, condition: WaitCondition, came: str) -> str:
    """The signal that came, by the name that the code is waiting for: a fork may have inherited it under a
    name with the id of the run that it was forked from."""
    lineage = session.journal.life.lineage
    same = (name for name in condition.of if lineage.is_same_text(came, name))
    return came if came in condition.of else next(same, came)


def consent_of(session: Session, prompt: str, end: e.WaitEnded) -> bool:
    """True, or Rejected with the person and the reason."""
    if end.is_over("time"):
        raise Rejected(prompt, "Rejected", "no decision in time")
    if end.outcome == "rejected":
        decision = _content(session, end.value)
        why = f": {decision['why']}" if decision["why"] else ""
        raise Rejected(prompt, "Rejected", f"rejected by {decision['by'] or 'a person'}{why}")
    return True


def _content(session: Session, value: Value | None) -> Any:
    """What came with the end of a wait."""
    return None if value is None else values.decode(session.unwrap(value))


# ── the wait itself ──────────────────────────────────────────────────────────────────────────


class WaitRequest(CodeRequest):
    """A wait for the first of several, as it was asked for."""

    requests: Sequence[WaitCondition]

    @property
    def name(self) -> str:
        return self.requests[0].name

    @property
    def places(self) -> list[Place]:
        """Each wait has its own, so that people decide about it as about any other request."""
        return [(self.branch.path, self.index + n) for n in range(self.count)]

    def is_recorded_in(self, entry: Entry, number: int, lineage: ForkAncestry) -> bool:
        condition = self.requests[number]
        return is_same_wait(condition.wait, condition.name, entry, lineage)

    def __str__(self) -> str:
        return "wait for " + " or ".join(f"{x.wait} {x.name!r}" for x in self.requests)


def wait_first(branch: Branch, requests: Sequence[WaitCondition]) -> Flow[tuple[int, e.WaitEnded]]:
    """Wait for the first of several; returns its number and its end. The others end with it, as lost.

    All start in one commit and all end in one, so the log never holds half of a choice.
    """
    session, count = branch.session, len(requests)
    request = WaitRequest(branch, branch.take(count), branch.forked, count, requests)
    found = find(request)
    places, attempted = request.places, str(request)
    if isinstance(found, Recorded):
        entries = [_entry(session, at) for at in places]
        ends: Sequence[e.WaitEnded] = [x.ended for x in entries if x.ended is not None]
        yield from _replay(session, places, ends, attempted)
        session.view.show(max(entry.seq for entry in entries))
    else:
        check_all_replayed(request.branch, attempted)
        if not request.branch.is_insertion:
            yield from _may_begin(session, places, isinstance(found, Open), attempted)
        ends = yield from _come(request, has_begun=isinstance(found, Open))
    for at in places:
        session.journal.forget(*at)
    return next((n, end) for n, end in enumerate(ends) if not end.is_over(LOST))


def _may_begin(
    session: Session, places: Sequence[Place], has_begun: bool, attempted: str
) -> Flow[None]:
    """Wait until the wait may start. If the code gives it up before, one that had started is over."""
    try:
        yield Begin(session, attempted)
    except TaskCancelled as cut:
        if has_begun:
            yield from _give_up(session, places, [_entry(session, at) for at in places])
        raise cut.cancelled from None


def _replay(
    session: Session, places: Sequence[Place], ends: Sequence[e.WaitEnded], attempted: str
) -> Flow[None]:
    """Wait until these recorded ends are next. If the code had given the wait up, until it does so again."""
    if not ends[0].is_over(CUT):
        yield Replay(session, places)
        return
    if session.lines is None:
        given_up = f"{attempted}, which async code had given up"
        raise session.diverged(places[0], given_up, attempted)
    try:
        yield Replay(session, places, is_cut=True)
    finally:
        session.view.show(
            max(x.seq for at in places if (x := session.journal.entry(*at)) is not None)
        )
        for at in places:
            session.journal.forget(*at)


def _come(request: WaitRequest, *, has_begun: bool) -> Flow[Sequence[e.WaitEnded]]:
    """Start the wait if it has not started, then look, wait near times here, and suspend for far ones."""
    session, places = request.session, request.places
    gate(session)
    if not has_begun:
        yield from _begin(request)
    entries = [_entry(session, at) for at in places]
    times = [entry.wait.until for entry in entries if entry.wait is not None]
    until = min((time for time in times if time is not None), default=None)
    while True:
        yield from catch_up(session)
        gate(session)
        ends = session.end_waits(places)
        if ends is not None:
            yield from commit(session, ends, is_outcome=True)
            return ends
        remaining_us = None if until is None else until - session.store.now()
        try:
            if remaining_us is None or remaining_us > session.patience_us:
                wait = OpenWait(places[0], "request", until, len(places))
                yield Park(session, wait, _suspended(request, until))
            else:
                yield Sleep(session, max(0, remaining_us) / MICROSECONDS)
        except TaskCancelled as cut:
            yield from _give_up(session, places, entries)
            raise cut.cancelled from None
        session.check_lease()


def _begin(request: WaitRequest) -> Flow[None]:
    session, places, now = request.session, request.places, request.session.store.now()
    begins: list[e.WaitBegan] = []
    all_blobs: list[Blob] = []
    for at, x in zip(places, request.requests, strict=True):
        show, blobs = (None, ()) if x.show is None else log.wrap(values.encode(x.show))
        all_blobs += blobs
        begins.append(
            e.WaitBegan(
                branch=at[0],
                index=at[1],
                wait=x.wait,
                name=x.name,
                show=show,
                until=None if x.seconds_us is None else now + x.seconds_us,
                options=x.options,
                of=x.of,
                forks=request.forks if at == places[0] else 0,
            )
        )
    yield from commit(session, begins, blobs=all_blobs, condition=gate)


def _suspended(request: WaitRequest, until: int | None) -> Suspend:
    session = request.session
    waits = [
        WaitingFor(
            x.wait,
            x.name,
            until=_wait_of(session, at).until,
            request_id=request_id(at),
            names=x.of,
            options=x.options,
        )
        for at, x in zip(request.places, request.requests, strict=True)
    ]
    return suspended(session.run_id, *waits, wake_at=until)


def _give_up(session: Session, places: Sequence[Place], entries: Sequence[Entry]) -> Flow[None]:
    """The wait has ended: a person who has yet to decide is no longer asked, and a signal that
    comes is for the next wait."""
    above = forks_above(session)
    ends = [wait_ended(at, entry, CUT, above) for at, entry in zip(places, entries, strict=True)]
    yield from commit(session, ends, is_outcome=True)
    for at in places:
        session.journal.forget(*at)


def _entry(session: Session, at: Place) -> Entry:
    entry = session.log.entry(*at)
    assert entry is not None
    return entry


def _wait_of(session: Session, at: Place) -> e.WaitBegan:
    wait = _entry(session, at).wait
    assert wait is not None
    return wait
