"""What people are asked for, over all runs: approvals, questions, and calls in doubt. Page by page, newest run first."""

from __future__ import annotations

from msgspec import Struct

from holdfast.core.state import Call, Waiting
from holdfast.errors import LogDamaged
from holdfast.store.base import Filter, RunRow, Store
from holdfast.store.checks import check_whole
from holdfast.views.state import pending


class InboxItem(Struct, frozen=True):
    """One run that is waiting for people: its open requests, and its calls in doubt."""

    run_id: str
    agent: str
    waiting_for: str
    updated_at: int
    requests: tuple[Waiting, ...]
    in_doubt: tuple[Call, ...]


class InboxPage(Struct, frozen=True):
    """`next` is the cursor of the next page."""

    items: list[InboxItem]
    next: int | None


READ_MAX = 200
"""So many waiting runs are read for one page, so that a page is quick also if most are waiting for something else."""


def inbox(
    store: Store, *, agent: str = "", limit: int = 50, cursor: int | None = None
) -> InboxPage:
    """The runs that are waiting for people. A page may be short although there are more: `next` tells."""
    check_whole("limit", limit, least=1)
    found: list[InboxItem] = []
    for _ in range(max(1, READ_MAX // (limit + 1))):
        rows = store.runs(Filter(status="waiting", agent=agent), limit=limit + 1, cursor=cursor)
        for row in rows[:limit]:
            cursor = row.cursor
            item = _item(store, row)
            if item is not None:
                found.append(item)
            if len(found) == limit:
                return InboxPage(found, cursor)
        if len(rows) <= limit:
            return InboxPage(found, None)
    return InboxPage(found, cursor)


def _item(store: Store, row: RunRow) -> InboxItem | None:
    try:
        state = pending(store, row.id)
    except LogDamaged:
        return None  # `doctor` reports it; the others are shown
    asked = tuple(w for w in state.waits if w.wait in ("approval", "answer") and not w.decided)
    if not asked and not state.in_doubt:
        return None
    return InboxItem(row.id, row.agent, row.waiting_for, row.updated_at, asked, state.in_doubt)
