"""Another ASGI application at a path of this server, such as MCP: started at the first request, behind the same guard.

It is given as a function that makes it, because what it imports may be slow. Its `running()` is kept open until the server
ends, also where no lifespan is run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import anyio.to_thread
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from holdfast.api.problems import problem_of
from holdfast.errors import HoldfastError
from holdfast.web.auth import require
from holdfast.web.context import Server
from holdfast.web.problems import problem_response


class RunningApp(Protocol):
    """An ASGI application that works while `running()` is open."""

    def running(self) -> AbstractAsyncContextManager[None]: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


Make = Callable[[Server], RunningApp]
"""Makes it; called in a thread. What it raises is reported to the caller."""


class MountedApp:
    """The application, made and started at the first request. `verb` is what a role must be allowed."""

    def __init__(self, server: Server, make: Make, verb: str) -> None:
        self._server, self._make, self._verb = server, make, verb
        self._app: RunningApp | None = None
        self._mutex: asyncio.Lock | None = None
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            require(Request(scope), self._verb)
            app = await self._started()
        except HoldfastError as error:
            await problem_response(problem_of(error))(scope, receive, send)
            return
        await app(scope, receive, send)

    async def _started(self) -> RunningApp:
        if self._mutex is None:
            self._mutex = asyncio.Lock()
        async with self._mutex:
            if self._app is None:
                app = await anyio.to_thread.run_sync(self._make, self._server)
                ready = asyncio.Event()
                self._task = asyncio.get_running_loop().create_task(self._run(app, ready))
                await ready.wait()
                self._app = app
            return self._app

    async def _run(self, app: RunningApp, ready: asyncio.Event) -> None:
        async with app.running():
            ready.set()
            await self._stop.wait()

    async def close(self) -> None:
        """End it; in the lifespan of the server."""
        self._stop.set()
        if self._task is not None:
            await self._task
