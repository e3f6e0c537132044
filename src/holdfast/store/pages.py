"""Reading runs and their logs in parts: page by page, from the end backwards, or as far back as a decision needs.

A long log takes no more memory than a short one, and a decision about a run does not cost more for a long log.

What is open in a run (requests, and calls without a receipt) is found from the end. When a run is suspended, its worker
knows the whole log and records since when anything is open (`RunSuspended.open_since`), and a restart leaves nothing
open. So for open requests and calls, the fold of the log from there on equals the fold of the whole log. For everything
else that a run did or knows, fold the whole log.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from holdfast.core import events as e
from holdfast.core import log
from holdfast.core.entry import request_id
from holdfast.core.log import Record
from holdfast.errors import LogDamaged
from holdfast.store.base import Filter, RunRow, Store

PAGE: Final = 5000
"""So many events of a long log are read at once."""
RUNS_PAGE: Final = 500
"""And so many rows of runs."""

FIRST_PAGE: Final = 16
LARGEST_PAGE: Final = 4096
"""From the end, pages grow as one reads on: most readers find what they need at the very end."""

Through = Callable[[Iterable[Record]], Iterable[Record]]
"""What the events of a long log pass on their way, one by one: where they may be counted."""


def all_runs(
    store: Store, filter: Filter, *, page: int | None = None, cursor: int | None = None
) -> Iterator[RunRow]:
    """The rows of these runs, newest first, or those after a cursor; page by page."""
    limit = RUNS_PAGE if page is None else page
    while rows := store.runs(filter, limit=limit, cursor=cursor):
        yield from rows
        if len(rows) < limit:
            return
        cursor = rows[-1].cursor


def in_pages(
    store: Store, run_id: str, after: int = -1, limit: int | None = None
) -> Iterator[Record]:
    """The run's log as it is stored, at most `limit` records of it. Checking the chain is the reader's part."""
    left = sys.maxsize if limit is None else limit
    while left > 0 and (page := store.read(run_id, after=after, limit=min(PAGE, left))):
        yield from page
        if len(page) < min(PAGE, left) or page[-1].seq <= after:
            return
        after, left = page[-1].seq, left - len(page)


def checked(
    store: Store,
    run_id: str,
    after: int = -1,
    limit: int | None = None,
    through: Through = iter,
) -> Iterator[Record]:
    """The run's records after a seq, each checked against the one before; none if the log ends before that."""
    head = log.origin(run_id)
    if after >= 0:
        before = store.read(run_id, after=after - 1, limit=1)
        if not before:
            return iter(())
        if before[0].seq != after:
            raise LogDamaged(run_id, after, "it is missing")
        head = log.head_at(before[0])
    return log.verify(run_id, head, through(in_pages(store, run_id, after, limit)))


def newest_first(store: Store, run_id: str, *, page: int = FIRST_PAGE) -> Iterator[Record]:
    """The run's records from the last one backwards; none if there is no such run.

    What is read is checked: each record against the one before it. Whether the log further back is intact is found
    out by those who read it.
    """
    origin = log.origin(run_id)  # or an error that says that this is not a run id
    end = store.head(run_id)
    while end >= 0:
        start = max(0, end - page + 1)
        after = max(-1, start - 2)  # with the one before, against which the first is checked
        found = store.read(run_id, after=after, limit=end - after)
        if not found and store.get(run_id) is None:
            return  # it was deleted in the meantime
        head = origin
        if start:
            if not found or found[0].seq != start - 1:
                raise LogDamaged(run_id, start - 1, "it is missing")
            head, found = log.head_at(found[0]), found[1:]
        records = list(log.verify(run_id, head, found))
        if len(records) != end - start + 1:
            raise LogDamaged(run_id, start + len(records), "it is missing")
        yield from reversed(records)
        end, page = start - 1, min(4 * page, LARGEST_PAGE)


Ended = e.RunCompleted | e.RunFailure | e.RunCancellation


def end_of(store: Store, row: RunRow) -> tuple[Record, Ended]:
    """The record and event with which a run ended that its row says has."""
    for record in newest_first(store, row.id):
        event = log.read_event(row.id, record)
        if isinstance(event, Ended):
            return record, event
    raise LogDamaged(row.id, store.head(row.id) + 1, "it is missing")


# ── how much of the log a decision needs ─────────────────────────────────────────────────────

LATELY: Final = 100
Reads = Callable[[Store, str], list[Record]]
"""What is read of a run's log, in order and checked: its last event at least."""
RecordPredicate = Callable[[Record], bool]


def the_end(store: Store, run_id: str) -> list[Record]:
    """Only where the log ends: for what is decided on the run's row alone."""
    return list(itertools.islice(newest_first(store, run_id, page=1), 1))


def lately(store: Store, run_id: str) -> list[Record]:
    """The last events. A cancellation that is not carried out yet is among them: a process that knows of one starts
    nothing new. (If very much came from outside since, it is asked for twice, which does no harm.)"""
    return list(itertools.islice(newest_first(store, run_id, page=LATELY), LATELY))[::-1]


def what_is_open(store: Store, run_id: str) -> list[Record]:
    """As far back as anything is open: requests, and calls that may have happened."""
    return open_tail(run_id, newest_first(store, run_id))


def open_until(stop_at: RecordPredicate) -> Reads:
    """The same, but no further than to what is asked about."""
    return lambda store, run_id: open_tail(run_id, newest_first(store, run_id), stop_at)


def everything(store: Store, run_id: str) -> list[Record]:
    """The whole log: for what depends on all that the run did or knows."""
    return list(checked(store, run_id))


def open_tail(
    run_id: str, newest_first: Iterable[Record], stop_at: RecordPredicate | None = None
) -> list[Record]:
    """The end of a log, as far back as anything in it may be open; or until `stop_at` is true of a record. In order."""
    records: list[Record] = []
    since: int | None = None
    for record in newest_first:
        if since is not None and record.time < since:
            break
        records.append(record)
        if record.kind == e.RunRestarted.stored_as or (stop_at is not None and stop_at(record)):
            break
        if since is None and record.kind == e.RunSuspended.stored_as:
            event = log.read_event(run_id, record)
            since = event.open_since if isinstance(event, e.RunSuspended) else None
    records.reverse()
    return records


def begins_request(request: str) -> RecordPredicate:
    """Whether a record is the beginning of the request that people call so."""

    def matches(record: Record) -> bool:
        if record.kind != e.WaitBegan.stored_as:
            return False
        event = record.event
        return isinstance(event, e.WaitBegan) and request_id((event.branch, event.index)) == request

    return matches


def tells_of_call(call: int | str) -> RecordPredicate:
    """Whether a record says how far the call has come that is named by its step, or by its place."""

    def matches(record: Record) -> bool:
        if record.kind not in _CALLS:
            return False
        event = record.event
        assert isinstance(event, e.CallStarted | e.CallSucceeded | e.CallFailure)
        return call in (event.step, request_id((event.branch, event.index)))

    return matches


_CALLS: Final = {e.CallStarted.stored_as, e.CallSucceeded.stored_as, e.CallFailure.stored_as}
