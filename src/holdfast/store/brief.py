"""The brief state of a run: everything but the many calls that are over; read from the newest snapshot on.

A run may have made a million calls. A person who looks at it wants to know its state, what is open, and how the last
calls went. A brief state keeps all calls that are not over, the last `KEPT` that simply succeeded and the last
`KEPT` that did not (they failed, were tried more than once, or were in doubt). `RunState.left_out` counts the others.
Its size does not grow with the number of calls, so neither does its snapshot.

What is recorded later about a call that was left out (evidence, an undo) is not in a brief state.

A reader of a long log saves a snapshot for the next one. A snapshot is a cache: one that does not fit the log exactly is
not used. The log before it is not read, so whether that is intact is found out by those who read it (`verify`).
"""

from __future__ import annotations

import contextlib
from heapq import nlargest
from typing import Final

from holdfast.core import log, snapshot
from holdfast.core.fold import Draft
from holdfast.core.log import Head, Record, read_event
from holdfast.core.state import Call, RunState
from holdfast.errors import StoreError
from holdfast.store.base import Snapshot, Store
from holdfast.store.pages import Through, in_pages

# ── what is left out ─────────────────────────────────────────────────────────────────────────


KEPT: Final = 100
"""So many calls that are over are kept, of each sort."""
OVER: Final = ("done", "failed")
_SLACK: Final = 1000
"""Calls are left out when there are this many too many, and not one by one."""


class BriefFold:
    """A fold that leaves calls out as it proceeds."""

    def __init__(self, start: RunState) -> None:
        self._draft, self._limit = Draft.of(start), 2 * KEPT + _SLACK

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


# ── reading it ───────────────────────────────────────────────────────────────────────────────


SNAPSHOT_AFTER: Final = 1000
"""A log that has grown by this many events since the last snapshot gets a new one when it is read."""


def read_brief(store: Store, run_id: str, *, through: Through = iter) -> RunState:
    """The brief state of the run now."""
    start, head = _from_snapshot(store, run_id)
    folded, last = BriefFold(start), None
    for last in log.verify(run_id, head, through(in_pages(store, run_id, head.seq))):
        folded.apply(run_id, last)
    state = folded.state()
    if last is not None and last.seq - head.seq >= SNAPSHOT_AFTER:
        _save(store, run_id, state, last)
    return state


def _save(store: Store, run_id: str, state: RunState, last: Record) -> None:
    if _ends_at_live(store, run_id, last.seq):
        return
    kept = Snapshot(last.seq, last.hash, snapshot.VERSION, store.now(), snapshot.dump(state))
    with contextlib.suppress(StoreError):  # a store that is read-only or full does without
        store.snapshots.save(run_id, kept)


def _ends_at_live(store: Store, run_id: str, seq: int) -> bool:
    """Whether a loop continues from a snapshot that ends here: one place holds one snapshot."""
    live = store.snapshots.newest(run_id, live=True)
    return live is not None and live.seq == seq


def _from_snapshot(store: Store, run_id: str) -> tuple[RunState, Head]:
    """A state to start with and the end of the log that it is the fold of."""
    kept = store.snapshots.newest(run_id)
    if kept is not None and kept.code_version == snapshot.VERSION:
        at = store.read(run_id, after=kept.seq - 1, limit=1)
        if at and at[0].seq == kept.seq and at[0].hash == kept.hash:
            with contextlib.suppress(ValueError):
                state = snapshot.load(kept.data)
                if (state.id, state.seq) == (run_id, kept.seq):
                    return state, Head(kept.seq, kept.hash, at[0].time)
    return RunState(), log.origin(run_id)
