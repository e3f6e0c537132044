"""The gate: may a new call start? Cancellation, undo, pause, deadline and budget; then the limits that all workers share.

The run's own limits are asked before every call and wait that is not recorded yet, and again if the intent was
refused because the log had grown. A child run asks for every run above it that executes here, too.

How many calls of a tool may be made at a time, or in a time, is kept in the store (`SharedLimits`), so that all workers
together honour a provider's limit. A call gets its seat and its turn before its intent is recorded: a crash
between the two costs only a turn. A call waits here for a turn that is near; for a later one its run is
suspended and keeps the turn.

Not here: approval by risk (`approval.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final, TypeVar

from holdfast.core.policy import MICROSECONDS, microseconds
from holdfast.core.waits import OpenWait
from holdfast.errors import Abandon, Stop, StoreError
from holdfast.runtime.call.commit import park, wait_until
from holdfast.runtime.call.operations import Flow, Invoke, Sleep
from holdfast.runtime.call.request import CallRequest
from holdfast.runtime.log.branches import Inside
from holdfast.runtime.log.lineage import LiveRun, use_of
from holdfast.runtime.log.session import Session
from holdfast.waiting import WaitingFor
from holdfast.words.waiting import suspended

T = TypeVar("T")


def gate(session: Session, *, counts: bool = False) -> None:
    """May a new call start? Cancellation, undo, pause, deadline and budget, in this order.

    `counts` says that the budget counts the call already. Then it is not asked: it would find that the last call that
    it allows has used it up.
    """
    if session.stop_signal is not None:
        raise session.stop_signal
    if session.only_replay is not None:
        raise session.end_of_replay()
    if session.lineage.parent is not None:
        _gate_ancestors(session, counts=counts)
    if session.journal.life.may_stop_calls:
        _gate_own(session, counts=counts)


def gate_again(request: CallRequest) -> None:
    """After something else was awaited or written for a call: what came from outside may have been read meanwhile, so
    that its intent is not refused for that."""
    if not request.undoes:
        gate(request.session)


def _gate_own(session: Session, *, counts: bool) -> None:
    journal = session.journal
    created = journal.life.created
    if journal.life.cancel is not None:
        raise session.stop(cancellation(session))
    if journal.life.undo is not None:
        raise session.stop(undone())
    if journal.life.paused is not None:
        raise session.stop(suspended(session.run_id, WaitingFor("resume")))
    if journal.life.undo_started is not None:
        raise session.stop(
            Stop(journal.life.undo_started.reason, journal.life.undo_started.message)
        )
    if created is not None:
        if is_overdue(session):
            raise session.stop(overdue())
        if created.budget and not counts:
            check_budget(session, created.budget)
    if journal.life.undoing:  # after a failure of its code, or in a log of version 0.1
        raise session.stop(undone())


def _gate_ancestors(session: Session, *, counts: bool = False) -> None:
    """Every run above this one that must end is stopped, and this one for the same reason.

    Asked before the run's own limits, which are no wider: so the parent, too, ends by its limit and not by
    the failure of its child.
    """
    found: Stop | None = None
    for ancestor in session.lineage.ancestors():
        signal = _end_of(ancestor, counts=counts)
        if signal is not None:
            ancestor.stop(signal)
            found = found or Stop(signal.reason, f"run {ancestor.run_id}: {signal.message}")
    if found is not None:
        raise session.stop(found)


def _end_of(run: LiveRun, *, counts: bool) -> Stop | None:
    """Why a run must end, if it must."""
    if isinstance(run.stop_signal, Stop):
        return run.stop_signal
    if not run.journal.life.may_stop_calls:
        return None
    if run.journal.life.cancel is not None:
        return cancellation(run)
    if is_overdue(run):
        return overdue()
    created = run.journal.life.created
    has_budget = created is not None and bool(created.budget) and not counts
    exceeded = use_of(run).exceeded() if has_budget else ""
    return _spent(exceeded) if exceeded else None


def check_budget(session: Session, limits: dict[str, float]) -> None:
    """Stop the run if one of these limits is used up, by itself or by its children."""
    exceeded = use_of(session, limits).exceeded()
    if exceeded:
        raise session.stop(_spent(exceeded))


def _spent(exceeded: str) -> Stop:
    return Stop("budget", f"the budget is used up: {exceeded}")


def is_overdue(run: LiveRun) -> bool:
    """Whether the run's deadline has passed."""
    created = run.journal.life.created
    at = None if created is None else created.deadline_at
    return at is not None and run.store.now() >= at


