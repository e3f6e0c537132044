"""One async client for each event loop.

An async client's connections belong to the loop they were made on: another loop cannot use them, nor close them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any


class ClientsByLoop:
    """Clients by the loop they belong to, each closed on its loop when that shuts down.

    A client is held by an async generator: `asyncio.run` and every runner like it close the loop's
    generators before they close the loop, which is the only moment when its connections can be closed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[asyncio.AbstractEventLoop, tuple[Any, AsyncGenerator[None, None]]] = {}

    async def get(self, make: Callable[[], Any]) -> Any:
        """The client of the running loop, made if there is none yet."""
        loop = asyncio.get_running_loop()
        with self._lock:
            for other in [x for x in self._held if x.is_closed()]:
                del self._held[other]  # its runner closed no generators; nothing can close it now
            held = self._held.get(loop)
            if held is not None:
                return held[0]
            client = make()
            holder = self._hold(loop, client)
            self._held[loop] = (client, holder)
        await anext(holder)  # from here on the loop knows the generator
        return client

    async def _hold(
        self, loop: asyncio.AbstractEventLoop, client: Any
    ) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            with self._lock:
                self._held.pop(loop, None)
            await client.close()

    async def close(self) -> None:
        """Close the client of the running loop, if it has one."""
        with self._lock:
            held = self._held.get(asyncio.get_running_loop())
        if held is not None:
            await held[1].aclose()
