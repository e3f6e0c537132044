"""The MCP server with the fixtures that the official conformance suite asks for by name. Only for that test.

    python mcp_conformance.py DB        (prints its address when it listens)

Each fixture is answered by the real server: a request for `test://static-text` becomes one for an artifact of a
task, a call of `test_simple_text` one of `list_tasks`. It needs no token, as the suite cannot send one.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.context import CallNext, HandlerResult
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.routing import Route

from holdfast import Holdfast, Run, agent
from holdfast.mcp.http import LOOPBACK, security
from holdfast.mcp.reach import Identity
from holdfast.mcp.server import Context, HoldfastServer

TASK = "state://agents/shown/tasks/123"
URIS = {
    "test://static-text": f"{TASK}/artifacts/text",
    "test://static-binary": f"{TASK}/artifacts/binary",
    "test://template/123/data": TASK,
    "test://watched-resource": TASK,
}
TOOLS = {
    "test_simple_text": {"name": "list_tasks", "arguments": {}},
    "test_error_handling": {"name": "get_task", "arguments": {"task_id": "none"}},
}
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "kind": {"enum": ["a", "b"]},
    },
    "allOf": [{"anyOf": [{"required": ["name"]}, {"required": ["address"]}]}],
    "if": {"required": ["kind"]},
    "then": {"required": ["name"]},
    "else": {},
    "additionalProperties": False,
}


@agent
def shown(run: Run) -> str:
    run.artifact("text", b"This is the content of the static text resource.")
    run.artifact("binary", b"\x89PNG\r\n\x1a\n\xff\xfe")
    return "done"


async def fixtures(ctx: Context, call_next: CallNext) -> HandlerResult:
    """A request for a fixture, as one for what stands for it."""
    params: dict[str, Any] = dict(ctx.params or {})
    if params.get("uri") in URIS:
        params["uri"] = URIS[params["uri"]]
    if params.get("name") in TOOLS:
        params |= TOOLS[params["name"]]
    if ctx.method == "completion/complete":
        params["ref"] = {"type": "ref/resource", "uri": "state://agents/{agent_id}/tasks/{task_id}"}
        params["argument"] = {"name": "task_id", "value": "1"}
    found = await call_next(replace(ctx, params=params if ctx.params is not None else None))
    if isinstance(found, types.ListToolsResult):
        found.tools.append(
            types.Tool(name="json_schema_2020_12_tool", description="Fixture", input_schema=SCHEMA)
        )
    if ctx.method == "tools/list" and isinstance(found, dict):
        found["tools"].append(
            {"name": "json_schema_2020_12_tool", "description": "Fixture", "inputSchema": SCHEMA}
        )
    return found


def main(db: str) -> None:
    with Holdfast(db) as hf, socket.socket() as listening:
        hf.run(shown, id="123")
        server = HoldfastServer(hf.store, lambda _: Identity("shown"))
        server.protocol.middleware.append(fixtures)
        manager = StreamableHTTPSessionManager(
            server.protocol, security_settings=security(LOOPBACK)
        )
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            async with manager.run():
                print(address, flush=True)
                yield

        routes = [Route("/mcp", endpoint=StreamableHTTPASGIApp(manager))]
        app = Starlette(routes=routes, lifespan=lifespan)
        uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])


if __name__ == "__main__":
    main(sys.argv[1])
