"""Who sends a request: a bearer token, a session cookie, or a trusted proxy's header. And what he may do.

The name that is found here is what logs record as `by`. Nothing in the body of a request changes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request
from starlette.types import Scope

from holdfast.control import roles
from holdfast.control.roles import READS, Role
from holdfast.errors import AccessDenied
from holdfast.web.context import Server, server_of
from holdfast.web.credentials import check_name

CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "x-csrf-token"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sends a request, and as what. It is at `request.state.principal`."""

    name: str
    role: Role
    how: str = "token"
    """token, session or proxy. The last two are sent by browsers on their own, so forms need a CSRF token."""
    csrf: str = ""
    """What forms must send back, as the field `csrf` or the header X-CSRF-Token."""

    @property
    def is_ambient(self) -> bool:
        return self.how != "token"


class NotSignedIn(AccessDenied):
    """The request has no valid credential."""

    def __init__(self) -> None:
        super().__init__(
            "a valid credential is needed: Authorization: Bearer TOKEN; "
            "the operator creates one with `holdfast token create NAME --role viewer`"
        )


def principal_of(request: HTTPConnection) -> Principal:
    """Who sent this request. Every request behind the guard has been signed in."""
    found: Principal | None = getattr(request.state, "principal", None)
    if found is None:
        raise NotSignedIn
    return found


def allows(request: Request, verb: str) -> bool:
    """Whether who sent this request may use a verb: for buttons. `require` is the check."""
    if server_of(request).read_only and verb not in READS:
        return False
    return roles.is_allowed(principal_of(request).role, verb)


def require(request: Request, verb: str) -> Principal:
    """Who sent this request, if he may use this verb; else AccessDenied. Every handler calls it once."""
    who = principal_of(request)
    roles.check_allowed(who.name, who.role, verb)
    if server_of(request).read_only and verb not in READS:
        raise AccessDenied(f"this server is read-only; {verb} is not possible here")
    return who


# ── finding out ──────────────────────────────────────────────────────────────────────────────


def cookie_name(scope: Scope) -> str:
    """Over HTTPS the cookie is bound to this host. Plain HTTP is for this machine, where cookies of all ports are
    shared, so the port is part of the name."""
    if scope.get("scheme") == "https":
        return "__Host-holdfast"
    address = scope.get("server") or ("", 0)
    return f"holdfast-{address[1]}"


def identify(server: Server, scope: Scope) -> Principal | None:
    """Who sends a request, by its headers and its peer."""
    headers = Headers(scope=scope)
    if "authorization" in headers:
        return _by_token(server, headers)
    return _by_proxy(server, scope, headers) or _by_session(server, scope)


def _by_token(server: Server, headers: Headers) -> Principal | None:
    given = headers.getlist("authorization")
    if len(given) != 1:
        return None
    scheme, _, token = given[0].partition(" ")
    found = server.credentials.find(token.strip()) if scheme.lower() == "bearer" else None
    return None if found is None else Principal(found.name, found.role)


def _by_session(server: Server, scope: Scope) -> Principal | None:
    cookie = HTTPConnection(scope).cookies.get(cookie_name(scope), "")
    session = server.sessions.find(cookie) if cookie else None
    if session is None:
        return None
    role = session.role
    if session.credential:
        credential = server.credentials.named(session.name)
        if credential is None or credential.digest != session.credential:
            return None  # it was revoked
        role = credential.role
    return Principal(session.name, role, "session", server.sessions.csrf(cookie))


def _by_proxy(server: Server, scope: Scope, headers: Headers) -> Principal | None:
    proxy, peer = server.proxy, scope.get("client")
    if proxy is None or peer is None or peer[0] not in proxy.addresses:
        return None
    given = headers.getlist(proxy.header)
    if len(given) != 1 or not given[0]:
        return None
    name = check_name(given[0])
    credential = server.credentials.named(name)
    role = credential.role if credential is not None else proxy.default_role
    if not role:
        return None
    return Principal(name, roles.check_role(role), "proxy", server.sessions.csrf(f"proxy {name}"))
