"""Open a claimed run as a live session, and close it: its lease is kept meanwhile and released in the end.

Before a run is executed its log is read and verified. A run that must not be executed is quarantined until a person has
looked at it, so that no worker claims it again and again: its log does not verify, it kills its workers, or it may not
be resumed. A child of a cancelled run is cancelled.

While a run with a long log executes, and when it ends here, snapshots are left for people who look at it: with one, `hf.get`
reads only the events that follow it. (Not those that a loop continues from: `call/checkpoints.py`.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from holdfast.core import events as e
from holdfast.core.log import Record
from holdfast.errors import (
    Abandon,
    HoldfastError,
    LogDamaged,
    NotResumable,
    RunWaiting,
    StoreError,
    Unwind,
)
from holdfast.runtime.call.commit import commit
from holdfast.runtime.call.driver import drive
from holdfast.runtime.call.suspend import ends
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.exec.claims import ClaimedRun
from holdfast.runtime.exec.resumable import check_claimed
from holdfast.runtime.exec.threads import Threads
from holdfast.runtime.log import lineage
from holdfast.runtime.log.lease import LeaseKeeper, Owner
from holdfast.runtime.log.reader import ResumePoint
from holdfast.runtime.log.session import Session
from holdfast.store import cancel
from holdfast.store.base import Append, RowChange, RunRow, Store
from holdfast.waiting import WaitingFor
from holdfast.words.waiting import run_waiting, waiting_for_override

# ── snapshots of long logs ───────────────────────────────────────────────────────────────────


LONG_LOG: Final = 10_000
"""A log of so many events gets a snapshot."""
SNAPSHOT_EVERY: Final = 50_000
"""And another one each time it has grown by so many while the run executes."""


class ReaderSnapshots:
    """Knows when the next snapshot of each run that executes here is due."""

    def __init__(self, store: Store, threads: Threads) -> None:
        self._store, self._threads = store, threads
        self._next_at: dict[str, int] = {}
        """By run: the length of its log at which the next one is left while it executes."""
        self._closing = False

    def save_due(self, sessions: Sequence[Session]) -> None:
        """Now and then while these runs execute. Does not block."""
        for session in sessions:
            length = session.log.head.seq
            if session.log.knows_all and length >= self._next_at.get(session.run_id, LONG_LOG):
                self._next_at[session.run_id] = length + SNAPSHOT_EVERY
                self._threads.submit(self.save, session)

    def is_due_at_end(self, session: Session) -> bool:
        """Whether a run that executes here no longer gets one."""
        return session.log.head.seq >= LONG_LOG

    def save(self, session: Session) -> None:
        from holdfast.store.brief import read_brief  # here, as few logs are that long

        with contextlib.suppress(HoldfastError):
            read_brief(self._store, session.run_id, through=self._until_closed)

    def forget(self, session: Session) -> None:
        """The run executes here no longer."""
        self._next_at.pop(session.run_id, None)

    def close(self) -> None:
        self._closing = True

    def _until_closed(self, records: Iterable[Record]) -> Iterator[Record]:
        """A reader in another thread must not delay the end of the process."""
        for record in records:
            if self._closing:
                return
            yield record


# ── sessions ─────────────────────────────────────────────────────────────────────────────────


class Sessions:
    """The live runs of this process."""

    def __init__(
        self,
        store: Store,
        leases: LeaseKeeper,
        snapshots: ReaderSnapshots,
        quarantine_after: int,
    ) -> None:
        self._store, self._leases, self._snapshots = store, leases, snapshots
        self._quarantine_after = quarantine_after

    def open(self, session: Session, claimed: ClaimedRun, owner: Owner) -> None:
        """Make the session ready to be executed by `owner`. If the run must not be executed, it is released."""
        spec, row = claimed.spec, claimed.row
        self._leases.hold(session, claimed.requested_at, owner)
        try:
            if claimed.head is not None and claimed.records is not None:
                session.log.begin(claimed.head, claimed.records)
                claimed.records = None  # they are not kept while it executes
                lineage.govern(session, spec, claimed.parent)
            else:
                self._load(session, spec)
                lineage.govern(session, spec, claimed.parent)
                _check_poison(session, row, self._quarantine_after)
                if claimed.unchecked:
                    _check_resumable(session, row, spec)
                session.announce(e.RunClaimed(worker=session.worker, code_version=spec.version))
            if row.parent:
                self._inherit_cancellation(session, row.parent)
        except BaseException:  # also an interrupt: a run that does not execute has no lease
            self.close(session)
            raise

    def close(self, session: Session, *, died: bool = False) -> None:
        """Release the run, unless its last event has ended its lease."""
        lineage.leave(session)
        self._leases.drop(session)
        self._snapshots.forget(session)
        if isinstance(session.stop_signal, Abandon) and isinstance(
            session.stop_signal.cause, LogDamaged
        ):
            _set_aside_damaged(session, session.stop_signal.cause)
        if session.settled:
            return
        if session.has_news:
            with contextlib.suppress(HoldfastError, Unwind):
                session.discard_notes()
                drive(commit(session, []))
        with contextlib.suppress(StoreError):  # then the lease expires
            self._store.release(session.run_id, session.epoch, died=died)

    def stop(self, run_ids: Iterable[str], why: str) -> None:
        """Release these runs (and their children) at their next boundary: the call in progress is recorded, no
        other begins, and any worker may resume them at once."""
        for session in self._of(run_ids):
            waiting = run_waiting(session.run_id, WaitingFor("worker", reason=why))
            session.stop(Abandon(waiting))

    def release_now(self, rows: Sequence[RunRow]) -> None:
        """Release these runs whatever they are doing: for others it is as if we had died, but they need not
        wait for our lease to expire."""
        held = {row.id: row.epoch for row in rows}
        for session in self._of(list(held)):
            held[session.run_id] = session.epoch
            self._leases.drop(session)
        for run_id, epoch in held.items():
            with contextlib.suppress(StoreError):
                self._store.release(run_id, epoch)

    def _of(self, run_ids: Iterable[str]) -> list[Session]:
        """The sessions of these runs, and of the child runs that execute inside them."""
        ids = tuple(run_ids)
        below = tuple(f"{run_id}~" for run_id in ids)
        live = self._leases.sessions()
        return [s for s in live if s.run_id in ids or s.run_id.startswith(below)]

    def _load(self, session: Session, spec: AgentSpec) -> None:
        """Read the log. A run whose log does not verify is set aside; others are not delayed."""
        try:
            session.log.load(None if spec.body is None else self._restore(session))
        except LogDamaged as damage:
            _set_aside_damaged(session, damage)
            raise

    def _restore(self, session: Session) -> ResumePoint | None:
        """Where a loop continues."""
        from holdfast.runtime.call.checkpoints import restore  # here, as most agents are not loops

        return restore(self._store, session.run_id)

    def _inherit_cancellation(self, session: Session, parent: str) -> None:
        """A child whose parent is cancelled starts no call. This is checked after the child was created or
        claimed: a cancellation that comes later finds the child. One that a person has restarted continues."""
        if session.journal.life.cancel is not None or session.journal.life.is_undone:
            return
        if session.lineage.parent is None:
            request = cancel.cancelled_above(self._store, parent)
        else:
            request = self._cancelled_here(session)
        if request is not None and self._store.last_restart(session.run_id) < 0:
            cancel.request(self._store, session.run_id, request)
            session.catch_up()

    def _cancelled_here(self, session: Session) -> e.CancelRequested | None:
        """The cancellation of a run above this one that executes here. Its session may not have read it yet."""
        ancestors = list(session.lineage.ancestors())
        ends = self._store.heads([run.run_id for run in ancestors])
        for run in ancestors:
            found = run.journal.life.cancel
            if found is None and ends.get(run.run_id, -1) > run.read_to:
                new = self._store.read(run.run_id, after=run.read_to)
                found = cancel.requested(run.run_id, new[::-1])
            if found is not None:
                return found
        return None


# ── runs that must not be executed now ───────────────────────────────────────────────────────


def _set_aside_damaged(session: Session, damage: LogDamaged) -> None:
    """A run whose log does not verify. Nothing is written to that log."""
    change = RowChange("quarantined", None, str(damage), waiting_kinds="quarantine")
    with contextlib.suppress(StoreError):
        last = session.store.head(session.run_id)
        session.store.append(Append(session.run_id, last, (), session.epoch, change))
        session.settled = True


def _check_poison(session: Session, row: RunRow, claims_max: int) -> None:
    """A run whose leases expired again and again without progress has killed its workers.

    Or has blocked them (a call into C that keeps the interpreter's lock): that cannot be seen from outside,
    and it would block one after the other.
    """
    if row.claims > claims_max:
        reason = (
            f"it was claimed {row.claims} times without progress; it may kill its workers, or block them for "
            "longer than a lease"
        )
        raise _set_aside(session, WaitingFor("quarantine", reason=reason))


def _check_resumable(session: Session, row: RunRow, spec: AgentSpec) -> None:
    """A run that is too old is not resumed without a person's consent."""
    if spec.checkpoint.max_age is None or row.epoch <= 1:
        return
    try:
        check_claimed(session.store, row, spec, ends(session))
    except NotResumable as refused:
        waiting = waiting_for_override(refused)
        raise _set_aside(session, waiting) from None


def _set_aside(session: Session, waiting: WaitingFor) -> RunWaiting:
    change = RowChange("quarantined", None, waiting.reason, waiting_kinds=waiting.kind)
    event = e.RunQuarantined(reason=waiting.reason, waits=(waiting,))
    drive(commit(session, [event], change=change))
    session.settled = True
    return run_waiting(session.run_id, waiting)
