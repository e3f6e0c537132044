"""The routes of the API, made of the table of operations: role, decoding, handler, encoding, audit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from holdfast import views
from holdfast.api import documents as d
from holdfast.api.operations import OPERATIONS, PREFIX, Operation
from holdfast.api.problems import problem
from holdfast.core import snapshot, values
from holdfast.core.state import RunState
from holdfast.web.api import openapi
from holdfast.web.api.events import Streams, stream
from holdfast.web.api.handlers import HANDLERS, Ask, Bytes, HandlerResult
from holdfast.web.api.ranges import bytes_response
from holdfast.web.api.requests import RequestRefused, read_body, read_query
from holdfast.web.auth import require
from holdfast.web.context import Server, server_of
from holdfast.web.problems import problem_response

LINES: Final = "application/x-ndjson"
Endpoint = Callable[[Request], Awaitable[Response]]

_audit = logging.getLogger("holdfast.audit")


def routes(server: Server) -> list[BaseRoute]:
    """All routes below /api/v1."""
    streams = Streams(server.limits.streams_per_user, server.limits.streams)
    found: list[BaseRoute] = [
        Route(PREFIX + op.path, _endpoint(op, streams), methods=[op.method], name=f"api.{op.verb}")
        for op in OPERATIONS
    ]
    document = Route(PREFIX + "/openapi.json", openapi.document, name="api.openapi")
    return [document, Route(PREFIX, openapi.page, name="api.docs"), *found]


def _endpoint(op: Operation, streams: Streams) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        try:
            who = require(request, op.needs)
            if op.media == "events":
                query = read_query(request, d.StreamQuery)
                return await stream(request, streams, query.after)
            ask = await _ask(op, request)
            answer = await _answer(op, request, ask)
        except RequestRefused as error:
            return problem_response(error.found, error.headers)
        if op.changes:
            server_of(request).feed.nudge()
            peer = request.client.host if request.client else ""
            _audit.info("%s (%s) %s %s from %s", who.name, who.role, op.verb, ask.path, peer)
        return answer

    return endpoint


async def _ask(op: Operation, request: Request) -> Ask:
    """The request, decoded."""
    query = read_query(request, op.query)
    body = None if op.body is None else await read_body(request, op.body)
    lines = (await request.body()).decode("utf-8", "replace").splitlines() if op.takes_lines else []
    if_match = request.headers.get("if-match", "")
    if op.verb == "patch" and not if_match:
        said = "a patch needs If-Match with the ETag of the run as you have read it; If-Match: * patches any version"
        raise RequestRefused(problem("precondition-required", 428, said))
    return Ask(
        require(request, op.needs),
        dict(request.path_params),
        query,
        body,
        lines,
        request.headers.get("idempotency-key", ""),
        if_match,
        server_of(request).read_only,
        server_of(request).reader,
    )


async def _answer(op: Operation, request: Request, ask: Ask) -> Response:
    found = await _waited(op, server_of(request), ask)
    status, headers = op.status, {}
    if isinstance(found, HandlerResult):
        found, status, headers = found.value, found.status or op.status, found.headers
    if isinstance(found, Bytes):
        return bytes_response(request, found)
    if op.media == "lines":
        return StreamingResponse(_lines(found), media_type=LINES)
    if isinstance(found, RunState):
        headers["etag"] = etag = f'"{found.seq}.{found.status}"'
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
    if "location" in headers:
        headers["location"] = request.url_for("api.get", run_id=found.run.id).path
    return Response(encoded(found), status, headers, "application/json")


async def _waited(op: Operation, server: Server, ask: Ask) -> Any:
    """What the handler returns; where the query has `wait`, after so long, or when there is something to tell."""
    handler = HANDLERS[op.verb]
    found = await server.call(lambda store: handler(store, ask))
    seconds = getattr(ask.query, "wait", 0.0)
    if not seconds:
        return found
    if op.verb == "events":
        if not found.items and not found.has_ended:
            await server.feed.wait(ask.run_id, ask.query.after, seconds)
            found = await server.call(lambda store: handler(store, ask))
        return found
    run_id = found.value.run.id if op.verb == "start" else ask.run_id
    outcome = await _ended(server, run_id, seconds)
    if op.verb == "start":
        row = await server.call(lambda store: views.shown(views.row_of(store, run_id), store.now()))
        started = msgspec.structs.replace(found.value, run=row, has_ended=outcome.has_ended)
        return HandlerResult(started, found.status, found.headers)
    return outcome


async def _ended(server: Server, run_id: str, seconds: float) -> views.Outcome:
    """How a run ended, if it does within so many seconds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        head = await server.call(lambda store: store.head(run_id))
        found = await server.call(lambda store: views.outcome(store, run_id))
        left = end - loop.time()
        if found.has_ended or left <= 0:
            return found
        await server.feed.wait(run_id, head, left)


def encoded(result: Any) -> bytes:
    """A result as JSON."""
    if isinstance(result, RunState):
        return snapshot.to_json(result)
    if isinstance(result, msgspec.Struct):
        return values.encode_struct(result)
    return msgspec.json.encode(result)


def _lines(lines: Iterator[str]) -> Iterator[bytes]:
    for line in lines:
        yield line.encode() + b"\n"
