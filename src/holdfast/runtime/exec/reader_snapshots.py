"""Snapshots of long logs, left by the process that executes the run, for people who look at it.

With one, `hf.get` reads only the events that follow it.

Not here: the snapshots that a loop continues from (`call/checkpoints.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from holdfast.core.log import Record
from holdfast.errors import HoldfastError
from holdfast.runtime.exec.threads import Threads
from holdfast.runtime.log.session import Session
from holdfast.store.base import Store

LONG_LOG: Final = 10_000
"""A log of so many events gets a snapshot."""
SNAPSHOT_EVERY: Final = 50_000
"""And another one each time it has grown by so many while the run executes."""


class ReaderSnapshots:
    """Knows when the next snapshot of each run that executes here is due."""

    def __init__(self, store: Store, threads: Threads) -> None:
        self._store, self._threads = store, threads
        self._next_at: dict[str, int] = {}
        """By run: the length of its log at which the next one is left while it executes."""
        self._closing = False

    def save_due(self, sessions: Sequence[Session]) -> None:
        """Now and then while these runs execute. Does not block."""
        for session in sessions:
            length = session.log.head.seq
            if session.log.knows_all and length >= self._next_at.get(session.run_id, LONG_LOG):
                self._next_at[session.run_id] = length + SNAPSHOT_EVERY
                self._threads.submit(self.save, session)

    def is_due_at_end(self, session: Session) -> bool:
        """Whether a run that executes here no longer gets one."""
        return session.log.head.seq >= LONG_LOG

    def save(self, session: Session) -> None:
        from holdfast.store.brief import read_brief  # here, as few logs are that long

        with contextlib.suppress(HoldfastError):
            read_brief(self._store, session.run_id, through=self._until_closed)

    def forget(self, session: Session) -> None:
        """The run executes here no longer."""
        self._next_at.pop(session.run_id, None)

    def close(self) -> None:
        self._closing = True

    def _until_closed(self, records: Iterable[Record]) -> Iterator[Record]:
        """A reader in another thread must not delay the end of the process."""
        for record in records:
            if self._closing:
                return
            yield record
