"""Live updates by server-sent events. The page and its stream share a cursor: the seq of the last event that was rendered.

A message holds the parts of a page that changed, as HTML; htmx morphs them in. The first change is sent at once, then
at most a few per second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from holdfast.errors import HoldfastError
from holdfast.store.base import TERMINAL_STATUSES
from holdfast.views.fleet import Tally
from holdfast.web.api.events import HEADERS, RETRY_MILLISECONDS, message, resumed
from holdfast.web.api.requests import RequestRefused
from holdfast.web.auth import identify, principal_of, require
from holdfast.web.feed import NEWEST
from holdfast.web.pages.render import html
from holdfast.web.pages.run import head
from holdfast.web.pages.runs import counts_of
from holdfast.web.pages.site import Site, whole_number
from holdfast.web.pages.timeline import timeline_values
from holdfast.web.problems import problem_response

APART_SECONDS: Final = 0.25
"""So long at least between two updates of one viewer."""
BEAT_SECONDS: Final = 15.0
RUNNING_SECONDS: Final = 2.0
"""While a call is running its bar grows, without an event."""


def _stream(site: Site, request: Request, body: AsyncIterator[bytes]) -> Response:
    """The stream, if this user has not too many of them. It ends when the credential is revoked."""
    name = principal_of(request).name
    try:
        site.streams.enter(name)
    except RequestRefused as refused:
        return problem_response(refused.found, refused.headers)

    async def send() -> AsyncIterator[bytes]:
        try:
            async for part in body:
                if identify(site.server, request.scope) is None:
                    yield message("signed-out", b"")
                    return
                yield part
        finally:
            site.streams.leave(name)

    return StreamingResponse(send(), media_type="text/event-stream", headers=HEADERS)


async def run_live(site: Site, request: Request) -> Response:
    """The parts of a run's page, as they change, until the run has ended."""
    require(request, "stream")
    view = await site.view(request.path_params["run_id"])
    seen = whole_number(request.query_params, "seq", view.state.seq)
    assert seen is not None
    try:
        start = resumed(request.headers.get("last-event-id", ""), seen)
    except RequestRefused as refused:
        return problem_response(refused.found, refused.headers)
    return _stream(site, request, _run_updates(site, request, start))


async def _run_updates(site: Site, request: Request, after: int) -> AsyncIterator[bytes]:
    run_id, tab = request.path_params["run_id"], request.query_params.get("tab", "timeline")
    yield b"retry: %d\n\n" % RETRY_MILLISECONDS
    status = ""
    while True:
        running = status == "running"
        changed = await site.server.feed.wait(
            run_id, after, RUNNING_SECONDS if running else BEAT_SECONDS
        )
        try:
            view = await site.view(run_id)
        except HoldfastError:
            yield message("end", b"")  # deleted, or damaged: the page itself says so
            return
        if not changed and not running and view.status == status:
            yield b": still here\n\n"
            continue
        after, status = view.state.seq, view.status
        shown = await head(site, request, view, tab)
        values = timeline_values(request, view) if tab == "timeline" else {}
        yield message("", html(request, "run/live.html", **shown, **values).encode(), after)
        if view.row.status in TERMINAL_STATUSES:
            yield message("end", view.row.status.encode(), after)
            return
        await asyncio.sleep(APART_SECONDS)


async def list_live(site: Site, request: Request) -> Response:
    """Counts and the number of new runs, for the list and for the inbox."""
    require(request, "stream")
    newest = whole_number(request.query_params, "newest", 0)
    assert newest is not None
    return _stream(site, request, _list_updates(site, request, newest))


async def _list_updates(site: Site, request: Request, newest: int) -> AsyncIterator[bytes]:
    yield b"retry: %d\n\n" % RETRY_MILLISECONDS
    before = ""
    while True:
        tally = await site.tally()
        fresh = await site.server.call(lambda store: store.runs(limit=100))
        new = sum(row.cursor > newest for row in fresh) if newest else 0
        said = _list_part(request, tally, new)
        if said != before:
            before = said
            yield message("", said.encode())
        else:
            yield b": still here\n\n"
        await site.server.feed.wait(NEWEST, fresh[0].cursor if fresh else -1, RUNNING_SECONDS)
        await asyncio.sleep(APART_SECONDS * 4)


def _list_part(request: Request, tally: Tally, new: int) -> str:
    """What changes on the page that has opened the stream: the inbox, which says how many runs it shows, or the list."""
    shown = whole_number(request.query_params, "people")
    if shown is not None:
        return html(request, "inbox_live.html", people=tally.counts["people"], shown=shown)
    query = request.query_params.get("q", "")
    return html(request, "runs_live.html", new=new, query=query, **counts_of(tally))
