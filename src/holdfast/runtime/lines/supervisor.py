"""The end of a run in this process: its code has ended, all of it waits, or it was stopped.

A run is suspended when every line is parked or is waiting for other lines: first the suspension is committed, then the tasks
are unwound, when nothing can be recorded any more.

Not here: the suspension itself (`runtime/call/suspend.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.errors import Stop, Suspend
from holdfast.runtime.lines.line import CALL_HOPS, AgentLines
from holdfast.runtime.lines.parking import Parking
from holdfast.runtime.lines.run import ExecutedRun
from holdfast.runtime.lines.turns import Turns


class Supervisor:
    """How the execution of one run ends in this process."""

    def __init__(
        self, session: ExecutedRun, lines: AgentLines, turns: Turns, parking: Parking
    ) -> None:
        self._session, self._lines, self._turns, self._parking = session, lines, turns, parking
        self._changed: asyncio.Future[None] | None = None
        self._wants_to_leave = False
        self._staying: list[asyncio.Future[None]] = []

    def leave_if_quiet(self) -> None:
        if self._lines.is_calling:
            return
        if self._lines.awaits_the_unknown:
            self._lines.after_patience(self._leave)
        else:
            self._leave()

    def _leave(self) -> None:
        self._wants_to_leave = True
        self.notify()

    async def supervise(self, suspend: Callable[[], Awaitable[Suspend | None]]) -> Any:
        """Wait for the agent's own line and, if it has returned, for the tasks that it did not wait for: they are
        part of the run too. Suspend the run when all of it waits. The agent's result."""
        agent = self._lines.agent
        assert agent is not None
        agent.add_done_callback(self.notify)
        while not self._has_ended(agent):
            if not self._wants_to_leave:
                self._changed = self._lines.loop.create_future()
                await self._changed
                continue
            self._wants_to_leave = False
            if not self.is_quiet:
                continue  # something has moved since
            self._lines.is_leaving = True
            try:
                signal = await suspend()
            finally:
                self._lines.is_leaving = False
                staying, self._staying = self._staying, []
                for waiter in staying:
                    if not waiter.done():
                        waiter.set_result(None)
            if signal is not None:
                await self.unwind(signal)
                raise signal
            self._lines.settle(CALL_HOPS)
        return agent.result()

    def _has_ended(self, agent: asyncio.Task[Any]) -> bool:
        if agent.done():
            if isinstance(self._session.stop_signal, Stop):
                raise asyncio.CancelledError  # no call is waited for
            failed = agent.cancelled() or agent.exception() is not None
            if failed or all(task.done() for task in self._lines.tasks):
                return True
        if self._session.lost is not None:  # nothing that the code does from here on counts
            raise self._session.lost
        return False

    @property
    def is_quiet(self) -> bool:
        """Whether no line runs code or makes a call, and some wait."""
        waits = self._parking.parked or self._lines.has_unwound
        return bool(waits) and not (
            self._lines.running or self._lines.is_calling or self._turns.outcomes
        )

    async def stay(self) -> None:
        """Wait until it is known whether the run is suspended; if it is, its line is unwound."""
        line = self._lines.current
        if line is None:
            return  # it is the suspension itself that is written
        while self._lines.is_leaving:
            waiter = self._lines.loop.create_future()
            self._staying.append(waiter)
            await waiter
        self._session.check_alive()

    def notify(self, _ended: object = None) -> None:
        """See what has changed."""
        changed = self._changed
        if changed is not None and not changed.done():
            changed.set_result(None)

    async def unwind(self, signal: Suspend) -> None:
        """The run is suspended: end its tasks. What they do now is not recorded."""
        self._lines.suspension, self._lines.is_over = signal, True
        self._session.stop(signal)
        await self._cancel_all()

    async def end(self, *, at_once: bool = False) -> None:
        """The code has failed or was stopped: calls that are under way come to their end, and none begins."""
        self._lines.is_over = True
        if not at_once:
            self._turns.end()
            self._lines.end_timeouts()
        while not at_once and (self._lines.is_calling or self._lines.running):
            self._changed = self._lines.loop.create_future()
            await self._changed
        await asyncio.sleep(0)  # for the callbacks of tasks that have just ended
        await self._cancel_all()

    async def _cancel_all(self) -> None:
        self._lines.forget_patience()
        ended: set[asyncio.Task[Any]] = set()
        while left := {
            task for task in (*self._lines.tasks, self._lines.agent) if task and not task.done()
        }:
            ended |= left
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=1.0)
        for task in ended:
            if not task.cancelled():
                task.exception()  # it has been seen

    def stop_agent(self) -> None:
        """If the run has been stopped, its own line ends too, whatever it awaits."""
        if self._session.stop_signal is not None and self._lines.suspension is None:
            self._lines.loop.call_soon(self._cancel_agent)

    def notify_soon(self) -> None:
        """See what has changed. From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._lines.loop.call_soon_threadsafe(self.notify)

    def cancel(self) -> None:
        """Cancel the agent at the await that it is in. From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing to cancel
            self._lines.loop.call_soon_threadsafe(self._cancel_agent)

    def _cancel_agent(self) -> None:
        if self._lines.agent is not None:
            self._lines.agent.cancel()
        self.notify()  # it may have returned before its tasks
