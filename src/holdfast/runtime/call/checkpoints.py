"""The ends of iterations: what is committed there, and the snapshots that a loop continues from.

The end of an iteration has a place in the main branch, like a call. A sync agent marks it with
`run.checkpoint()`; a loop does so by itself, with its state. What a loop did before the end of its last
iteration is never asked for again, so it is neither replayed nor, given a good snapshot, read.

A snapshot is a cache. It is used only if it is of this run and this form, and ends with the very event that
the log contains there; otherwise the log is read from its beginning.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from holdfast.core import events as e
from holdfast.core import log, snapshot
from holdfast.core.ancestors import ForkAncestry
from holdfast.core.entry import Entry
from holdfast.core.log import Head
from holdfast.errors import InvalidInput, StoreError
from holdfast.runtime.call.commit import commit, is_due
from holdfast.runtime.call.gate import gate
from holdfast.runtime.call.match import check_all_replayed, find
from holdfast.runtime.call.operations import Flow, Invoke
from holdfast.runtime.call.request import CodeRequest
from holdfast.runtime.log.branches import Branch
from holdfast.runtime.log.reader import ResumePoint
from holdfast.runtime.log.session import Session
from holdfast.store.base import LIVE, Snapshot, Store

SNAPSHOT_BYTES: Final = 256 * 1024
"""A loop leaves a snapshot when its log has grown by this much, or by as much as the last one took: so
snapshots never cost more than the log, however large the state has become."""
VERSION: Final = f"{LIVE}{snapshot.VERSION}"


class IterationRequest(CodeRequest):
    """The end of an iteration, as the code reaches it."""

    @property
    def name(self) -> str:
        return ""

    @property
    def is_insertable(self) -> bool:
        return False  # it has a position in the main branch only

    def is_recorded_in(self, entry: Entry, _number: int, _lineage: ForkAncestry) -> bool:
        return entry.iteration is not None

    def __str__(self) -> str:
        return "the end of an iteration"


def end_iteration(
    branch: Branch,
    make: Callable[[int], e.IterationEnded],
    *,
    changed: bool = False,
    ends_run: bool = False,
) -> Flow[e.IterationEnded]:
    """Mark the end of an iteration; returns its event: what `make` gives for this place, or the recorded one.

    `changed` says that the phase did; `ends_run`, that the run ends with it, in one commit.
    """
    session, request = branch.session, IterationRequest(branch, branch.take(), branch.forked, 1)
    if branch.path:
        raise InvalidInput(
            "an iteration ends in the agent's own line of execution, not in a branch"
        )
    entry = find(request).entry
    if entry is not None:
        assert entry.iteration is not None
        if not entry.iteration.buffered:
            session.view.show(entry.seq)
        session.journal.forget(*request.place)
        return entry.iteration
    check_all_replayed(branch, request)
    gate(session)
    event = make(request.index)
    if request.forks:
        event = replace(event, forks=request.forks)
    snapshot_due = _is_snapshot_due(session)
    if not ends_run and (snapshot_due or is_due(session, iteration=True, changed=changed)):
        seq: int = yield from commit(session, [event])
        session.view.show(seq)  # as on replay: what came from outside is seen from here on
        if snapshot_due and session.journal.forgets:
            yield Invoke(session, save, {"session": session}, branch, False)
    else:
        session.buffer(replace(event, buffered=True))
    return event


# ── snapshots that a loop continues from ───────────────────────────────────────────────────────


def _is_snapshot_due(session: Session) -> bool:
    return session.log.unsaved_bytes >= max(SNAPSHOT_BYTES, session.log.saved_bytes)


def save(session: Session) -> None:
    """Leave a snapshot, if an iteration has just ended and the code has made no call since."""
    journal, draft = session.journal, session.view.draft
    if not journal.restarted == draft.seq == session.read_to:
        return
    if journal.life.cancel or journal.life.is_undone or journal.life.paused:
        return
    data = snapshot.dump(draft.freeze())
    checkpoint, store = session.config.checkpoint, session.store
    kept = Snapshot(draft.seq, session.log.head.hash, VERSION, store.now(), data)
    with contextlib.suppress(StoreError):  # a cache: a store that is full does without
        store.snapshots.save(
            session.run_id, kept, keep=checkpoint.max_count, max_age_us=checkpoint.max_age_us
        )
    session.log.unsaved_bytes, session.log.saved_bytes = 0, len(data)


def restore(store: Store, run_id: str) -> ResumePoint | None:
    """Where a loop may continue, if there is a snapshot that fits the log exactly."""
    kept = store.snapshots.newest(run_id, live=True)
    if kept is None or kept.code_version != VERSION:
        return None
    at, first = store.read(run_id, after=kept.seq - 1, limit=1), store.read(run_id, limit=1)
    if not (at and first and (at[0].seq, at[0].hash) == (kept.seq, kept.hash)):
        return None
    list(log.verify(run_id, log.origin(run_id), first))
    try:
        state = snapshot.load(kept.data)
    except ValueError:
        return None
    if (state.id, state.seq) != (run_id, kept.seq):
        return None
    return ResumePoint(state, Head(kept.seq, kept.hash, at[0].time), first[0], len(kept.data))
