"""Detect event loops that are blocked by code that runs on them, and report whose code it is.

Nothing is lost by it (`lease.py` has its own thread), but no other run on that loop continues, and
the reason would be invisible. A loop is asked regularly to call back; while it does not, the stack of its
thread shows what it is doing. This costs one callback per loop and check, and nothing per call.

Not here: the thread that checks (`cancel_watcher.py`).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection
from types import FrameType
from typing import TYPE_CHECKING, Final

from holdfast.runtime.log.branches import CURRENT, Branch, Inside
from holdfast.runtime.log.clock import elapsed

if TYPE_CHECKING:
    import asyncio
    import logging

    from holdfast.runtime.lines.line import Line
    from holdfast.runtime.lines.lines import Lines

STALLED_SHARE: Final = 1 / 3
"""The share of a lease for which a loop may stand still without a word: a loop that renewed leases by
itself would have missed to do so."""


class _Question:
    """Are you there? A loop that is answers as soon as what it is doing lets it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked_at = elapsed()
        self.answered = False
        self.warned = False
        with contextlib.suppress(RuntimeError):  # it is closed, and its runs are as good as removed
            loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self.answered = True
        if self.warned:
            seconds = elapsed() - self.asked_at
            extra = {"blocked_seconds": seconds}
            _log().warning("the event loop continues after %.3g s", seconds, extra=extra)


class Stalls:
    """Which loops answer. Used by one thread."""

    def __init__(self, lease_seconds: float) -> None:
        self._max_seconds = lease_seconds * STALLED_SHARE
        self._questions: dict[asyncio.AbstractEventLoop, _Question] = {}

    def look(self, roots: Collection[Branch]) -> None:
        """Ask the loops on which these runs execute; warn, once, of one that has not answered for long."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Branch]] = {}
        for root in roots:
            if root.session.lines is not None:
                by_loop.setdefault(root.session.lines.loop, []).append(root)
        for loop in [loop for loop in self._questions if loop not in by_loop]:
            del self._questions[loop]
        for loop, here in by_loop.items():
            question = self._questions.get(loop)
            if question is None or question.answered:
                self._questions[loop] = _Question(loop)
            elif not question.warned and elapsed() - question.asked_at > self._max_seconds:
                question.warned = True
                _warn(question, here)


def _warn(question: _Question, roots: Collection[Branch]) -> None:
    """What is in the way, as far as it can be seen from outside: the run whose task is being
    executed, the step or tool whose body it is in, and the line."""
    import asyncio
    import traceback

    lines = next(root.session.lines for root in roots if root.session.lines is not None)
    frame = sys._current_frames().get(lines.thread)
    task = asyncio.current_task(lines.loop)
    run_id = next((root.session.run_id for root in roots if _is_of(task, root.session.lines)), "")
    call, within = _call_under_way(task)
    seconds = elapsed() - question.asked_at
    where = "" if frame is None else f", at {_place(frame)}"
    _log().warning(
        "the event loop has been blocked for %.3g s by %s of run %s%s. Runs affected: %d; "
        "await slow work, or run it in a thread (asyncio.to_thread in an async step)",
        seconds,
        call or "code",
        within or run_id or "(unknown)",
        where,
        len(roots) - 1,
        extra={
            "run_id": within or run_id,
            "call": call,
            "blocked_seconds": seconds,
            "stack": "" if frame is None else "".join(traceback.format_stack(frame)),
        },
    )


def _is_of(task: asyncio.Task[object] | None, lines: Lines | None) -> bool:
    return lines is not None and task is not None and lines.owns(task)


def _call_under_way(task: asyncio.Task[object] | None) -> tuple[str, str]:
    """The step or tool whose body this task is executing, and its run."""
    line: Line | None = getattr(task, "line", None)
    here = None if line is None or line.context is None else line.context.get(CURRENT)
    return (here.name, here.run_id) if isinstance(here, Inside) else ("", "")


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _log() -> logging.Logger:
    import logging  # here, as most processes never have a reason to log

    return logging.getLogger("holdfast.stall")
