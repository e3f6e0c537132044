"""A run and its open descendants: execute whichever is due, until the run itself can continue.

For a caller that is waiting for a run (`hf.run(…, wait=True)`). A run may wait for a child that is suspended; if no
worker is there, this process has to execute the child. What is looked at are rows, never whole logs.
"""

from __future__ import annotations

import time
from typing import Final

from holdfast.errors import HoldfastError, LeaseLost, NoSuchRun, NotResumable, StoreError
from holdfast.runtime.exec.claims import ClaimedRun
from holdfast.runtime.exec.engine import Engine
from holdfast.runtime.exec.resumable import check
from holdfast.store.base import MICROSECONDS, TERMINAL_STATUSES, UNCLAIMABLE_STATUSES, RunRow
from holdfast.store.cancel import children, open_children

WAIT_SECONDS: Final = 1.0
"""How long one wait lasts at most: after it, the caller may have been cancelled."""
REFUSED_SECONDS: Final = 0.5
"""How long a run is left alone that is due and could not be claimed: another worker was faster, or a limit is
reached."""


class Tree:
    """The runs of one tree, for one caller."""

    def __init__(self, engine: Engine, root_id: str) -> None:
        self._engine, self._store, self._root = engine, engine.store, root_id
        self._refused: dict[str, float] = {}

    def next(self) -> ClaimedRun | RunRow | None:
        """A descendant, claimed, to be executed now; or the root, if it has ended or is due. None if nothing
        came within a moment: ask again."""
        root = self._store.get(self._root)
        if root is None:
            raise NoSuchRun(self._root)
        if root.status in TERMINAL_STATUSES:
            return root
        rows = self._open_runs(root)
        for row in reversed(rows):  # what is below first: its end is what the others wait for
            if row.id == root.id:
                if self._is_due(row):
                    return row
            elif self._may_execute(row) and (claimed := self._claim(row)) is not None:
                return claimed
        self._wait(rows)
        return None

    def due_root(self) -> RunRow | None:
        """The root, if it can be executed now."""
        root = self._store.get(self._root)
        return root if root is not None and self._is_due(root) else None

    def rest(self) -> ClaimedRun | None:
        """After the root has ended: a descendant that is due, claimed. The root's end has cancelled it, or the
        root did not wait for it, and perhaps no worker is there."""
        for row in reversed(self._descendants()):
            if self._may_execute(row) and (claimed := self._claim(row)) is not None:
                return claimed
        return None

    def ended(self, error: HoldfastError) -> None:
        """A descendant was executed and raised this. It is in its log; only the failure of a store is raised."""
        if isinstance(error, StoreError) and not isinstance(error, LeaseLost):
            raise error

    def _open_runs(self, root: RunRow) -> list[RunRow]:
        found = [root]
        for row in found:  # it grows while it is walked
            found += open_children(self._store, row.id)
        return found

    def _descendants(self) -> list[RunRow]:
        """All of them: one that is open may be below one that has ended."""
        found = list(children(self._store, self._root))
        for row in found:  # it grows while it is walked
            found += children(self._store, row.id)
        return found

    def _is_due(self, row: RunRow) -> bool:
        return (
            row.status not in UNCLAIMABLE_STATUSES
            and row.due_at is not None
            and row.due_at <= self._store.now()
        )

    def _may_execute(self, row: RunRow) -> bool:
        left_alone = time.monotonic() < self._refused.get(row.id, 0.0)
        return self._is_due(row) and row.agent in self._engine.agents and not left_alone

    def _claim(self, row: RunRow) -> ClaimedRun | None:
        spec = self._engine.agents[row.agent]
        try:
            check(self._store, row, spec)
        except NotResumable:
            claimed = None
        else:
            claimed = self._engine.claims.claim_within_limits(row, spec)
        if claimed is None:
            self._refused[row.id] = time.monotonic() + REFUSED_SECONDS
        return claimed

    def _wait(self, rows: list[RunRow]) -> None:
        """Until one of them has changed, is due, or a moment has passed."""
        seen = {row.id: row for row in rows}
        now = self._store.now()
        times = [row.due_at - now for row in rows if row.due_at is not None and row.due_at > now]
        seconds = min((WAIT_SECONDS, *(us / MICROSECONDS for us in times)))
        if any(self._is_due(row) for row in rows):
            seconds = min(seconds, REFUSED_SECONDS)

        def changed() -> bool:
            return any(_changed(row, self._store.get(run_id)) for run_id, row in seen.items())

        self._store.wait_due([], timeout=seconds, stop_when=changed)


def _changed(before: RunRow, now: RunRow | None) -> bool:
    if now is None:
        return True
    return (before.status, before.due_at, before.epoch) != (now.status, now.due_at, now.epoch) and (
        not _only_renewed(before, now)
    )


def _only_renewed(before: RunRow, now: RunRow) -> bool:
    return before.status == now.status == "running" and before.epoch == now.epoch
