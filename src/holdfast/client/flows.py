"""Methods of a client that make several requests, each as a generator: it yields requests and is sent their results.

The sync and the async client perform the requests, so what is asked and in which order is written once. A function here
has the signature and the docstring of the method that is made from it.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

from holdfast import views
from holdfast.api.documents import ItemList, KeptItem
from holdfast.client import calls
from holdfast.client.calls import ApiCall
from holdfast.core.events import Event
from holdfast.core.log import Record
from holdfast.core.policy import Budget
from holdfast.store.items import Item

T = TypeVar("T")
Flow = Generator[ApiCall[Any], Any, T]


def resume(
    run_id: str,
    *,
    wait: bool = False,
    why: str = "",
    accept_new_steps: bool = False,
    deadline: float | None = None,
    budget: Budget | None = None,
) -> Flow[Any]:
    """Resume a failed or paused run; a worker executes it. With `wait`, its result is returned."""
    yield calls.resume(run_id, deadline, budget, accept_new_steps, why)
    return (yield from result(run_id)) if wait else None


def rerun(run_id: str, *, wait: bool = False, why: str = "") -> Flow[Any]:
    """Start the run's code from its first line again, with the state kept; a worker executes it."""
    yield calls.rerun(run_id, why)
    return (yield from result(run_id)) if wait else None


def result(run_id: str, *, timeout: float | None = None) -> Flow[Any]:
    """Wait until the run has ended; its result, or the error it ended with."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = calls.WAIT_SECONDS
        if end is not None:
            left = min(left, end - time.monotonic())
        found: views.Outcome = yield calls.outcome(run_id, left)
        if found.has_ended:
            return (yield from value(run_id, calls.result_of(found)))
        if left <= 0:
            raise calls.not_yet(found)


def value(run_id: str, value: Any) -> Flow[Any]:
    """The full value of something in a run's state: a value that was too large for its event is fetched."""
    blobs: dict[str, bytes] = {}
    for hash_ in dict.fromkeys(calls.large_values(value)):
        blobs[hash_] = yield calls.large_value(run_id, hash_)
    return calls.filled(value, blobs)


def events(
    run_id: str, *, after: int = -1, limit: int | None = None
) -> Flow[list[tuple[Record, Event]]]:
    """The run's log after a seq, at most `limit` events: each record with its event."""
    found: list[tuple[Record, Event]] = []
    while limit is None or len(found) < limit:
        left = None if limit is None else limit - len(found)
        page: calls.EventPage = yield calls.event_page(run_id, after, left)
        if not page.events:
            break
        found += page.events
        after = page.next
    return found


def timeline(run_id: str, *, after: int = -1, limit: int | None = None) -> Flow[list[views.Moment]]:
    """The run's events as sentences."""
    found: list[views.Moment] = []
    while limit is None or len(found) < limit:
        left = None if limit is None else limit - len(found)
        page: tuple[list[views.Moment], int] = yield calls.timeline_page(run_id, after, left)
        if not page[0]:
            break
        found += page[0]
        after = page[1]
    return found


def item(run_id: str, collection: str, key: str) -> Flow[Item | None]:
    """The item that is stored under a key, or None."""
    found: KeptItem | None = yield calls.kept_item(run_id, collection, key)
    return None if found is None else (yield from _whole(run_id, found))


def items(
    run_id: str,
    collection: str = "",
    *,
    prefix: str = "",
    after: int = -1,
    limit: int | None = None,
) -> Flow[list[Item]]:
    """The items of a collection (or of all) whose keys start with `prefix`, newest first. With `after`, only those that
    were stored after the event with this seq. Deleted items are left out."""
    found: list[Item] = []
    before: int | None = None
    while limit is None or len(found) < limit:
        left = None if limit is None else limit - len(found)
        page: ItemList = yield calls.kept_items(run_id, collection, prefix, after, before, left)
        for kept in page.items:
            whole = yield from _whole(run_id, kept)
            found.append(whole)
        if page.next is None:
            break
        before = page.next
    return found


def _whole(run_id: str, item: KeptItem) -> Flow[Item]:
    """An item with its value, which may be stored outside the log."""
    if item.is_bytes:
        content: Any = yield calls.large_value(run_id, item.value.blob)
    else:
        content = yield from value(run_id, item.value)
    return Item(item.collection, item.key, content, item.version, item.seq, item.time)
