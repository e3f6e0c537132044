"""The brief state of a run: everything but the many calls that are over.

A run may have made a million calls. A person who looks at it wants to know its state, what is open, and how the last
calls went. A brief state keeps all calls that are not over, the last `KEPT` that simply succeeded and the last
`KEPT` that did not (they failed, were tried more than once, or were in doubt). `RunState.left_out` counts the others.
Its size does not grow with the number of calls, so neither does its snapshot.

What is recorded later about a call that was left out (evidence, an undo) is not in a brief state.
"""

from __future__ import annotations

from heapq import nlargest
from typing import Final

from holdfast.core.fold import Draft
from holdfast.core.log import Record, read_event
from holdfast.core.state import Call, RunState

KEPT: Final = 100
"""So many calls that are over are kept, of each sort."""
OVER: Final = ("done", "failed")
_SLACK: Final = 1000
"""Calls are left out when there are this many too many, and not one by one."""


class BriefFold:
    """A fold that leaves calls out as it proceeds."""

    def __init__(self, start: RunState) -> None:
        self._draft, self._limit = Draft(start), 2 * KEPT + _SLACK

    def apply(self, run_id: str, record: Record) -> None:
        """Take in the next record."""
        draft = self._draft
        draft.apply(record.seq, record.time, read_event(run_id, record))
        if len(draft.open.calls) + len(draft.open.past_calls) > self._limit:
            _leave_out(draft)
            # calls that are not over are all kept, however many they are
            self._limit = len(draft.open.calls) + len(draft.open.past_calls) + _SLACK

    def state(self) -> RunState:
        """The brief state now."""
        _leave_out(self._draft)
        return self._draft.freeze()


def _leave_out(draft: Draft) -> None:
    parts = draft.open
    calls = [*parts.past_calls, *parts.calls.values()]
    over = [call for call in calls if call.status in OVER]
    plain = [call for call in over if is_plain(call)]
    others = [call for call in over if not is_plain(call)]
    kept = {
        _place(call) for sort in (plain, others) for call in nlargest(KEPT, sort, key=_last_seq)
    }
    dropped = {_place(call) for call in over} - kept
    if not dropped:
        return
    draft.left_out += len(dropped)
    parts.past_calls = [call for call in parts.past_calls if _place(call) not in dropped]
    parts.calls = {at: call for at, call in parts.calls.items() if _place(call) not in dropped}


def is_plain(call: Call) -> bool:
    """Whether it succeeded at once, and there is no more to say about it."""
    return (
        call.status == "done"
        and len(call.attempts) <= 1
        and call.resolution is None
        and not call.evidence
        and not call.undone
    )


def _place(call: Call) -> tuple[int, str, int]:
    return call.step, call.branch, call.index


def _last_seq(call: Call) -> int:
    return call.last_seq
