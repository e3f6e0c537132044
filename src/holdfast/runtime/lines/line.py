"""One task of an async agent, watched: what it is doing, and when it is blocked.

Whether the code is blocked is seen from what its coroutines await. A notification from one task to another passes through a few
callbacks of the event loop; `CALL_HOPS` and so on are how many iterations of the loop that may take.

Not here: the order in which the lines of a run continue (`turns.py`), all of them together (`lines.py`).
"""

from __future__ import annotations

import asyncio
import contextvars
import enum
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, NamedTuple, Protocol

from holdfast.core.entry import Place
from holdfast.errors import Suspend

CALL_HOPS, AWAIT_HOPS, END_HOPS = 1, 2, 4
"""How many turns of the loop pass before the code counts as blocked: after a line has made a call, has begun to
await something else, or has ended (a `gather` inside a `shield` passes its result on in four)."""

_GROUPS: Final = frozenset(("TaskGroup.__aexit__", "TaskGroup._aexit"))
"""Coroutines in which a task group awaits its tasks, by their qualified names in all versions of Python."""
_LIMITED: Final = frozenset(("_wait", "wait_for"))
"""Coroutines of asyncio that wait for tasks, and may have a timer (`timeout_handle`) that ends that."""
_JOINS: Final = _GROUPS | _LIMITED | {"wait", "_wait_for_one"}
"""Coroutines of asyncio that wait for tasks."""


class LineBranch(Protocol):
    """What a line reads of its branch: how many calls it has made, and whether its code has seen one fail."""

    path: str
    index: int
    call_failed: bool

    @property
    def forks_above(self) -> tuple[int, ...]: ...


class RunEnd(Protocol):
    """How the run ends here: `Supervisor` is one."""

    async def stay(self) -> None: ...
    def notify(self) -> None: ...
    def stop_agent(self) -> None: ...


class AgentLines(Protocol):
    """What a line, and each part of `Lines`, asks of all of them: `Lines` is one."""

    loop: asyncio.AbstractEventLoop
    agent: asyncio.Task[Any] | None
    tasks: set[asyncio.Task[Any]]
    members: set[Line]
    current: Line | None
    running: int
    moves: int
    hops: int
    suspension: Suspend | None
    has_unwound: bool
    needs_order: bool
    is_lone_outcome_due: bool
    is_leaving: bool
    is_over: bool

    @property
    def supervisor(self) -> RunEnd: ...
    @property
    def is_stopped(self) -> bool: ...
    @property
    def has_fired(self) -> bool: ...
    @property
    def is_in_order(self) -> bool: ...
    @property
    def is_calling(self) -> bool: ...
    @property
    def awaits_the_unknown(self) -> bool: ...
    def owns(self, task: asyncio.Future[Any]) -> bool: ...
    def settle(self, hops: int) -> None: ...
    def after_patience(self, act: Callable[[], None], seconds: float | None = None) -> None: ...
    def forget_patience(self) -> None: ...
    def limit_wait(
        self, line: Line, waiter: asyncio.Future[Any], timer: asyncio.TimerHandle
    ) -> None: ...
    def time_out_again(self, place: Place, *, is_cut: bool) -> bool: ...
    def end_timeouts(self) -> None: ...


class LineState(enum.Enum):
    """What a line is doing."""

    RUNNING = "running the agent's code"
    CALLING = "in a step, a tool or a commit"
    ASKING = "waiting for its turn"
    PARKED = "waiting for something that the log will bring"
    JOINING = "waiting for other lines"
    OUTSIDE = "waiting for something that Holdfast does not know"
    ENDED = "ended"


_RUNNING: Final = LineState.RUNNING  # in Python 3.11 it takes long to look up a member of an Enum
_CALLING: Final = LineState.CALLING


class TimeoutName(NamedTuple):
    """Which of the timeouts that a line has entered: a replay knows it by this."""

    entered_at: int
    """How many calls and waits the line had made."""
    number: int
    """How many timeouts it had entered since the last of them."""


