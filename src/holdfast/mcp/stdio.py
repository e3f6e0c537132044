"""Serve one client over stdin and stdout, until it closes them."""

from __future__ import annotations

from mcp.server.stdio import stdio_server

from holdfast.mcp.reach import Identity
from holdfast.mcp.server import HoldfastServer
from holdfast.store.base import Store


async def serve(store: Store, who: Identity) -> None:
    """Serve as this identity."""
    server = HoldfastServer(store, lambda _: who).protocol
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
