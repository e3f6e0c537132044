"""The list of runs: search, views with counts, and a bar that announces new runs instead of moving the rows."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import InvalidInput
from holdfast.views.fleet import MOST, Tally
from holdfast.views.search_result import SearchResult, search
from holdfast.web.auth import require
from holdfast.web.pages.chart import spark_svg
from holdfast.web.pages.render import page
from holdfast.web.pages.site import Site, whole_number

ROWS: Final = 50
VIEWS: Final = (
    ("All", "", ""),
    ("Running", "status:running", "running"),
    ("Waiting for people", "status:waiting waiting:people", "people"),
    ("In doubt", "status:waiting waiting:doubt", "doubt"),
    ("Failed, 24 h", "status:failed since:24h", "failed"),
    ("Not progressing", "status:interrupted,quarantined,paused", "stuck"),
)
"""Name, search string, and the count that is shown."""


async def list_runs(site: Site, request: Request) -> Response:
    """Runs, newest first, that match the search."""
    require(request, "runs")
    query = request.query_params.get("q", "")[:1000].strip()
    cursor = whole_number(request.query_params, "after")
    message = ""
    try:
        found = await site.server.call(
            lambda store: search(store, query, limit=ROWS, cursor=cursor)
        )
    except InvalidInput as error:
        found, message = SearchResult([], None), str(error)
    now = await site.server.call(lambda store: store.now())
    return page(
        request,
        "runs.html",
        status=422 if message else 200,
        query=query,
        found=found,
        message=message,
        cursor=cursor,
        in_text=in_text(query),
        address=str(request.url.replace(query=urlencode({"q": query}))),
        now=now,
        newest=found.runs[0].cursor if found.runs and cursor is None else 0,
        **counts_of(await site.tally()),
    )


def in_text(query: str) -> str:
    """The same words as a search of what runs contain; empty if the search has other terms than bare words."""
    words = query.split()
    is_plain = all(re.fullmatch(r'[^-":][^":]*', word) for word in words)
    return f'"{query}"' if words and is_plain else ""


def counts_of(tally: Tally) -> dict[str, object]:
    """What the head of the list shows."""
    counts = tally.counts
    stuck = counts["interrupted"] + counts["quarantined"] + counts["paused"]
    named = {**counts, "stuck": stuck}
    return {
        "views": [
            (name, query, capped(named[key]) if key else "", key) for name, query, key in VIEWS
        ],
        "tally": tally,
        "sparks": [
            (
                "Started",
                sum(tally.started),
                spark_svg(tally.started, "runs started per hour", "busy"),
            ),
            (
                "Completed",
                sum(tally.completed),
                spark_svg(tally.completed, "runs completed per hour", "ok"),
            ),
            ("Failed", sum(tally.failed), spark_svg(tally.failed, "runs failed per hour", "bad")),
        ],
    }


def capped(number: int) -> str:
    """1,000+ for what was not counted to its end."""
    return f"{MOST:,}+" if number > MOST else f"{number:,}"
