"""The task of a line of an async agent: it tells a timeout of the agent's code from other cancellations.

A module of its own, because only runs of async agents need it and `asyncio`. Tasks are made in `task_factory.py`.
"""

from __future__ import annotations

import asyncio
import sys
from types import FrameType
from typing import Any, Final

from holdfast.runtime.lines.line import Line
from holdfast.runtime.lines.lines import Lines
from holdfast.runtime.log.branches import current_branch

_FROM_A_SET: Final = frozenset(("as_completed", "_AsCompletedIterator.__init__"))
"""Functions of asyncio that start coroutines from a set, by their qualified names in all versions of Python."""


class LineTask(asyncio.Task[Any]):
    """The task of a line. A timeout of the agent's code cancels it in the order of the log."""

    line: Line | None = None
    lines: Lines

    cancellations = asyncio.Task.cancelling
    """How often it was cancelled; unlike `cancelling`, without a look at who asks."""

    def cancelling(self) -> int:
        timeout = _timeout_in(asyncio.Timeout.__aenter__)
        if timeout is not None and self.line is not None and current_branch() is not None:
            self.lines.timeouts.enter(self.line, timeout)
        return super().cancelling()

    def cancel(self, msg: Any | None = None) -> bool:
        timeout = _timeout_in(asyncio.Timeout._on_timeout)  # type: ignore[attr-defined]
        if timeout is not None and self.line is not None and current_branch() is not None:
            self.lines.time_out(self.line, timeout)  # else it was set in the body of a call
            return True
        if self.line is not None:
            if not self.lines.loop.is_running():
                # Not by the agent's code, which runs only there: `asyncio.run` ends all tasks, in any order.
                self.lines.session.is_unwinding = True
            self.line.is_cancelled()
        return super().cancel(msg)

    def uncancel(self) -> int:
        timeout = _timeout_in(asyncio.Timeout.__aexit__)
        if timeout is None or self.line is None:
            return super().uncancel()
        if self.lines.timeouts.forget(timeout):
            return self.cancelling()
        left = super().uncancel()
        # As long as a cancellation is left, it raises no TimeoutError, after which the code would continue.
        return left + 1 if self.lines.session.is_unwinding else left


def _timeout_in(method: Any) -> asyncio.Timeout | None:
    """The `asyncio.timeout` that calls the function that asks this, if this method of it does."""
    caller = sys._getframe(2)
    if caller.f_code is not method.__code__:
        return None
    found: asyncio.Timeout = caller.f_locals["self"]
    return found


def starts_in_any_order() -> bool:
    """Whether the task that is being made is one of several that asyncio takes from a set: their order is random."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("asyncio."):
        if frame.f_code.co_qualname in _FROM_A_SET:
            return True
        frame = frame.f_back
    return False
