"""Over HTTP: a real server process, real clients, and what it refuses (FAULTS G 100-103, 109, 111)."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast import Holdfast
from holdfast.mcp.http import BODY_BYTES_MAX, BearerToken, Caller, McpApp, McpSessions
from holdfast.mcp.reach import Identity
from support.mcp_fuzz import message as fuzzed
from support.mcp_tasks import AGENTS, HOLDFAST, MODES, migration, run, waits
from support.waiting import PATIENCE_SECONDS

READER, WRITER = "reader-token-0123456789", "writer-token-0123456789"
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
ACCEPTS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def serving(folder: Path, *words: str, **env: str) -> Iterator[tuple[str, list[str]]]:
    """The address of `holdfast mcp --http`, and what it has printed before it listened."""
    command = [
        HOLDFAST,
        "mcp",
        "--http",
        f"127.0.0.1:{free_port()}",
        "--db",
        folder / "h.db",
        *words,
    ]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, **env}
    ) as process:
        assert process.stderr is not None
        said: list[str] = []
        try:
            for line in process.stderr:
                said.append(line)
                if found := re.search(r"http://\S+", line):
                    _until_it_listens(found[0])
                    yield found[0], said
                    break
            else:
                raise AssertionError(said)
        finally:
            process.terminate()


def _until_it_listens(address: str) -> None:
    from support.waiting import eventually

    def answers() -> bool:
        try:
            return request("GET", address).status_code == 401
        except httpx2.TransportError:
            return False

    eventually(answers, "an answer")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two tasks, and credentials for two identities."""
    made = tmp_path_factory.mktemp("http")
    with Holdfast(made / "h.db", agents=AGENTS) as hf:
        waits(hf, migration, "m", goal="Move billing")
    known = [
        {"as": "reader", "token": READER},
        {"as": "writer", "token": WRITER, "allow_agents": ["migration"]},
    ]
    file = made / "credentials"
    file.write_text(json.dumps(known), "utf-8")
    file.chmod(0o600)
    return made


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """One server for the tests of this module."""
    with serving(folder, "--credentials", str(folder / "credentials")) as (found, _):
        yield found


def request(method: str, address: str, **more: Any) -> httpx2.Response:
    """One request, without the certificates that a client for https loads."""
    return httpx2.request(method, address, timeout=60, verify=False, **more)


def post(address: str, token: str = WRITER, body: Any = PING, **headers: str) -> httpx2.Response:
    sent = {**ACCEPTS, "authorization": f"Bearer {token}", **headers}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return request("POST", address, content=content, headers=sent)


@contextmanager
def _http(token: str) -> Iterator[httpx2.AsyncClient]:
    yield httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60, verify=False)


@pytest.mark.parametrize("mode", MODES)
def test_a_client_works_over_http_as_the_identity_of_its_token(address: str, mode: str) -> None:
    """Both versions of the protocol: lists, reads, patches and is notified."""
    uri = "state://agents/migration/tasks/m"

    async def main() -> Any:
        import anyio

        updated = anyio.Event()

        async def handle(message: Any) -> None:
            if getattr(message, "method", "") == "notifications/resources/updated":
                updated.set()

        with _http(WRITER) as http:
            transport = streamable_http_client(address, http_client=http)
            async with http, Client(transport, mode=mode, message_handler=handle) as client:
                resources = [str(x.uri) for x in (await client.list_resources()).resources]
                facts = {"task_id": "m", "facts": [{"key": mode, "value": 1}]}
                if mode == "legacy":
                    await client.subscribe_resource(uri)
                    await client.call_tool("append_facts", facts)
                    await updated.wait()
                else:
                    async with client.listen(resource_subscriptions=[uri]) as changes:
                        await client.call_tool("append_facts", facts)
                        await anext(aiter(changes))
                found = await client.read_resource(uri)
                return client.protocol_version, resources, json.loads(found.contents[0].text)  # type: ignore[union-attr]

    version, resources, state = run(main())
    assert {"auto": "2026-07-28", "legacy": "2025-11-25"}[mode] == version
    assert uri in resources
    assert (mode, "mcp:writer") == tuple(state["known_facts"][-1][k] for k in ("key", "source"))


def test_another_token_reaches_only_its_own_tasks(address: str) -> None:
    """The credential decides, not the request."""

    async def main() -> Any:
        with _http(READER) as http:
            transport = streamable_http_client(address, http_client=http)
            async with http, Client(transport) as client:
                done = await client.call_tool("get_task", {"task_id": "m"})
                listed = await client.call_tool("list_tasks", {})
                return done.structured_content, listed.structured_content

    refused, listed = run(main())
    assert ("NoSuchRun", []) == (refused["error"], listed["tasks"])


