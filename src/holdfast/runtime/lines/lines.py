"""The tasks of an async agent: what each is doing, in which order they continue, and when all of them wait.

Each task of an agent is a *line* of execution (`line.py`) with a branch of its own in the log. In which order lines continue
is fixed by the log (`turns.py`); so is which timeout of the code fires (`timeouts.py`).

Not here: lines that wait (`parking.py`), the end of the run here (`supervisor.py`), making tasks (`runtime/call/task_factory.py`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.core.entry import Place
from holdfast.core.policy import MICROSECONDS
from holdfast.errors import Abandon, CallFailed, HoldfastError, Suspend, Unwind
from holdfast.runtime.lines.line import AWAIT_HOPS, END_HOPS, Line, LineBranch, LineState
from holdfast.runtime.lines.parking import Parking
from holdfast.runtime.lines.run import ExecutedRun
from holdfast.runtime.lines.supervisor import Supervisor
from holdfast.runtime.lines.timeouts import FiredTimeout, Timeouts, WaitTimeout
from holdfast.runtime.lines.turns import Turns


class Lines:
    """The lines of one run. Used on its event loop, but for what says otherwise."""

    __slots__ = (
        "_is_ticking",
        "_patience",
        "_perhaps_failed",
        "agent",
        "current",
        "has_unwound",
        "hops",
        "is_leaving",
        "is_lone_outcome_due",
        "is_over",
        "loop",
        "members",
        "moves",
        "needs_order",
        "parking",
        "running",
        "session",
        "supervisor",
        "suspension",
        "tasks",
        "thread",
        "timeouts",
        "turns",
    )

    def __init__(self, session: ExecutedRun) -> None:
        self.session = session
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.agent: asyncio.Task[Any] | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        self.members: set[Line] = set()
        self.current: Line | None = None
        self.running = 0
        """How many lines run the agent's code."""
        self.moves = 0
        """Grows whenever a line begins to run the agent's code."""
        self.suspension: Suspend | None = None
        """The run is suspended in the log: its tasks are being unwound."""
        self.has_unwound = False
        """A line has ended with a wait of a thread, and cannot continue in memory."""
        self.needs_order = False
        """Whether anything may have to be put in order: another line, or what waits for its turn, for the log or for a
        timeout. Set with each of these; `settle` finds that nothing is left. Most agents are one line that calls."""
        self.is_over = False
        self.turns = Turns(session, self)
        self.timeouts = Timeouts(session)
        self.parking = Parking(session, self)
        self.supervisor = Supervisor(session, self, self.turns, self.parking)
        self.hops = 0
        """How many turns of the loop pass before a notification from one line to another has surely arrived."""
        self._is_ticking = False
        self._patience: asyncio.TimerHandle | None = None
        self.is_leaving = False
        """The suspension is on its way to the log: nothing begins, and nothing else is written."""
        self.is_lone_outcome_due = False
        """The outcome of the only line is on its way to it, and has no turn. Other lines may have begun since."""
        self._perhaps_failed: list[tuple[asyncio.Task[Any], LineBranch, int]] = []

    # ── lines ────────────────────────────────────────────────────────────────────────────

    def line(self, coro: Coroutine[Any, Any, Any]) -> Line:
        """A line for a task that is about to be made. It counts as running: its task will be."""
        made = Line(self, coro)
        self.members.add(made)
        if len(self.members) > 1:
            self.needs_order = True
            if self.current is not None and not self.current.in_call:
                self.current.runs()
        made.runs()
        return made

    def watch(self, task: asyncio.Task[Any], branch: LineBranch, parent: LineBranch) -> None:
        """A task that the agent has just started, its branch, and the one that it was started from."""
        started_at = parent.index
        self.tasks.add(task)

        def ended(task: asyncio.Task[Any]) -> None:
            self.tasks.discard(task)
            if branch.call_failed and not task.cancelled():
                self._perhaps_failed.append((task, parent, started_at))
            self.supervisor.notify()

        task.add_done_callback(ended)

    def failed_with(self, error: CallFailed) -> tuple[int, ...]:
        """Steps that ended other tasks, after whose start the code has called nothing more.

        Code that awaits several calls at once sees one failure; after a resume, it should not have to fail
        once for each. Where it continued after a failure, that failure is part of what it did.
        """
        told = [task.exception() for task, parent, at in self._perhaps_failed if parent.index == at]
        steps = {x.step for x in told if isinstance(x, CallFailed) and x.step}
        return tuple(sorted({*steps, *error.also} - {error.step}))

    def owns(self, task: asyncio.Future[Any]) -> bool:
        """Whether this is a task of the agent."""
        return task in self.tasks or task is self.agent

    @property
    def is_stopped(self) -> bool:
        """Whether the run has been stopped: its code gets no further."""
        return self.session.stop_signal is not None

    @property
    def has_fired(self) -> bool:
        """Whether a timeout of the code has fired, and has had no effect yet."""
        return bool(self.timeouts.fired)

    @property
    def is_in_order(self) -> bool:
        """Whether nothing has to be put in order: there is only one line, nothing is on its way to it, and no recorded
        timeout has yet to fire again."""
        if self.session.journal.timeouts:
            return False
        return not self.needs_order or (len(self.members) <= 1 and not self.hops)

    def enter_call(self, path: str, index: int) -> Line | None:
        """The current line is inside the call at this place until it leaves it (`Line.leave_call`). None in a task
        that the agent did not make."""
        line = self.current
        if (self.is_over or self.session.is_unwinding) and self.suspension is None:
            raise asyncio.CancelledError("the agent's code has ended")
        if line is None or line.in_call:
            return None
        if (
            line.cancel_due
            and line.task is not None
            and self._was_cancelled_before(line, (path, index))
        ):
            line.cancel_due, line.cancelled_before = False, None
            if line.task.cancelling():
                raise asyncio.CancelledError
        if not line.cancel_due:
            line.cancelled_before = None
        line.in_call = True
        return line

    def _was_cancelled_before(self, line: Line, place: Place) -> bool:
        """Whether a cancellation came before the call at this place had begun. A recorded timeout says so. Otherwise
        it came later if the call is in the log."""
        if line.cancelled_before is not None and line.branch and line.branch.path == place[0]:
            return place[1] >= line.cancelled_before
        if not self.session.log.knows_all:
            self.session.log.read_all()
        return place not in self.session.journal.entries

    # ── when the code is blocked ─────────────────────────────────────────────────────────

    def settle(self, hops: int) -> None:
        """A line has stopped: see what is next when the code has had so many turns of the loop."""
        if not self.needs_order:
            return
        turns = self.turns
        if len(self.members) <= 1 and not (
            self.hops
            or self._is_ticking
            or self.parking.parked
            or self.timeouts.fired
            or self.has_unwound
            or turns.asking
            or turns.waiting_to_begin
            or (turns.outcomes and turns.outcomes[0].waiter is not None)
        ):
            self.needs_order = False
            self.moves += 1  # what was to be done if no line moves is not needed any more
            return
        self.hops = max(self.hops, hops)
        if not self._is_ticking and not self.running:
            self._is_ticking = True
            self.loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._is_ticking = False
        if self.running or self.is_over or self.is_leaving:
            return
        if self.hops:
            self.hops -= 1
            self._is_ticking = True
            self.loop.call_soon(self._tick)
            return
        try:
            self._advance()
        except Unwind as signal:  # raised to no caller: without this the lines would wait forever
            self.session.lose(signal)
        except HoldfastError as error:
            self.session.lose(Abandon(error))

    def _advance(self) -> None:
        """No code of the agent runs: hand over the next outcome, or let the run be suspended."""
        if self.turns.advance():
            return
        if self.timeouts.fired:
            self._take_effect(self.timeouts.record_first())
        elif self.parking.parked or self.has_unwound:
            self.supervisor.leave_if_quiet()

    @property
    def is_calling(self) -> bool:
        return any(line.state is LineState.CALLING for line in self.members)

    @property
    def awaits_the_unknown(self) -> bool:
        return any(line.state is LineState.OUTSIDE for line in self.members)

    def after_patience(self, act: Callable[[], None], seconds: float | None = None) -> None:
        """Do this if no line has moved for a while."""
        moves = self.moves

        def look() -> None:
            self._patience = None
            if not self.is_over and not self.running and self.moves == moves:
                act()

        if self._patience is not None:
            self._patience.cancel()
        patience = self.session.patience_us / MICROSECONDS if seconds is None else seconds
        self._patience = self.loop.call_later(patience, look)

    def forget_patience(self) -> None:
        """Nothing is done after a while any more."""
        if self._patience is not None:
            self._patience.cancel()

    # ── timeouts of the code ─────────────────────────────────────────────────────────────

    def limit_wait(
        self, line: Line, waiter: asyncio.Future[Any], timer: asyncio.TimerHandle
    ) -> None:
        """A line waits for tasks until asyncio's timer ends that. The timer is replaced by one that waits for its turn."""
        timer.cancel()
        timeout = WaitTimeout(waiter)
        self.timeouts.enter(line, timeout)
        ours = self.loop.call_at(timer.when(), self.time_out, line, timeout)

        def ended(_: asyncio.Future[Any]) -> None:
            ours.cancel()
            self.timeouts.forget(timeout)

        waiter.add_done_callback(ended)

    def time_out(self, line: Line, timeout: asyncio.Timeout | WaitTimeout) -> None:
        """A timeout of the agent's code has fired."""
        fired = FiredTimeout(line, timeout)
        if self.is_over or self.session.is_ending or self.is_stopped:
            fired.take_effect()
            return
        self.timeouts.fired.append(fired)
        self.needs_order = True
        # The line may be the only one left and have yet to hear that another has ended: nothing counts that otherwise.
        self.settle(END_HOPS)

    def time_out_again(self, place: Place, *, is_cut: bool) -> bool:
        """Let the timeout that is the next in the log take effect, if it has fired again; see `Timeouts`."""
        fired = self.timeouts.take_again(place, is_cut=is_cut)
        if fired is not None:
            self._take_effect(fired)
        return fired is not None

    def end_timeouts(self) -> None:
        """The run ends here, and its code no longer gets turns: those that have fired take effect at once. The end waits
        for calls in progress, and one of them may end only so."""
        fired, self.timeouts.fired = self.timeouts.fired, []
        for timeout in fired:
            timeout.take_effect()

    def _take_effect(self, fired: FiredTimeout) -> None:
        fired.take_effect()
        self.settle(AWAIT_HOPS)
