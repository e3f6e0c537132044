"""Signing in with a browser, by a link, by a proxy; forms and sessions (FAULTS G 100, 102, 103, 111)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from holdfast import Holdfast
from holdfast.errors import InvalidInput
from holdfast.web.app import create_app
from holdfast.web.context import ClientLimits, Server, TrustedProxy
from holdfast.web.credentials import Credentials
from holdfast.web.rates import Rates
from holdfast.web.sessions import LINK_SECONDS, SESSION_SECONDS, WebSessions
from support.web import TOKENS, credentials


@contextmanager
def browser(hf: Holdfast, url: str = "http://127.0.0.1", **options: Any) -> Iterator[TestClient]:
    """A browser that is not signed in."""
    app = create_app(hf, **{"credentials": credentials(), **options})
    with TestClient(app, base_url=url, follow_redirects=False) as made:
        yield made


def server_of(client: TestClient) -> Server:
    found: Server = client.app.state.server  # type: ignore[attr-defined]
    return found


def sign_in(client: TestClient, role: str = "operator") -> str:
    """Sign in; the CSRF token of the session's forms."""
    found = client.post("/login", data={"token": TOKENS[role]})
    assert 303 == found.status_code
    (cookie,) = client.cookies.values()
    return server_of(client).sessions.csrf(cookie)


def test_a_page_redirects_to_the_sign_in_and_back(hf: Holdfast) -> None:
    with browser(hf) as client:
        found = client.get("/?x=1")
        assert (303, "/login?next=%2F%3Fx%3D1") == (found.status_code, found.headers["location"])
        wrong = client.post("/login", data={"token": "hf_wrong"})
        assert (401, {}) == (wrong.status_code, dict(client.cookies))
        right = client.post("/login?next=%2F%3Fx%3D1", data={"token": TOKENS["approver"]})
        assert (303, "/?x=1") == (right.status_code, right.headers["location"])
        assert 200 == client.get("/runs").status_code
        fragment = client.get("/", headers={"hx-request": "true", "cookie": ""})
        assert (401, "/login") == (fragment.status_code, fragment.headers["hx-redirect"])


@pytest.mark.parametrize(
    "target",
    ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:x", "/a\nb", ""],
)
def test_signing_in_never_redirects_to_another_site(hf: Holdfast, target: str) -> None:
    with browser(hf) as client:
        found = client.post("/login", params={"next": target}, data={"token": TOKENS["viewer"]})
        assert "/" == found.headers["location"]


def test_cookies_are_strict_and_over_https_bound_to_the_host(hf: Holdfast) -> None:
    for url, expected in (
        ("http://127.0.0.1", ["httponly", "samesite=strict", "path=/"]),
        ("https://127.0.0.1", ["httponly", "samesite=strict", "path=/", "secure"]),
    ):
        with browser(hf, url) as client:
            set_ = client.post("/login", data={"token": TOKENS["viewer"]}).headers["set-cookie"]
            assert all(word in set_.lower() for word in expected), set_
            assert set_.startswith("__Host-") == ("secure" in expected)


def test_a_form_without_the_sessions_token_is_refused(hf: Holdfast) -> None:
    """Neither another session's token nor that of signing out works; JSON needs it as a header."""
    url, body = "/api/v1/runs", {"agent": "job"}
    with browser(hf) as client:
        csrf = sign_in(client)
        other = server_of(client).sessions.csrf("another cookie")
        assert 403 == client.post(url, json=body).status_code
        assert 403 == client.post(url, json=body, headers={"x-csrf-token": other}).status_code
        assert 403 == client.post("/logout").status_code
        assert 403 == client.post("/logout", data={"csrf": other}).status_code
        assert [] == hf.runs()
        assert 201 == client.post(url, json=body, headers={"x-csrf-token": csrf}).status_code
        assert 303 == client.post("/logout", data={"csrf": csrf}).status_code
        assert 303 == client.get("/").status_code


def test_a_session_ends_with_its_credential_and_has_the_credentials_current_role(
    hf: Holdfast, tmp_path: Path
) -> None:
    known = Credentials(tmp_path / "credentials.json")
    token = known.create("ann", "viewer")
    with browser(hf, credentials=tmp_path / "credentials.json") as client:
        assert 303 == client.post("/login", data={"token": token}).status_code
        assert 200 == client.get("/runs").status_code
        known.revoke("ann")
        token = known.create("ann", "admin")  # of the same name, but not the same
        assert 303 == client.get("/runs").status_code
        assert 303 == client.post("/login", data={"token": token}).status_code
        assert 200 == client.get("/runs").status_code
        known.revoke("ann")
        assert 303 == client.get("/runs").status_code


