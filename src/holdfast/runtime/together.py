"""The tasks of one async agent, and how many of their calls are under way.

An agent is over when its tasks are. Knows nothing of logs and stores; `tasks.py` uses it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final, Protocol

from holdfast.errors import CallFailed

IDLE_TURNS: Final = 32
"""Turns of the event loop without a call after which the agent's code is taken to have nothing to do. What
a call gives goes through two or three of them for each task that waits for another."""


class Line(Protocol):
    """A line of execution: how many calls it has made, and whether it was told that one failed."""

    index: int
    call_failed: bool


class Together:
    """What the branches of one async agent must know of each other."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.agent: asyncio.Task[Any] | None = None
        self._perhaps_failed: list[tuple[asyncio.Task[Any], Line, int]] = []
        self._calls = 0
        self._quiet: asyncio.Event | None = None
        """Somebody waits until no call is under way."""
        self._ended = False

    @property
    def is_alone(self) -> bool:
        """Whether no task of the agent is on its way."""
        return all(task.done() for task in self.tasks)

    def begin_call(self) -> None:
        """A call is under way from here until `end_call`."""
        if self._ended:
            raise asyncio.CancelledError("the agent's code has ended")
        self._calls += 1

    def end_call(self) -> None:
        self._calls -= 1
        if self._quiet is not None and not self._calls:
            self._quiet.set()

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """The two of them around a block."""
        self.begin_call()
        try:
            yield
        finally:
            self.end_call()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """The call that is made here is not under way within this block."""
        self.end_call()
        try:
            yield
        finally:
            self._calls += 1

    def watch(self, task: asyncio.Task[Any], line: Line, parent: Line) -> None:
        """A task that the agent has just started, its line, and the one that it was started from."""
        started_at = parent.index
        self.tasks.add(task)

        def ended(task: asyncio.Task[Any]) -> None:
            self.tasks.discard(task)
            if line.call_failed and not task.cancelled():
                self._perhaps_failed.append((task, parent, started_at))

        task.add_done_callback(ended)

    def failed_beside(self, error: CallFailed) -> tuple[int, ...]:
        """Steps that ended other tasks, after whose start the code has called nothing more.

        Code that awaits several at once is told of one failure; resumed, it should not have to fail
        once for each. Where it went on after a failure, that failure is part of what it did.
        """
        told = [task.exception() for task, parent, at in self._perhaps_failed if parent.index == at]
        steps = {x.step for x in told if isinstance(x, CallFailed) and x.step}
        return tuple(sorted({*steps, *error.also} - {error.step}))

    async def quiet(self) -> None:
        """Wait until no call is under way."""
        while self._calls:
            if self._quiet is None:
                self._quiet = asyncio.Event()
            self._quiet.clear()
            await self._quiet.wait()

    async def idle(self) -> None:
        """Wait until no call is under way, and the code has had time to begin one or to cancel us."""
        here, turns = asyncio.current_task(), 0
        while self._calls or turns < IDLE_TURNS:
            if self._calls:
                await self.quiet()
                turns = 0
            if self.agent in (None, here) and all(x is here or x.done() for x in self.tasks):
                return
            await asyncio.sleep(0)
            turns += 1

    async def finish(self) -> None:
        """The code has returned: what it started and did not wait for is part of the run too."""
        while left := {task for task in self.tasks if not task.done()}:
            await asyncio.wait(left)

    async def end(self, *, at_once: bool = False) -> None:
        """The code has failed or must wait: calls under way come to their end, and none begins."""
        self._ended = True
        if not at_once:
            await self.quiet()
        while left := {task for task in self.tasks if not task.done()}:
            for task in left:
                task.cancel()
            await asyncio.wait(left)

    def cancel(self) -> None:
        """Cut the agent off at the await that it is in. Callable from any thread."""
        if self.agent is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing to cut
                self.loop.call_soon_threadsafe(self.agent.cancel)
