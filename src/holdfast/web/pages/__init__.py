"""The pages: server-rendered HTML over `views` and `control`.

The rest of the server uses three functions: `routes`, `login_page` and `error_page`.
"""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from holdfast.api.problems import Problem
from holdfast.errors import HoldfastError
from holdfast.web.auth import require
from holdfast.web.context import Server
from holdfast.web.pages import actions, bulk, compare, fleet, inbox, live, run, runs, timeline
from holdfast.web.pages.refusals import message_of, ways_on
from holdfast.web.pages.render import STATIC, linker, page
from holdfast.web.pages.site import Site


def routes(server: Server) -> list[BaseRoute]:
    """The pages' routes."""
    site = Site(server)
    pages = (
        ("/runs", runs.list_runs, "runs"),
        ("/runs/live", live.list_live, "runs-live"),
        ("/runs/{run_id}", timeline.timeline, "run"),
        ("/runs/{run_id}/live", live.run_live, "run-live"),
        ("/runs/{run_id}/calls/{step:int}", run.call, "call"),
        ("/runs/{run_id}/calls/{step:int}/child", timeline.child, "child"),
        ("/runs/{run_id}/state", run.state_at, "state"),
        ("/runs/{run_id}/dialogue", run.dialogue, "dialogue"),
        ("/runs/{run_id}/decisions", run.decisions, "decisions"),
        ("/runs/{run_id}/artifacts", run.artifacts, "artifacts"),
        ("/runs/{run_id}/artifacts/{name:path}", run.artifact, "artifact"),
        ("/runs/{run_id}/usage", run.usage, "usage"),
        ("/runs/{run_id}/events", run.events, "events"),
        ("/runs/{run_id}/actions/{verb}", actions.ask, "action"),
        ("/inbox", inbox.inbox, "inbox"),
        ("/inbox/{run_id}/{request}", inbox.item, "inbox-item"),
        ("/inbox/{run_id}/{request}/edit", inbox.edit, "inbox-edit"),
        ("/compare", compare.compare, "compare"),
        ("/fleet", fleet.fleet, "fleet"),
        ("/doctor", fleet.doctor, "doctor"),
        ("/bulk", bulk.preview, "bulk"),
    )
    acts = (
        ("/runs/{run_id}/actions/{verb}", actions.act, "act"),
        ("/inbox/{run_id}/{request}/edit", inbox.edit, "inbox-edited"),
        ("/inbox/{run_id}/{request}/{verb}", inbox.decide, "decide"),
        ("/bulk", bulk.run, "bulk-run"),
    )
    return [
        Route("/", index, name="index"),
        *(Route(path, partial(fn, site), name=name, methods=["GET"]) for path, fn, name in pages),
        *(Route(path, partial(fn, site), name=name, methods=["POST"]) for path, fn, name in acts),
        Mount("/static", _Static(directory=STATIC), name="static"),
    ]


async def index(request: Request) -> Response:
    require(request, "runs")
    return RedirectResponse(linker(request)("runs"), 303)


class _Static(StaticFiles):
    """Files of ours. Their addresses contain their hashes, so browsers may keep them."""

    def file_response(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        found = super().file_response(*args, **kwargs)
        found.headers["cache-control"] = "public, max-age=31536000, immutable"
        return found


def login_page(request: Request, *, message: str = "", status: int = 200) -> Response:
    """The form to sign in with a token."""
    return page(request, "login.html", status, message=message)


def error_page(request: Request, problem: Problem, error: HoldfastError | None = None) -> Response:
    """What is wrong, and what to do about it, for people."""
    ways = [] if error is None else ways_on(request, error)
    said = problem.detail if error is None else message_of(error)
    return page(request, "error.html", problem.status, problem=problem, said=said, ways=ways)
