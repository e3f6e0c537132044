"""Waking those in this process who wait for something to change in a store.

A notification is a hint: waiters also poll now and then, for what other processes do.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from holdfast.store.base import Append

ANY: Final = ""
"""The subject of those who wait for any run to become due."""


class Bell:
    """Wakes those who wait for a subject (a run's id)."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: dict[str, list[threading.Event]] = {}

    @contextlib.contextmanager
    def waiting(self, subject: str) -> Iterator[threading.Event]:
        """An event that is set at each ring for the subject."""
        rung = threading.Event()
        with self._mutex:
            self._waiting.setdefault(subject, []).append(rung)
        try:
            yield rung
        finally:
            with self._mutex:
                self._waiting[subject].remove(rung)
                if not self._waiting[subject]:
                    del self._waiting[subject]

    def ring(self, subject: str, *, due: bool = True) -> None:
        """Wake those who wait for this subject and, if it may be due now, for any."""
        if not self._waiting:
            return
        with self._mutex:
            for rung in (
                *self._waiting.get(subject, ()),
                *(self._waiting.get(ANY, ()) if due else ()),
            ):
                rung.set()

    def ring_for(self, batch: Sequence[Append]) -> None:
        """Wake those for whom these appends may matter: a run is due only by a change of its row."""
        if not self._waiting:  # the usual case on the way of every append: no lock
            return
        for work in batch:
            self.ring(work.run_id, due=work.change is not None)
            if work.change is not None:
                for run_id in work.change.wakes:
                    self.ring(run_id)

    def ring_all(self) -> None:
        """Wake everybody: something may have been missed."""
        if not self._waiting:
            return
        with self._mutex:
            for events in self._waiting.values():
                for rung in events:
                    rung.set()

    def wait_until(
        self, true: Callable[[], bool], subject: str, timeout: float, *, pauses: tuple[float, float]
    ) -> bool:
        """Ask again at each ring, and now and then for what other processes did.

        The first pause and the longest are given, in seconds. False when the time is over.
        """
        end = time.monotonic() + timeout
        pause, longest = pauses
        with self.waiting(subject) as rung:
            while not true():
                left = end - time.monotonic()
                if left <= 0:
                    return False
                if not rung.wait(min(pause, left)):
                    pause = min(pause * 1.5, longest)
                rung.clear()
        return True
