"""Set a run aside that must not be executed now, so that no worker claims it again and again.

It is quarantined until a person has looked at it: its log does not verify, it kills its workers, or it may not be
resumed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from holdfast.core import events as e
from holdfast.errors import LogDamaged, NotResumable, RunWaiting, StoreError
from holdfast.runtime.call.commit import commit
from holdfast.runtime.call.drivers import drive
from holdfast.runtime.call.suspend import ends
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.exec.resumable import check_claimed
from holdfast.runtime.log.session import Session
from holdfast.store.base import Append, RowChange, RunRow, Store
from holdfast.store.brief import read_brief
from holdfast.waiting import WaitingFor
from holdfast.words.waiting import run_waiting, waiting_for_override


def reasons(store: Store, row: RunRow) -> Sequence[WaitingFor]:
    """Why a run is quarantined, as recorded. The log of one that was quarantined because of its log does not say."""
    with contextlib.suppress(LogDamaged):
        state = read_brief(store, row.id)
        if state.status == "quarantined":
            return state.waiting
    return (WaitingFor("quarantine", reason=row.waiting_for),)


def set_aside_damaged(session: Session, damage: LogDamaged) -> None:
    """A run whose log does not verify. Nothing is written to that log."""
    change = RowChange("quarantined", None, str(damage), waiting_kinds="quarantine")
    with contextlib.suppress(StoreError):
        last = session.store.head(session.run_id)
        session.store.append(Append(session.run_id, last, (), session.epoch, change))
        session.settled = True


def check_poison(session: Session, row: RunRow, claims_max: int) -> None:
    """A run whose leases expired again and again without progress has killed its workers.

    Or has blocked them (a call into C that keeps the interpreter's lock): that cannot be seen from outside,
    and it would block one after the other.
    """
    if row.claims > claims_max:
        reason = (
            f"it was claimed {row.claims} times without progress; it may kill its workers, or block them for "
            "longer than a lease"
        )
        raise _set_aside(session, WaitingFor("quarantine", reason=reason))


def check_resumable(session: Session, row: RunRow, spec: AgentSpec) -> None:
    """A run that is too old is not resumed without a person's consent."""
    if spec.checkpoint.max_age is None or row.epoch <= 1:
        return
    try:
        check_claimed(session.store, row, spec, ends(session))
    except NotResumable as refused:
        waiting = waiting_for_override(refused)
        raise _set_aside(session, waiting) from None


def _set_aside(session: Session, waiting: WaitingFor) -> RunWaiting:
    change = RowChange("quarantined", None, waiting.reason, waiting_kinds=waiting.kind)
    event = e.RunQuarantined(reason=waiting.reason, waits=(waiting,))
    drive(commit(session, [event], change=change))
    session.settled = True
    return run_waiting(session.run_id, waiting)
