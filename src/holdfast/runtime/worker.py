"""A worker: claim runs that are due, execute them, go on until told to stop."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError
from holdfast.runtime.engine import Engine, Taken

if TYPE_CHECKING:
    from holdfast.store.base import RunRow

IDLE_SECONDS: Final = 1.0

_log: Final = logging.getLogger("holdfast.worker")


class Worker:
    """Executes due runs of the agents that its engine knows."""

    def __init__(self, engine: Engine, *, concurrency: int = 1) -> None:
        self._engine = engine
        self._concurrency = concurrency
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Finish what is under way and claim no more."""
        self._stopping.set()

    def run(self, *, once: bool = False) -> int:
        """Work until stopped; with `once`, until nothing is due. How many runs were executed."""
        done = 0
        store, agents = self._engine.store, list(self._engine.agents)
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="holdfast-worker") as pool:
            busy: set[Future[None]] = set()
            while not self._stopping.is_set():
                busy = {f for f in busy if not f.done()}
                asked_at = time.monotonic()
                rows = store.claim_due(
                    worker=self._engine.worker,
                    lease_us=self._engine.leases.lease_us,
                    limit=self._concurrency - len(busy),
                    agents=agents,
                ) if len(busy) < self._concurrency else []
                done += len(rows)
                busy |= {pool.submit(self._one, row, asked_at) for row in rows}
                if rows:
                    continue
                if busy:
                    wait(busy, timeout=IDLE_SECONDS, return_when="FIRST_COMPLETED")
                elif once:
                    break
                else:
                    store.wait_due(timeout=IDLE_SECONDS)
        return done

    def _one(self, row: RunRow, asked_at: float) -> None:
        try:
            spec = self._engine.agent_of(row)
            self._engine.execute(Taken(row, spec, asked_at))
        except HoldfastError as outcome:  # waiting, failed …: it is in the log
            _log.info("run %s: %s", row.id, outcome)
