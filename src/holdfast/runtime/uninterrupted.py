"""Blocking work of an async caller that is never left half done.

A task may be cancelled at any await (a client disconnects). What it had a thread do continues meanwhile: a run is
claimed, a session opened, and no one is left to release it. So such work is awaited to its end, and what it
brought is disposed of, before the cancellation is passed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def uninterrupted(fn: Callable[[], T], dispose: Callable[[T], Any] | None = None) -> T:
    """Call `fn` in a thread; its result. If the caller is cancelled, `fn` still runs to its end, and
    `dispose` is called with what it returned, in a thread too, before CancelledError is raised."""
    work = asyncio.ensure_future(asyncio.to_thread(fn))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await _ended(work)
        if dispose is not None and work.exception() is None:
            result = work.result()
            disposal = asyncio.ensure_future(asyncio.to_thread(dispose, result))
            await _ended(disposal)
            disposal.exception()  # looked at: it is not worth more than the cancellation
        raise


async def _ended(work: asyncio.Future[Any]) -> None:
    """Wait for it, however often the caller is cancelled."""
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            continue
