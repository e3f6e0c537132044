"""Detect that the server lost commits, and stop the runs that are affected.

A failover to a standby that lagged, or a restore, can undo commits that were acknowledged. The
log of a run then lacks calls that were made, and a worker that claimed it would make some of them
again. PostgreSQL starts a new timeline at each such moment, so on a new one this process compares
the newest events and epochs that it has read with those on the server, before it does anything else:

- a run whose acknowledged events are missing is quarantined, with a reason, for a person to look at;
- an epoch that is smaller than one we know is raised, so that no epoch is given to two owners.

Other processes do the same with what they know. So that they can, no worker claims due runs for one
lease time after the change.

Not detected: losses that only ended processes could have noticed, and a server that
lost data without a new timeline (fsync off, a file system that does not honour it).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import psycopg
from msgspec import Struct

from holdfast.core.log import Record
from holdfast.errors import LogRegressed
from holdfast.store.base import Append
from holdfast.store.wakeups import Wakeups

if TYPE_CHECKING:
    from holdfast.store.postgres.connections import Connection

KNOWN_MAX: Final = 10_000
"""How many runs are remembered: those written to last."""

_log: Final = logging.getLogger("holdfast.store")

_TIMELINE: Final = """
    SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN ''
           ELSE pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8) END
"""


class _ReadPosition(Struct, frozen=True, gc=False):
    seq: int = -1
    hash: bytes = b""
    epoch: int = 0


_NOTHING_READ: Final = _ReadPosition()


class History:
    """What this process has read from the server, to detect that the server lost it."""

    def __init__(self, queries: dict[str, str]) -> None:
        self._q = queries
        self._mutex = threading.Lock()
        self._positions: dict[str, _ReadPosition] = {}
        self._timeline = ""
        self._changed_at: float | None = None
        self.lost: dict[str, LogRegressed] = {}
        """Runs that were quarantined, and why."""

    def remember(
        self, run_id: str, records: Sequence[Record] = (), epoch: int | None = None
    ) -> None:
        """These records, and that this epoch was given, have been acknowledged."""
        self.remember_appended((Append(run_id, -1, records, epoch),), (None,))

    def remember_appended(
        self, batch: Sequence[Append], outcome: Sequence[Exception | None]
    ) -> None:
        """The appends of a batch that were not refused have been acknowledged."""
        positions = self._positions
        for work, error in zip(batch, outcome, strict=True):
            if error is not None:
                continue
            # To the end: the oldest are forgotten first.
            run_id, epoch = work.run_id, work.epoch
            before = positions.pop(run_id, _NOTHING_READ)
            last = work.records[-1] if work.records else before
            if epoch is None or epoch < before.epoch:
                epoch = before.epoch
            positions[run_id] = _ReadPosition(last.seq, last.hash, epoch)
        while len(positions) > KNOWN_MAX:
            positions.pop(next(iter(positions)), None)

    def meet(self, db: Connection) -> None:
        """A new connection: if it leads to another timeline, compare before it is used."""
        timeline = _timeline_of(db)
        if not timeline:
            return
        with self._mutex:
            if self._timeline and timeline != self._timeline:
                _log.warning(
                    "the database started a new timeline (%s): a failover, or a restore", timeline
                )
                self._compare(db)
                self._changed_at = time.monotonic()
            self._timeline = timeline

    def unsettled_seconds(self, lease_seconds: float) -> float:
        """For how much longer others may need to compare what they know."""
        if self._changed_at is None:
            return 0.0
        return max(0.0, self._changed_at + lease_seconds - time.monotonic())

    def _compare(self, db: Connection) -> None:
        known = dict(self._positions)
        ids = list(known)
        found = db.rows(self._q["stored_hashes"], (ids, [k.seq for k in known.values()]))
        there = {run_id for run_id, _, digest in found if known[run_id].hash == digest}
        lost = [run_id for run_id, k in known.items() if k.seq >= 0 and run_id not in there]
        db.change(self._q["raise_epochs"], (ids, [k.epoch for k in known.values()]))
        for run_id, _, head, *_ in db.rows(self._q["positions"], (lost,)):
            why = f"the database went back in time: event {known[run_id].seq} is missing"
            self.lost[run_id] = LogRegressed(run_id, head + 1, why)
            db.change(self._q["set_aside"], (str(self.lost[run_id]), run_id))
            _log.error("%s", self.lost[run_id])
        for run_id in lost:
            self._positions.pop(run_id, None)


def _timeline_of(db: Connection) -> str:
    """The server's timeline; empty on a standby, and on databases that have no such thing."""
    try:
        return str(db.rows(_TIMELINE)[0][0])
    except psycopg.Error:
        if db.closed:
            raise
        return ""


class StoreContext(NamedTuple):
    """What the parts of a store have in common in one process."""

    queries: dict[str, str]
    wakeups: Wakeups
    channel: str
    fixed_now: Callable[[], int | None]
    history: History