def end_by_deadline(session: Session) -> BaseException:
    """The run's deadline has passed while it was in a call: it ends, and so do runs above it that share it."""
    if session.lineage.parent is not None:
        _gate_ancestors(session)
    return session.stop(overdue())


def undone() -> Stop:
    """The signal for a run that is being undone."""
    return Stop("undone", "it is undone")


def overdue() -> Stop:
    """The signal for a run whose deadline has passed."""
    return Stop("deadline", "the run's deadline has passed")


def cancellation(run: LiveRun) -> Stop:
    """The signal for a run that was cancelled, by a person or with its parent."""
    request = run.journal.life.cancel
    if request is not None and request.reason:
        return Stop(request.reason, f"its parent has failed: {request.why}")
    who = f" by {request.by}" if request and request.by else ""
    return Stop(
        "cancelled", f"cancelled{who}" + (f": {request.why}" if request and request.why else "")
    )


# ── limits over all workers ──────────────────────────────────────────────────────────────────


SEAT_SECONDS: Final = (0.02, 1.0)
"""How long to wait, at first and at most, before a seat is asked for again."""
SUSPENDED_SECONDS: Final = (5.0, 15.0)
"""When a run that got no seat looks again: some time between these, so that not all come at once."""


def within_limits(request: CallRequest, number: int, attempt: Callable[[], Flow[Any]]) -> Flow[Any]:
    """Make an attempt once the limits of its tool allow it."""
    session, spec = request.session, request.spec
    holder = f"{session.run_id}:{request.branch.path}:{request.index}:{number}"
    try:
        if spec.max_running is not None:
            yield from _seat(request, holder, spec.max_running)
        if spec.rate is not None:
            yield from _turn(request, holder)
        gate_again(request)
        return (yield from attempt())
    finally:
        if spec.max_running is not None:
            with contextlib.suppress(StoreError):  # then the seat ends with our lease
                session.store.limits.leave_seat(spec.name, holder)


def _seat(request: CallRequest, holder: str, limit: int) -> Flow[None]:
    import random  # here, as few tools are limited

    session, spec = request.session, request.spec
    since, pause = session.store.now(), SEAT_SECONDS[0]

    def take_seat() -> bool:
        return session.store.limits.take_seat(
            spec.name, holder, run_id=session.run_id, epoch=session.epoch, limit=limit
        )

    while not (yield from _ask(request, take_seat)):
        now = session.store.now()
        if now - since >= session.patience_us:
            wait_us = round(random.uniform(*SUSPENDED_SECONDS) * MICROSECONDS)  # noqa: S311 (only to spread)
            room = WaitingFor("room", spec.name, limit=limit, until=now + wait_us)
            signal = suspended(session.run_id, room, wake_at=now + wait_us)
            yield from park(session, OpenWait(request.place, "timer", now + wait_us), signal)
        yield Sleep(session, pause * random.uniform(0.5, 1.0))  # noqa: S311
        session.check_lease()
        pause = min(pause * 2, SEAT_SECONDS[1])


def _turn(request: CallRequest, holder: str) -> Flow[None]:
    session, spec, rate = request.session, request.spec, request.spec.rate
    assert rate is not None
    per_us = microseconds(rate.per, "Rate.per")

    def take_turn() -> int | None:
        return session.store.limits.take_turn(
            rate.name or spec.name, holder, count=rate.count, per_us=per_us, slack_us=rate.slack_us
        )

    while (at := (yield from _ask(request, take_turn))) is not None:
        why = f"{rate.count} in {rate.per:g} s"
        yield from wait_until(session, request.place, at, WaitingFor("rate", spec.name, reason=why))


def _ask(request: CallRequest, question: Callable[[], T]) -> Flow[T]:
    """Ask the store, off the event loop if there is one."""
    session, spec = request.session, request.spec
    try:
        answer: T = yield Invoke(
            session, question, {}, Inside(spec.name, spec.effect, session.run_id), False
        )
    except StoreError as error:
        raise session.stop(Abandon(error)) from error
    return answer
