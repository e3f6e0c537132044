"""What every request passes before a handler sees it, and every response on its way out.

In this order: host, origin, rate, who it is, size of the body, CSRF. Security headers are set here, for every response.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import Final
from urllib.parse import parse_qs, quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.api.problems import Problem, problem, problem_of
from holdfast.errors import HoldfastError
from holdfast.web.auth import CSRF_FIELD, CSRF_HEADER, NotSignedIn, Principal, identify
from holdfast.web.context import Server
from holdfast.web.pages import error_page
from holdfast.web.pages.site import FIELDS_MAX
from holdfast.web.problems import is_for_programs, path_of, problem_response
from holdfast.web.rates import Rates

SAFE_METHODS: Final = ("GET", "HEAD", "OPTIONS")
OPEN_PATHS: Final = ("/login", "/healthz")
"""What needs no credential: signing in, and whether the server is alive."""
OPEN_PREFIXES: Final = ("/login/", "/static/")
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not no-referrer: a browser would send `Origin: null` with forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
"""Set unless the handler has set them, except the first two, which are always these."""


class TooLarge(Exception):
    """The body has more bytes than are allowed."""


class TooSlow(Exception):
    """The body did not arrive in time."""


class Guard:
    """The one middleware."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self._app, self._server = app, server
        self._rates = Rates(server.limits.requests_per_second, server.limits.requests_burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        body = _Body(receive, self._server, scope)
        guarded = _Headers(send)
        refused = await self._refusal(scope, body)
        if refused is not None:
            await refused(scope, body.receive, guarded.send)
            return
        try:
            await self._app(scope, body.receive, guarded.send)
        except (TooLarge, TooSlow) as error:
            if not guarded.has_started:
                await _body_refused(error, self._server)(scope, receive, guarded.send)

    async def _refusal(self, scope: Scope, body: _Body) -> Response | None:
        """Why a request is refused, or None; the principal is set if there is one."""
        server, headers = self._server, Headers(scope=scope)
        _trust_scheme(server, scope, headers)
        host = headers.get("host", "")
        if not _host_allowed(server.hosts, host):
            said = f"{host[:200]!r} is not a host name of this server; the operator allows it with `holdfast serve --allow-host NAME`"
            return problem_response(problem("wrong-host", 421, said))
        origin = headers.get("origin")
        if origin is not None and not _same_origin(origin, scope, host):
            return problem_response(
                problem("wrong-origin", 403, f"requests from {origin[:200]!r} are refused")
            )
        wait = self._rates.take(_rate_key(scope, headers))
        if wait > 0:
            said = f"too many requests; try again in {wait:.0f} seconds"
            return problem_response(
                problem("too-many-requests", 429, said), {"retry-after": f"{wait:.0f}"}
            )
        try:
            who = identify(server, scope)
        except HoldfastError as error:
            # A name that cannot be one, a credentials file that cannot be read.
            return problem_response(problem_of(error))
        scope.setdefault("state", {})["principal"] = who
        if who is None and not _is_open(scope):
            return _sign_in_first(scope, headers)
        try:
            body.refuse_announced()
            if who is not None and not await _has_csrf(who, scope, headers, body):
                said = "the form has expired or was sent by another page; load the page again and repeat it"
                return _refused(scope, problem("csrf", 403, said))
        except (TooLarge, TooSlow) as error:
            return _body_refused(error, server)
        return None


def _refused(scope: Scope, problem: Problem) -> Response:
    """For a person who has sent a form, a page; for a program, JSON."""
    request = Request(scope)
    return problem_response(problem) if is_for_programs(request) else error_page(request, problem)


def _trust_scheme(server: Server, scope: Scope, headers: Headers) -> None:
    """A trusted proxy says whether the browser uses HTTPS."""
    peer = scope.get("client")
    if server.proxy is not None and peer is not None and peer[0] in server.proxy.addresses:
        said = headers.get("x-forwarded-proto", "")
        if said in ("http", "https"):
            scope["scheme"] = said


def _host_allowed(hosts: tuple[str, ...], host: str) -> bool:
    if "*" in hosts:
        return True
    name, colon, port = host.rpartition(":")
    if colon and port.isdecimal():
        host = name
    return host.lower() in hosts


def _same_origin(origin: str, scope: Scope, host: str) -> bool:
    """Whether a browser sends this from one of our own pages."""
    try:
        found = urlsplit(origin)
    except ValueError:
        return False
    return found.scheme == scope.get("scheme", "http") and found.netloc.lower() == host.lower()


def _rate_key(scope: Scope, headers: Headers) -> str:
    """Whose requests are counted together: those of one token; without one, of one address."""
    peer = scope.get("client") or ("", 0)
    given = headers.get("authorization", "")
    return f"{peer[0]} {hash(given) if given else ''}"


def _is_open(scope: Scope) -> bool:
    path = path_of(HTTPConnection(scope))
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIXES)


