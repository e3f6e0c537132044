"""Wait for events of many runs in one thread, for callers on an event loop.

A thread for each of a thousand requests that wait for a result would be a thousand threads that poll. Here one thread reads
the ends of all these logs in one query, after a change and at intervals; it ends when no caller is waiting.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from holdfast.store.base import Store

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor

LOOK_SECONDS: Final = 0.5
"""How long one wait for a change lasts at most. The end of a run wakes it; other events may not."""


class _Waiter:
    """A caller waiting for an event after `after` in the log of a run."""

    def __init__(self, run_id: str, after: int) -> None:
        import asyncio

        self.run_id, self.after = run_id, after
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self._loop.create_future()

    def wake(self, error: BaseException | None = None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the caller with it
            self._loop.call_soon_threadsafe(self._settle, error)

    def _settle(self, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)


class LogWatcher:
    """Watches the logs of one store's runs."""

    def __init__(self, store: Store, threads: Executor) -> None:
        self._store, self._threads = store, threads
        self._mutex = threading.Lock()
        self._waiters: set[_Waiter] = set()
        self._watching = False

    async def wait(self, run_id: str, *, after: int, timeout: float) -> bool:
        """Wait until the run's log has an event after `after`; False when the time is over."""
        import asyncio

        waiter = _Waiter(run_id, after)
        with self._mutex:
            self._waiters.add(waiter)
            starts, self._watching = not self._watching, True
        if starts:
            self._threads.submit(self._watch)
        try:
            async with asyncio.timeout(timeout):
                await waiter.future
        except TimeoutError:
            return False
        finally:
            with self._mutex:
                self._waiters.discard(waiter)
        return True

    def _watch(self) -> None:
        while self._is_needed():
            try:
                self._store.wait_due([], timeout=LOOK_SECONDS, stop_when=self._look)
            except BaseException as error:  # noqa: BLE001 (raised in the waiting callers)
                self._wake(self._all(), error)

    def _is_needed(self) -> bool:
        with self._mutex:
            self._watching = bool(self._waiters)
            return self._watching

    def _look(self) -> bool:
        """Wake those whose logs have grown; whether there were any, or no caller is waiting any longer."""
        waiting = self._all()
        heads = self._store.heads(sorted({one.run_id for one in waiting})) if waiting else {}
        grown = [one for one in waiting if heads.get(one.run_id, one.after + 1) > one.after]
        self._wake(grown)
        return bool(grown) or not waiting

    def _all(self) -> list[_Waiter]:
        with self._mutex:
            return list(self._waiters)

    def _wake(self, waiters: Iterable[_Waiter], error: BaseException | None = None) -> None:
        with self._mutex:
            self._waiters.difference_update(waiters)
        for waiter in waiters:
            waiter.wake(error)
