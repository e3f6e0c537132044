"""What the agent knew before and after one call, in one reading of the log. For a slider through time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from holdfast.core import log
from holdfast.core.fold import Draft
from holdfast.core.log import Record
from holdfast.core.state import Call, RunState
from holdfast.store.base import Store
from holdfast.views.state import BETWEEN_CALLS, with_dialogue

PAGE: Final = 5000


def around(store: Store, run_id: str, call: Call | None) -> tuple[RunState, RunState]:
    """The states before and after a call, as `at` gives them, without the calls themselves. None is the beginning.

    The log is read only as far as needed, and what is not needed is not kept."""
    draft, before = Draft(keep_calls=False), None
    start = 1 if call is None else call.first_seq
    end = start if call is None else call.last_seq + 1
    for record in _verified(store, run_id):
        if record.seq == start:
            before = draft.freeze()
        if record.seq >= end and record.kind not in BETWEEN_CALLS:
            break
        draft.apply(record.seq, record.time, log.read_event(run_id, record))
    after = draft.freeze()
    return _shown(after if before is None else before), _shown(after)


def _shown(state: RunState) -> RunState:
    # Who creates a run and executes it at once does not record a claim.
    if state.status == "pending":
        state = msgspec.structs.replace(state, status="running")
    return with_dialogue(state)


def _verified(store: Store, run_id: str) -> Iterator[Record]:
    head = log.origin(run_id)
    while page := store.read(run_id, after=head.seq, limit=PAGE):
        for record in log.verify(run_id, head, page):
            head = log.head_at(record)
            yield record
        if len(page) < PAGE:
            return
