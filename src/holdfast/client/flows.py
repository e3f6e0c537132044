"""Methods of a client that make several requests, each as a generator: it yields requests and is sent their results.

The sync and the async client perform the requests, so what is asked and in which order is written once.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

from holdfast import views
from holdfast.client import calls
from holdfast.client.calls import Call
from holdfast.core.events import Event
from holdfast.core.log import Record

T = TypeVar("T")
Flow = Generator[Call[Any], Any, T]


def result(run_id: str, timeout: float | None) -> Flow[Any]:
    """The result of a run, as soon as it has ended."""
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


def value(run_id: str, found: Any) -> Flow[Any]:
    """Something found in a state, with what is stored outside the log."""
    blobs: dict[str, bytes] = {}
    for hash_ in dict.fromkeys(calls.large_values(found)):
        blobs[hash_] = yield calls.large_value(run_id, hash_)
    return calls.filled(found, blobs)


def events(run_id: str, after: int, limit: int | None) -> Flow[list[tuple[Record, Event]]]:
    """The events after a seq, page by page."""
    found: list[tuple[Record, Event]] = []
    while limit is None or len(found) < limit:
        left = None if limit is None else limit - len(found)
        page: calls.EventPage = yield calls.events(run_id, after, left)
        if not page.events:
            break
        found += page.events
        after = page.next
    return found


def timeline(run_id: str, after: int, limit: int | None) -> Flow[list[views.Moment]]:
    """The events as sentences, page by page."""
    found: list[views.Moment] = []
    while limit is None or len(found) < limit:
        left = None if limit is None else limit - len(found)
        page: tuple[list[views.Moment], int] = yield calls.timeline(run_id, after, left)
        if not page[0]:
            break
        found += page[0]
        after = page[1]
    return found
