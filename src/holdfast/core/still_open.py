"""What is still open in a run, found from the end of its log: requests, and calls without a receipt.

When a run is suspended, its worker knows the whole log and records since when anything is open
(`RunSuspended.open_since`), and a restart leaves nothing open. So for open requests and calls, the fold of the log from
there on equals the fold of the whole log. For everything else that a run did or knows, fold the whole log.

Pure: records come in newest first, from the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from holdfast.core import events as e
from holdfast.core.fold import Draft
from holdfast.core.log import Record, read_event

UNSETTLED: Final = ("running", "in_doubt")
"""A call with such a status may or may not have happened, once no worker executes it."""

_CALLS: Final = {e.CallStarted.stored_as, e.CallSucceeded.stored_as, e.CallFailure.stored_as}
Found = Callable[[Record], bool]


def open_since(draft: Draft) -> int:
    """When the oldest of what is open started, for `RunSuspended`; the time of the last event if nothing is."""
    begun = [wait.since for wait in draft.open.waits.values()]
    begun += [c.started_at for c in draft.open.calls.values() if c.status in UNSETTLED]
    return min(begun, default=draft.updated_at)


def tail(run_id: str, newest_first: Iterable[Record], found: Found | None = None) -> list[Record]:
    """The end of a log, as far back as anything in it may be open; or until `found`. In order."""
    taken: list[Record] = []
    since: int | None = None
    for record in newest_first:
        if since is not None and record.time < since:
            break
        taken.append(record)
        if record.kind == e.RunRestarted.stored_as or (found is not None and found(record)):
            break
        if since is None and record.kind == e.RunSuspended.stored_as:
            event = read_event(run_id, record)
            since = event.open_since if isinstance(event, e.RunSuspended) else None
    taken.reverse()
    return taken


def begins_request(request: str) -> Found:
    """Whether a record is the beginning of the request that people call so."""

    def found(record: Record) -> bool:
        if record.kind != e.WaitBegan.stored_as:
            return False
        event = record.event
        return isinstance(event, e.WaitBegan) and f"{event.branch}#{event.index}" == request

    return found


def tells_of_call(call: int | str) -> Found:
    """Whether a record says how far the call has come that is named by its step, or by its place."""

    def found(record: Record) -> bool:
        if record.kind not in _CALLS:
            return False
        event = record.event
        assert isinstance(event, e.CallStarted | e.CallSucceeded | e.CallFailure)
        return call in (event.step, f"{event.branch}#{event.index}")

    return found
