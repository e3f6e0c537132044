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
from typing import Any, NoReturn, TypeVar

from holdfast.errors import Abandon, CallFailed, Suspend
from holdfast.runtime.context import CURRENT, Branch, current_branch
from holdfast.runtime.drivers import drive, drive_async
from holdfast.runtime.effects import Flow
from holdfast.runtime.together import IDLE_TURNS, Together

T = TypeVar("T")


def drive_here(branch: Branch, flow: Flow) -> Any:
    """Run a flow of this branch to its end, blocking."""
    try:
        return drive(flow)
    except Suspend as signal:
        branch.suspend(signal)
        raise


async def drive_async_here(branch: Branch, flow: Flow) -> Any:
    """The same on this event loop."""
    return await awaited_here(branch, drive_async(flow))


async def awaited_here(branch: Branch, call: Coroutine[Any, Any, Any]) -> Any:
    """Await a call of this branch. A branch that has to wait lets the others finish their calls."""
    together = branch.together
    if together is not None and together.loop is not asyncio.get_running_loop():
        together = None
    if together is not None:
        try:
            together.begin_call()
        except BaseException:  # whatever it is: nobody will await the coroutine now
            call.close()
            raise
    try:
        return await call
    except CallFailed:
        branch.call_failed = True
        raise
    except Suspend as signal:
        branch.suspend(signal)
        if together is not None:
            over, together = together, None
            over.end_call()
            await over.quiet()
        raise
    finally:
        if together is not None:
            together.end_call()


async def in_thread(fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a plain step or tool from an async agent without blocking its loop."""
    branch = current_branch()
    together = branch.together if branch is not None else None
    if together is None:
        return await asyncio.to_thread(fn, *args, **kwargs)
    try:
        with together.calling():
            return await asyncio.to_thread(fn, *args, **kwargs)
    except Suspend:
        await together.quiet()
        raise


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
            result = await _of_the_agent(together.agent, root)
        except BaseException as error:
            root.session.torn = True
            stopped = root.session.stopped
            cut = isinstance(error, asyncio.CancelledError) and stopped is not None
            await together.end(at_once=cut)
            if cut and stopped is not None:
                raise stopped from None
            if isinstance(error, CallFailed):
                error.also = together.failed_beside(error)
            raise
        await together.finish()
        return result

    return body


async def _of_the_agent(task: asyncio.Task[T], root: Branch) -> T:
    """The result of the agent's own task. Who cancels us ends the run here: its code cuts nothing off."""
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        root.session.torn = True
        task.cancel()
        await asyncio.wait((task,))
    return task.result()


async def let_begin(branch: Branch, index: int) -> None:
    """Before a recorded answer: give the tasks that were started right before it the turns that they had while
    it was awaited, as long as the log holds something that they have yet to ask for.

    Otherwise code that cancels them after it could cancel them before they have begun.
    """
    together, entries = branch.together, branch.session.journal.entries
    entry = entries.get((branch.path, index))
    if entry is None or entry.is_cut_off or together is None or together.is_alone:
        return
    below = branch.below(index)
    for _ in range(IDLE_TURNS):
        if not any(path.startswith(below) for path, _ in entries):
            return
        await asyncio.sleep(0)


async def stay_cut_off(branch: Branch, index: int) -> NoReturn:
    """The code stopped waiting for the call at this place."""
    branch.session.journal.forget(branch.path, index)
    await no_answer(branch)


async def no_answer(branch: Branch) -> NoReturn:
    """The code stopped waiting here, and got no answer: nor does it get one now. A mere replay ends here
    if the code gives it up only when time has passed."""
    session = branch.session
    if session.only_replay is not None:
        assert branch.together is not None
        await branch.together.idle()
        raise session.stop(Abandon(session.only_replay))
    await asyncio.get_running_loop().create_future()
    raise AssertionError("unreachable")


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
        forked: Branch | None = None
        if branch is not None:
            context = (context or contextvars.copy_context()).copy()
            forked = branch.fork()
            context.run(CURRENT.set, forked)
        if context is not None:
            kwargs["context"] = context
        made: asyncio.Task[Any]
        if self.before is not None:
            made = self.before(loop, coro, **kwargs)
        else:
            made = asyncio.Task(coro, loop=loop, **kwargs)
        if branch is not None and forked is not None and branch.together is not None:
            branch.together.watch(made, forked, branch)
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
