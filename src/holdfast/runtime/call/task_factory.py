"""Tasks that an async agent starts are branches of its run.

`asyncio.gather` and `TaskGroup` make tasks; which of them comes first at its next call depends on randomness. So
each task gets a branch when it is *created*, in the order of the code, by a task factory that is installed on
the loop while runs execute there. Tasks that no agent started are not touched.

An agent is over when its tasks are: a call that is in progress in one of them is not interrupted because
another branch has failed, so its outcome is recorded and not in doubt.

Not here: in which order tasks continue, and when all of them wait (`lines.py`).
"""

from __future__ import annotations

import contextvars
import typing
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import CallFailed, NotDurable, Stop, Suspend
from holdfast.runtime.call.driver import drive
from holdfast.runtime.call.operations import Flow
from holdfast.runtime.call.suspend import suspend
from holdfast.runtime.log.branches import CURRENT, Branch, current_branch
from holdfast.runtime.log.session import Session

if TYPE_CHECKING:
    import asyncio

    from holdfast.runtime.lines.lines import Lines

T = TypeVar("T")


def drive_here(branch: Branch, flow: Flow[T]) -> T:
    """Run a flow of this branch to its end, blocking."""
    try:
        return drive(flow)
    except Suspend as signal:
        branch.suspend(signal)
        raise


async def in_thread(fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a plain step or tool from an async agent without blocking its loop."""
    import asyncio

    branch = current_branch()
    lines = branch.session.lines if branch is not None else None
    if branch is None or lines is None:
        return await asyncio.to_thread(fn, *args, **kwargs)
    line = lines.enter_call(branch.path, branch.index)
    try:
        return await asyncio.to_thread(fn, *args, **kwargs)
    finally:
        if line is not None:
            line.leave_call()


def run_with_tasks(
    fn: Callable[..., Awaitable[Any]], root: Branch
) -> Callable[..., Awaitable[Any]]:
    """An async agent's function, over when the tasks that it started are."""
    import asyncio

    from holdfast.runtime.call.line_task import LineTask

    async def body(*args: Any, **kwargs: Any) -> Any:
        session, lines = root.session, root.session.lines
        assert lines is not None
        # A task of its own, so that cancelling the run does not look like cancelling its caller.
        # Not made by the loop's factory: this is the agent's own line, not a branch.
        line = lines.line(typing.cast(Coroutine[Any, Any, Any], fn(*args, **kwargs)))
        line.context = contextvars.copy_context()
        lines.agent = agent = LineTask(line, context=line.context)
        line.runs_in(agent, root)
        agent.line, agent.lines = line, lines
        try:
            return await _supervised(session, lines)
        except BaseException as error:
            if session.settled:  # the run is suspended: only its tasks are left
                await lines.supervisor.unwind(lines.suspension or Suspend("", ""))
                raise
            session.is_unwinding = True
            signal = session.stop_signal
            is_stopped = isinstance(error, asyncio.CancelledError) and signal is not None
            # A run that is cancelled or overdue is waiting for no call; one that is paused does.
            await lines.supervisor.end(at_once=is_stopped and isinstance(signal, Stop))
            if is_stopped and signal is not None:
                raise signal from None
            if isinstance(error, CallFailed):
                error.also = lines.failed_with(error)
            raise
        finally:
            if agent.done() and not agent.cancelled():
                agent.exception()  # it has been seen, also if the caller gets another one

    body.__name__ = getattr(fn, "__name__", body.__name__)
    return body


async def _supervised(session: Session, lines: Lines) -> Any:
    """The agent's result. If its caller is cancelled, the run ends here: its code cuts nothing off."""
    import asyncio

    from holdfast.runtime.call.async_driver import drive_async

    try:
        return await lines.supervisor.supervise(lambda: drive_async(suspend(session)))
    except asyncio.CancelledError:
        agent = lines.agent
        if agent is None or agent.done() or session.settled:
            raise
        session.is_unwinding = True
        agent.cancel()
        await asyncio.wait((agent,))
        return agent.result()


class _BranchingFactory:
    """Makes tasks as before, each in a context with its own branch."""

    def __init__(self, before: Any) -> None:
        self.before = before
        self.users = 0

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **kwargs: Any
    ) -> asyncio.Task[Any]:
        from holdfast.runtime.call.line_task import LineTask, starts_in_any_order

        branch = current_branch()
        lines = None if branch is None else branch.session.lines
        if branch is None or lines is None:
            return self._task(loop, coro, kwargs)
        if starts_in_any_order():
            raise NotDurable(
                "asyncio.as_completed starts coroutines in random order, so a resumed run could not tell its branches "
                "apart. Pass it tasks: asyncio.as_completed([asyncio.create_task(c) for c in coroutines])"
            )
        context = (kwargs.get("context") or contextvars.copy_context()).copy()
        forked = branch.fork()
        context.run(CURRENT.set, forked)
        line = lines.line(coro)
        line.context = context
        made = self._task(loop, line, {**kwargs, "context": context})
        line.runs_in(made, forked)
        if isinstance(made, LineTask):
            made.line, made.lines = line, lines
        lines.watch(made, forked, branch)
        return made

    def _task(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], kwargs: Any
    ) -> asyncio.Task[Any]:
        import asyncio

        from holdfast.runtime.call.line_task import LineTask
        from holdfast.runtime.lines.line import Line

        made: asyncio.Task[Any]
        if self.before is not None:
            made = self.before(loop, coro, **kwargs)
        else:
            kind = LineTask if isinstance(coro, Line) else asyncio.Task
            made = kind(coro, loop=loop, **kwargs)
        return made


class BranchingTasks:
    """While this is open, tasks started by the agent on this loop are branches of its run."""

    def __init__(self, root: Branch) -> None:
        import asyncio

        from holdfast.runtime.lines.lines import Lines

        root.session.lines = Lines(root.session)
        self._loop = asyncio.get_running_loop()
        found: Any = self._loop.get_task_factory()
        self._factory: Any = (
            found if isinstance(found, _BranchingFactory) else _BranchingFactory(found)
        )

    def __enter__(self) -> None:
        self._loop.set_task_factory(self._factory)
        self._factory.users += 1

    def __exit__(self, *_: object) -> None:
        factory, now = self._factory, self._loop.get_task_factory()
        factory.users -= 1
        if not factory.users and now is factory:  # the last agent, and nobody else has set one
            self._loop.set_task_factory(self._factory.before)
