"""Cancel or resume many runs: first what it would do to each (`dry_run`), then doing it, run by run.

`hf.bulk`, `holdfast bulk`, the HTTP API and the page are this. The preview fixes the set: with its `newest`, runs that are
created later are not touched. Each run is checked again when its turn comes, and its log records who did it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from holdfast import control, views
from holdfast.control.lifecycle import STOPPED
from holdfast.errors import HoldfastError, InvalidInput, NotFound
from holdfast.store.base import TERMINAL_STATUSES, RunRow, Store

BulkVerb = Literal["cancel", "resume"]
VERBS: Final[tuple[BulkVerb, ...]] = get_args(BulkVerb)
RUNS_MAX: Final = 1000
"""So many runs at once; the next ones with the same search."""
SEARCH_SECONDS: Final = 5.0
"""So long runs are searched for."""


@dataclass(frozen=True, slots=True)
class BulkOutcome:
    """What happens to one run. It is skipped if `acts` is false, and `why` says why."""

    run_id: str
    agent: str
    status: str
    acts: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class BulkReport:
    """What was done to each run; with `dry_run`, what would be done.

    `newest` fixes the set for the next call. `has_more`: more runs may match than these.
    """

    verb: str
    dry_run: bool
    outcomes: tuple[BulkOutcome, ...]
    newest: int
    has_more: bool = False

    @property
    def acting(self) -> int:
        """How many runs are not skipped."""
        return sum(outcome.acts for outcome in self.outcomes)


def bulk(
    store: Store,
    verb: str,
    query: str = "",
    *,
    runs: Sequence[str] = (),
    newest: int | None = None,
    dry_run: bool = False,
    by: str = "",
    why: str = "",
) -> BulkReport:
    """Cancel or resume the runs that match a search, or these runs; NotFound if one of these does not exist."""
    known = check_verb(verb)
    if not runs and not query.strip():
        raise InvalidInput(
            f"choose which runs to {known}: a search such as 'status:failed since:24h', or their ids"
        )
    return report(store, known, query, runs=runs, newest=newest, dry_run=dry_run, by=by, why=why)


def report(
    store: Store,
    verb: BulkVerb,
    query: str,
    *,
    runs: Sequence[str],
    newest: int | None,
    dry_run: bool,
    by: str = "",
    why: str = "",
) -> BulkReport:
    """The same; without a search and without runs, for all runs."""
    rows, has_more = _chosen(store, query, runs, newest)
    limit = max((row.cursor for row in rows), default=0) if newest is None else newest
    outcomes = [_planned(row, verb) for row in rows]
    if not dry_run:
        outcomes = [_done(store, outcome, verb, by, why) for outcome in outcomes]
    return BulkReport(verb, dry_run, tuple(outcomes), limit, has_more)


def check_verb(name: str) -> BulkVerb:
    """The verb of this name, or InvalidInput."""
    for verb in VERBS:
        if verb == name:
            return verb
    raise InvalidInput(f"{name!r} is not possible for many runs; use one of {', '.join(VERBS)}")


def _chosen(
    store: Store, query: str, runs: Sequence[str], newest: int | None
) -> tuple[list[RunRow], bool]:
    """The runs, and whether there may be more."""
    if not runs:
        return _matching(store, query, newest)
    now, named = store.now(), list(dict.fromkeys(runs))
    rows = {run_id: store.get(run_id) for run_id in named[:RUNS_MAX]}
    unknown = [run_id for run_id, row in rows.items() if row is None]
    if unknown and newest is None:  # after a preview, they were deleted since
        more = f" and {len(unknown) - 10} more" if len(unknown) > 10 else ""
        raise NotFound(f"no such run: {', '.join(map(repr, unknown[:10]))}{more}; nothing was done")
    found = [views.shown(row, now) for row in rows.values() if row is not None]
    return [row for row in found if newest is None or row.cursor <= newest], len(named) > RUNS_MAX


def _matching(store: Store, query: str, newest: int | None) -> tuple[list[RunRow], bool]:
    """A search that is cut is continued here, for some seconds."""
    found: dict[str, RunRow] = {}
    cursor = None if newest is None else newest + 1
    end = time.monotonic() + SEARCH_SECONDS
    while True:
        page = views.search(store, query, limit=RUNS_MAX - len(found), cursor=cursor)
        found |= {row.id: row for row in page.runs}
        cursor = page.next
        if cursor is None or len(found) >= RUNS_MAX or time.monotonic() > end:
            return list(found.values()), cursor is not None


def _planned(row: RunRow, verb: BulkVerb) -> BulkOutcome:
    why = ""
    if verb == "cancel" and row.status in TERMINAL_STATUSES:
        why = f"already {row.status}"
    elif verb == "resume" and row.status not in STOPPED:
        why = f"{row.status}: nothing to resume"
    return BulkOutcome(row.id, row.agent, row.status, not why, why)


def _done(store: Store, planned: BulkOutcome, verb: BulkVerb, by: str, why: str) -> BulkOutcome:
    if not planned.acts:
        return planned
    act = control.cancel if verb == "cancel" else control.reopen
    try:
        act(store, planned.run_id, by=by, why=why)
    except HoldfastError as error:
        return BulkOutcome(planned.run_id, planned.agent, planned.status, False, str(error))
    return planned