def test_sessions_and_links_expire_and_links_work_once() -> None:
    now = [0.0]
    sessions = WebSessions(lambda: now[0])
    cookie, link, late = (
        sessions.open("ann", "viewer", "x"),
        *(sessions.link("ann", "admin") for _ in "12"),
    )
    assert sessions.follow(link) is not None
    assert sessions.follow(link) is None
    assert sessions.find(cookie) is not None
    assert sessions.find(cookie + "x") is None
    now[0] = LINK_SECONDS + 1
    assert sessions.follow(late) is None
    now[0] = SESSION_SECONDS + 1
    assert sessions.find(cookie) is None


def test_the_header_of_a_proxy_is_used_only_from_its_address(hf: Holdfast) -> None:
    header = {"x-user": "ann"}
    with browser(hf, proxy=TrustedProxy("x-user", frozenset({"testclient"}))) as client:
        found = client.get("/api/v1/whoami", headers=header).json()
        assert ("ann", "approver") == (found["name"], found["role"])
        assert 401 == client.get("/api/v1/whoami", headers={"x-user": "unknown"}).status_code
        assert 422 == client.get("/api/v1/whoami", headers={"x-user": "a b"}).status_code
        twice = [("x-user", "ann"), ("x-user", "ada")]
        assert 401 == client.get("/api/v1/whoami", headers=twice).status_code  # type: ignore[arg-type]
        assert 403 == client.post("/api/v1/gc", json={}, headers={"x-user": "ada"}).status_code
        token = server_of(client).sessions.csrf("proxy ada")
        sent = {"x-user": "ada", "x-csrf-token": token}
        assert 200 == client.post("/api/v1/gc", json={"keep": 1}, headers=sent).status_code
        https = {"x-user": "ada", "x-forwarded-proto": "https", "origin": "https://127.0.0.1"}
        assert 200 == client.get("/api/v1/whoami", headers=https).status_code
    with browser(hf, proxy=TrustedProxy("x-user", frozenset({"10.0.0.5"}))) as client:
        assert 401 == client.get("/api/v1/whoami", headers=header).status_code
    for proxy in (TrustedProxy("x-user", frozenset({"testclient"}), "viewer"),):
        with browser(hf, proxy=proxy) as client:
            found = client.get("/api/v1/whoami", headers={"x-user": "new"}).json()
            assert ("new", "viewer") == (found["name"], found["role"])


def test_rates_are_limited_per_client_and_for_signing_in(hf: Holdfast) -> None:
    with browser(hf, limits=ClientLimits(requests_per_second=0.01, requests_burst=3)) as client:
        codes = [client.get("/healthz") for _ in range(5)]
        assert [200, 200, 200, 429, 429] == [found.status_code for found in codes]
        assert int(codes[-1].headers["retry-after"]) >= 1
    with browser(hf, limits=ClientLimits(signins_per_minute=2)) as client:
        wrong = [client.post("/login", data={"token": "x"}).status_code for _ in range(4)]
        assert [401, 401, 429, 429] == wrong


def test_a_rate_recovers_with_time() -> None:
    now = [100.0]
    rates = Rates(1, 2, lambda: now[0])
    assert [0, 0] == [rates.take("a"), rates.take("a")]
    assert rates.take("a") >= 1
    assert 0 == rates.take("b")
    now[0] += 1
    assert 0 == rates.take("a")
    assert rates.take("a") >= 1


def test_it_can_be_mounted_in_another_application(hf: Holdfast, tmp_path: Path) -> None:
    """Without its lifespan; links lead below the path where it is mounted."""
    app = FastAPI()
    app.mount("/inner", create_app(tmp_path / "h.db", credentials=credentials(), hosts=["*"]))
    client = TestClient(app, base_url="http://runs.example.com", follow_redirects=False)
    assert "/inner/login?next=%2F" == client.get("/inner/").headers["location"]
    found = client.post("/inner/login?next=%2F", data={"token": TOKENS["admin"]})
    assert "/inner/" == found.headers["location"]
    headers = {"authorization": f"Bearer {TOKENS['operator']}"}
    made = client.post("/inner/api/v1/runs", json={"agent": "job"}, headers=headers)
    assert (201, True) == (made.status_code, made.headers["location"].startswith("/inner/api/v1/"))
    assert 404 == client.get("/inner/api/v1/nothing", headers=headers).status_code
    client.cookies.clear()
    assert 401 == client.get("/inner/api/v1/runs").status_code


def test_a_credentials_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    Credentials(file).create("ann", "viewer")
    file.chmod(0o644)
    with pytest.raises(InvalidInput, match="chmod 600"):
        Credentials(file).all()
    file.write_text("{}", "utf-8")
    file.chmod(0o600)
    os.utime(file)
    with pytest.raises(InvalidInput, match="not a credentials file"):
        Credentials(file).all()