def _sign_in_first(scope: Scope, headers: Headers) -> Response:
    connection = HTTPConnection(scope)
    root = scope.get("root_path", "")
    if is_for_programs(connection) or scope["method"] not in SAFE_METHODS:
        status = {"www-authenticate": "Bearer"}
        found = problem_of(NotSignedIn())
        return problem_response(problem("not-signed-in", 401, found.detail), status)
    if "hx-request" in headers:  # a fragment must not be replaced by the sign-in page
        return Response(status_code=401, headers={"hx-redirect": f"{root}/login"})
    query = scope.get("query_string", b"").decode("latin-1")
    target = path_of(connection) + (f"?{query}" if query else "")
    return RedirectResponse(f"{root}/login?next={quote(target, safe='')}", 303)


async def _has_csrf(who: Principal, scope: Scope, headers: Headers, body: _Body) -> bool:
    """Whether a request that a browser signs in by itself comes from a page of ours."""
    if scope["method"] in SAFE_METHODS or not who.is_ambient:
        return True
    given = headers.get(CSRF_HEADER, "")
    if not given and headers.get("content-type", "").startswith(
        "application/x-www-form-urlencoded"
    ):
        try:
            fields = parse_qs((await body.whole()).decode("latin-1"), max_num_fields=FIELDS_MAX)
        except ValueError:  # too many
            return False
        given = fields.get(CSRF_FIELD, [""])[0]
    return hmac.compare_digest(given.encode(), who.csrf.encode())


def _body_refused(error: Exception, server: Server) -> Response:
    if isinstance(error, TooSlow):
        found = problem("body-too-slow", 408, "the body of the request did not arrive in time")
    else:
        limit = f"{server.limits.body_bytes:,}"
        found = problem(
            "body-too-large", 413, f"the body of a request may have up to {limit} bytes"
        )
    return problem_response(found, {"connection": "close"})


class _Body:
    """The body of a request, with a limit on its size and its time. It can be read ahead and given again."""

    def __init__(self, receive: Receive, server: Server, scope: Scope) -> None:
        self._receive, self._scope = receive, scope
        self._most, self._seconds = server.limits.body_bytes, server.limits.body_seconds
        self._count = 0
        self._until: float | None = None
        self._ended = False
        self._ahead: list[Message] = []

    def refuse_announced(self) -> None:
        """Refuse a body that is announced to be too large, before any of it is read."""
        announced = Headers(scope=self._scope).get("content-length", "0")
        if announced.isdecimal() and int(announced[:20]) > self._most:
            raise TooLarge

    async def whole(self) -> bytes:
        """All of it; handlers still get it from `receive`."""
        while not self._ended:
            self._ahead.append(await self._next())
        return b"".join(message.get("body", b"") for message in self._ahead)

    async def receive(self) -> Message:
        return self._ahead.pop(0) if self._ahead else await self._next()

    async def _next(self) -> Message:
        if self._ended:
            return await self._receive()  # waits until the client disconnects
        if self._until is None:
            # All of it in this time: else a byte now and then would hold it open.
            self._until = asyncio.get_running_loop().time() + self._seconds
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise TooSlow from None
        self._count += len(message.get("body", b""))
        if self._count > self._most:
            raise TooLarge
        self._ended = message["type"] != "http.request" or not message.get("more_body", False)
        return message


class _Headers:
    """Adds the security headers to a response."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_started = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            headers = MutableHeaders(scope=message)
            for number, (name, value) in enumerate(HEADERS.items()):
                if number < 2:
                    headers[name] = value
                else:
                    headers.setdefault(name, value)
        await self._send(message)
