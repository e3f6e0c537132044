"""Wake the callers in this process that wait for a change in a store.

A wake-up is a hint: waiters also poll now and then, for what other processes do.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from holdfast.store.base import MICROSECONDS, Append

ANY: Final = ""
"""The subject of those who wait for any run to become due."""


class Wakeups:
    """Wakes up those who wait for a subject (a run's id)."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self.waiters: dict[str, list[threading.Event]] = {}
        """By subject. Usually empty: then there is nothing to do after an append."""

    @contextlib.contextmanager
    def waiting(self, subject: str) -> Iterator[threading.Event]:
        """An event that is set at each wake-up for the subject."""
        woken = threading.Event()
        with self._mutex:
            self.waiters.setdefault(subject, []).append(woken)
        try:
            yield woken
        finally:
            with self._mutex:
                self.waiters[subject].remove(woken)
                if not self.waiters[subject]:
                    del self.waiters[subject]

    def notify(self, subject: str, *, due: bool = True) -> None:
        """Wake up those who wait for this subject and, if it may be due now, for any."""
        if not self.waiters:
            return
        with self._mutex:
            anyone = self.waiters.get(ANY, ()) if due else ()
            for woken in (*self.waiters.get(subject, ()), *anyone):
                woken.set()

    def notify_appended(self, batch: Sequence[Append]) -> None:
        """Wake up those for whom these appends may matter: a run becomes due only by a change of its row."""
        if not self.waiters:
            return
        for work in batch:
            self.notify(work.run_id, due=work.change is not None)
            if work.change is not None:
                for run_id in work.change.wakes:
                    self.notify(run_id)

    def notify_all(self) -> None:
        """Wake up all waiters: something may have been missed."""
        if not self.waiters:
            return
        with self._mutex:
            for events in self.waiters.values():
                for woken in events:
                    woken.set()

    def wait_until(
        self,
        predicate: Callable[[], bool],
        subject: str,
        timeout: float,
        *,
        pauses: tuple[float, float],
    ) -> bool:
        """Check at each wake-up, and now and then for what other processes did.

        The first pause and the longest are given, in seconds. False when the time is over.
        """
        end = time.monotonic() + timeout
        pause, longest = pauses
        with self.waiting(subject) as woken:
            while not predicate():
                left = end - time.monotonic()
                if left <= 0:
                    return False
                if not woken.wait(min(pause, left)):
                    pause = min(pause * 1.5, longest)
                woken.clear()
        return True

    def wait_due(
        self,
        next_due: Callable[[], int | None],
        now: Callable[[], int],
        stop_when: Callable[[], bool] | None,
        timeout: float,
        *,
        pauses: Callable[[], tuple[float, float]],
    ) -> bool:
        """Wait until the time that `next_due` says has come, or until `stop_when` is true; see `base.Store.wait_due`.

        Both are checked at each wake-up, when that time has come, and now and then: the longer nothing happens, the
        less often. `pauses` are the shortest and the longest, in seconds, as they are now.
        """
        import random  # here, as only workers wait for what is due

        end = time.monotonic() + timeout
        pause = 0.0
        with self.waiting(ANY) as woken:
            while True:
                when, at = next_due(), now()
                if (when is not None and when <= at) or (stop_when is not None and stop_when()):
                    return True
                left = end - time.monotonic()
                if left <= 0:
                    return False
                if when is not None:
                    left = min(left, (when - at) / MICROSECONDS)
                shortest, longest = pauses()
                pause = min(max(pause, shortest), longest)
                if not woken.wait(min(pause * random.uniform(0.8, 1.2), left)):  # noqa: S311 (only to spread)
                    if time.monotonic() >= end:
                        return False  # a caller that keeps waiting checks at once: once, not twice
                    pause *= 1.5
                woken.clear()
