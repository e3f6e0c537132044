"""Watches logs for all viewers of a server: one query per look, however many viewers there are.

A look asks for the ends of all watched logs. It happens sooner after something has changed, and not at all without viewers. A viewer that cannot keep up misses nothing: it reads from where it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from holdfast.errors import StoreError
from holdfast.store.base import Filter

if TYPE_CHECKING:
    from holdfast.store.base import Store

LOOK_SECONDS_MIN: Final = 0.02
LOOK_SECONDS_MAX: Final = 0.2
RETRY_SECONDS: Final = 1.0
NEWEST: Final = ""
"""Watch this instead of a run's id for new runs: its end is the cursor of the newest run."""
GONE: Final = -2
"""The end of the log of a run that does not exist."""

_log = logging.getLogger(__name__)


class _Waiter:
    def __init__(self, run_id: str, after: int) -> None:
        self.run_id, self.after = run_id, after
        self.changed = asyncio.Event()


class LogFeed:
    """The watched logs of one store, on one event loop."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._waiters: set[_Waiter] = set()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """How many viewers are waiting."""
        return len(self._waiters)

    def nudge(self) -> None:
        """Look now: this server has changed something."""
        self._woken.set()

    async def wait(self, run_id: str, after: int, timeout: float) -> bool:
        """Whether the run's log has grown beyond `after`, within so many seconds. A run that was deleted counts as grown.

        With `NEWEST`, whether there is a run newer than the cursor `after`."""
        waiter = _Waiter(run_id, after)
        self._waiters.add(waiter)
        self.nudge()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._look_repeatedly())
        try:
            async with asyncio.timeout(timeout):
                await waiter.changed.wait()
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True

    async def _look_repeatedly(self) -> None:
        pause = LOOK_SECONDS_MIN
        while self._waiters:
            # Cleared before the look: what comes during it is looked at again.
            self._woken.clear()
            try:
                watched = sorted({w.run_id for w in self._waiters})
                ends = await anyio.to_thread.run_sync(self._ends, watched)
            except StoreError as error:
                _log.warning("cannot check for changes: %s; retrying", error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            grown = [
                w
                for w in self._waiters
                if w.run_id in ends and (ends[w.run_id] > w.after or ends[w.run_id] == GONE)
            ]
            for waiter in grown:
                waiter.changed.set()
            self._waiters.difference_update(grown)
            pause = LOOK_SECONDS_MIN if grown else min(pause * 1.5, LOOK_SECONDS_MAX)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._woken.wait()

    def _ends(self, watched: list[str]) -> dict[str, int]:
        """Where each watched log ends now."""
        store = self._store()
        runs = [run_id for run_id in watched if run_id != NEWEST]
        found = store.heads(runs) if runs else {}
        ends = {run_id: found.get(run_id, GONE) for run_id in runs}
        if NEWEST in watched:
            newest = store.runs(Filter(), limit=1)
            ends[NEWEST] = newest[0].cursor if newest else -1
        return ends
