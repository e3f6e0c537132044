"""Delete runs that ended long ago, and snapshots that are not needed.

`hf.gc` and `holdfast gc` are this. Only runs that are completed, failed or cancelled are deleted, and no child of a run
that is still unfinished. With a run its id and the idempotency keys that its callers chose become free again. Snapshots
are caches: deleting one costs time and nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast import views
from holdfast.errors import InvalidInput
from holdfast.store.base import TERMINAL_STATUSES, RunRow, Store


@dataclass(frozen=True, slots=True)
class GcResult:
    """What was deleted; with `dry_run`, what would be."""

    runs: tuple[str, ...]
    snapshots: int
    dry_run: bool


def gc(
    store: Store,
    *,
    older_than_us: int | None = None,
    keep: int | None = None,
    snapshots: int | None = None,
    snapshot_age_us: int | None = None,
    dry_run: bool = False,
) -> GcResult:
    """Delete runs that ended more than `older_than_us` ago, but the newest `keep`; and of each run's snapshots all but
    the newest `snapshots`, and those older than `snapshot_age_us`."""
    of_runs = older_than_us is not None or keep is not None
    of_snapshots = snapshots is not None or snapshot_age_us is not None
    if not of_runs and not of_snapshots:
        raise InvalidInput(
            "gc needs a limit: older_than or keep for runs, snapshots or snapshot_age for snapshots"
        )
    rotated = 0
    if of_snapshots and not dry_run:
        rotated = rotate_snapshots(store, keep=snapshots, max_age_us=snapshot_age_us)
    found = removable(store, older_than_us=older_than_us or 0, keep=keep or 0) if of_runs else []
    deleted = [row.id for row in found] if dry_run else delete(store, found)
    return GcResult(tuple(deleted), rotated, dry_run)


def removable(
    store: Store,
    *,
    older_than_us: int = 0,
    keep: int = 0,
    watch: views.ProgressHook = views.unwatched,
) -> list[RunRow]:
    """The runs that may be deleted: ended longer ago, but for the newest `keep`. The newest first."""
    before = store.now() - older_than_us
    found = (row for status in TERMINAL_STATUSES for row in views.every_run(store, status))
    ended = sorted(watch(found, "checking run"), key=lambda row: row.updated_at, reverse=True)
    return [row for row in ended[keep:] if row.updated_at < before and not _is_needed(store, row)]


def _is_needed(store: Store, row: RunRow) -> bool:
    """The result of a child may still be asked for as long as its parent is unfinished."""
    parent = store.get(row.parent) if row.parent else None
    return parent is not None and parent.status not in TERMINAL_STATUSES


def delete(
    store: Store, rows: Iterable[RunRow], *, watch: views.ProgressHook = views.unwatched
) -> list[str]:
    """Delete these runs; the ids of those that were."""
    return [row.id for row in watch(rows, "deleting run") if store.delete(row.id)]


def rotate_snapshots(
    store: Store,
    *,
    keep: int | None = None,
    max_age_us: int | None = None,
    watch: views.ProgressHook = views.unwatched,
) -> int:
    """Of each run's snapshots delete all but the newest `keep`, and older ones but the newest; how many."""
    count = sys.maxsize >> 1 if keep is None else keep
    rows = watch(views.every_run(store), "checking the snapshots of run")
    return sum(store.snapshots.rotate(row.id, keep=count, max_age_us=max_age_us) for row in rows)
