"""Watch async runs that await something for long: were they cancelled, has their deadline passed?

A run notices both at its next call; one that awaits something is cancelled there. A child that is due
and that no worker executes is executed by its parent, if that is in memory. Loops that are blocked are reported
(`loop_watchdog.py`).

All this is done by one thread, over the connections that all threads use: when those are busy, a cancellation is
noticed later, and no lease is lost (`lease.py` has its own thread).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from holdfast.errors import Stop, StoreError
from holdfast.runtime.call.gate import cancellation, is_overdue, overdue
from holdfast.runtime.exec.loop_watchdog import Stalls
from holdfast.runtime.log.branches import Branch
from holdfast.store.base import MICROSECONDS, Store

if TYPE_CHECKING:
    import logging

CHECK_SECONDS: Final = 1.0


class CancelWatcher:
    """Knows the async runs that execute in this process. Its thread sleeps while there are none."""

    def __init__(self, store: Store, lease_seconds: float) -> None:
        self._store = store
        self._stalls = Stalls(lease_seconds)
        self._awaiting: dict[str, Branch] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, root: Branch) -> None:
        """This run executes here from now on."""
        with self._changed:
            self._awaiting[root.session.run_id] = root
            if self._thread is None or not self._thread.is_alive():  # as after a fork
                self._thread = threading.Thread(
                    target=self._serve, name="holdfast-cancel-watcher", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def remove(self, root: Branch) -> None:
        """This run no longer executes here."""
        self._awaiting.pop(root.session.run_id, None)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def notice_cancel_of_tree(self, run_id: str) -> None:
        """The same for a run and its children; those below first, so that each ends by itself."""
        below = [found for found in list(self._awaiting) if found.startswith(f"{run_id}~")]
        for found in (*sorted(below, key=len, reverse=True), run_id):
            self.notice_cancel(found)

    def notice_cancel(self, run_id: str) -> None:
        """If this run executes here and was cancelled, end what it awaits."""
        root = self._awaiting.get(run_id)
        lines = None if root is None else root.session.lines
        if root is None or lines is None:
            return
        session = root.session
        if session.catch_up():
            lines.parking.look_again_soon()
        if session.journal.life.cancel is not None:
            _cancel(root, cancellation(session))

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._awaiting)
                if self._changed.wait_for(lambda: self._closed, timeout=CHECK_SECONDS):
                    return
            try:
                self._stalls.look(list(self._awaiting.values()))
                self._check()
            except StoreError as error:
                _log().warning("could not check for cancellations: %s", error)
            except Exception:  # noqa: BLE001 - whatever it is: the next check may succeed
                _log().exception("could not check for cancellations")

    def _check(self) -> None:
        awaiting = dict(self._awaiting)
        if not awaiting:
            return
        known = {run_id: root.session.read_to for run_id, root in awaiting.items()}
        for run_id, end in self._store.heads(list(known)).items():
            if end > known[run_id]:
                self.notice_cancel(run_id)
        for root in awaiting.values():
            session = root.session
            if is_overdue(session) and session.lines is not None:
                _cancel(root, overdue())
            elif session.lines is not None and session.waits:
                since = self._store.now() - round(CHECK_SECONDS * MICROSECONDS)
                children = session.children.ended() | session.children.unclaimed(since)
                if children:
                    session.lines.parking.look_again_soon(tuple(children))


def _cancel(root: Branch, signal: Stop) -> None:
    root.session.stop(signal)
    assert root.session.lines is not None
    root.session.lines.leaving.cancel()


def _log() -> logging.Logger:
    import logging  # here, as most processes never have a reason to log

    return logging.getLogger("holdfast.cancel_watcher")
