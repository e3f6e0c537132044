"""Tasks that an async agent starts are branches of its run.

`asyncio.gather` and `TaskGroup` make tasks; which of them comes first at its next call depends on the
weather. So each task gets a branch when it is *created*, in the order of the code, by a task factory
that is installed on the loop while runs execute there. Tasks that no agent started are not touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Coroutine, Iterator
from typing import Any

from holdfast.runtime.context import CURRENT, current_branch


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
        if self.before is not None:
            made: asyncio.Task[Any] = self.before(loop, coro, **kwargs)
            return made
        return asyncio.Task(coro, loop=loop, **kwargs)


@contextlib.contextmanager
def branching_tasks() -> Iterator[None]:
    """While this is open, tasks started by an agent on this loop are branches."""
    loop = asyncio.get_running_loop()
    factory = loop.get_task_factory()
    if not isinstance(factory, _BranchingFactory):
        factory = _BranchingFactory(factory)
        loop.set_task_factory(factory)
    factory.users += 1
    try:
        yield
    finally:
        factory.users -= 1
        if not factory.users and loop.get_task_factory() is factory:
            loop.set_task_factory(factory.before)
