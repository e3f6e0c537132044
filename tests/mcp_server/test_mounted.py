"""MCP inside `holdfast serve`: with its credentials, roles and hosts."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from holdfast import Holdfast
from holdfast.cli.serve import _mcp
from holdfast.web.app import create_app
from support.mcp_tasks import migration, waits
from support.web import TOKENS, credentials

HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}  # fmt: skip


def post(client: TestClient, token: str, method: str, session: str = "", **params: Any) -> Any:
    headers = {**HEADERS, **({"mcp-session-id": session} if session else {})}
    if token:
        headers["authorization"] = f"Bearer {token}"
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return client.post("/mcp", json=body, headers=headers)


@pytest.mark.parametrize(
    ("role", "status"),
    [("", 401), ("viewer", 403), ("approver", 403), ("operator", 200), ("admin", 200)],
)
def test_the_role_of_a_token_decides_who_may_use_it(hf: Holdfast, role: str, status: int) -> None:
    app = create_app(hf, credentials=credentials(), mcp=_mcp)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert status == post(client, TOKENS.get(role, ""), "initialize", **INITIALIZE).status_code


def test_a_client_changes_a_task_in_the_name_of_its_credential(hf: Holdfast) -> None:
    waits(hf, migration, "m", goal="x")
    app = create_app(hf, credentials=credentials(), mcp=_mcp)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        token = TOKENS["operator"]
        session = post(client, token, "initialize", **INITIALIZE).headers["mcp-session-id"]
        facts = {"task_id": "m", "facts": [{"key": "k", "value": 1}]}
        done = post(client, token, "tools/call", session, name="append_facts", arguments=facts)
        other = post(client, TOKENS["admin"], "tools/call", session, name="get_task", arguments={})

    assert (200, 404) == (done.status_code, other.status_code)
    assert hf.get("m").facts[-1].source.startswith("mcp:")
