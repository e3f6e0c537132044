"""What one server is: its store, its credentials, and what it allows. Handlers find it at `request.app.state.server`.

The store is opened on first use: an application that is mounted in another one is not notified when that starts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

import anyio
import anyio.to_thread
from starlette.requests import Request

from holdfast.store.opening import open_store
from holdfast.web.credentials import Credentials
from holdfast.web.feed import LogFeed
from holdfast.web.reader import RunReader
from holdfast.web.sessions import WebSessions

if TYPE_CHECKING:
    from holdfast.store.base import Store

P = ParamSpec("P")
R = TypeVar("R")

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
THREADS: Final = 16
"""So many requests use the store at the same time; others wait for their turn."""


@dataclass(frozen=True, slots=True)
class TrustedProxy:
    """A reverse proxy that signs people in. Its header is believed only if the request comes from its address."""

    header: str
    addresses: frozenset[str]
    default_role: str = ""
    """The role of users without a credential; empty: they are refused."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What one client may use of a server."""

    body_bytes: int = 1024 * 1024
    body_seconds: float = 30.0
    requests_per_second: float = 100.0
    requests_burst: int = 400
    signins_per_minute: int = 10
    streams_per_user: int = 30
    streams: int = 1000


DEFAULT_LIMITS: Final = ClientLimits()


@dataclass
class Server:
    """One server."""

    source: Store | str | None
    credentials: Credentials
    read_only: bool = False
    hosts: tuple[str, ...] = LOOPBACK
    """The names under which it answers; `*` is any."""
    proxy: TrustedProxy | None = None
    limits: ClientLimits = DEFAULT_LIMITS
    sessions: WebSessions = field(default_factory=WebSessions)
    reader: RunReader = field(default_factory=RunReader)

    def __post_init__(self) -> None:
        self._mutex = threading.Lock()
        self._opened: Store | None = None
        self._threads: anyio.CapacityLimiter | None = None
        self._feed: LogFeed | None = None

    def store(self) -> Store:
        """The store. Blocks when it is opened."""
        with self._mutex:
            if self._opened is None:
                is_named = self.source is None or isinstance(self.source, str)
                self._opened = open_store(self.source) if is_named else self.source  # type: ignore[arg-type, assignment]
            assert self._opened is not None
            return self._opened

    @property
    def feed(self) -> LogFeed:
        """Tells of new events, for all viewers."""
        if self._feed is None:
            self._feed = LogFeed(self.store)
        return self._feed

    async def call(self, fn: Callable[[Store], R]) -> R:
        """Do something with the store in a thread: it may block."""
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(THREADS)
        return await anyio.to_thread.run_sync(lambda: fn(self.store()), limiter=self._threads)

    def close(self) -> None:
        """Close the store, if this server has opened it."""
        with self._mutex:
            if self._opened is not None and self._opened is not self.source:
                self._opened.close()
            self._opened = None


def server_of(request: Request) -> Server:
    """The server that answers this request."""
    found: Server = request.app.state.server
    return found
