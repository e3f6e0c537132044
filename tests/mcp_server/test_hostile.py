"""Hostile input: malformed URIs, traversal, injection, huge patches, and a fuzzed JSON-RPC layer (FAULTS G)."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import anyio
import hypothesis
import pytest
from hypothesis import strategies as st
from mcp import Client
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from holdfast import Holdfast
from holdfast.errors import InvalidInput
from holdfast.mcp import uris
from holdfast.mcp.reach import Identity
from holdfast.mcp.server import HoldfastServer
from support.mcp_fuzz import message
from support.mcp_tasks import call, connected, migration, refusal, run, talk, waits

ME = Identity("migration")
URIS = [
    "",
    " ",
    "/",
    "state:",
    "state://",
    "state://agent",
    "state://agents/",
    "STATE://agents",
    "file:///etc/passwd",
    "http://127.0.0.1/",
    "state://agents/migration",
    "state://agents/migration/",
    "state://agents/migration/tasks/",
    "state://agents//tasks/m",
    "state://agents/migration/tasks/../m",
    "state://agents/migration/tasks/%2e%2e",
    "state://agents/migration/tasks/m/../../..",
    "state://agents/migration/tasks/..%2f..%2fetc%2fpasswd",
    "state://agents/migration/tasks/m/artifacts/",
    "state://agents/migration/tasks/m/steps/-1",
    "state://agents/migration/tasks/m/steps/1e3",
    "state://agents/migration/tasks/m/steps/" + "9" * 400,
    "state://agents/migration/tasks/m/steps/١",
    "state://agents/migration/tasks/m/events?after=-1",
    "state://agents/migration/tasks/m/events?after=1&after=2",
    "state://agents/migration/tasks/m/events?x=1",
    "state://agents/migration/tasks/m?after=x",
    "state://agents/migration/tasks/m#x",
    "state://agents/migration/tasks/m%00",
    "state://agents/migration/tasks/%ff",
    "state://agents/migration/tasks/%zz",
    "state://agents/migration/tasks/%",
    "state://agents/migration/tasks/m' OR '1'='1",
    "state://agents/migration/tasks/m%27%20OR%201=1--",
    "state://agents/%2A/tasks/m",
    "state://agents/*/tasks",
    "state://agents/migration/tasks/m\n",
    "state://agents/migration/tasks/" + "a" * 300,
    "state://agents/" + "a" * 5000,
    "state://agents/migration/tasks?status=' OR 1=1",
    "state://agents/\u202e/tasks/m",
    "state://agents/migration/tasks?cursor=-1",
    "state://agents/migration/tasks?cursor=9.9.9",
    "state://agents/migration/tasks?cursor=7." + "9" * 30,
    "state://agents/migration/tasks/m/value?path=x",
    "state://agents/migration/tasks/m/value?path=/__class__",
    "state://agents/migration/tasks/m/value?path=/~2",
    "state://agents/migration/tasks/m/value?path=/steps/99999999999",
    "state://user:pw@agents/migration/tasks/m",
    "state://agents/migration/tasks/m/artifacts/..%2F..%2Fh.db",
    "state://agents/migration/tasks/m/artifacts/nope",
    "state://agents/{agent_id}/tasks/{task_id}",
    "state://agents/migration/tasks/$(id)",
    "state://agents?" + "a=1&" * 500,
]


@pytest.mark.parametrize("uri", URIS, ids=lambda uri: repr(uri)[:40])
def test_a_uri_that_is_not_a_resource_is_refused_with_a_reason(tmp_path: Path, uri: str) -> None:
    """As invalid or not found, never as an internal error."""
    with Holdfast(tmp_path / "h.db") as hf:
        waits(hf, migration, "m", goal="x")

        async def look(client: Client) -> MCPError:
            with pytest.raises(MCPError) as refused:
                await client.read_resource(uri)
            return refused.value

        found = talk(hf.store, ME, look)

    assert found.code in (-32602, -32002)
    assert found.message
    assert len(found.message) <= 1000


@hypothesis.given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=40))
def test_every_name_survives_a_uri(agent: str, name: str, path: str) -> None:
    """What is built is read back as it was; nothing in a name leads elsewhere."""
    hypothesis.assume(agent not in ("", ".", "..") and name not in ("", ".", ".."))
    hypothesis.assume("\0" not in agent + name)
    for text in (agent, name, path):
        hypothesis.assume(text.isprintable() or text.encode("utf-8", "ignore").decode() == text)
    made = uris.task(agent, "m", "artifacts", name)
    hypothesis.assume(len(made) <= uris.LENGTH_MAX)
    found = uris.parse(made)

    assert (agent, "m", name) == (found.agent, found.task, found.name)
    assert path == uris.parse(uris.task(agent, "m", "value", path=path)).path


@hypothesis.given(st.text(alphabet="/%.?#&=~:ab2eE\\ \0é", max_size=40))
def test_any_text_after_the_root_is_read_or_refused(rest: str) -> None:
    """No other error leaves the parser."""
    for begin in ("state://agents", "state://agents/a/tasks/", "state://agents/a/tasks/m/"):
        try:
            found = uris.parse(begin + rest)
        except InvalidInput:
            continue
        assert ".." not in (found.agent, found.task, found.name)


BAD_CALLS: list[tuple[str, Any]] = [
    ("get_task", {}),
    ("get_task", {"task_id": None}),
    ("get_task", {"task_id": ["m"]}),
    ("get_task", {"task_id": "../../etc/passwd"}),
    ("get_task", {"task_id": "m'; DROP TABLE runs; --"}),
    ("get_task", {"task_id": "m", "agent_id": "other"}),
    ("list_tasks", {"status": "' OR 1=1 --"}),
    ("list_tasks", {"limit": 0}),
    ("list_tasks", {"limit": "10; DROP TABLE runs"}),
    ("list_tasks", {"limit": 10**30}),
    ("list_tasks", {"cursor": "0.1; SELECT"}),
    ("list_tasks", {"cursor": "999.1"}),
    ("wait_for_change", {"task_id": "m", "after_version": 0, "timeout_seconds": 1e9}),
    ("wait_for_change", {"task_id": "m", "after_version": -5}),
    ("patch_task", {"task_id": "m", "expected_version": True, "state": {"a": 1}}),
    ("patch_task", {"task_id": "m", "expected_version": 1.5, "state": {"a": 1}}),
    ("patch_task", {"task_id": "m", "expected_version": 8}),
    ("patch_task", {"task_id": "m", "expected_version": 8, "state": {"a": "x" * 100_000}}),
    (
        "patch_task",
        {"task_id": "m", "expected_version": 8, "facts": [{"key": "k", "value": "x" * 70_000}]},
    ),
    (
        "patch_task",
        {"task_id": "m", "expected_version": 8, "facts": [{"key": "k", "value": 1}] * 201},
    ),
    ("patch_task", {"task_id": "m", "expected_version": 8, "plan": "not a list"}),
    ("patch_task", {"task_id": "m", "expected_version": 8, "notes": ["a"]}),
    ("append_facts", {"task_id": "m", "facts": []}),
    ("append_facts", {"task_id": "m", "facts": [{"key": "", "value": 1}]}),
    ("signal_task", {"task_id": "m", "name": ""}),
    ("signal_task", {"task_id": "m", "name": "x" * 1000}),
    ("hand_over_task", {"task_id": "m", "to_agent": "a b", "note": "x"}),
    ("hand_over_task", {"task_id": "m", "to_agent": "b", "note": "x" * 9000}),
    ("start_task", {"input": [], "task_id": "t"}),
    ("start_task", {"task_id": "a/b"}),
    ("start_task", {"input": {"goal": "x"}, "priority": 10}),
    ("start_task", {"input": {"goal": "x"}, "idempotency_key": "k" * 300}),
]


def test_wrong_arguments_are_refused_and_nothing_is_written(hf: Holdfast) -> None:
    """Each with a message that names what is wrong."""
    waits(hf, migration, "m", goal="x")
    before = hf.get("m").seq
    for name, args in BAD_CALLS:
        found = refusal(hf.store, ME, name, **args)
        assert found["error"] in ("InvalidInput", "InvalidPatch"), (name, found)
        assert found["message"]

    assert (before, 1) == (hf.get("m").seq, len(hf.runs()))


def test_deeply_nested_values_are_refused_or_kept(hf: Holdfast) -> None:
    """Never a crash."""
    waits(hf, migration, "m", goal="x")
    deep: Any = 1
    for _ in range(80):
        deep = [deep]

    async def say(client: Client) -> Any:
        done = await client.call_tool(
            "append_facts", {"task_id": "m", "facts": [{"key": "deep", "value": deep}]}
        )
        again = await client.call_tool("get_task", {"task_id": "m"})
        return done, again

    done, again = talk(hf.store, ME, say, "legacy")
    assert again.is_error is False
    assert done.structured_content


def test_text_that_steers_is_only_text(hf: Holdfast) -> None:
    """Control characters, HTML and SQL come back as they were sent."""
    waits(hf, migration, "m", goal="x")
    nasty = "\x1b[2J\u202e<script>alert(1)</script>'; DROP TABLE runs; --\0{{7*7}}"
    call(hf.store, ME, "append_facts", task_id="m", facts=[{"key": "k", "value": nasty}])

    assert nasty == call(hf.store, ME, "get_task", task_id="m")["known_facts"][-1]["value"]


# ── the JSON-RPC layer ───────────────────────────────────────────────────────────────────────


async def alive(server: Server[Any], messages: list[Any], *, initialized: bool) -> bool:
    """Whether a server that got all of these still answers a ping."""
    send, incoming = anyio.create_memory_object_stream[Any](len(messages) + 10)
    outgoing, receive = anyio.create_memory_object_stream[Any](10_000)
    start = {
        "jsonrpc": "2.0",
        "id": "start",
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "f", "version": "1"},
        },
    }
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    for one in (
        ([start, ready] if initialized else []) + messages + ([] if initialized else [start, ready])
    ):
        try:
            parsed: Any = SessionMessage(jsonrpc_message_adapter.validate_json(json.dumps(one)))
        except ValueError as error:
            parsed = error  # what the transports pass on for a line that is not a message
        send.send_nowait(parsed)
    ping = {"jsonrpc": "2.0", "id": "last", "method": "ping"}
    send.send_nowait(SessionMessage(jsonrpc_message_adapter.validate_json(json.dumps(ping))))
    found = False
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.run, incoming, outgoing, server.create_initialization_options())
        with anyio.move_on_after(60):
            async for answer in receive:
                if getattr(answer.message, "id", None) == "last":
                    found = hasattr(answer.message, "result")
                    break
        tasks.cancel_scope.cancel()
    for stream in (send, incoming, outgoing, receive):
        stream.close()
    return found


@pytest.mark.parametrize("seed", range(6))
def test_a_fuzzed_connection_does_not_bring_the_server_down(hf: Holdfast, seed: int) -> None:
    """It answers what it can and continues; the task is unchanged."""
    waits(hf, migration, "m", goal="x")
    before = hf.get("m").seq
    chance = random.Random(seed)
    messages = [message(chance) for _ in range(200)]
    server = HoldfastServer(hf.store, lambda _: ME)

    assert run(alive(server.protocol, messages, initialized=True))
    assert before == hf.get("m").seq


def test_lines_that_are_not_json_do_not_end_a_stdio_server(tmp_path: Path) -> None:
    """A real process: garbage first, then a client's handshake."""
    import subprocess

    from support.mcp_tasks import HOLDFAST

    with Holdfast(tmp_path / "h.db") as hf:
        waits(hf, migration, "m", goal="x")
    start = {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "f", "version": "1"},
        },
    }
    garbage = [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"null",
        b"[1,2]",
        b"[" * 50_000,
        b'{"jsonrpc":"1.0"}',
        b"x" * 2_000_000,
    ]
    lines = b"\n".join([*garbage, json.dumps(start).encode(), b""])
    words = [HOLDFAST, "mcp", "--as", "migration", "--db", tmp_path / "h.db"]
    done = subprocess.run(words, input=lines, capture_output=True, timeout=120)
    answers = [json.loads(line) for line in done.stdout.splitlines()]

    assert (
        "holdfast" == next(x for x in answers if x.get("id") == 7)["result"]["serverInfo"]["name"]
    )
    assert 0 == done.returncode


def test_a_client_can_only_use_so_many_subscriptions(hf: Holdfast) -> None:
    """A limit, with a reason."""
    uri = waits(hf, migration, "m", goal="x")

    async def main() -> MCPError:
        async with connected(hf.store, ME) as client:
            many = [f"{uri}/events?after={n}" for n in range(300)]
            with pytest.raises(MCPError) as refused:
                async with client.listen(resource_subscriptions=many):
                    pass
            return refused.value

    assert "too many subscriptions" in run(main()).message
