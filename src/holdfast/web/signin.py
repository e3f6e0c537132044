"""Signing in with a browser: by a token, or by a one-time link. And out."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from holdfast.api.problems import problem
from holdfast.web import pages
from holdfast.web.auth import cookie_name
from holdfast.web.context import Server, server_of
from holdfast.web.problems import problem_response
from holdfast.web.rates import Rates
from holdfast.web.sessions import SESSION_SECONDS, WebSession


def routes(server: Server) -> list[Route]:
    attempts = Rates(server.limits.signins_per_minute / 60, server.limits.signins_per_minute)

    async def login(request: Request) -> Response:
        if request.method in ("GET", "HEAD"):
            return pages.login_page(request)
        if wait := attempts.take(request.client.host if request.client else ""):
            said = f"too many attempts to sign in; try again in {wait:.0f} seconds"
            return problem_response(
                problem("too-many-requests", 429, said), {"retry-after": f"{wait:.0f}"}
            )
        form = await request.form()
        token = str(form.get("token", "")).strip()
        found = server.credentials.find(token)
        if found is None:
            return pages.login_page(request, message="This token is not valid.", status=401)
        return _signed_in(request, WebSession(found.name, found.role, found.digest, 0.0))

    async def follow(request: Request) -> Response:
        found = server.sessions.follow(request.path_params["secret"])
        if found is None:
            said = "This link has been used or has expired. Sign in with a token, or restart the server for a new link."
            return pages.login_page(request, message=said, status=401)
        return _signed_in(request, found)

    return [
        Route("/login", login, methods=["GET", "POST"], name="login"),
        Route("/login/{secret}", follow, methods=["GET"], name="login-link"),
        Route("/logout", logout, methods=["POST"], name="logout"),
    ]


async def logout(request: Request) -> Response:
    name = cookie_name(request.scope)
    server_of(request).sessions.close(request.cookies.get(name, ""))
    response = RedirectResponse(request.url_for("login").path, 303)
    response.delete_cookie(name, path=_cookie_path(request))
    return response


def _signed_in(request: Request, who: WebSession) -> Response:
    cookie = server_of(request).sessions.open(who.name, who.role, who.credential)
    response = RedirectResponse(_target(request), 303)
    response.set_cookie(
        cookie_name(request.scope),
        cookie,
        max_age=SESSION_SECONDS,
        path=_cookie_path(request),
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return response


def _cookie_path(request: Request) -> str:
    """`__Host-` cookies are for the whole host."""
    root: str = request.scope.get("root_path", "")
    return "/" if request.url.scheme == "https" or not root else root


def _target(request: Request) -> str:
    """Where to go then: a path of ours, never another site."""
    asked = request.query_params.get("next", "")
    root: str = request.scope.get("root_path", "")
    is_path = asked.startswith("/") and not asked.startswith(("//", "/\\"))
    is_clean = asked.isprintable() and "\\" not in asked
    return root + (asked if is_path and is_clean else "/")
