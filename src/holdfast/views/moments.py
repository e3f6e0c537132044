"""What the agent knew before and after one call, in one reading of the log. For a slider through time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from holdfast.core import log
from holdfast.core.fold import Draft
from holdfast.core.log import Head, Record
from holdfast.core.state import Call, RunState
from holdfast.store.base import Store
from holdfast.views.state import BETWEEN_CALLS, with_dialogue

PAGE: Final = 1000


class Checkpoints:
    """States at some places of one run's log, without its calls: a second look at a place starts near it."""

    def __init__(self, every: int = 2000, limit: int = 100) -> None:
        self._every, self._limit = every, limit
        self._kept: dict[int, tuple[Head, RunState]] = {}

    def before(self, seq: int) -> tuple[Head, RunState] | None:
        """The last one from which the state before this event can be reached."""
        found = max((at for at in self._kept if at < seq), default=None)
        return None if found is None else self._kept[found]

    def offer(self, head: Head, draft: Draft) -> None:
        """Keep the state at this place, if it is one of those to keep."""
        if (
            head.seq % self._every == 0
            and head.seq not in self._kept
            and len(self._kept) < self._limit
        ):
            self._kept[head.seq] = (head, draft.freeze())


def around(
    store: Store, run_id: str, call: Call | None, marks: Checkpoints | None = None
) -> tuple[RunState, RunState]:
    """The states before and after a call, as `at` gives them, without the calls themselves. None is the beginning.

    The log is read only as far as needed, and what is not needed is not kept."""
    start = 1 if call is None else call.first_seq
    end = start if call is None else call.last_seq + 1
    near = marks.before(start) if marks is not None else None
    head, draft = (
        (log.origin(run_id), Draft(keep_calls=False))
        if near is None
        else (near[0], Draft(near[1], keep_calls=False))
    )
    before: RunState | None = None
    for record in _verified(store, run_id, head):
        if record.seq == start:
            before = draft.freeze()
        if record.seq >= end and record.kind not in BETWEEN_CALLS:
            break
        draft.apply(record.seq, record.time, log.read_event(run_id, record))
        if marks is not None:
            marks.offer(log.head_at(record), draft)
    after = draft.freeze()
    return _shown(after if before is None else before), _shown(after)


def _shown(state: RunState) -> RunState:
    # Who creates a run and executes it at once does not record a claim.
    if state.status == "pending":
        state = msgspec.structs.replace(state, status="running")
    return with_dialogue(state)


def _verified(store: Store, run_id: str, head: Head) -> Iterator[Record]:
    while page := store.read(run_id, after=head.seq, limit=PAGE):
        for record in log.verify(run_id, head, page):
            head = log.head_at(record)
            yield record
        if len(page) < PAGE:
            return
