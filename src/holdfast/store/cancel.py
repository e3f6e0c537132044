"""Cancel child runs with their parent, from any machine that reaches the store.

A cancellation is recorded in the parent's log, *then* its children are listed and each is cancelled the same
way. The process that creates or opens a child run reads its parent's log *afterwards* (`cancelled_above`). So of a
cancellation and a child that come at the same time, one sees the other.

Not here: who may cancel a run, and what people are shown (`control`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from holdfast.core import events as e
from holdfast.core import log
from holdfast.core.log import Record
from holdfast.core.state import RunState
from holdfast.errors import NoSuchRun
from holdfast.store.base import TERMINAL_STATUSES, Filter, RowChange, RunRow, Store
from holdfast.store.items import is_recorded
from holdfast.store.outside import WAKE, RunUpdate, update_run
from holdfast.store.pages import all_runs, lately

REASONS: Final = ("deadline", "budget")
"""A run that fails for one of these ends its children for the same reason."""

_ENDS: Final = {
    e.RunCompleted.stored_as,
    e.RunFailure.stored_as,
    e.RunCancellation.stored_as,
    e.RunRestarted.stored_as,
}


def open_children(store: Store, run_id: str) -> Iterator[RunRow]:
    """The child runs of a run that have not ended, the newest first."""
    return (row for row in children(store, run_id) if row.status not in TERMINAL_STATUSES)


def children(store: Store, run_id: str) -> Iterator[RunRow]:
    """The child runs of a run, the newest first."""
    return all_runs(store, Filter(parent=run_id))


def cancel_tree(store: Store, run_id: str, cancellation: e.CancelRequested) -> None:
    """Cancel a run, unless it has ended, and everything below it."""
    if request(store, run_id, cancellation):
        cancel_children(store, run_id, cancellation)


def cancel_children(store: Store, run_id: str, cancellation: e.CancelRequested) -> None:
    """Cancel what is below a run in whose own log the cancellation is recorded."""
    for child in open_children(store, run_id):
        cancel_tree(store, child.id, cancellation)


def request(store: Store, run_id: str, cancellation: e.CancelRequested) -> bool:
    """Record a cancellation if there is none yet; False if the run has ended or does not exist."""
    recent: list[Record] = []
    unfinished = False

    def reads(store: Store, run_id: str) -> list[Record]:
        recent[:] = lately(store, run_id)
        return recent

    def decide(_: RunState, row: RunRow) -> RunUpdate:
        nonlocal unfinished
        unfinished = row.status not in TERMINAL_STATUSES
        known = requested(run_id, recent[::-1])
        # One by a person counts more than one by a limit above: it is who the run says cancelled it.
        if not unfinished or (known is not None and (cancellation.reason or not known.reason)):
            return RunUpdate()
        if is_recorded(store, row):  # no worker would carry it out
            ended = e.RunCancellation(by=cancellation.by, why=cancellation.why)
            return RunUpdate([cancellation, ended], RowChange("cancelled"))
        if row.status in ("paused", "quarantined"):
            reopened = e.RunReopened(by=cancellation.by, why="to cancel it")
            return RunUpdate([cancellation, reopened], RowChange("pending", store.now()))
        return RunUpdate([cancellation], WAKE)

    with contextlib.suppress(NoSuchRun):
        update_run(store, run_id, decide, reads)
    return unfinished


def requested(run_id: str, newest: list[Record]) -> e.CancelRequested | None:
    """The cancellation among these last events of a run, if it is in force."""
    for record in newest:
        if record.kind == e.CancelRequested.stored_as:
            event = log.read_event(run_id, record)
            return event if isinstance(event, e.CancelRequested) else None
        if record.kind in _ENDS:
            return None
    return None


def cancelled_above(store: Store, parent_id: str) -> e.CancelRequested | None:
    """The cancellation that a child of this run must end by: of the run itself, or of one above it.

    Also if the run has ended by it, or has failed by its deadline or budget.
    """
    while parent_id:
        newest = lately(store, parent_id)[::-1]
        row = store.get(parent_id)
        if row is None or not newest:
            return None
        found = requested(parent_id, newest) or _ended_by(parent_id, newest)
        if found is not None:
            return found
        parent_id = row.parent
    return None


def _ended_by(run_id: str, newest: list[Record]) -> e.CancelRequested | None:
    for record in newest:
        if record.kind in _ENDS:
            event = log.read_event(run_id, record)
            if isinstance(event, e.RunCancellation):
                return e.CancelRequested(by=event.by, why=event.why)
            if isinstance(event, e.RunFailure) and event.reason in REASONS:
                return e.CancelRequested(why=event.error.message, reason=event.reason)
            return None
        if record.kind == e.RunReopened.stored_as:
            return None
    return None
