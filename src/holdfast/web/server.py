"""Listens: uvicorn with limits that it does not have itself.

A client must send the headers of a request within some seconds, and has a limited number of connections. TLS is the task of a
proxy in front.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from holdfast.errors import InvalidInput

HEADER_SECONDS: Final = 10.0
CONNECTIONS_PER_PEER: Final = 300
CONNECTIONS: Final = 2000
HEADER_BYTES_MAX: Final = 64 * 1024


class GuardedProtocol(H11Protocol):
    """Ends connections that do not send a whole request, and those of a peer that has too many."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio does this only for sockets that were made with the protocol's number. Without it, a body that follows
        # its headers is held back by 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = self.client[0] if self.client else ""
        peers = [getattr(one, "client", None) for one in self.connections]
        if sum(found is not None and found[0] == peer for found in peers) > CONNECTIONS_PER_PEER:
            transport.close()
            return
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # A part of the next request may have arrived with the one that was answered: no more data may follow.
        if self.conn.trailing_data[0] and not self.transport.is_closing():
            self._watch()

    def _watch(self) -> None:
        """While a request is awaited or incomplete, there is a deadline; while one is answered, there is none."""
        if self._is_answering():
            self._forget()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _give_up(self) -> None:
        self._deadline = None
        if not self._is_answering():
            self.transport.close()

    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None until the first request
        return cycle is not None and not cycle.response_complete

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one."""
    address = host.strip("[]")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=512)
    except (OSError, OverflowError) as error:
        said = getattr(error, "strerror", None) or error
        raise InvalidInput(
            f"cannot listen on {host}:{port}: {said}; choose another port with --port"
        ) from None


def config(app: ASGIApp, **options: Any) -> uvicorn.Config:
    """How uvicorn is run. A proxy's headers are judged by the guard, not here."""
    return uvicorn.Config(
        app,
        http=GuardedProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=3,
        h11_max_incomplete_event_size=HEADER_BYTES_MAX,
        limit_concurrency=CONNECTIONS,
        **options,
    )


def serve(app: ASGIApp, listening: socket.socket) -> None:
    """Serve until the process is stopped."""
    uvicorn.Server(config(app)).run(sockets=[listening])
