"""The tasks of an async agent: what each is doing, in which order they continue, and when all of them wait.

Each task of an agent is a *line* of execution with a branch of its own in the log. The order in which lines
continue decides races, so it is fixed by the log:

- Outcomes are handed to the code in the order of the log, one at a time. Between two of them the code runs
  until every line is blocked. Live execution and replay use the same rule, so both decide alike.
- Nothing new begins before every recorded outcome has been handed over.
- A timeout of the code (`asyncio.timeout`) cancels its line when there is no outcome to hand over. It is recorded,
  and comes at the same place among the outcomes again.
- A line that has to wait is parked inside its await. No exception passes through the code of the agent, so a
  `TaskGroup` does not take it for a failure. The run is suspended when every line is parked or waits for other
  lines: first the suspension is committed, then the tasks are unwound, when nothing can be recorded any more.

Whether the code is blocked is seen from what its coroutines await (`Line`). What one task tells another passes
through a few callbacks of the event loop; `HOPS` is how many turns of the loop it may take.

Not here: making tasks (`task_factory.py`), what a call is (`flow.py`), when a wait is over (`core/waits.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from holdfast.core import events as e
from holdfast.core.entry import Place
from holdfast.core.events import Event
from holdfast.core.journal import Journal
from holdfast.core.policy import MICROSECONDS
from holdfast.core.waits import OpenWait
from holdfast.errors import Abandon, CallFailed, HoldfastError, Signal, Stop, Suspend
from holdfast.store.base import Store

HOPS: Final = {"call": 1, "await": 2, "end": 4}
"""How many turns of the loop pass before the code counts as blocked: after a line has made a call, has begun to
await something else, or has ended (a `gather` inside a `shield` passes its result on in four)."""

OTHER_CODE_SECONDS: Final = 600.0
"""How long code that awaits something unknown may take to ask for what is recorded; then it is other code."""

_JOINS: Final = frozenset(("TaskGroup.__aexit__", "_wait", "wait", "wait_for", "_wait_for_one"))
"""Coroutines of asyncio that wait for tasks, by their qualified names."""


class LinesRun(Protocol):
    """What is asked of the run whose lines these are: `Session` is one."""

    store: Store
    journal: Journal
    patience_us: int
    stopped: BaseException | None
    lost: BaseException | None
    only_replay: HoldfastError | None
    waits: dict[Place, OpenWait]
    suspensions: dict[Place, Suspend]

    @property
    def is_ending(self) -> bool: ...
    @property
    def knows_all(self) -> bool: ...
    def read_all(self) -> None: ...
    def check_alive(self) -> None: ...
    def stop(self, signal: BaseException) -> BaseException: ...
    def lose(self, signal: BaseException) -> None: ...
    def hold(self, event: Event) -> object: ...
    def show(self, seq: int) -> None: ...
    def not_asked(self, place: Place, attempted: str) -> BaseException: ...


class LineBranch(Protocol):
    """What is asked of a branch: how many calls it has made, and whether it was told that one failed."""

    path: str
    index: int
    call_failed: bool

    @property
    def forks_above(self) -> tuple[int, ...]: ...


class Doing(enum.Enum):
    """What a line is doing."""

    RUNNING = "running the agent's code"
    CALLING = "in a step, a tool or a commit"
    ASKING = "waiting for its turn"
    PARKED = "waiting for something that the log will bring"
    JOINING = "waiting for other lines"
    OUTSIDE = "waiting for something that Holdfast does not know"
    ENDED = "ended"


class Turn:
    """One outcome that is to be handed to the code, or a call that is to begin."""

    __slots__ = (
        "attempted",
        "given_up",
        "granted",
        "is_cut",
        "line",
        "lines",
        "places",
        "seq",
        "waiter",
    )

    def __init__(self, lines: Lines, line: Line | None) -> None:
        self.lines, self.line = lines, line
        self.seq: int | None = None
        self.granted = False
        self.is_cut = False
        """The code had stopped waiting here: it gets no answer."""
        self.given_up: BaseException | None = None
        """By this the code has stopped waiting again."""
        self.places: Sequence[Place] = ()
        self.attempted: object = ""
        self.waiter: asyncio.Future[None] | None = None

    def accepted(self, seq: int) -> None:
        """The outcome is in the log, as this event."""
        self.seq = seq

    def drop(self) -> None:
        """There is no outcome: its batch has failed."""
        self.lines.drop(self)


class TimeoutName(NamedTuple):
    """Which of the timeouts that a line has entered: a replay knows it by this."""

    entered_at: int
    """How many calls and waits the line had made."""
    number: int
    """How many timeouts it had entered since the last of them."""


NO_NAME: Final = TimeoutName(-1, 0)


class Line(Coroutine[Any, Any, Any]):
    """The coroutine of one task, watched: every resumption, everything it awaits, every cancellation."""

    __slots__ = (
        "_coro",
        "_finished",
        "branch",
        "cancel_due",
        "cancelled_before",
        "forks_above",
        "in_call",
        "last_timeout",
        "lines",
        "state",
        "task",
    )

    def __init__(self, lines: Lines, coro: Coroutine[Any, Any, Any]) -> None:
        self._coro, self.lines = coro, lines
        self.state = Doing.OUTSIDE
        self.in_call = False
        """Whether it is inside a call or wait of Holdfast: then no code of the agent runs in it."""
        self.cancel_due = False
        """It was cancelled while an outcome was on its way to it: it hears of that at its next await."""
        self.cancelled_before: int | None = None
        """By a recorded timeout, before its call or wait at this position."""
        self.forks_above: tuple[int, ...] = ()
        """How many branches those above it had started when it was cancelled last; the nearest first."""
        self.task: asyncio.Task[Any] | None = None
        self.last_timeout = TimeoutName(0, 0)
        """The timeout that its code has entered last."""
        self.branch: LineBranch | None = None
        self._finished: BaseException | None = None

    def send(self, value: Any) -> Any:
        return self._step(self._coro.send, value)

    def throw(self, error: Any, value: Any = None, _traceback: Any = None) -> Any:
        raised = error if isinstance(error, BaseException) else (value or error())
        if isinstance(raised, asyncio.CancelledError) and self.lines.suspension is not None:
            raised = self.lines.suspension  # the run leaves memory: no code is being cancelled
        if self._finished is not None:
            self._end()
            raise self._finished
        return self._step(self._coro.throw, raised)

    def close(self) -> None:
        self._coro.close()
        self._end()

    def is_cancelled(self) -> None:
        """Its task is about to be cancelled. Whoever does that may go on before its call has ended."""
        if self.branch is not None and self.task is not None and not self.task.cancelling():
            self.forks_above = self.branch.forks_above

    def __await__(self) -> Generator[Any, Any, Any]:
        raise RuntimeError("a line is driven by its task")

    def _step(self, resume: Callable[[Any], Any], value: Any) -> Any:
        lines = self.lines
        outer, lines.current = lines.current, self
        if not self.in_call:
            self.runs()
        try:
            awaited = resume(value)
        except Suspend as signal:
            if lines.suspension is not None or lines.session.stopped is not None:
                self._end()
                lines.stop_agent()
                raise
            # Out of a thread that had to wait: the task stays until the run leaves memory.
            self._finished = signal
            lines.has_unwound = True
            self._blocked(Doing.PARKED)
            awaited = lines.loop.create_future()
            awaited._asyncio_future_blocking = True
            return awaited
        except BaseException:  # also how a coroutine returns
            self._end()
            lines.stop_agent()
            raise
        finally:
            lines.current = outer
        if self.cancel_due:
            self._deliver_cancellation()
        if not self.in_call:
            self._blocked(self._classify(awaited))
        elif self.state is Doing.RUNNING:
            self._blocked(Doing.CALLING)
        return awaited

    def runs(self) -> None:
        """From here on the agent's code runs in this line."""
        if self.state not in (Doing.RUNNING, Doing.ENDED):
            self.state = Doing.RUNNING
            self.lines.running += 1
            self.lines.moves += 1

    def does(self, what: Doing) -> None:
        """Inside a call: what it waits for next."""
        if self.state is Doing.RUNNING:
            self.lines.running -= 1
        self.state = what
        self.lines.settle(HOPS["call"])
        if self.lines.is_over:
            self.lines.notify()

    def _blocked(self, how: Doing) -> None:
        if self.state is Doing.RUNNING:
            self.lines.running -= 1
        self.state = how
        self.lines.settle(HOPS["call" if how is Doing.CALLING else "await"])
        if self.lines.is_over:
            self.lines.notify()

    def _end(self) -> None:
        if self.state is Doing.ENDED:
            return
        if self.state is Doing.RUNNING:
            self.lines.running -= 1
        self.state = Doing.ENDED
        self.lines.members.discard(self)
        self.lines.settle(HOPS["end"])
        if self.lines.is_over:
            self.lines.notify()

    def _deliver_cancellation(self) -> None:
        """As asyncio does: a task that is to be cancelled is so at its next await."""
        self.cancel_due, self.cancelled_before = False, None
        if self.task is not None and self.task.cancelling():
            self.task.uncancel()
            self.task.cancel()

    def _classify(self, awaited: Any) -> Doing:
        if isinstance(awaited, asyncio.Task):
            return Doing.JOINING if self.lines.owns(awaited) else Doing.OUTSIDE
        children = getattr(awaited, "_children", None)  # of asyncio.gather
        if children is not None:
            ours = all(child.done() or self.lines.owns(child) for child in children)
            return Doing.JOINING if ours else Doing.OUTSIDE
        inner: Any = self._coro
        while (below := getattr(inner, "cr_await", None)) is not None and hasattr(below, "cr_code"):
            inner = below
        name = getattr(getattr(inner, "cr_code", None), "co_qualname", "")
        return Doing.JOINING if name in _JOINS else Doing.OUTSIDE

    def __getattr__(self, name: str) -> Any:
        """What asyncio and debuggers show of a coroutine: its name, frame and code."""
        return getattr(self._coro, name)


