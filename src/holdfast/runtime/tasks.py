"""Tasks that an async agent starts are branches of its run.

`asyncio.gather` and `TaskGroup` make tasks; which of them comes first at its next call depends on the
weather. So each task gets a branch when it is *created*, in the order of the code, by a task factory
that is installed on the loop while runs execute there. Tasks that no agent started are not touched.

An agent is over when its tasks are: a call that is under way in one of them is not torn apart because
another branch has to wait or has failed, so what came of it is recorded and not in doubt.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import typing
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

from holdfast.errors import Suspend
from holdfast.runtime.context import CURRENT, Branch, current_branch
from holdfast.runtime.drivers import drive, drive_async
from holdfast.runtime.flow import Flow


def drive_here(branch: Branch, flow: Flow) -> Any:
    """Run a flow of this branch to its end, blocking."""
    return drive(_noticing(branch, flow))


async def drive_async_here(branch: Branch, flow: Flow) -> Any:
    """The same on this event loop. A branch that has to wait lets the others finish their calls."""
    flow = _noticing(branch, flow)
    together = branch.together
    if together is None or together.loop is not asyncio.get_running_loop():
        return await drive_async(flow)
    return await together.drive(flow)


def _noticing(branch: Branch, flow: Flow) -> Flow:
    try:
        return (yield from flow)
    except Suspend as signal:
        branch.suspend(signal)
        raise


class Together:
    """The tasks of one async agent, and how many of their calls are under way."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.agent: asyncio.Task[Any] | None = None
        self._calls = 0
        self._quiet = asyncio.Event()
        self._ended = False

    @property
    def is_alone(self) -> bool:
        """Whether no task of the agent is on its way."""
        return all(task.done() for task in self.tasks)

    async def drive(self, flow: Flow) -> Any:
        """Run a flow of one branch."""
        if self._ended:
            raise asyncio.CancelledError("the agent's code has ended")
        self._calls += 1
        try:
            return await drive_async(flow)
        except Suspend:
            self._leave()
            await self._all_quiet()
            self._calls += 1
            raise
        finally:
            self._leave()

    def _leave(self) -> None:
        self._calls -= 1
        if not self._calls:
            self._quiet.set()

    async def _all_quiet(self) -> None:
        while self._calls:
            self._quiet.clear()
            await self._quiet.wait()

    async def finish(self) -> None:
        """The code has returned: what it started and did not wait for is part of the run too."""
        while left := {task for task in self.tasks if not task.done()}:
            await asyncio.wait(left)

    def cancel(self) -> None:
        """Cut the agent off at the await that it is in. Callable from any thread."""
        if self.agent is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing to cut
                self.loop.call_soon_threadsafe(self.agent.cancel)

    async def end(self, *, at_once: bool = False) -> None:
        """The code has failed or must wait: calls under way come to their end, and none begins."""
        self._ended = True
        if not at_once:
            await self._all_quiet()
        while left := {task for task in self.tasks if not task.done()}:
            for task in left:
                task.cancel()
            await asyncio.wait(left)


def whole(fn: Callable[..., Awaitable[Any]], root: Branch) -> Callable[..., Awaitable[Any]]:
    """An async agent's function, over when the tasks that it started are."""

    @functools.wraps(fn)
    async def body(*args: Any, **kwargs: Any) -> Any:
        together = root.together
        assert together is not None
        # A task of its own, so that cancelling the run does not look like cancelling its caller.
        # Not made by the loop's factory: this is the agent's own line, not a branch.
        coro = typing.cast(Coroutine[Any, Any, Any], fn(*args, **kwargs))
        together.agent = asyncio.Task(coro, context=contextvars.copy_context())
        try:
            result = await together.agent
        except BaseException as error:
            stopped = root.session.stopped
            cut = isinstance(error, asyncio.CancelledError) and stopped is not None
            await together.end(at_once=cut)
            if cut and stopped is not None:
                raise stopped from None
            raise
        await together.finish()
        return result

    return body


class _BranchingFactory:
    """Makes tasks as before, each in a context with a branch of its own."""

    def __init__(self, before: Any) -> None:
        self.before = before
        self.users = 0

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **kwargs: Any
    ) -> asyncio.Task[Any]:
        branch = current_branch()
        context = kwargs.pop("context", None)
        if branch is not None:
            context = (context or contextvars.copy_context()).copy()
            context.run(CURRENT.set, branch.fork())
        if context is not None:
            kwargs["context"] = context
        made: asyncio.Task[Any]
        if self.before is not None:
            made = self.before(loop, coro, **kwargs)
        else:
            made = asyncio.Task(coro, loop=loop, **kwargs)
        if branch is not None and branch.together is not None:
            branch.together.tasks.add(made)
            made.add_done_callback(branch.together.tasks.discard)
        return made


@contextlib.contextmanager
def branching_tasks(root: Branch) -> Iterator[None]:
    """While this is open, tasks started by the agent on this loop are branches of its run."""
    root.together = Together()
    loop = asyncio.get_running_loop()
    found: Any = loop.get_task_factory()
    factory: Any = found if isinstance(found, _BranchingFactory) else _BranchingFactory(found)
    loop.set_task_factory(factory)
    factory.users += 1
    try:
        yield
    finally:
        factory.users -= 1
        now: Any = loop.get_task_factory()
        if not factory.users and now is factory:
            loop.set_task_factory(factory.before)
