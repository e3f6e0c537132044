"""One action for many runs: first what it would do to each, then what it did (`holdfast.bulk`)."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast.bulk import RUNS_MAX, BulkReport, check_verb, report
from holdfast.errors import InvalidInput
from holdfast.web.auth import require
from holdfast.web.pages.render import page
from holdfast.web.pages.site import Site, form_of, whole_number

EXAMPLES: Final = 20
TYPED_ABOVE: Final = 100
_DONE: Final = {"cancel": "cancelled", "resume": "resumed"}


async def preview(site: Site, request: Request) -> Response:
    """What the action would do to the runs that match now."""
    require(request, "bulk")
    given = request.query_params
    query, verb = given.get("q", "")[:1000], check_verb(given.get("verb", "cancel"))
    runs = given.getlist("run")[:RUNS_MAX]
    found = await site.server.call(
        lambda store: report(store, verb, query, runs=runs, newest=None, dry_run=True)
    )
    return page(request, "bulk.html", **_shown(found, query, runs))


async def run(site: Site, request: Request) -> Response:
    """Do it, and show what became of each run."""
    who = require(request, "bulk")
    form = await form_of(request)
    verb = check_verb(form.get("verb", ""))
    require(request, verb)
    query, runs = form.get("q", ""), form.get("runs", "").split()
    newest, why = whole_number(form, "newest", 0) or 0, form.get("why", "")

    def planned(dry_run: bool) -> Any:
        return lambda store: report(
            store, verb, query, runs=runs, newest=newest, dry_run=dry_run, by=who.name, why=why
        )

    acting = (await site.server.call(planned(True))).acting
    if acting > TYPED_ABOVE and form.get("typed", "").replace(",", "").strip() != str(acting):
        raise InvalidInput(f"type {acting} to confirm the number of runs; nothing was done")
    found = await site.server.call(planned(False))
    site.server.feed.nudge()
    return page(request, "bulk.html", **_shown(found, query, runs))


def _shown(report: BulkReport, query: str, runs: list[str]) -> dict[str, Any]:
    does = f"to {report.verb}" if report.dry_run else _DONE[report.verb]
    counts = Counter((o.why and f"skipped, {o.why}") or does for o in report.outcomes)
    return {
        "found": report,
        "query": query,
        "chosen": runs,
        "examples": report.outcomes[:EXAMPLES] if report.dry_run else report.outcomes,
        "counts": counts.most_common(8),
        "typed_above": TYPED_ABOVE,
        "done_word": _DONE[report.verb],
    }
