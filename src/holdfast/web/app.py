"""The application: sign-in, pages and HTTP API behind one guard. Alone, or mounted in another ASGI application.

    app = FastAPI()
    app.mount("/holdfast", create_app(hf, credentials="credentials.json", hosts=["*"]))

Links are made with `url_for`, so they work below any path. No lifespan is needed: the store is opened on first use.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from holdfast.api.problems import Problem, problem, problem_of
from holdfast.app import Holdfast
from holdfast.errors import HoldfastError
from holdfast.store.base import Store
from holdfast.web import pages, signin
from holdfast.web.api import routes as api
from holdfast.web.context import DEFAULT_LIMITS, LOOPBACK, ClientLimits, Server, TrustedProxy
from holdfast.web.credentials import Credential, Credentials, default_file
from holdfast.web.guard import Guard
from holdfast.web.mounted import Make, MountedApp
from holdfast.web.problems import MCP_PATH, is_for_programs, problem_response


def create_app(
    store: Holdfast | Store | str | os.PathLike[str] | None = None,
    *,
    credentials: Credentials | Iterable[Credential] | str | os.PathLike[str] | None = None,
    read_only: bool = False,
    hosts: Iterable[str] = LOOPBACK,
    proxy: TrustedProxy | None = None,
    limits: ClientLimits = DEFAULT_LIMITS,
    mcp: Make | None = None,
) -> Starlette:
    """The application over a store: a `Holdfast`, a `Store`, or what `Holdfast(…)` takes.

    `credentials` is a file made by `holdfast token`, by default the one next to the store. `hosts` are the names under
    which it answers; `*` leaves that check to the application that mounts it. `mcp` makes what is served at /mcp.
    """
    source = store.store if isinstance(store, Holdfast) else store
    named = os.fspath(source) if isinstance(source, os.PathLike) else source
    server = Server(
        source=named,
        credentials=_credentials(credentials, named),
        read_only=read_only,
        hosts=tuple(host.lower() for host in hosts),
        proxy=proxy,
        limits=limits,
    )
    return app_of(server, mcp)


def app_of(server: Server, mcp: Make | None = None) -> Starlette:
    """The application of a server."""
    mounted = [] if mcp is None else [MountedApp(server, mcp, "mcp")]
    routes: list[BaseRoute] = [
        Route("/healthz", _healthz, name="healthz"),
        *signin.routes(server),
        *api.routes(server),
        *(Route(MCP_PATH, app, name="mcp") for app in mounted),
        *pages.routes(server),
    ]
    handlers: Any = {HoldfastError: _refused, HTTPException: _http_error, Exception: _broken}
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, server=server)],
        exception_handlers=handlers,
        lifespan=_lifespan,
    )
    app.state.server, app.state.mounted = server, mounted
    return app


def _credentials(
    credentials: Credentials | Iterable[Credential] | str | os.PathLike[str] | None,
    store: Store | str | None,
) -> Credentials:
    if isinstance(credentials, Credentials):
        return credentials
    if isinstance(credentials, str | os.PathLike):
        return Credentials(Path(credentials))
    if credentials is not None:
        return Credentials(credentials=tuple(credentials))
    url = store if store is None or isinstance(store, str) else store.url
    return Credentials(default_file(url))


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for mounted in app.state.mounted:
            await mounted.close()
        app.state.server.close()


async def _healthz(_: Request) -> Response:
    """Whether the server is alive. It says nothing of the store, and needs no credential."""
    return PlainTextResponse("ok")


# ── errors ───────────────────────────────────────────────────────────────────────────────────


def _answer(request: Request, problem: Problem, headers: dict[str, str] | None = None) -> Response:
    if is_for_programs(request):
        return problem_response(problem, headers)
    return pages.error_page(request, problem)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HoldfastError)
    found = problem_of(error, request.url.path)
    if is_for_programs(request):
        return problem_response(found)
    return pages.error_page(request, found, error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    name = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "http-error")
    headers = dict(error.headers or {})
    found = problem(name, error.status_code, f"{error.detail}: {request.method} {request.url.path}")
    return _answer(request, found, headers)


async def _broken(request: Request, _: Exception) -> Response:
    """Starlette logs the error; who sent the request learns no more."""
    found = problem("internal-error", 500, "internal error; see the log of the server")
    return _answer(request, found)
