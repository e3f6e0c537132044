"""A worker: claim runs that are due, execute them, go on until told to stop.

A store that fails for a moment is asked again; nothing is forgotten, because what is due is in the
store.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError, StoreError
from holdfast.runtime.engine import Engine, Taken

if TYPE_CHECKING:
    from holdfast.store.base import RunRow

IDLE_SECONDS: Final = 1.0
FAILURE_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""How long to wait after the first, second … failure of the store in a row."""

_log: Final = logging.getLogger("holdfast.worker")


class Worker:
    """Executes due runs of the agents that its engine knows."""

    def __init__(self, engine: Engine, *, concurrency: int = 1) -> None:
        self._engine = engine
        self._concurrency = concurrency
        self._stopping = threading.Event()
        self._failures = 0

    def stop(self) -> None:
        """Finish what is under way and claim no more."""
        self._stopping.set()

    def run(self, *, once: bool = False) -> int:
        """Work until stopped; with `once`, until nothing is due. How many runs were executed."""
        done = 0
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="holdfast-worker") as pool:
            busy: set[Future[None]] = set()
            while not self._stopping.is_set():
                busy = {f for f in busy if not f.done()}
                asked_at = time.monotonic()
                try:
                    rows = self._claim(self._concurrency - len(busy))
                    done += len(rows)
                    busy |= {pool.submit(self._one, row, asked_at) for row in rows}
                    if not rows and not self._wait(busy, once=once):
                        break
                except StoreError as error:
                    self._pause_after(error)
        return done

    def _claim(self, limit: int) -> list[RunRow]:
        if limit <= 0:
            return []
        rows = self._engine.store.claim_due(
            worker=self._engine.worker,
            lease_us=self._engine.leases.lease_us,
            limit=limit,
            agents=list(self._engine.agents),
        )
        self._failures = 0
        return rows

    def _wait(self, busy: set[Future[None]], *, once: bool) -> bool:
        """Wait until there may be something to do; False if there is nothing to wait for."""
        if busy:
            wait(busy, timeout=IDLE_SECONDS, return_when="FIRST_COMPLETED")
        elif once:
            return False
        else:
            self._engine.store.wait_due(timeout=IDLE_SECONDS)
        return True

    def _pause_after(self, error: StoreError) -> None:
        seconds = FAILURE_SECONDS[min(self._failures, len(FAILURE_SECONDS) - 1)]
        self._failures += 1
        _log.warning("the store failed, asking again in %s s: %s", seconds, error)
        self._stopping.wait(seconds)

    def _one(self, row: RunRow, asked_at: float) -> None:
        try:
            self._engine.execute(Taken(row, self._engine.agent_of(row), asked_at))
        except HoldfastError as outcome:  # waiting, failed …: it is in the log
            _log.info("run %s: %s", row.id, outcome)
