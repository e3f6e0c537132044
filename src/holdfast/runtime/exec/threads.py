"""Threads for blocking calls that are awaited: as many as there are calls at the moment.

The default executor of an event loop has a fixed number of threads (6 on two cores), which the whole process shares. A few
agents or waits in it would delay everything else that is awaited, the user's own code too. Here a call never waits
for another one: an idle thread takes it, or a new one. Threads that are idle for a while end.

They are daemons: a call that never returns must not keep a process alive that is to end.
"""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor, Future
else:
    Executor = object  # loading the real one takes a while, and an event loop only calls `submit`

P = ParamSpec("P")
T = TypeVar("T")

IDLE_SECONDS: Final = 10.0


class Threads(Executor):
    """An executor without a limit: `loop.run_in_executor(threads, fn)`."""

    def __init__(self) -> None:
        self._todo: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._idle = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        from concurrent.futures import Future

        future: Future[T] = Future()
        with self._changed:
            self._todo.append(partial(_call, future, partial(fn, *args, **kwargs)))
            if self._idle >= len(self._todo):
                self._changed.notify()
                return future
        threading.Thread(target=self._serve, name="holdfast-call", daemon=True).start()
        return future

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            work()
            del work  # what it holds is not kept while this thread is idle

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._todo or self._closed, IDLE_SECONDS)
            self._idle -= 1
            return self._todo.popleft() if self._todo else None

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Let idle threads end, and from now on each thread after its call. Calls under way are not waited for."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _call(future: Future[T], fn: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn()
    except BaseException as error:  # noqa: BLE001 (raised where it is awaited)
        future.set_exception(error)
    else:
        future.set_result(result)


def in_thread(threads: Executor | None, fn: Callable[[], T]) -> asyncio.Future[T]:
    """Call it in one of these threads (None: the event loop's own), with the context variables of the caller."""
    import asyncio

    context: Any = contextvars.copy_context()
    return asyncio.get_running_loop().run_in_executor(threads, partial(context.run, fn))


async def uninterrupted(
    fn: Callable[[], T],
    dispose: Callable[[T], Any] | None = None,
    *,
    threads: Executor | None = None,
) -> T:
    """Call `fn` in a thread; its result. If the caller is cancelled, `fn` still runs to its end, and
    `dispose` is called with what it returned, in a thread too, before CancelledError is raised.

    A task may be cancelled at any await (a client disconnects). If `fn` has claimed a run or opened a session by then,
    no other code could release it.
    """
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
