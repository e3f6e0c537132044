"""Blocking work of an async caller that is never left half done.

A task may be cancelled at any await (a client disconnects). What it had a thread do continues meanwhile: a run is
claimed, a session opened, and no one is left to release it. So such work is awaited to its end, and what it
returned is disposed of, before the cancellation is passed on.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.runtime.exec.threads import in_thread

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


async def uninterrupted(
    fn: Callable[[], T],
    dispose: Callable[[T], Any] | None = None,
    *,
    threads: Executor | None = None,
) -> T:
    """Call `fn` in a thread; its result. If the caller is cancelled, `fn` still runs to its end, and
    `dispose` is called with what it returned, in a thread too, before CancelledError is raised."""
    import asyncio

    work = in_thread(threads, fn)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await until_done(work)
        if work.exception() is None and dispose is not None:
            disposal = in_thread(threads, partial(dispose, work.result()))
            await until_done(disposal)
            disposal.exception()  # read: it is not worth more than the cancellation
        raise


async def until_done(work: asyncio.Future[Any]) -> None:
    """Wait for it, however often the caller is cancelled."""
    import asyncio

    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            continue
