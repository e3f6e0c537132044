"""MCP inside `holdfast serve`: with its credentials, roles and hosts."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from holdfast import Holdfast
from holdfast.cli.serve import _mcp
from holdfast.web.app import create_app
from holdfast.web.credentials import Credential
from support.mcp_tasks import migration, secretive, waits
from support.web import TOKENS, credentials

HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "x", "version": "1"},
}


def post(client: TestClient, token: str, method: str, session: str = "", **params: Any) -> Any:
    headers = {**HEADERS, **({"mcp-session-id": session} if session else {})}
    if token:
        headers["authorization"] = f"Bearer {token}"
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return client.post("/mcp", json=body, headers=headers)


def allowing(*agents: str) -> tuple[Credential, ...]:
    """The credentials, each allowed to reach these agents through MCP."""
    return tuple(msgspec.structs.replace(c, agents=agents) for c in credentials())


class Caller:
    """A client that is connected with the token of a role."""

    def __init__(self, client: TestClient, role: str) -> None:
        self._client, self._token = client, TOKENS[role]
        answer = post(client, self._token, "initialize", **INITIALIZE)
        assert 200 == answer.status_code, answer.text
        self._session = answer.headers["mcp-session-id"]

    def call(self, tool: str, **arguments: Any) -> Any:
        """The structured content of a tool's result."""
        return self._ask("tools/call", name=tool, arguments=arguments)["result"][
            "structuredContent"
        ]

    def read(self, uri: str) -> Any:
        """The result or the error of a resource that is read."""
        return self._ask("resources/read", uri=uri)

    def _ask(self, method: str, **params: Any) -> Any:
        answer = post(self._client, self._token, method, self._session, **params)
        data = [line for line in answer.text.splitlines() if line.startswith("data: {")]
        return json.loads(data[-1].removeprefix("data: ") if data else answer.text)


@pytest.mark.parametrize(
    ("role", "status"),
    [("", 401), ("viewer", 403), ("approver", 403), ("operator", 200), ("admin", 200)],
)
def test_the_role_of_a_token_decides_who_may_use_it(hf: Holdfast, role: str, status: int) -> None:
    app = create_app(hf, credentials=allowing("migration"), mcp=_mcp)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert status == post(client, TOKENS.get(role, ""), "initialize", **INITIALIZE).status_code


@pytest.mark.parametrize("role", ["operator", "admin"])
def test_a_token_for_which_no_agent_was_allowed_is_refused_with_the_command_that_allows_one(
    hf: Holdfast, role: str
) -> None:
    app = create_app(hf, credentials=credentials(), mcp=_mcp)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        refused = post(client, TOKENS[role], "initialize", **INITIALIZE)

    assert 403 == refused.status_code
    assert "holdfast token create NAME --role operator --allow-agent AGENT" in refused.text


@pytest.mark.parametrize("role", ["operator", "admin"])
def test_a_token_reaches_the_agents_that_were_allowed_by_name_and_no_others(
    hf: Holdfast, role: str
) -> None:
    waits(hf, migration, "m", goal="x")
    waits(hf, secretive, "s")
    app = create_app(hf, credentials=allowing("migration"), mcp=_mcp)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        caller = Caller(client, role)
        own, others = caller.call("get_task", task_id="m"), caller.call("get_task", task_id="s")
        started = caller.call("start_task", agent_id="secretive", input={})
        read = caller.read("state://agents/secretive/tasks/s")
        listed = [task["task_id"] for task in caller.call("list_tasks")["tasks"]]

    assert ("migration", "NoSuchRun") == (own["agent_id"], others["error"])
    assert ("NotFound", "--allow-agent secretive" in started["message"]) == (started["error"], True)
    assert "no run 's'" in read["error"]["message"]
    assert ["m"] == listed


def test_a_token_reaches_all_agents_only_where_the_operator_allowed_it(hf: Holdfast) -> None:
    waits(hf, migration, "m", goal="x")
    waits(hf, secretive, "s")
    app = create_app(hf, credentials=allowing("*"), mcp=_mcp)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        listed = Caller(client, "operator").call("list_tasks")["tasks"]

    assert {"m", "s"} == {task["task_id"] for task in listed}


def test_a_client_changes_a_task_in_the_name_of_its_credential(hf: Holdfast) -> None:
    waits(hf, migration, "m", goal="x")
    app = create_app(hf, credentials=allowing("migration"), mcp=_mcp)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        token = TOKENS["operator"]
        session = post(client, token, "initialize", **INITIALIZE).headers["mcp-session-id"]
        facts = {"task_id": "m", "facts": [{"key": "k", "value": 1}]}
        done = post(client, token, "tools/call", session, name="append_facts", arguments=facts)
        other = post(client, TOKENS["admin"], "tools/call", session, name="get_task", arguments={})

    assert (200, 404) == (done.status_code, other.status_code)
    assert hf.get("m").facts[-1].source.startswith("mcp:")
