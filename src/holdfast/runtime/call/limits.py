"""Calls that are limited in number or rate across all workers.

The limits are in the store (`SharedLimits`), so that all workers together honour a provider's limit. A call gets
its seat and its turn before its intent is recorded: a crash between the two costs only a turn.
A call waits here for a turn that is near; for a later one its run is suspended and keeps the turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from holdfast.core.policy import MICROSECONDS, microseconds
from holdfast.core.waits import OpenWait
from holdfast.errors import Abandon, StoreError
from holdfast.runtime.call.commit import park, wait_until
from holdfast.runtime.call.gate import gate_again
from holdfast.runtime.call.operations import CallRequest, Flow, Invoke, Sleep
from holdfast.runtime.log.branches import Inside
from holdfast.waiting import WaitingFor
from holdfast.words.waiting import suspended

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


def _seat(request: CallRequest, holder: str, most: int) -> Flow[None]:
    import random  # here, as few tools are limited

    session, spec = request.session, request.spec
    since, pause = session.store.now(), SEAT_SECONDS[0]

    def take_seat() -> bool:
        return session.store.limits.take_seat(
            spec.name, holder, run_id=session.run_id, epoch=session.epoch, limit=most
        )

    while not (yield from _ask(request, take_seat)):
        now = session.store.now()
        if now - since >= session.patience_us:
            wait_us = round(random.uniform(*SUSPENDED_SECONDS) * MICROSECONDS)  # noqa: S311 (only to spread)
            room = WaitingFor("room", spec.name, limit=most, until=now + wait_us)
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


def _ask(request: CallRequest, question: Callable[[], Any]) -> Flow[Any]:
    """Ask the store, off the event loop if there is one."""
    session, spec = request.session, request.spec
    try:
        return (
            yield Invoke(
                session, question, {}, Inside(spec.name, spec.effect, session.run_id), False
            )
        )
    except StoreError as error:
        raise session.stop(Abandon(error)) from error
