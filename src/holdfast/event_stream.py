"""The events of a run as they happen, from any place in its log until the run ends.

Reads only, and only what is new: a page at a time, checked against the hash chain from where the reader is. How to wait
for more is the caller's matter: `store.wait` in a thread, `runtime/log/log_watcher.py` on an event loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast.core import log
from holdfast.core.events import Event
from holdfast.core.log import Record
from holdfast.errors import NoSuchRun
from holdfast.store.base import TERMINAL_STATUSES, Store
from holdfast.store.checks import check_whole

PAGE: Final = 1000
WAIT_SECONDS: Final = 1.0
"""How long one wait for events lasts at most: a run may end without one."""


class EventReader:
    """A place in a run's log. `read` gives what follows, and moves on."""

    def __init__(self, store: Store, run_id: str, *, after: int = -1) -> None:
        check_whole("after", after)
        self._store, self._run_id, self._after = store, run_id, after
        self._head: log.Head | None = None
        self.ended = False
        """The run had ended, and all of its log has been read."""

    @property
    def seq(self) -> int:
        """The last event that was read, or after which reading starts."""
        return self._after if self._head is None else max(self._head.seq, self._after)

    def read(self) -> list[tuple[Record, Event]]:
        """The next events, at most a page; none if there are none yet."""
        row = self._store.get(self._run_id)
        if row is None:
            raise NoSuchRun(self._run_id)
        if self._head is None:
            self._head = self._start()
        page = self._store.read(self._run_id, after=self._head.seq, limit=PAGE)
        records = list(log.verify(self._run_id, self._head, page))
        if records:
            self._head = log.head_at(records[-1])
        self.ended = not records and row.status in TERMINAL_STATUSES
        return [(r, log.read_event(self._run_id, r)) for r in records if r.seq > self._after]

    def _start(self) -> log.Head:
        """The event after which to read: its hash is what the next one is chained to."""
        if self._after >= 0:
            found = self._store.read(self._run_id, after=self._after - 1, limit=1)
            if found and found[0].seq == self._after:
                return log.head_at(found[0])
        return log.origin(self._run_id)


def stream(store: Store, run_id: str, *, after: int = -1) -> Iterator[tuple[Record, Event]]:
    """The events of a run, old and new, until it has ended. Blocks while there are none."""
    reader = EventReader(store, run_id, after=after)
    while True:
        found = reader.read()
        yield from found
        if reader.ended:
            return
        if not found:
            store.wait(run_id, after=reader.seq, timeout=WAIT_SECONDS)
