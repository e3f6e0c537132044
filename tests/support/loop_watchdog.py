"""A store that reports code that blocks an event loop.

Nothing is measured. A call to the store from the loop's own thread is reported at once. A call from another thread waits
until the loop has turned: if the loop is waiting for that thread, it never does, and that is reported too.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from support.waiting import PATIENCE_SECONDS

MAY_BE_CALLED_ON_A_LOOP = ("now", "create", "submit", "nudge", "heard")
"""They do not wait: the time is computed, an append is queued."""


class LoopWatchdog:
    """Watches one loop: the one that runs where it is made."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.watching = False
        self.calls = 0
        self.found: list[str] = []

    def check(self, what: str) -> None:
        """Something that may block is done here and now."""
        if not self.watching:
            return
        self.calls += 1
        if threading.get_ident() == self._thread:
            stack = "".join(traceback.format_stack(limit=12))
            self.found.append(f"{what} on the event loop:\n{stack}")
            return
        turned = threading.Event()
        self._loop.call_soon_threadsafe(turned.set)
        if not turned.wait(PATIENCE_SECONDS / 4):
            stack = "".join(traceback.format_stack(sys._current_frames()[self._thread]))
            self.found.append(f"the event loop is waiting for {what}:\n{stack}")

    def watched(self, thing: Any, path: str = "store") -> Any:
        """The same store, or part of one, watched."""
        return _Watched(self, thing, path)


class _Watched:
    def __init__(self, watchdog: LoopWatchdog, thing: Any, path: str) -> None:
        self._watchdog, self._thing, self._path = watchdog, thing, path

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        path = f"{self._path}.{name}"
        if name in ("schedules", "limits"):
            return self._watchdog.watched(found, path)
        if not callable(found) or name in MAY_BE_CALLED_ON_A_LOOP:
            return found
        return self._called(found, path)

    def _called(self, real: Callable[..., Any], path: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._watchdog.check(path)
            return real(*args, **kwargs)

        return call