NO_TIMEOUT: Final = TimeoutName(0, 0)
"""It has entered none."""


class Line(Coroutine[Any, Any, Any]):
    """The coroutine of one task, watched: every resumption, everything it awaits, every cancellation."""

    __slots__ = (
        "__name__",
        "__qualname__",
        "_coro",
        "_finished",
        "branch",
        "cancel_due",
        "cancellations",
        "cancelled_before",
        "context",
        "forks_above",
        "in_call",
        "last_timeout",
        "lines",
        "state",
        "task",
    )

    def __init__(self, lines: AgentLines, coro: Coroutine[Any, Any, Any]) -> None:
        self._coro, self.lines = coro, lines
        self.__name__ = getattr(coro, "__name__", "")
        self.__qualname__ = getattr(coro, "__qualname__", "")
        self.state = LineState.OUTSIDE
        self.in_call = False
        """Whether it is inside a call or wait of Holdfast: then no code of the agent runs in it."""
        self.cancel_due = False
        """It was cancelled while an outcome was on its way to it: it hears of that at its next await."""
        self.cancelled_before: int | None = None
        """By a recorded timeout, before its call or wait at this position."""
        self.forks_above: tuple[int, ...] = ()
        """How many branches those above it had started when it was cancelled last; the nearest first."""
        self.task: asyncio.Task[Any] | None = None
        self.cancellations: Callable[[], int] = int
        """How often its task was cancelled."""
        self.context: contextvars.Context | None = None
        """In which its task runs."""
        self.last_timeout = NO_TIMEOUT
        """The timeout that its code has entered last."""
        self.branch: LineBranch | None = None
        self._finished: BaseException | None = None

    def runs_in(self, task: asyncio.Task[Any], branch: LineBranch) -> None:
        """The task that drives it, and its branch."""
        self.task, self.branch, self.cancellations = task, branch, counter(task)

    def throw(self, error: Any, value: Any = None, _traceback: Any = None) -> Any:
        raised = error if isinstance(error, BaseException) else (value or error())
        if isinstance(raised, asyncio.CancelledError) and self.lines.suspension is not None:
            # The run is suspended: no code is being cancelled. A task group that awaits its tasks must not
            # leave before they have ended, or asyncio logs an error for each of them; it expects a cancellation.
            raised = raised if _name_of(self._innermost) in _GROUPS else self.lines.suspension
        if self._finished is not None:
            self._end()
            raise self._finished
        return self.send(None, raised)

    def close(self) -> None:
        self._coro.close()
        self._end()

    def is_cancelled(self) -> None:
        """Its task is about to be cancelled. The canceller may continue before its call has ended."""
        if self.branch is not None and self.task is not None and not self.task.cancelling():
            self.forks_above = self.branch.forks_above

    def __await__(self) -> Generator[Any, Any, Any]:
        raise RuntimeError("a line is driven by its task")

    def send(self, value: Any, error: BaseException | None = None) -> Any:
        """Run the code until it awaits something. With an error, that is raised in it."""
        lines = self.lines
        outer, lines.current = lines.current, self
        if not self.in_call:
            self.runs()
        try:
            awaited = self._coro.send(value) if error is None else self._coro.throw(error)
        except Suspend as signal:
            if lines.suspension is not None or lines.is_stopped:
                self._end()
                lines.supervisor.stop_agent()
                raise
            # Out of a thread that had to wait: the task stays until the run is suspended.
            self._finished = signal
            lines.has_unwound = lines.needs_order = True
            self.does(LineState.PARKED, AWAIT_HOPS)
            awaited = lines.loop.create_future()
            awaited._asyncio_future_blocking = True
            return awaited
        except BaseException:  # also how a coroutine returns
            self._end()
            lines.supervisor.stop_agent()
            raise
        finally:
            lines.current = outer
        if self.cancel_due:
            self._deliver_cancellation()
        if not self.in_call:
            self.does(self._classify(awaited), AWAIT_HOPS)
        elif self.state is _RUNNING:
            self.does(_CALLING)
        elif lines.needs_order and lines.has_fired:
            # Perhaps before its call could begin, and nothing else looks at it.
            lines.settle(CALL_HOPS)
        return awaited

    def leave_call(self) -> None:
        """The call that it was inside has ended; see `Lines.enter_call`."""
        self.in_call = False
        if self.lines.needs_order:  # else no other line needs to know
            self.runs()

    def runs(self) -> None:
        """From here on the agent's code runs in this line."""
        if self.state is _CALLING or self.state not in (LineState.RUNNING, LineState.ENDED):
            self.state = _RUNNING
            self.lines.running += 1
            self.lines.moves += 1

    def does(self, what: LineState, hops: int = CALL_HOPS) -> None:
        """The agent's code does not run in it: what it is waiting for."""
        lines = self.lines
        if self.state is _RUNNING:
            lines.running -= 1
        self.state = what
        lines.settle(hops)
        if lines.is_over:
            lines.supervisor.notify()

    def _end(self) -> None:
        if self.state is LineState.ENDED:
            return
        if self.state is LineState.RUNNING:
            self.lines.running -= 1
        self.state = LineState.ENDED
        self.lines.members.discard(self)
        self.lines.settle(END_HOPS)
        if self.lines.is_over:
            self.lines.supervisor.notify()

    def _deliver_cancellation(self) -> None:
        """As asyncio does: a task that is to be cancelled is so at its next await."""
        self.cancel_due, self.cancelled_before = False, None
        if self.task is not None and self.task.cancelling():
            self.task.uncancel()
            self.task.cancel()

    def _classify(self, awaited: Any) -> LineState:
        if isinstance(awaited, asyncio.Task):
            return LineState.JOINING if self.lines.owns(awaited) else LineState.OUTSIDE
        children = getattr(awaited, "_children", None)  # of asyncio.gather
        if children is not None:
            ours = all(child.done() or self.lines.owns(child) for child in children)
            return LineState.JOINING if ours else LineState.OUTSIDE
        inner = self._innermost
        name = _name_of(inner)
        if name in _LIMITED and isinstance(awaited, asyncio.Future):
            timer = inner.cr_frame.f_locals.get("timeout_handle")
            if isinstance(timer, asyncio.TimerHandle) and not timer.cancelled():
                self.lines.limit_wait(self, awaited, timer)
        return LineState.JOINING if name in _JOINS else LineState.OUTSIDE

    @property
    def _innermost(self) -> Any:
        """The innermost coroutine that it is in."""
        inner: Any = self._coro
        while (below := getattr(inner, "cr_await", None)) is not None and hasattr(below, "cr_code"):
            inner = below
        return inner

    # What asyncio and debuggers show of a coroutine, in addition to its name. (Not by `__getattr__`, with which every
    # attribute takes longer.)

    @property
    def cr_frame(self) -> Any:
        return getattr(self._coro, "cr_frame", None)

    @property
    def cr_code(self) -> Any:
        return getattr(self._coro, "cr_code", None)

    @property
    def cr_running(self) -> bool:
        return getattr(self._coro, "cr_running", False)

    @property
    def cr_await(self) -> Any:
        return getattr(self._coro, "cr_await", None)


def counter(task: asyncio.Task[Any] | None) -> Callable[[], int]:
    """How often a task was cancelled, as a function. (`LineTask.cancelling` also looks at who asks.)"""
    found: Callable[[], int] = getattr(task, "cancellations", getattr(task, "cancelling", int))
    return found


def _name_of(coro: Any) -> str:
    """The qualified name of a coroutine's function."""
    return getattr(getattr(coro, "cr_code", None), "co_qualname", "")
