"""Reading the brief state of a run (`core/brief.py`), from its newest snapshot on.

A reader of a long log saves a snapshot for the next one. A snapshot is a cache: one that does not fit the log exactly is
not used. The log before it is not read, so whether that is intact is found out by those who read it (`verify`).
"""

from __future__ import annotations

import contextlib
from typing import Final

from holdfast.core import log, snapshot
from holdfast.core.brief import BriefFold
from holdfast.core.log import Head, Record
from holdfast.core.state import RunState
from holdfast.errors import StoreError
from holdfast.store.base import Snapshot, Store
from holdfast.store.pages import Through, in_pages

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
