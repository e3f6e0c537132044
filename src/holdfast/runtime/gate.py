"""The gate: may a new call begin? Cancellation, undo, pause, deadline and budget.

Asked before every call and wait that is not recorded yet, and again if the intent was refused because the
log had grown.

Not here: approval by risk (`flow.py`), limits over all workers (`limits.py`).
"""

from __future__ import annotations

from holdfast.core.policy import budget_use
from holdfast.errors import Abandon, Stop, Suspend
from holdfast.runtime.session import Session


def gate(session: Session) -> None:
    """May a new call begin? Cancellation, undo, pause, deadline and budget, in this order."""
    if session.stopped is not None:
        raise session.stopped
    if session.only_replay is not None:
        raise session.stop(Abandon(session.only_replay))
    journal = session.journal
    if not journal.may_stop_calls:
        return
    created = journal.created
    if journal.cancel is not None:
        raise session.stop(cancellation(session))
    if journal.undo is not None or journal.undoing:
        raise session.stop(Stop("undone", "what it did is taken back"))
    if journal.paused is not None:
        raise session.stop(Suspend("somebody to resume it", f"hf.resume({session.run_id!r})"))
    if created is None or (created.deadline_at is None and not created.budget):
        return
    if is_overdue(session):
        raise session.stop(overdue())
    if created.budget:
        check_budget(session, created.budget)


def check_budget(session: Session, limits: dict[str, float]) -> None:
    """Stop the run if one of these limits is used up."""
    use = budget_use(
        limits,
        steps=session.steps,
        elapsed_us=session.store.now() - session.journal.created_at,
        usage=session.usage,
    )
    over = use.exceeded(starting=True)
    if over:
        raise session.stop(Stop("budget", f"the budget is used up: {over}"))


def is_overdue(session: Session) -> bool:
    """Whether the run's deadline has passed."""
    created = session.journal.created
    at = None if created is None else created.deadline_at
    return at is not None and session.store.now() >= at


def overdue() -> Stop:
    """The signal for a run whose deadline has passed."""
    return Stop("deadline", "the run's deadline has passed")


def cancellation(session: Session) -> Stop:
    """The signal for a run that somebody has cancelled."""
    asked = session.journal.cancel
    who = f" by {asked.by}" if asked and asked.by else ""
    return Stop("cancelled", f"cancelled{who}" + (f": {asked.why}" if asked and asked.why else ""))
