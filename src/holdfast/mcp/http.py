"""Serve many clients over streamable HTTP, as an ASGI application: alone, or mounted by another one.

Every request needs a bearer token; the token decides the identity. Host and Origin are checked against a list, so
that a web page cannot reach a server on the reader's machine. TLS is the task of a proxy in front.

Another application mounts `McpApp` with its own `authenticate`, and keeps `running()` open in its lifespan.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import itertools
import json
import secrets
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import (
    DEFAULT_SESSION_IDLE_TIMEOUT,
    StreamableHTTPSessionManager,
)
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.errors import AccessDenied, InvalidInput
from holdfast.mcp.reach import Identity
from holdfast.mcp.server import Context, HoldfastServer
from holdfast.store.base import Store

BODY_BYTES_MAX: Final = 1024 * 1024
SESSIONS_MAX: Final = 1000
TOKEN_CHARACTERS_MIN: Final = 20
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
PATH: Final = "/mcp"
TOKEN_SECONDS: Final = 1.0
"""How often the token of a request that stays open is checked again."""


# ── credentials ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A bearer token, kept as its digest, and the identity that it stands for."""

    digest: bytes
    who: Identity

    @classmethod
    def of(cls, token: str, who: Identity) -> BearerToken:
        if len(token) < TOKEN_CHARACTERS_MIN or not token.isascii() or not token.isprintable():
            raise InvalidInput(
                f"a token needs at least {TOKEN_CHARACTERS_MIN} printable ASCII characters; "
                'make one with `python -c "import secrets; print(secrets.token_urlsafe(32))"`'
            )
        return cls(_digest(token), who)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. `credential` names the credential that was used: a session belongs to one."""

    credential: str
    who: Identity


Authenticate = Callable[[str], Awaitable[Caller | None]]
"""Whose bearer token this is; None for a token that is unknown, expired or revoked. Asked at every request.
AccessDenied refuses a token that is known, with the reason."""


def accept_tokens(credentials: Sequence[BearerToken]) -> Authenticate:
    """Accept the tokens of a list."""
    if not credentials:
        raise InvalidInput("an MCP server over HTTP needs a token")

    async def authenticate(token: str) -> Caller | None:
        digest = _digest(token)
        # All are compared, so that the time does not depend on which one matches.
        found = [c for c in credentials if hmac.compare_digest(c.digest, digest)]
        return Caller(found[0].digest.hex(), found[0].who) if found else None

    return authenticate


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def new_token() -> str:
    return secrets.token_urlsafe(32)


def read_secret(path: Path) -> str:
    """The text of a file that only its owner can read."""
    try:
        mode = path.stat().st_mode
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {path}: {error}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise InvalidInput(f"{path} can be read by other users; run `chmod 600 {path}`")
    return text


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


# ── the application ──────────────────────────────────────────────────────────────────────────


class McpApp:
    """The ASGI application. `running()` must be open while it is used; a server that knows `lifespan` does that."""

    def __init__(
        self, store: Store, authenticate: Authenticate, *, hosts: Sequence[str] = LOOPBACK
    ) -> None:
        self._authenticate = authenticate
        self.server = HoldfastServer(store, _identify, _connection)
        self._sessions = McpSessions()
        self._manager = StreamableHTTPSessionManager(
            self.server.protocol,
            security_settings=security(hosts),
            max_request_body_size=BODY_BYTES_MAX,
            max_sessions=SESSIONS_MAX,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._manager.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(self, receive, send)
            return
        if scope["type"] != "http":
            return
        token = bearer_token(scope)
        try:
            caller = await self._authenticate(token) if token else None
        except AccessDenied as error:
            await _respond(send, 403, str(error))
            return
        if caller is None:
            await _respond(
                send, 401, "a bearer token is needed", [(b"www-authenticate", b"Bearer")]
            )
        elif scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/") not in ("", PATH):
            await _respond(send, 404, f"not found; this server serves only {PATH}")
        else:
            await self._while_allowed(token, caller, scope, receive, send)

    async def _while_allowed(
        self, token: str, caller: Caller, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Handle a request, which may be a stream: it ends when its token is revoked or reaches other agents."""
        has_begun = has_ended = False

        async def tell(message: Message) -> None:
            nonlocal has_begun, has_ended
            has_begun = True
            has_ended = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        with anyio.CancelScope() as handled:
            watch = asyncio.create_task(self._watch_token(token, caller, handled))
            try:
                await self._handle(caller, scope, receive, tell)
            finally:
                watch.cancel()
        if handled.cancelled_caught and not has_begun:
            await _respond(send, 401, "the token was revoked")
        elif handled.cancelled_caught and not has_ended:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _watch_token(self, token: str, caller: Caller, handled: anyio.CancelScope) -> None:
        is_allowed = True
        while is_allowed:
            await asyncio.sleep(TOKEN_SECONDS)
            is_allowed = await self._is_still(token, caller)
        handled.cancel()

    async def _is_still(self, token: str, caller: Caller) -> bool:
        try:
            return await self._authenticate(token) == caller
        except AccessDenied:
            return False

    async def _handle(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        # The SDK ties a session to this user: another credential cannot use it.
        access = AccessToken(token="", client_id=caller.credential, scopes=[])
        scope["user"] = AuthenticatedUser(access)
        scope[_CALLER] = caller
        connection = _connection_of(scope)
        with self._sessions.used(connection):
            await self._manager.handle_request(scope, receive, send)
        if scope["method"] == "DELETE":
            self.server.subscriptions.forget(connection)
        for ended in self._sessions.ended():
            self.server.subscriptions.forget(ended)


_CALLER: Final = "holdfast.caller"


def bearer_token(scope: Scope) -> str:
    """The bearer token of a request; "" without exactly one."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, token = (
        given[0].decode("latin-1").partition(" ") if len(given) == 1 else ("", "", "")
    )
    return token.strip() if scheme.lower() == "bearer" else ""


def _identify(ctx: Context) -> Identity:
    caller: Caller = ctx.request.scope[_CALLER]  # type: ignore[union-attr]  # over HTTP there is a request
    return caller.who


def _connection(ctx: Context) -> str:
    return _connection_of(ctx.request.scope)  # type: ignore[union-attr]


def _connection_of(scope: Scope) -> str:
    """The session that a request of a 2025-11-25 client names, as its credential has it; "" for other clients."""
    found = [value for name, value in scope["headers"] if name == b"mcp-session-id"]
    caller: Caller = scope[_CALLER]
    return f"{caller.credential} {found[0].decode('latin-1')}" if found else ""


class McpSessions:
    """Which sessions are in use, to forget the subscriptions of those that the SDK has ended for being idle."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[str, int] = {}
        self._last: dict[str, float] = {}

    @contextmanager
    def used(self, session: str) -> Iterator[None]:
        """A request of this session is being served."""
        if not session:
            yield
            return
        self._open[session] = self._open.get(session, 0) + 1
        self._last.pop(session, None)
        try:
            yield
        finally:
            self._open[session] -= 1
            if not self._open[session]:
                del self._open[session]
                self._last[session] = self._clock()

    def ended(self) -> list[str]:
        """Sessions without a request for longer than the SDK keeps them; each is returned once."""
        before = self._clock() - DEFAULT_SESSION_IDLE_TIMEOUT - 60
        # In the order of their last use: the oldest come first.
        found = list(itertools.takewhile(lambda session: self._last[session] < before, self._last))
        for session in found:
            del self._last[session]
        return found


def security(hosts: Sequence[str]) -> TransportSecuritySettings:
    """Which Host and Origin headers are accepted: those of these hosts, with any port."""
    ported = [f"{host}:*" for host in hosts]
    return TransportSecuritySettings(
        allowed_hosts=[*hosts, *ported],
        allowed_origins=[
            f"{scheme}://{host}" for scheme in ("http", "https") for host in (*hosts, *ported)
        ],
    )


async def _respond(
    send: Send, status: int, text: str, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    body = json.dumps({"error": text}).encode()
    start = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*start, *headers]})
    await send({"type": "http.response.body", "body": body})


async def _lifespan(app: McpApp, receive: Receive, send: Send) -> None:
    await receive()
    async with app.running():
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})


def serve(app: ASGIApp, host: str, port: int) -> None:
    """Serve until the process is stopped."""
    import uvicorn

    uvicorn.run(
        app,
        host=host.strip("[]"),
        port=port,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=3,
        h11_max_incomplete_event_size=64 * 1024,
        limit_concurrency=2000,
    )
