"""One action for many runs: first what it would do to each, then doing it, run by run.

The set is fixed when it is previewed: runs created later are not touched. Each run is checked again when its turn comes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast import control
from holdfast.errors import HoldfastError, InvalidInput
from holdfast.store.base import RunRow, Store
from holdfast.views.search import search
from holdfast.web.auth import require
from holdfast.web.pages.render import page
from holdfast.web.pages.site import Site, form_of, whole

MOST: Final = 1000
"""So many runs at once; the next ones with the same search."""
EXAMPLES: Final = 20
TYPED_ABOVE: Final = 100
VERBS: Final = ("cancel", "resume")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happens to one run: `does` is empty if it is skipped, and `why` says why."""

    run_id: str
    agent: str
    status: str
    does: str
    why: str = ""


async def preview(site: Site, request: Request) -> Response:
    """What the action would do to the runs that match now."""
    require(request, "bulk")
    query, verb = (
        request.query_params.get("q", "")[:1000],
        _verb(request.query_params.get("verb", "cancel")),
    )
    chosen = request.query_params.getlist("run")[:MOST]
    rows = await site.server.call(lambda store: _chosen(store, query, chosen))
    outcomes = [_planned(row, verb) for row in rows]
    newest = max((row.cursor for row in rows), default=0)
    return page(request, "bulk.html", query=query, verb=verb, chosen=chosen, outcomes=outcomes, examples=outcomes[:EXAMPLES],
                counts=_counted(outcomes), newest=newest, done=False, message="", is_all=len(rows) >= MOST,
                typed_above=TYPED_ABOVE)  # fmt: skip


async def run(site: Site, request: Request) -> Response:
    """Do it, and show what became of each run."""
    who = require(request, "bulk")
    form = await form_of(request)
    verb = _verb(form.get("verb", ""))
    require(request, verb)
    query, chosen = form.get("q", ""), form.get("runs", "").split()
    newest, why = whole(form, "newest", 0) or 0, form.get("why", "")
    rows = [
        r
        for r in await site.server.call(lambda store: _chosen(store, query, chosen))
        if r.cursor <= newest
    ]
    acting = sum(bool(_planned(row, verb).does) for row in rows)
    if acting > TYPED_ABOVE and form.get("typed", "").replace(",", "").strip() != str(acting):
        raise InvalidInput(
            f"type {acting} to confirm that so many runs are meant; nothing was done"
        )
    outcomes = await site.server.call(
        lambda store: [_done(store, row, verb, who.name, why) for row in rows]
    )
    site.server.feed.nudge()
    return page(request, "bulk.html", query=query, verb=verb, chosen=chosen, outcomes=outcomes, examples=outcomes,
                counts=_counted(outcomes), newest=newest, done=True, message="", is_all=False, typed_above=TYPED_ABOVE)  # fmt: skip


def _verb(given: str) -> str:
    if given not in VERBS:
        raise InvalidInput(
            f"{given!r} is not possible for many runs; use one of {', '.join(VERBS)}"
        )
    return given


def _chosen(store: Store, query: str, chosen: list[str]) -> list[RunRow]:
    if chosen:
        rows = [store.get(run_id) for run_id in chosen[:MOST]]
        return [row for row in rows if row is not None]
    return search(store, query, limit=MOST).runs


def _planned(row: RunRow, verb: str) -> Outcome:
    if verb == "cancel" and row.status in ("completed", "failed", "cancelled"):
        return Outcome(row.id, row.agent, row.status, "", f"already {row.status}")
    if verb == "resume" and row.status not in ("failed", "paused", "quarantined"):
        return Outcome(row.id, row.agent, row.status, "", f"{row.status}: nothing to resume")
    if verb == "resume" and row.waiting_for.startswith("a decision"):
        return Outcome(row.id, row.agent, row.status, "", "in doubt: needs a decision")
    return Outcome(row.id, row.agent, row.status, verb)


def _done(store: Store, row: RunRow, verb: str, by: str, why: str) -> Outcome:
    planned = _planned(row, verb)
    if not planned.does:
        return planned
    try:
        (control.cancel if verb == "cancel" else control.reopen)(store, row.id, by=by, why=why)
    except HoldfastError as error:
        return Outcome(row.id, row.agent, row.status, "", str(error))
    return planned


def _counted(outcomes: list[Outcome]) -> list[tuple[str, int]]:
    return Counter(o.does or f"skipped, {o.why}" for o in outcomes).most_common(8)
