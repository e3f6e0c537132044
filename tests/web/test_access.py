"""Every route without, with a wrong, and with too weak a credential (FAULTS G 100-103, 109, 111)."""

from __future__ import annotations

import itertools
import re

import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from holdfast import Holdfast
from holdfast.api.operations import OPERATIONS, Operation
from holdfast.control.roles import ALLOWED, ROLES
from holdfast.web.app import create_app
from support.web import NAMES, TOKENS, call, credentials

WRONG = [
    "",
    "Bearer",
    "Bearer hf_wrong",
    f"Basic {TOKENS['admin']}",
    TOKENS["admin"],
    f"Bearer {TOKENS['admin']}x",
]
WEAK = [(op, role) for op in OPERATIONS for role in ROLES if op.needs not in ALLOWED[role]]


def routes(client: TestClient) -> list[tuple[str, str]]:
    """Every route of the application with every method that it takes."""
    found = client.app.routes  # type: ignore[attr-defined]
    parts = {"run_id": "r", "name": "n", "hash": "h", "schedule_id": "s", "secret": "x"}
    return [
        (method, re.sub(r"\{(\w+)(?::\w+)?\}", lambda part: parts.get(part[1], "1"), route.path))
        for route in found
        if isinstance(route, Route)
        for method in route.methods or ()
    ]


def test_only_signing_in_and_liveness_answer_without_a_credential(client: TestClient) -> None:
    """Also routes that do not exist: who is not signed in cannot tell."""
    client.headers.pop("authorization")
    is_open = {"/healthz", "/login", "/login/x"}
    for (method, path), given in itertools.product([*routes(client), ("GET", "/nothing")], WRONG):
        headers = {"authorization": given} if given else {}
        found = client.request(method, path, headers=headers, follow_redirects=False)
        if path in is_open or path.startswith("/static/"):
            continue
        assert found.status_code in (401, 303), (method, path, given, found.status_code)
        assert found.status_code == 401 or found.headers["location"].startswith("/login?next=")


def test_a_token_in_the_url_is_ignored(client: TestClient) -> None:
    client.headers.pop("authorization")
    assert 401 == client.get(f"/api/v1/runs?token={TOKENS['admin']}").status_code


@pytest.mark.parametrize(("op", "role"), WEAK, ids=[f"{op.verb}-{role}" for op, role in WEAK])
def test_a_role_without_permission_is_refused_for_every_request(
    client: TestClient, op: Operation, role: str
) -> None:
    """And the problem names the role that may."""
    headers = {"authorization": f"Bearer {TOKENS[role]}"}
    for body in (None, {}, {"nonsense": 1}):
        found = call(client, op, body, headers)
        assert (403, "urn:holdfast:problem:access-denied") == (
            found.status_code,
            found.json()["type"],
        )
        assert NAMES[role] in found.json()["detail"]


def test_a_read_only_server_refuses_every_change(hf: Holdfast) -> None:
    app = create_app(hf, credentials=credentials(), read_only=True)
    headers = {"authorization": f"Bearer {TOKENS['admin']}"}
    with TestClient(app, base_url="http://127.0.0.1", headers=headers) as client:
        for op in OPERATIONS:
            found = call(client, op, None, {})
            assert (found.status_code == 403) == op.changes, op.verb


def test_foreign_hosts_and_origins_are_refused(client: TestClient) -> None:
    """DNS rebinding, and pages of other sites."""
    for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:80", "[::1]evil", ""):
        assert 421 == client.get("/api/v1/whoami", headers={"host": host}).status_code, host
    for origin in ("http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1:1", ""):
        headers = {"origin": origin}
        assert 403 == client.get("/api/v1/whoami", headers=headers).status_code, origin
    assert 200 == client.get("/api/v1/whoami", headers={"origin": "http://127.0.0.1"}).status_code


def test_every_response_has_the_security_headers(client: TestClient) -> None:
    streams = {"/runs/live"}  # it does not end
    for method, path in routes(client):
        if path in streams:
            continue
        found = client.request(method, path, follow_redirects=False)
        assert "script-src 'self'" in found.headers["content-security-policy"], path
        assert "nosniff" == found.headers["x-content-type-options"]


def test_large_bodies_are_refused_with_and_without_a_content_length(client: TestClient) -> None:
    def endless() -> object:
        for _ in range(40):
            yield b"x" * 65536

    headers = {"content-type": "application/json"}
    announced = client.post("/api/v1/runs", content=b"x" * (1024 * 1024 + 1), headers=headers)
    streamed = client.post("/api/v1/runs", content=endless(), headers=headers)  # type: ignore[arg-type]
    assert [413, 413] == [announced.status_code, streamed.status_code]
