"""How a run ended, as data: its result, or why there is none. Read from the end of its log."""

from __future__ import annotations

import msgspec

from holdfast.core import events as e
from holdfast.core import log
from holdfast.core.events import ErrorInfo, Value
from holdfast.store.base import TERMINAL_STATUSES, Store
from holdfast.store.pages import end_of
from holdfast.views.listing import shown_status
from holdfast.views.log import row_of


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """`status` is that of the run; `result` is set if it completed, `error` and `reason` if it failed."""

    run_id: str
    status: str
    result: Value | None = None
    error: ErrorInfo | None = None
    reason: str = ""
    """Why it failed: error, deadline, budget, iterations …"""
    root: str = ""
    """The run whose limits hold for this one."""
    by: str = ""
    """Who cancelled it, and why."""
    why: str = ""
    waiting_for: str = ""
    """What it is waiting for, if it has not ended."""

    @property
    def has_ended(self) -> bool:
        return self.status in TERMINAL_STATUSES


def outcome(store: Store, run_id: str) -> Outcome:
    """How the run ended, or that it has not."""
    row = row_of(store, run_id)
    root = log.root_of(row.id, row.parent)
    if row.status not in TERMINAL_STATUSES:
        shown = shown_status(row, store.now())
        return Outcome(row.id, shown, root=root, waiting_for=row.waiting_for)
    match end_of(store, row)[1]:
        case e.RunCompleted(result=result):
            return Outcome(row.id, row.status, result=result, root=root)
        case e.RunFailure(error=error, reason=reason):
            return Outcome(row.id, row.status, error=error, reason=reason, root=root)
        case e.RunCancellation(by=by, why=why):
            return Outcome(row.id, row.status, by=by, why=why, root=root)