def test_a_session_belongs_to_the_token_that_opened_it(address: str) -> None:
    """Another token cannot use it, not even to end it."""
    start = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "1"},
        },
    }
    session = post(address, WRITER, start).headers["mcp-session-id"]

    assert 404 == post(address, READER, **{"mcp-session-id": session}).status_code
    assert 200 == post(address, WRITER, **{"mcp-session-id": session}).status_code


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        f"Bearer {WRITER}x",
        f"Basic {WRITER}",
        WRITER,
        f"Bearer {WRITER[:-1]}",
        "Bearer \xe9",
    ],
)
def test_no_method_or_path_answers_without_a_token(address: str, authorization: str) -> None:
    """Closed by default (invariant 24); a token in the URL counts for nothing."""
    headers = {**ACCEPTS, "authorization": authorization.encode("latin-1")}
    for method in ("GET", "POST", "DELETE", "OPTIONS", "PUT"):
        for path in (address, address + f"?token={WRITER}", address.removesuffix("/mcp") + "/x"):
            found = request(method, path, headers=headers, content=b"{}")
            assert (401, "Bearer") == (found.status_code, found.headers["www-authenticate"])


def test_foreign_hosts_and_origins_are_refused(address: str) -> None:
    """DNS rebinding: a web page cannot use the server through the reader's browser."""
    port = address.split(":")[2].split("/", maxsplit=1)[0]

    assert 421 == post(address, host="evil.example").status_code
    assert 421 == post(address, host=f"127.0.0.1.evil.example:{port}").status_code
    assert 403 == post(address, origin="http://evil.example").status_code
    assert 403 == post(address, origin="null").status_code
    assert post(address, origin=f"http://localhost:{port}").status_code not in (403, 421)


def test_large_and_malformed_bodies_are_refused(address: str) -> None:
    """And the server still answers afterwards."""
    large = post(address, body=b"x" * (BODY_BYTES_MAX + 1))
    bodies = [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"jsonrpc":"2.0"}', b'"x"']
    codes = {post(address, body=body).status_code for body in bodies}
    plain = post(address, **{"content-type": "text/plain"})

    assert 413 == large.status_code
    assert {400} == codes
    assert plain.status_code in (400, 415)
    assert (
        404
        == request("GET", address + "/x", headers={"authorization": f"Bearer {WRITER}"}).status_code
    )


def test_a_new_token_is_printed_on_this_machine_only(folder: Path) -> None:
    """Without one, another address is refused before it listens."""
    with serving(folder, "--as", "migration") as (address, said):
        printed = said[0].split()[-1]
        assert 200 == _initialized(address, printed)
        assert 401 == _initialized(address, "x" + printed)
    words = [
        HOLDFAST,
        "mcp",
        "--as",
        "a",
        "--http",
        f"0.0.0.0:{free_port()}",
        "--db",
        folder / "h.db",
    ]
    for token, expected in ({}, "--token-file"), ({"HOLDFAST_MCP_TOKEN": WRITER}, "--allow-host"):
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=120, env={**os.environ, **token}
        )
        assert (1, True) == (done.returncode, expected in done.stderr), done.stderr


def _initialized(address: str, token: str) -> int:
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    return post(address, token, body).status_code


def test_sessions_that_are_idle_for_long_are_forgotten() -> None:
    """Not those with an open stream, however long it is open; and each once."""
    now = [0.0]
    sessions = McpSessions(lambda: now[0])
    with sessions.used("idle"):
        pass
    with sessions.used("streaming"):
        now[0] = 10_000
        with sessions.used("new"):
            pass
        assert ["idle"] == sessions.ended()
        assert [] == sessions.ended()
    now[0] = 20_000
    assert ["new", "streaming"] == sessions.ended()


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28", "1999-01-01", None])
def test_fuzzed_messages_over_http_do_not_bring_the_server_down(
    address: str, version: str | None
) -> None:
    """With the headers of either version, a wrong one, or none; it still answers a client."""
    chance = random.Random(7)
    headers = {} if version is None else {"mcp-protocol-version": version}
    for _ in range(200):
        sent = fuzzed(chance)
        if sent.get("method") == "subscriptions/listen":
            continue  # its answer is a stream that does not end
        assert post(address, body=sent, **headers).status_code < 500

    assert 200 == _initialized(address, WRITER)


