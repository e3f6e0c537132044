"""The child runs that a live run is waiting for: which have ended, and which no worker executes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from holdfast.core.entry import Place
from holdfast.core.waits import OpenWait
from holdfast.store.base import TERMINAL_STATUSES, UNCLAIMABLE_STATUSES, RunRow, Store

RETRY_US: Final = 5_000_000
"""How long a child that could not be claimed is left to workers."""


class AwaitedChildren:
    """The children among what a run is waiting for."""

    def __init__(
        self,
        store: Store,
        row: RunRow,
        waits: Mapping[Place, OpenWait],
        agents: Collection[str],
    ) -> None:
        self._store, self._run_id, self._waits, self._agents = store, row.id, waits, agents
        self.woken = row.woken
        """How often the run had been woken when its children were last looked at."""
        self._next_try: dict[str, int] = {}

    def ended(self) -> set[str]:
        """Those that have ended. The run's row is read first, so that an end that is not seen here has raised its
        count of wake-ups by the time it is suspended."""
        ids = self._ids()
        if not ids:
            return set()
        self.count_wake_ups()
        rows = [self._store.get(child) for child in ids]
        return {x.id for x in rows if x is not None and x.status in TERMINAL_STATUSES}

    def count_wake_ups(self) -> None:
        """Read how often the run has been woken."""
        row = self._store.get(self._run_id)
        self.woken = self.woken if row is None else row.woken

    def unclaimed(self, since: int) -> set[str]:
        """Those that have been due since this time: no worker is there, or none that knows their agents. Each is
        named once in a while."""
        now, found = self._store.now(), set()
        for child in self._ids():
            row = self._store.get(child)
            if row is None or row.due_at is None or row.status in UNCLAIMABLE_STATUSES:
                continue
            is_known = row.due_at <= since and row.agent in self._agents
            if is_known and now >= self._next_try.get(child, 0):
                self._next_try[child] = now + RETRY_US
                found.add(child)
        return found

    def _ids(self) -> list[str]:
        return [wait.child for wait in list(self._waits.values()) if wait.child]
