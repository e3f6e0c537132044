"""The events of a run as server-sent events. `id` is the seq, so a client that reconnects continues where it was.

A stream ends with `event: end` when the run has ended, and with `event: signed-out` when its credential is revoked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from holdfast import views
from holdfast.api.problems import problem
from holdfast.core.log import Record
from holdfast.errors import HoldfastError
from holdfast.event_stream import EventReader
from holdfast.web.api.handlers import recorded
from holdfast.web.api.requests import RequestRefused
from holdfast.web.auth import identify, principal_of
from holdfast.web.context import Server, server_of

RETRY_MILLISECONDS: Final = 2000
KEEP_ALIVE_SECONDS: Final = 15.0
HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}


class Streams:
    """How many streams are open, of all users and of each."""

    def __init__(self, per_user: int, total: int) -> None:
        self._per_user, self._total = per_user, total
        self._open: Counter[str] = Counter()

    def enter(self, name: str) -> None:
        if self._open[name] >= self._per_user or self._open.total() >= self._total:
            said = f"{name} has {self._open[name]} open streams; close one, or try again later"
            raise RequestRefused(problem("too-many-streams", 429, said), {"retry-after": "5"})
        self._open[name] += 1

    def leave(self, name: str) -> None:
        self._open[name] -= 1
        if not self._open[name]:
            del self._open[name]


async def stream(request: Request, streams: Streams, after: int) -> Response:
    """The stream that a request asks for. What is wrong is answered before it starts."""
    server, run_id = server_of(request), request.path_params["run_id"]
    after = resumed(request.headers.get("last-event-id", ""), after)
    await server.call(lambda store: views.row_of(store, run_id))
    reader = await server.call(lambda store: EventReader(store, run_id, after=after))
    who = principal_of(request)
    streams.enter(who.name)

    async def send() -> AsyncIterator[bytes]:
        try:
            async for part in _messages(request, server, reader):
                yield part
        finally:
            streams.leave(who.name)

    return StreamingResponse(send(), media_type="text/event-stream", headers=HEADERS)


def resumed(last_event_id: str, after: int) -> int:
    """Where a stream starts: after the event that the client has seen last, if it says so."""
    if not last_event_id:
        return after
    if not last_event_id.isascii() or not last_event_id.isdecimal() or len(last_event_id) > 15:
        raise RequestRefused(
            problem("invalid-query", 422, "Last-Event-ID must be the id of an event")
        )
    return int(last_event_id)


async def _messages(request: Request, server: Server, reader: EventReader) -> AsyncIterator[bytes]:
    run_id = request.path_params["run_id"]
    yield b"retry: %d\n\n" % RETRY_MILLISECONDS
    while True:
        try:
            found = await server.call(lambda _: reader.read())
        except HoldfastError as error:  # it was deleted, or its log is damaged
            yield message("error", msgspec.json.encode({"detail": str(error)}))
            return
        if found:
            yield b"".join(_event(record) for record, _ in found)
        if reader.ended:
            yield message("end", b"{}")
            return
        if not found:
            if not await server.feed.wait(run_id, reader.seq, KEEP_ALIVE_SECONDS):
                yield b": keep-alive\n\n"
            if identify(server, request.scope) is None:
                yield message("signed-out", b"{}")
                return


def _event(record: Record) -> bytes:
    return message(record.kind, msgspec.json.encode(recorded(record)), record.seq)


def message(kind: str, data: bytes, seq: int | None = None) -> bytes:
    """One message; without a kind, an ordinary one. A line break in its data starts another line of it."""
    lines = [] if seq is None else [b"id: %d" % seq]
    lines += [b"event: " + kind.encode()] if kind else []
    lines += [b"data: " + line for line in data.splitlines() or [b""]]
    return b"\n".join(lines) + b"\n\n"