def test_a_token_is_compared_by_its_digest() -> None:
    """It is not kept, and short ones are refused."""
    from holdfast.errors import InvalidInput

    made = BearerToken.of(WRITER, Identity("writer"))

    assert WRITER not in repr(made)
    with pytest.raises(InvalidInput, match="at least 20"):
        BearerToken.of("short", Identity("writer"))


# ── mounted in another application ───────────────────────────────────────────────────────────


@asynccontextmanager
async def mounted(hf: Holdfast, tokens: dict[str, Caller]) -> AsyncIterator[tuple[McpApp, Any]]:
    """The application below `/agents` of another one that knows these tokens, and a client of it."""

    async def authenticate(token: str) -> Caller | None:
        return tokens.get(token)

    app = McpApp(hf.store, authenticate, hosts=("holdfast.example",))
    outer = Starlette(routes=[Mount("/agents", app)])
    transport = httpx2.ASGITransport(outer)
    base = "http://holdfast.example/agents/mcp"
    async with app.running(), httpx2.AsyncClient(transport=transport, base_url=base) as client:
        yield app, client


def _message(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


INITIALIZE = _message(
    "initialize",
    protocolVersion="2025-11-25",
    capabilities={},
    clientInfo={"name": "x", "version": "1"},
)


def test_a_mounted_application_asks_its_owner_who_a_token_is_at_every_request(
    tmp_path: Path,
) -> None:
    """So that a revoked token is refused at once, also inside a session."""
    tokens = {"a": Caller("a", Identity("migration"))}

    async def main(hf: Holdfast) -> list[int]:
        async with mounted(hf, tokens) as (_, client):
            headers = {**ACCEPTS, "authorization": "Bearer a"}
            started = await client.post("", json=INITIALIZE, headers=headers)
            headers["mcp-session-id"] = started.headers["mcp-session-id"]
            works = await client.post("", json=_message("ping"), headers=headers)
            del tokens["a"]
            revoked = await client.post("", json=_message("ping"), headers=headers)
            return [started.status_code, works.status_code, revoked.status_code]

    with Holdfast(tmp_path / "h.db") as hf:
        assert [200, 200, 401] == run(main(hf))


@pytest.mark.parametrize("new", [None, Caller("a", Identity("other"))], ids=["revoked", "other"])
def test_a_stream_ends_when_its_token_is_revoked_or_reaches_other_agents(
    new: Caller | None, tmp_path: Path
) -> None:
    """A stream is one long request: it must not outlive what its token was allowed."""
    checked = asyncio.Event()

    class Tokens(dict[str, Caller]):
        asked = 0

        def get(self, token: str, default: Any = None) -> Any:
            self.asked += 1
            if self.asked == 3:  # for the first request, for the stream, and again while it is open
                checked.set()
            return super().get(token, default)

    tokens = Tokens(a=Caller("a", Identity("migration")))

    async def main(hf: Holdfast) -> int:
        async with mounted(hf, tokens) as (_, client):
            headers = {**ACCEPTS, "authorization": "Bearer a"}
            started = await client.post("", json=INITIALIZE, headers=headers)
            headers["mcp-session-id"] = started.headers["mcp-session-id"]
            stream = asyncio.create_task(client.get("", headers=headers, timeout=None))
            await checked.wait()
            assert not stream.done()
            if new is None:
                del tokens["a"]
            else:
                tokens["a"] = new
            async with asyncio.timeout(PATIENCE_SECONDS):
                return int((await stream).status_code)

    with Holdfast(tmp_path / "h.db") as hf:
        assert 200 == run(main(hf))


def test_another_credential_cannot_end_the_subscriptions_of_a_session(tmp_path: Path) -> None:
    """Not even of the same agent; the session's own credential can."""
    tokens = {name: Caller(name, Identity("migration")) for name in ("a", "b")}

    async def main(hf: Holdfast, uri: str) -> list[int]:
        async with mounted(hf, tokens) as (app, client):
            headers = {**ACCEPTS, "authorization": "Bearer a"}
            started = await client.post("", json=INITIALIZE, headers=headers)
            headers["mcp-session-id"] = started.headers["mcp-session-id"]
            await client.post("", json=_message("resources/subscribe", uri=uri), headers=headers)
            seen = [app.server.feed.watches]
            for token in ("b", "a"):
                await client.delete("", headers={**headers, "authorization": f"Bearer {token}"})
                seen.append(app.server.feed.watches)
            return seen

    with Holdfast(tmp_path / "h.db") as hf:
        assert [1, 1, 0] == run(main(hf, waits(hf, migration, "m", goal="x")))
