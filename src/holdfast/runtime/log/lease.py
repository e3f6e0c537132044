"""Keep leases alive: one thread for all runs that execute in this process.

It has nothing to do with the threads and loops in which user code runs, so code that blocks cannot
lose its lease. A lease that could not be renewed is seen as lost here before another worker may claim
the run, because we count from before the request and stop a margin early. Time is counted while the
machine sleeps too: a laptop that wakes up knows at once that its leases have ended.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from holdfast.errors import Abandon, LeaseLost, StoreBroken, StoreError
from holdfast.runtime.log.clock import elapsed
from holdfast.runtime.log.session import Session
from holdfast.store.base import MICROSECONDS, Store

if TYPE_CHECKING:
    import asyncio
    import logging

MARGIN: Final = 0.1
"""The share of a lease that is not used, for clocks that run at slightly different speeds."""

Owner: TypeAlias = "asyncio.Task[Any] | threading.Thread"
"""What executes a run: a task of an event loop, or a thread."""


def is_gone(owner: Owner) -> bool:
    """Whether what executed a run is no longer there to release it."""
    if isinstance(owner, threading.Thread):
        return not owner.is_alive()
    return owner.done() or owner.get_loop().is_closed()


class _KeeperThread(threading.Thread):
    """The thread of a keeper, by which it can be found."""

    def __init__(self, keeper: LeaseKeeper, target: Callable[[], None]) -> None:
        super().__init__(target=target, name="holdfast-lease", daemon=True)
        self.keeper = keeper


def under_way() -> list[str]:
    """The runs that execute in this process, in any `Holdfast` of it."""
    keepers = [t.keeper for t in threading.enumerate() if isinstance(t, _KeeperThread)]
    return [session.run_id for keeper in keepers for session in keeper.sessions()]


class LeaseKeeper:
    """Renews the leases of the sessions it is given, three times per lease.

    It tells a session until when it surely owns its run (`lease_ends`), and one that it keeps no more
    that it does not.
    """

    def __init__(
        self,
        store: Store,
        lease_seconds: float,
        renewed: Callable[[Sequence[Session]], None] = lambda _: None,
    ) -> None:
        """`renewed` is called after each renewal with the sessions whose leases are held; it must not block."""
        self._store, self._renewed = store, renewed
        self.lease_seconds = lease_seconds
        self._sessions: dict[str, Session] = {}
        self._owners: dict[str, Owner] = {}
        self._mutex = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def lease_us(self) -> int:
        return round(self.lease_seconds * MICROSECONDS)

    def hold(self, session: Session, since: float, owner: Owner) -> None:
        """Keep this session's lease, which was asked for at `since` (see `elapsed`), as long as its owner
        is there."""
        ends = since + self.lease_seconds * (1 - MARGIN)
        with self._mutex:
            before = self._sessions.get(session.run_id)
            if before is not None:
                before.lease_ends = 0.0
            self._sessions[session.run_id] = session
            self._owners[session.run_id] = owner
            session.lease_ends = ends
            if self._thread is None or not self._thread.is_alive():  # as after a fork
                self._thread = _KeeperThread(self, self._serve)
                self._thread.start()

    def drop(self, session: Session) -> None:
        """The session is over."""
        with self._mutex:
            session.lease_ends = 0.0
            if self._sessions.get(session.run_id) is session:
                del self._sessions[session.run_id]
                del self._owners[session.run_id]

    def sessions(self) -> list[Session]:
        """The runs that execute here."""
        with self._mutex:
            return list(self._sessions.values())

    def close(self) -> None:
        with self._mutex:
            thread = self._thread
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _serve(self) -> None:
        every = self.lease_seconds / 3
        due = time.monotonic() + every
        while not self._wake.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + every
            try:
                self.renew()
            except StoreBroken as error:  # for good: no run of this process may continue
                _log().error("leases cannot be renewed: %s", error)
                for session in self.sessions():
                    session.lose(Abandon(error))
            except StoreError as error:  # try again in a moment; meanwhile the leases run out
                _log().warning("leases could not be renewed: %s", error)
            except Exception:  # noqa: BLE001 - whatever it is: without this thread every lease is lost
                _log().exception("leases could not be renewed")

    def renew(self) -> None:
        """Renew everything that is held, once. What is no longer executed is released instead."""
        self._drop_ownerless()
        with self._mutex:
            sessions = dict(self._sessions)
        if not sessions:
            return
        asked_at = elapsed()
        leases = [(run_id, session.epoch) for run_id, session in sessions.items()]
        lost = self._store.renew(leases, lease_us=self.lease_us)
        ends = asked_at + self.lease_seconds * (1 - MARGIN)
        for run_id, session in sessions.items():
            if run_id in lost:
                session.lose(Abandon(LeaseLost(run_id, session.epoch, session.epoch + 1)))
            with self._mutex:
                if self._sessions.get(run_id) is session:  # else it was given up meanwhile
                    session.lease_ends = 0.0 if run_id in lost else ends
        self._renewed([session for run_id, session in sessions.items() if run_id not in lost])

    def _drop_ownerless(self) -> None:
        """An owner that ended without closing its session can only be a bug, or a loop that was abandoned. A
        lease that is renewed for it would never end."""
        with self._mutex:
            gone = [self._sessions[run_id] for run_id, x in self._owners.items() if is_gone(x)]
        for session in gone:
            _log().warning(
                "run %s: what executed it has gone; its lease is released", session.run_id
            )
            session.lose(Abandon(LeaseLost(session.run_id, session.epoch, session.epoch + 1)))
            self.drop(session)
            with contextlib.suppress(StoreError):  # then it ends by itself
                self._store.release(session.run_id, session.epoch)


def _log() -> logging.Logger:
    import logging  # here, as most processes never have a reason to log

    return logging.getLogger("holdfast.lease")
