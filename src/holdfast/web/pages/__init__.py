"""The pages: server-rendered HTML over `views` and `control`.

The rest of the server uses three functions: `routes`, `login_page` and `error_page`.
"""

from __future__ import annotations

from html import escape

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from holdfast.api.problems import Problem
from holdfast.web.auth import require
from holdfast.web.context import Server


def routes(server: Server) -> list[BaseRoute]:  # noqa: ARG001  (for pages to come)
    """The pages' routes."""
    return [Route("/", index, name="index")]


async def index(request: Request) -> Response:
    who = require(request, "runs")
    return _page("Holdfast", f"<p>Signed in as {escape(who.name)} ({who.role}).</p>")


def login_page(request: Request, *, message: str = "", status: int = 200) -> Response:
    """The form to sign in with a token."""
    target = escape(str(request.url.include_query_params()), quote=True)
    said = f"<p role=alert>{escape(message)}</p>" if message else ""
    form = (
        f'<form method="post" action="{target}"><label>Token <input name="token" type="password" '
        'autocomplete="current-password" required></label> <button>Sign in</button></form>'
    )
    return _page("Sign in", said + form, status)


def error_page(request: Request, found: Problem) -> Response:  # noqa: ARG001  (for pages to come)
    """What is wrong, for people."""
    following = f"<p>{escape(found.next)}</p>" if found.next else ""
    return _page(found.title, f"<p>{escape(found.detail)}</p>{following}", found.status)


def _page(title: str, body: str, status: int = 200) -> Response:
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
    return HTMLResponse(f"{head}<h1>{escape(title)}</h1>{body}", status)
