"""Messages of JSON-RPC that are nearly right, for fuzzing the MCP server."""

from __future__ import annotations

import random
from typing import Any

METHODS = (
    "initialize",
    "ping",
    "tools/list",
    "tools/call",
    "resources/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "resources/templates/list",
    "completion/complete",
    "subscriptions/listen",
    "prompts/list",
    "prompts/get",
    "logging/setLevel",
    "server/discover",
    "notifications/cancelled",
    "notifications/initialized",
    "tasks/list",
    "nope",
    "",
    "__class__",
)
VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1e308,
    "",
    "x",
    "state://agents",
    "state://agents/migration/tasks/m",
    [],
    {},
    [[]],
    {"a": {}},
    "get_task",
    "patch_task",
    {"task_id": "m"},
    {"uri": 1},
    "\ud800".encode("utf-8", "replace").decode(),
    "é" * 300,
    {"resourceSubscriptions": ["state://agents", 5]},
    {"type": "ref/resource", "uri": "x"},
    {"name": "n", "value": ""},
]
NAMES = (
    "name",
    "arguments",
    "uri",
    "cursor",
    "ref",
    "argument",
    "notifications",
    "_meta",
    "requestId",
    "level",
)


def message(chance: random.Random) -> Any:
    """A message that is nearly right."""
    made: Any = {"jsonrpc": "2.0", "method": chance.choice(METHODS)}
    if chance.random() < 0.8:
        made["id"] = chance.choice([chance.randrange(5), "a", -1, 1.5, None, True, [], "x" * 100])
    if chance.random() < 0.8:
        given = {chance.choice(NAMES): chance.choice(VALUES) for _ in range(chance.randrange(4))}
        made["params"] = chance.choice([given, given, given, chance.choice(VALUES)])
    if chance.random() < 0.1:
        made[chance.choice(["jsonrpc", "method", "result", "error"])] = chance.choice(VALUES)
    return made
