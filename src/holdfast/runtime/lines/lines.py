"""The tasks of an async agent: what each is doing, in which order they continue, and when all of them wait.

Each task of an agent is a *line* of execution (`line.py`) with a branch of its own in the log. In which order lines continue
is fixed by the log (`turns.py`); so is which timeout of the code fires (`timeouts.py`).

A line that has to wait is parked inside its await. No exception passes through the code of the agent, so a `TaskGroup` does
not take it for a failure. The run is suspended when every line is parked or waits for other lines: first the suspension is
committed, then the tasks are unwound, when nothing can be recorded any more.

Not here: making tasks (`task_factory.py`), what a call is (`flow.py`), when a wait is over (`core/waits.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol

from holdfast.core.entry import Place
from holdfast.core.policy import MICROSECONDS
from holdfast.core.waits import OpenWait
from holdfast.errors import Abandon, CallFailed, HoldfastError, Signal, Stop, Suspend
from holdfast.runtime.lines.line import HOPS, Doing, Line, LineBranch
from holdfast.runtime.lines.timeouts import Fired, Timeouts, TimeoutsRun
from holdfast.runtime.lines.turns import Turns, TurnsRun


class LinesRun(TimeoutsRun, TurnsRun, Protocol):
    """What is asked of the run whose lines these are: `Session` is one."""

    lost: BaseException | None
    waits: dict[Place, OpenWait]
    suspensions: dict[Place, Suspend]

    def check_alive(self) -> None: ...
    def lose(self, signal: BaseException) -> None: ...


class Lines:
    """The lines of one run. Used on its event loop, but for what says otherwise."""

    def __init__(self, session: LinesRun) -> None:
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
        self.is_over = False
        self.turns = Turns(session, self)
        self.timeouts = Timeouts(session)
        self._parked: dict[Place, asyncio.Future[None]] = {}
        self._hops = 0
        self._is_ticking = False
        self._patience: asyncio.TimerHandle | None = None
        self._changed: asyncio.Future[None] | None = None
        self._wants_to_leave = False
        self.is_leaving = False
        """The suspension is on its way to the log: nothing begins, and nothing else is written."""
        self._staying: list[asyncio.Future[None]] = []
        self._perhaps_failed: list[tuple[asyncio.Task[Any], LineBranch, int]] = []

    # ── lines ────────────────────────────────────────────────────────────────────────────

    def line(self, coro: Coroutine[Any, Any, Any]) -> Line:
        """A line for a task that is about to be made. It counts as running: its task will be."""
        made = Line(self, coro)
        self.members.add(made)
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
            self.notify()

        task.add_done_callback(ended)

    def failed_with(self, error: CallFailed) -> tuple[int, ...]:
        """Steps that ended other tasks, after whose start the code has called nothing more.

        Code that awaits several at once is told of one failure; resumed, it should not have to fail
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
        return self.session.stopped is not None

    @property
    def is_alone(self) -> bool:
        """Whether there is only one line, and nothing on its way to it."""
        return len(self.members) <= 1 and not self._hops

    @property
    def may_begin_at_once(self) -> bool:
        """Whether `begin` has nothing to wait for: a lone line, and no suspension on its way."""
        return len(self.members) <= 1 and not (self._hops or self.is_leaving)

    @contextlib.contextmanager
    def call(self, place: Place) -> Iterator[Line | None]:
        """The current line is inside the call at this place until the block ends."""
        line = self.current
        if self.is_over and self.suspension is None:
            raise asyncio.CancelledError("the agent's code has ended")
        if line is None or line.in_call:
            yield None  # in a task that the agent did not make
            return
        if line.cancel_due and line.task is not None and self._was_cancelled_before(line, place):
            line.cancel_due, line.cancelled_before = False, None
            if line.task.cancelling():
                raise asyncio.CancelledError
        if not line.cancel_due:
            line.cancelled_before = None
        line.in_call = True
        try:
            yield line
        finally:
            line.in_call = False
            line.runs()

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
        if len(self.members) <= 1 and not (self._is_awaited or self._is_ticking or self._hops):
            return  # nothing has to be put in order
        self._hops = max(self._hops, hops)
        if not self._is_ticking and not self.running:
            self._is_ticking = True
            self.loop.call_soon(self._tick)

    @property
    def has_hops(self) -> bool:
        """Whether something that one line told another may still be on its way."""
        return self._hops > 0

    @property
    def _is_awaited(self) -> bool:
        """Whether a line waits for what only `_advance` gives."""
        return bool(
            self._parked or self.timeouts.fired or self.has_unwound or self.turns.are_awaited
        )

    def _tick(self) -> None:
        self._is_ticking = False
        if self.running or self.is_over or self.is_leaving:
            return
        if self._hops:
            self._hops -= 1
            self._is_ticking = True
            self.loop.call_soon(self._tick)
            return
        try:
            self._advance()
        except Signal as signal:  # nobody calls this: without a word the lines would wait for ever
            self.session.lose(signal)
        except HoldfastError as error:
            self.session.lose(Abandon(error))

    def _advance(self) -> None:
        """No code of the agent runs: hand over the next outcome, or let the run leave memory."""
        if self.turns.advance():
            return
        if self.timeouts.fired:
            self._cancel_line(self.timeouts.record_first())
        elif self._parked or self.has_unwound:
            self._leave_if_quiet()

    @property
    def is_calling(self) -> bool:
        return any(line.state is Doing.CALLING for line in self.members)

    @property
    def awaits_the_unknown(self) -> bool:
        return any(line.state is Doing.OUTSIDE for line in self.members)

    def _leave_if_quiet(self) -> None:
        if self.is_calling:
            return
        if self.awaits_the_unknown:
            self.after_patience(self._leave)
        else:
            self._leave()

    def _leave(self) -> None:
        self._wants_to_leave = True
        self.notify()

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

    # ── timeouts of the code ─────────────────────────────────────────────────────────────

    def time_out(self, line: Line, timeout: asyncio.Timeout) -> bool:
        """A timeout of the agent's code has fired."""
        assert line.task is not None
        if self.is_over or self.session.is_ending or self.is_stopped:
            return asyncio.Task.cancel(line.task)
        self.timeouts.fired.append(Fired(line, timeout))
        self.settle(0)
        return True

    def time_out_again(self, place: Place, *, is_cut: bool) -> bool:
        """Cancel the line of the timeout that is the next in the log, if it has fired again; see `Timeouts`."""
        line = self.timeouts.take_again(place, is_cut=is_cut)
        if line is not None:
            self._cancel_line(line)
        return line is not None

    def _cancel_line(self, line: Line) -> None:
        assert line.task is not None
        line.is_cancelled()
        asyncio.Task.cancel(line.task)
        self.settle(HOPS["await"])

    # ── waiting and leaving ──────────────────────────────────────────────────────────────

    async def park(self, wait: OpenWait, signal: Suspend) -> None:
        """Wait until the log has brought what is waited for; or for ever, if the run leaves memory."""
        session, line, is_cancelled = self.session, self.current, False
        session.waits[wait.place], session.suspensions[wait.place] = wait, signal
        timer = self._wake_at(wait.until)
        try:
            while True:
                waiter = self._parked[wait.place] = self.loop.create_future()
                if line is not None:
                    line.does(Doing.PARKED)
                try:
                    await waiter
                    break
                except asyncio.CancelledError:
                    # A call in doubt holds its line, even if the code no longer waits for it.
                    if wait.kind != "decision" or session.is_ending:
                        raise
                    is_cancelled = True
        finally:
            if timer is not None:
                timer.cancel()
            del self._parked[wait.place]
            if self.suspension is None:
                session.waits.pop(wait.place, None)
                session.suspensions.pop(wait.place, None)
            if line is not None and line.state is Doing.PARKED:
                line.state = Doing.CALLING
        if line is not None and is_cancelled:
            line.cancel_due = True

    def _wake_at(self, until: int | None) -> asyncio.TimerHandle | None:
        if until is None:
            return None
        left = max(0, until - self.session.store.now()) / MICROSECONDS
        return self.loop.call_later(left + 0.001, self.look_again)

    def look_again(self, ended: Sequence[str] = (), *, is_asked: bool = False) -> bool:
        """Wake the lines whose wait is over; whether there were any. While the run is being suspended, only
        who suspends it may ask."""
        if self.is_leaving and not is_asked:
            return False
        session, now = self.session, self.session.store.now()
        woken = [
            waiter
            for place, waiter in self._parked.items()
            if not waiter.done() and session.waits[place].is_over(session.journal, now, ended)
        ]
        for waiter in woken:
            waiter.set_result(None)
        return bool(woken)

    def look_again_soon(self, ended: Sequence[str] = ()) -> None:
        """The same from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self.look_again, ended)

    # ── the whole agent ──────────────────────────────────────────────────────────────────

    async def supervise(self, suspend: Callable[[], Awaitable[Suspend | None]]) -> Any:
        """Wait for the agent's own line and, if it has returned, for the tasks that it did not wait for: they are
        part of the run too. Suspend the run when all of it waits. The agent's result."""
        agent = self.agent
        assert agent is not None
        agent.add_done_callback(lambda _: self.notify())
        while not self._has_ended(agent):
            if not self._wants_to_leave:
                self._changed = self.loop.create_future()
                await self._changed
                continue
            self._wants_to_leave = False
            if not self._is_quiet:
                continue  # something has moved since
            self.is_leaving = True
            try:
                signal = await suspend()
            finally:
                self.is_leaving = False
                staying, self._staying = self._staying, []
                for waiter in staying:
                    if not waiter.done():
                        waiter.set_result(None)
            if signal is not None:
                await self.unwind(signal)
                raise signal
            self.settle(HOPS["call"])
        return agent.result()

    def _has_ended(self, agent: asyncio.Task[Any]) -> bool:
        if agent.done():
            if isinstance(self.session.stopped, Stop):
                raise asyncio.CancelledError  # no call is waited for
            failed = agent.cancelled() or agent.exception() is not None
            if failed or all(task.done() for task in self.tasks):
                return True
        if self.session.lost is not None:  # nothing that the code does from here on counts
            raise self.session.lost
        return False

    @property
    def _is_quiet(self) -> bool:
        """Whether no line runs code or makes a call, and some wait."""
        waits = self._parked or self.has_unwound
        return bool(waits) and not (self.running or self.is_calling or self.turns.outcomes)

    async def stay(self) -> None:
        """Wait until it is known whether the run is suspended; if it is, its line is unwound."""
        line = self.current
        if line is None:
            return  # it is the suspension itself that is written
        while self.is_leaving:
            waiter = self.loop.create_future()
            self._staying.append(waiter)
            await waiter
        self.session.check_alive()

    def notify(self) -> None:
        changed = self._changed
        if changed is not None and not changed.done():
            changed.set_result(None)

    async def unwind(self, signal: Suspend) -> None:
        """The run is suspended: end its tasks. What they do now is not recorded."""
        self.suspension, self.is_over = signal, True
        self.session.stop(signal)
        await self._cancel_all()

    async def end(self, *, at_once: bool = False) -> None:
        """The code has failed or was stopped: calls that are under way come to their end, and none begins."""
        self.is_over = True
        if not at_once:
            self.turns.end()
        while not at_once and (self.is_calling or self.running):
            self._changed = self.loop.create_future()
            await self._changed
        await asyncio.sleep(0)  # for the callbacks of tasks that have just ended
        await self._cancel_all()

    async def _cancel_all(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        ended: set[asyncio.Task[Any]] = set()
        while left := {task for task in (*self.tasks, self.agent) if task and not task.done()}:
            ended |= left
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=1.0)
        for task in ended:
            if not task.cancelled():
                task.exception()  # it has been seen

    def stop_agent(self) -> None:
        """If the run has been stopped, its own line ends too, whatever it awaits."""
        if self.session.stopped is not None and self.suspension is None:
            self.loop.call_soon(self._cancel_agent)

    def notify_soon(self) -> None:
        """See what has changed. From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self.notify)

    def cancel(self) -> None:
        """Cancel the agent at the await that it is in. From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing to cancel
            self.loop.call_soon_threadsafe(self._cancel_agent)

    def _cancel_agent(self) -> None:
        if self.agent is not None:
            self.agent.cancel()
        self.notify()  # it may have returned before its tasks
