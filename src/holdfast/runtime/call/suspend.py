"""Suspend a run: none of its code executes until something that it is waiting for arrives.

One rule for every wait. The suspension is one append that commits only if, in its transaction, the log still ends
where it was read to, and the run was not woken since its children were looked at. Before it is sent, no open wait
of any branch is over. So whatever ends a wait either was seen here, or finds the run suspended and wakes it.
"""

from __future__ import annotations

from functools import partial

from holdfast.core import events as e
from holdfast.core.policy import MICROSECONDS
from holdfast.errors import Suspend, Woken
from holdfast.runtime.call.commit import catch_up, commit
from holdfast.runtime.call.operations import Flow, Read
from holdfast.runtime.log.session import Session
from holdfast.store.base import RowChange
from holdfast.waiting import WaitingFor, kinds_of
from holdfast.words.waiting import ambiguous, decision_calls


def suspend(session: Session, signal: Suspend | None = None) -> Flow[Suspend | None]:
    """Suspend the run; returns the signal that says what it is waiting for.

    None if a line that is still in memory can continue instead. A run whose code has unwound with `signal` is
    suspended in any case: if one of its waits is over, it is due at once.
    """
    while True:
        yield from catch_up(session)
        looked: tuple[set[str], int] = yield Read(session, session.children.look)
        ended_children, woken = looked
        read_to = session.read_to
        if signal is None and _continues(session, tuple(ended_children)):
            return None
        why = signal or _first(session)
        why.how = _how(session) or why.how
        paused = session.journal.life.paused is not None
        now = session.store.now()
        is_over = any(
            wait.is_over(session.journal, now, ended_children) for wait in session.waits.values()
        )
        limits = () if session.ending else ends(session)  # which have done their work by then
        times = [t for t in (*_wake_times(session, why), *limits) if t is not None]
        if is_over:
            times.append(now)
        due_at = None if paused else min(times, default=None)
        waits = _all_waits(session, why)
        change = RowChange(
            "paused" if paused else "waiting",
            due_at,
            why.waiting_for,
            woken=woken,
            waiting_kinds="resume" if paused else kinds_of(waits),
        )
        event = e.RunSuspended(
            waiting_for=why.waiting_for,
            how=why.how,
            wake_at=min((t for t in _wake_times(session, why) if t is not None), default=None),
            open_since=_open_since(session),
            waits=waits,
        )
        try:
            yield from commit(
                session, [event], change=change, condition=partial(_refuse_if_grown, read_to)
            )
        except Woken:
            yield Read(session, session.children.count_wake_ups)
        else:
            session.settled = True
            return why


def _continues(session: Session, ended_children: tuple[str, ...]) -> bool:
    """Whether a line that is in memory can continue: then the run is not suspended. One may have done so already,
    while what others have written was read."""
    lines = session.lines
    if lines is None:
        return False
    return (
        not lines.supervisor.is_quiet
        or lines.parking.look_again(ended_children, is_asked=True)
        or not session.waits
    )


def _refuse_if_grown(read_to: int, session: Session) -> None:
    """If the log has grown, what is waited for must be looked at again."""
    if session.read_to != read_to:
        raise Woken(session.run_id)


def _first(session: Session) -> Suspend:
    """What people see that the run is waiting for: its oldest open wait."""
    return next(iter(session.suspensions.values()))


def _all_waits(session: Session, why: Suspend) -> tuple[WaitingFor, ...]:
    """All that branches of the run are waiting for; what people see first comes first."""
    others = (x for one in session.suspensions.values() if one is not why for x in one.waits)
    return (*why.waits, *others)


def _open_since(session: Session) -> int | None:
    """Since when anything of the run is open, at most; None if its log is not known to its end."""
    if not session.log.knows_all:
        return None
    if session.lines is None:
        # Its code has unwound: nothing is hidden from it any more.
        session.view.show(session.read_to)
    return session.view.open_since()


def _how(session: Session) -> str:
    """How people decide, if the run asks for several things of one kind: each is named by its id."""
    places = {place for wait in session.waits.values() for place in wait.places}
    open_waits = [
        entry.wait
        for place, entry in session.journal.entries.items()
        if place in places
        and entry.wait is not None
        and entry.approval is None
        and entry.answer is None
    ]
    if not ambiguous(open_waits):
        return ""
    return "".join(f"\n    {line}" for line in decision_calls(session.run_id, open_waits))


def _wake_times(session: Session, signal: Suspend) -> list[int | None]:
    return [signal.wake_at, *(wait.until for wait in session.waits.values())]


def ends(session: Session) -> list[int | None]:
    """When the run's time is up, whether or not a worker is there to see it."""
    created = session.journal.life.created
    if created is None:
        return []
    wall_time = created.budget.get("max_wall_time")
    spent_at = (
        None
        if wall_time is None
        else session.journal.life.created_at + round(wall_time * MICROSECONDS) + 1
    )
    return [created.deadline_at, spent_at]
