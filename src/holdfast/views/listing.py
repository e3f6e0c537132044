"""Runs of a store: page by page, filtered by every status that is shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import InvalidInput
from holdfast.store.base import STATUSES, Filter, RunRow, Store
from holdfast.store.checks import check_whole
from holdfast.store.pages import all_runs
from holdfast.store.process import is_held

SHOWN_STATUSES: Final = (*STATUSES[:2], "interrupted", *STATUSES[2:])
"""The statuses of runs as people see them. `interrupted`: its worker has let the lease expire."""

T = TypeVar("T")


class ProgressHook(Protocol):
    """Passes things on, one by one; `what` says what is done with each. An interface may count them."""

    def __call__(self, things: Iterable[T], what: str, /) -> Iterable[T]: ...


def unwatched(things: Iterable[T], _what: str, /) -> Iterable[T]:
    """Nothing is counted."""
    return things


class RunPage(Struct, frozen=True):
    """Some runs, newest first, each with the status that is shown; `next` is the cursor of the next page."""

    runs: list[RunRow]
    next: int | None


def shown_status(row: RunRow, now: int) -> str:
    """The row's status; `interrupted` if its worker has let the lease end."""
    return "interrupted" if row.status == "running" and not is_held(row, now) else row.status


def shown(row: RunRow, now: int) -> RunRow:
    """The row with the status that is shown."""
    status = shown_status(row, now)
    return row if status == row.status else replace(row, status=status)


def runs(
    store: Store,
    *,
    status: str = "",
    agent: str = "",
    parent: str = "",
    limit: int = 50,
    cursor: int | None = None,
) -> RunPage:
    """Up to `limit` runs, newest first.

    The store does not distinguish `interrupted` from `running`, because only the lease does; so pages are read until
    there are enough.
    """
    if status and status not in SHOWN_STATUSES:
        raise InvalidInput(f"unknown status {status!r}; use one of {', '.join(SHOWN_STATUSES)}")
    check_whole("limit", limit, least=0)
    if cursor is not None:
        check_whole("cursor", cursor)
    which = Filter(
        status="running" if status == "interrupted" else status, agent=agent, parent=parent
    )
    found: list[RunRow] = []
    while len(found) < limit:
        rows = store.runs(which, limit=limit + 1, cursor=cursor)
        now = store.now()
        for row in rows[:limit]:
            cursor, as_shown = row.cursor, shown(row, now)
            if status in ("", as_shown.status):
                found.append(as_shown)
            if len(found) == limit:
                break
        if not rows or cursor == rows[-1].cursor:
            return RunPage(found, None)
    return RunPage(found, cursor)


def every_run(store: Store, status: str = "", agent: str = "") -> Iterator[RunRow]:
    """All runs, newest first, page by page, with their stored status."""
    return all_runs(store, Filter(status=status, agent=agent))
