"""Configuration of common MCP clients for `holdfast mcp`, as text to paste. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from holdfast.errors import InvalidInput


class ClientConfig(NamedTuple):
    """A client: where its configuration is, and the key under which servers are listed there."""

    name: str
    title: str
    where: str
    key: str


CLIENTS: Final = (
    ClientConfig(
        "claude-desktop",
        "Claude Desktop",
        "claude_desktop_config.json (Settings → Developer → Edit Config)",
        "mcpServers",
    ),
    ClientConfig(
        "claude-code",
        "Claude Code",
        ".mcp.json in your project, or run the command below",
        "mcpServers",
    ),
    ClientConfig(
        "cursor", "Cursor", ".cursor/mcp.json in your project, or ~/.cursor/mcp.json", "mcpServers"
    ),
    ClientConfig("vscode", "VS Code", ".vscode/mcp.json in your workspace", "servers"),
    ClientConfig("json", "other clients", "your client's configuration", "mcpServers"),
)


def find(name: str) -> ClientConfig:
    for client in CLIENTS:
        if client.name == name:
            return client
    known = ", ".join(client.name for client in CLIENTS)
    raise InvalidInput(f"unknown client {name!r}; use one of {known}")


def configuration(client: ClientConfig, command: Sequence[str]) -> dict[str, Any]:
    """The configuration file of a client that starts the server itself."""
    server: dict[str, Any] = {"command": command[0], "args": list(command[1:])}
    if client.name == "vscode":
        server = {"type": "stdio", **server}
    return {client.key: {"holdfast": server}}


def text(client: ClientConfig, command: Sequence[str]) -> str:
    """The same for people: where it goes, and what."""
    lines = [
        f"{client.title}: {client.where}",
        "",
        json.dumps(configuration(client, command), indent=2),
    ]
    if client.name == "claude-code":
        lines += ["", f"claude mcp add holdfast -- {shlex.join(command)}"]
    return "\n".join(lines)