class Lines:
    """The lines of one run. Used on its event loop, but for what says otherwise."""

    def __init__(self, session: LinesRun) -> None:
        self.session = session
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self._began_at = session.store.now()
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
        self._asking: dict[Place, Turn] = {}
        self._outcomes: deque[Turn] = deque()
        self._held: list[Turn] = []
        self._parked: dict[Place, asyncio.Future[None]] = {}
        self._timeouts: WeakKeyDictionary[asyncio.Timeout, TimeoutName] = WeakKeyDictionary()
        self._timed_out: list[tuple[Line, asyncio.Timeout]] = []
        """Lines that a timeout of the code is about to cancel, each with the timeout."""
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
        if not self.session.knows_all:
            self.session.read_all()
        return place not in self.session.journal.entries

    # ── turns ────────────────────────────────────────────────────────────────────────────

    def outcome(self) -> Turn | None:
        """A turn for an outcome that is being written now: its place among all of them."""
        line = self.current
        if line is None:
            return None
        turn = Turn(self, line)
        self._outcomes.append(turn)
        return turn

    def drop(self, turn: Turn) -> None:
        """See `Turn.drop`; from any thread."""
        with contextlib.suppress(ValueError):
            self._outcomes.remove(turn)

    async def take(self, turn: Turn) -> None:
        """Wait until this outcome, which is in the log, may be handed to the code."""
        if not self.take_now(turn):
            await self._turn(turn)

    def take_now(self, turn: Turn) -> bool:
        """Whether this outcome, which is in the log, may be handed to the code at once; then it is taken."""
        if self._outcomes and self._outcomes[0] is turn and self._may_continue(turn):
            self._outcomes.popleft()
            return True
        return False

    async def take_recorded(
        self, places: Sequence[Place], is_cut: bool = False, given_up: BaseException | None = None
    ) -> None:
        """Wait until the outcome that the log holds at these places is the next. If the code had stopped
        waiting there (`is_cut`), it gets no answer, and this ends when the code stops waiting again."""
        journal, line = self.session.journal, self.current
        entry = journal.entries.get(places[0])
        if (
            line is None
            or entry is None
            or journal.retries.is_unbound(places[0], entry, journal.entries)
        ):
            return
        if self.is_alone and not is_cut and not journal.timeouts:
            return
        turn = Turn(self, line)
        turn.places, turn.is_cut, turn.given_up = places, is_cut, given_up
        for place in places:
            self._asking[place] = turn
        try:
            await self._turn(turn)
        finally:
            for place in places:
                self._asking.pop(place, None)

    async def begin(self, attempted: object) -> None:
        """Wait until something new may begin: every recorded outcome has been handed over."""
        line = self.current
        if line is None:
            return
        if self.is_leaving:
            await self.stay()
        if self.is_alone:
            return
        recorded = self._next_recorded()
        if recorded is None or self._may_add_before(recorded):
            return
        turn = Turn(self, line)
        turn.attempted = attempted
        self._held.append(turn)
        try:
            await self._turn(turn, keep=False)
        finally:
            if turn in self._held:
                self._held.remove(turn)

    def _may_add_before(self, recorded: tuple[int, Place]) -> bool:
        """Whether a person has accepted new steps among what was recorded until then."""
        return recorded[0] < self.session.journal.accepted

    async def _turn(self, turn: Turn, *, keep: bool = True) -> None:
        """Wait for a turn. A cancellation does not take back an outcome: it is delivered afterwards. Where the
        code had stopped waiting, the cancellation is the outcome: it too comes in the order of the log."""
        line, is_cancelled = turn.line, False
        assert line is not None
        while not (turn.granted or self.is_over):
            turn.waiter = self.loop.create_future()
            line.does(Doing.ASKING)
            try:
                await turn.waiter
            except asyncio.CancelledError as cancelled:
                if not keep or self.session.is_ending:
                    raise
                if turn.is_cut:
                    turn.given_up = cancelled
                else:
                    is_cancelled = True
            finally:
                line.state = Doing.CALLING if line.state is Doing.ASKING else line.state
        if turn.given_up is not None:
            raise turn.given_up
        line.cancel_due = line.cancel_due or is_cancelled
        if self.session.stopped is not None and not self.is_over:
            raise self.session.stopped

    def _may_continue(self, turn: Turn) -> bool:
        """Whether the first of the outcomes that were written here may be handed over now."""
        mine = turn.line is not None and turn.line.state is Doing.RUNNING
        if self.running > mine or self._hops or turn.seq is None:
            return False
        recorded = self._next_recorded()
        return recorded is None or recorded[0] >= turn.seq or self._may_add_before(recorded)

    def _next_recorded(self) -> tuple[int, Place] | None:
        journal = self.session.journal
        found = journal.next_outcome()
        if not self.session.knows_all and (
            found is None or journal.entries[found[1]].failed_finally
        ):
            self.session.read_all()  # what follows may still change it
            found = journal.next_outcome()
        return found

    def _grant(self, turn: Turn) -> None:
        turn.granted = True
        if turn.line is not None and turn not in self._held:
            turn.line.runs()
        if turn.waiter is not None and not turn.waiter.done():
            turn.waiter.set_result(None)

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
    def _is_awaited(self) -> bool:
        """Whether a line waits for what only `_advance` gives."""
        if self._asking or self._held or self._parked or self._timed_out or self.has_unwound:
            return True
        return bool(self._outcomes) and self._outcomes[0].waiter is not None

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
        recorded = self._next_recorded()
        first = self._outcomes[0] if self._outcomes else None
        if recorded is not None and self._may_add_before(recorded):
            asked = self._first_asked()
            if asked is not None:
                self._grant(asked)
                return
        elif recorded is not None and not (
            first is not None and first.seq is not None and first.seq <= recorded[0]
        ):
            asked = self._asking.get(recorded[1])
            if asked is not None and (asked.given_up or not asked.is_cut):
                self._grant(asked)
            elif not self._time_out_again(recorded, asked) and not self._is_calling:
                self._wait_for_code()
            return
        if self._held:
            held, self._held = self._held, []
            for turn in held:
                turn.granted = True
                if turn.waiter is not None and not turn.waiter.done():
                    turn.waiter.set_result(None)
            return
        if first is not None:
            if first.seq is not None and (first.waiter is not None or first.granted):
                self._outcomes.popleft()
                self._grant(first)
            return  # it is on its way
        if self._timed_out:
            self._time_out_first()
            return
        if self._parked or self.has_unwound:
            self._leave_if_quiet()

    @property
    def _is_calling(self) -> bool:
        return any(line.state is Doing.CALLING for line in self.members)

    @property
    def _awaits_the_unknown(self) -> bool:
        return any(line.state is Doing.OUTSIDE for line in self.members)

    def _leave_if_quiet(self) -> None:
        if self._is_calling:
            return
        if self._awaits_the_unknown:
            self._after_patience(self._leave)
        else:
            self._leave()

    def _leave(self) -> None:
        self._wants_to_leave = True
        self.notify()

    def _after_patience(self, act: Callable[[], None], seconds: float | None = None) -> None:
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

    def enter_timeout(self, line: Line, timeout: asyncio.Timeout) -> None:
        """The code of a line enters a timeout."""
        index = 0 if line.branch is None else line.branch.index
        last = line.last_timeout
        number = last.number + 1 if last.entered_at == index else 1
        line.last_timeout = self._timeouts[timeout] = TimeoutName(index, number)

    def time_out(self, line: Line, timeout: asyncio.Timeout) -> bool:
        """A timeout of the agent's code has fired."""
        assert line.task is not None
        if self.is_over or self.session.is_ending or self.session.stopped is not None:
            return asyncio.Task.cancel(line.task)
        self._timed_out.append((line, timeout))
        self.settle(0)
        return True

    def forget_timeout(self, timeout: asyncio.Timeout) -> bool:
        """The code is past a timeout that has fired: whether its line had not been told of it yet."""
        left = [x for x in self._timed_out if x[1] is not timeout]
        is_known, self._timed_out = len(left) < len(self._timed_out), left
        return is_known

    def _time_out_first(self) -> None:
        """Record the first of the timeouts that have fired, and cancel its line."""
        line, timeout = self._timed_out.pop(0)
        assert line.branch is not None
        name = self._timeouts.get(timeout, NO_NAME)
        fired = e.TimeoutFired(
            index=line.branch.index,
            branch=line.branch.path,
            within_us=self.session.store.now() - self._began_at,
            entered_at=name.entered_at,
            number=name.number,
        )
        self.session.hold(fired)
        self._cancel_line(line)

    def _time_out_again(self, recorded: tuple[int, Place], asked: Turn | None) -> bool:
        """If the next in the log is a timeout, and it has fired again, cancel its line.

        A log that was written before timeouts were recorded has only what the code gave up.
        """
        journal, (_, place) = self.session.journal, recorded
        entry = journal.entries[place]
        found = self._timed_out if asked is not None and asked.is_cut else []
        if entry.timeout is not None:
            found = [x for x in self._timed_out if self._is_same(x, entry.timeout)]
        if not found:
            return False
        line, _ = fired = found[0]
        if entry.timeout is not None:
            self.session.show(entry.seq)
            journal.forget(*place)
            line.cancelled_before = entry.timeout.index
        self._timed_out.remove(fired)
        self._cancel_line(line)
        return True

    def _is_same(self, fired: tuple[Line, asyncio.Timeout], recorded: e.TimeoutFired) -> bool:
        """Whether a timeout that has fired is the one that is recorded. Version 0.1 recorded only its branch."""
        line, timeout = fired
        if line.branch is None or line.branch.path != recorded.branch:
            return False
        name = TimeoutName(recorded.entered_at, recorded.number)
        return name == NO_NAME or self._timeouts.get(timeout, NO_NAME) == name

    def _cancel_line(self, line: Line) -> None:
        assert line.task is not None
        line.is_cancelled()
        asyncio.Task.cancel(line.task)
        self.settle(HOPS["await"])

    # ── when the code does not ask for what is recorded ──────────────────────────────────

    def _wait_for_code(self) -> None:
        """The next outcome in the log is not asked for, or the code had stopped waiting there.

        Code that awaits something of its own (a timer) may still come to it. Otherwise it is other code.
        """
        recorded = self._next_recorded()
        assert recorded is not None
        cut, timeout = (
            self._asking.get(recorded[1]),
            self.session.journal.entries[recorded[1]].timeout,
        )
        only_replay = self.session.only_replay
        if only_replay is not None and (cut is not None or timeout is not None):
            # Its timer may be long: a mere replay does not wait for it.
            self._after_patience(lambda: self._stop(Abandon(only_replay)))
        elif timeout is not None:
            self._after_patience(
                self._diverge, 2 * timeout.within_us / MICROSECONDS + OTHER_CODE_SECONDS
            )
        elif cut is not None:
            self._after_patience(self._diverge, self._cut_seconds(recorded[1]))
        elif self._awaits_the_unknown:
            self._after_patience(self._diverge, OTHER_CODE_SECONDS)
        else:
            self._diverge()

    def _first_asked(self) -> Turn | None:
        """Of the recorded outcomes that the code asks for, the first in the log."""
        entries = self.session.journal.entries
        asked = [
            (entries[at].seq, turn)
            for at, turn in self._asking.items()
            if turn.given_up or not turn.is_cut
        ]
        return min(asked, key=lambda x: x[0])[1] if asked else None

    def _cut_seconds(self, place: Place) -> float:
        """How long the code may take to stop waiting: as long as it took before, and some patience."""
        entry = self.session.journal.entries[place]
        took = entry.failures[-1].duration_us if entry.failures else 0
        if entry.ended is not None:
            took = max(0, entry.ended_at - entry.wait_at)
        return (2 * took + self.session.patience_us) / MICROSECONDS + OTHER_CODE_SECONDS

    def _diverge(self) -> None:
        recorded = self._next_recorded()
        if recorded is not None:
            attempted = str(self._held[0].attempted) if self._held else "nothing"
            self._stop(self.session.not_asked(recorded[1], attempted))

    def _stop(self, signal: BaseException) -> None:
        """Every line that waits for its turn gets this signal."""
        self.session.stop(signal)
        for turn in (*self._asking.values(), *self._held):
            if not turn.granted:
                self._grant(turn)

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
        return bool(waits) and not (self.running or self._is_calling or self._outcomes)

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
        for turn in (*self._asking.values(), *self._outcomes):
            if not turn.is_cut and not at_once:
                self._grant(turn)
        while not at_once and (self._is_calling or self.running):
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
