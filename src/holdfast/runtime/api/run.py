"""The run, from inside the agent: `run.state`, `run.stage`, `run.approve` and the rest.

Everything here either records a fact (committed with the next commit; once, however often the code
is replayed) or waits. `Run` is for sync functions, `AsyncRun` for `async def`: they differ only in
what must be awaited.

Not here: the agent's memory and dialogue (`memory.py`), what it knows (`knowledge.py`), what a model is shown
(`context.py`), what may be waited for (`waits.py`).
"""

from __future__ import annotations

import contextlib
import datetime
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.core.parts import PlanStep, texts
from holdfast.core.parts import text as _text
from holdfast.core.policy import BudgetUse, strictest
from holdfast.core.tokens import ESTIMATE, TokenCounter
from holdfast.errors import InvalidInput, UnknownStage
from holdfast.runtime.api.knowledge import KnowledgeRecorder
from holdfast.runtime.api.memory import Messages, State
from holdfast.runtime.call.operations import Draw
from holdfast.runtime.call.task_factory import drive_here
from holdfast.runtime.call.waits import (
    Approval,
    Question,
    Timer,
    WaitCondition,
    any_of,
    approval,
    choice_of,
    consent_of,
    question,
    signals,
    timer,
    value_of,
    wait_first,
)
from holdfast.runtime.declare.state_schema import fields_of
from holdfast.runtime.log.branches import Branch
from holdfast.runtime.log.lineage import use_of
from holdfast.runtime.log.session import Session

if TYPE_CHECKING:  # what few agents use is loaded where it is used
    from holdfast.core.context import ContextSlice

T = TypeVar("T")
U = TypeVar("U")

MAP_THREADS: Final = 8
_ARTIFACTS_MAX: Final = "max_artifact_bytes_in_context"


class RunBase(KnowledgeRecorder):
    """What `Run` and `AsyncRun` share: everything that need not wait.

    It is a list of public methods, each of which notes or reads one fact; what takes more is in the other modules.
    """

    def __init__(self, session: Session, root: Branch) -> None:
        super().__init__(session, root)
        self.state = State(self, fields_of(session.config.model))
        self.messages = Messages(self)

    @property
    def id(self) -> str:
        """The run's id. A fork has its own, and may pass it where the recorded calls have the other."""
        return self._session.run_id

    @property
    def origin_id(self) -> str:
        """The id of the run that this one was forked from (of the first, if that was a fork too), else its
        own. For values that are computed from an id and must be the same in a fork."""
        return self._session.journal.life.lineage.origin_id

    # ── position ─────────────────────────────────────────────────────────────────────────

    @property
    def stage(self) -> str:
        """The declared stage that the run is in."""
        entered = self._session.view.pending(e.StageEntered)
        return entered[-1].stage if entered else self._session.view.draft.stage

    @stage.setter
    def stage(self, stage: str) -> None:
        declared = self._session.config.stages
        if stage not in declared:
            raise UnknownStage(stage, declared)
        self._note(e.StageEntered(stage=stage))

    def advance(self) -> str:
        """Enter the stage after the present one."""
        declared, now = self._session.config.stages, self.stage
        index = declared.index(now) + 1 if now else 0
        if index >= len(declared):
            raise InvalidInput(f"{now!r} is the last stage")
        self.stage = declared[index]
        return self.stage

    def plan(self, steps: Iterable[str]) -> None:
        """Set the plan: what the run is going to do, so that its progress can be seen."""
        self._note(e.PlanMade(steps=texts(steps, "run.plan")))

    @property
    def plan_steps(self) -> tuple[PlanStep, ...]:
        """The plan and its progress."""
        return self._session.view.run_state().plan

    @contextlib.contextmanager
    def doing(self, step: str) -> Iterator[None]:
        """Mark a step of the plan as in progress, and as done when the block ends without an error."""
        step = _text(step, "run.doing: the step")
        self._note(e.PlanStepBegan(step=step))
        yield
        self._note(e.PlanStepEnded(step=step))

    # ── for models and for people ────────────────────────────────────────────────────────

    def context(
        self,
        *,
        step: int | None = None,
        max_bytes: int | None = None,
        max_tokens: int | None = None,
        goal: str = "",
        counter: TokenCounter = ESTIMATE,
    ) -> ContextSlice:
        """What a model should know about the run, within a limit; recorded, so that it can be inspected later.

        Goal (yours, or the first user message, or the input `goal`), open questions, the artifacts of
        this step (by default the last), the newest facts, then other artifacts by their summary. Of a
        loop also its state as of the start of the iteration. An artifact beyond `Budget.max_artifact_bytes_in_context` appears by its summary.
        """
        from holdfast.runtime.api import context

        found = context.collect(
            self,
            goal=_text(goal, "run.context: goal"),
            facts=self.facts,
            step=step,
            max_bytes=max_bytes,
            max_tokens=max_tokens,
            counter=counter,
            artifact_bytes_max=self.budget.limits.get(_ARTIFACTS_MAX),
        )
        value, blobs = log.wrap(context.SLICE.encode(found))
        shown = self._note(e.ContextShown(slice=value), blobs)
        recorded: ContextSlice = context.SLICE.decode(self._session.unwrap(shown.slice))
        return recorded

    def log(self, text: str, *, level: str = "info") -> None:
        """Write a line for people who inspect the run."""
        self._note(e.LogWritten(level=_text(level, "run.log: level"), text=str(text)))

    def format(self, template: str) -> str:
        """Fill `{state.key}`, `{input.key}`, `{stage}` and `{run.id}` into a prompt or message.

        An unknown name is an error; `{{` and `}}` are literal braces.
        """
        from holdfast.runtime.api import context, templates

        known = {
            "state": self.state._for_template(),
            "input": context.input_of(self._session),
            "stage": self.stage,
            "run": {"id": self.id},
        }
        declared = tuple(self.state._fields)
        return templates.render(
            _text(template, "run.format: the template"), known, declared=declared
        )

    # ── time and randomness ──────────────────────────────────────────────────────────────────

    def _draw(self, name: str, make: Callable[[], Any]) -> Any:
        here = self._here
        draw = Draw(self._session, name, here.path, here.index, make)
        if self._session.stand_in is not None:
            draw = self._session.stand_in(draw)
        return self._record(name, draw.make)

    def _record(self, name: str, make: Callable[[], Any]) -> Any:
        value, blobs = self._encode(make())
        recorded = self._note(e.ValueRecorded(name=name, value=value), blobs)
        return values.decode(self._session.unwrap(recorded.value))

    def now(self) -> datetime.datetime:
        """The current time; the same on every replay."""
        us = self._draw("now", self._session.store.now)
        return datetime.datetime.fromtimestamp(us / 1_000_000, datetime.UTC)

    def random(self) -> float:
        """A random number in [0, 1); the same on every replay."""
        import random  # here, as few agents draw numbers

        return float(self._draw("random", random.SystemRandom().random))

    def uuid(self) -> uuid.UUID:
        """A random UUID; the same on every replay."""
        return uuid.UUID(self._draw("uuid", lambda: str(uuid.uuid4())))

    def patched(self, name: str) -> bool:
        """Whether this run takes the new path: true for runs that had not reached this point when the code
        changed, false for those that had. The answer is recorded."""
        here = self._here
        replaying = self._session.log.reaches(here.path, here.index)
        return bool(self._record(f"patched {name}", lambda: not replaying))

    @property
    def budget(self) -> BudgetUse:
        """What this run and its children have used, and what is left, of every budget that applies: the run's,
        and that of a loop's state."""
        session, created = self._session, self._session.journal.life.created
        limits = created.budget if created else {}
        if created is not None and created.loop:
            from holdfast.runtime.api import context

            limits = strictest(limits, context.loop_state(session).budget.limits())
        return use_of(session, limits)

    def _iteration(self, index: int) -> e.IterationEnded:
        created = self._session.journal.life.created
        if created is not None and created.loop:
            raise InvalidInput("a loop ends its iterations itself: return the state")
        return e.IterationEnded(index=index, iteration=self._session.view.next_iteration())


class Run(RunBase):
    """The run, as its agent (a sync function) sees it."""

    def _wait(self, request: WaitCondition) -> e.WaitEnded:
        return self._first([request])[1]

    def _first(self, conditions: list[WaitCondition]) -> tuple[int, e.WaitEnded]:
        here = self._here
        first: tuple[int, e.WaitEnded] = drive_here(here, wait_first(here, conditions))
        return first

    def checkpoint(self) -> None:
        """End an iteration: with `checkpoint="every_iteration"` everything so far is committed here."""
        from holdfast.runtime.call.checkpoints import end_iteration

        here = self._here
        drive_here(here, end_iteration(here, self._iteration))

    def sleep(self, seconds: float) -> None:
        """Wait for some time. For a long wait the run is suspended; it survives restarts."""
        self._wait(timer(seconds))

    def wait_for(self, signal: str, *, timeout: float | None = None) -> Any:
        """Wait for a signal; returns its value, or None after the timeout. A signal sent before the wait is kept."""
        end = self._wait(signals([signal], timeout))
        return value_of(self._session, end)

    def wait_any(
        self, *waits: str | Approval | Question | Timer, timeout: float | None = None
    ) -> tuple[str, Any] | None:
        """Wait for the first of several; returns its name and value, or None after the timeout.

        A name means a signal. The others are cancelled: a late decision about them is refused,
        and a late signal is kept for the next wait.
        """
        conditions = any_of(waits, timeout)
        return choice_of(self._session, conditions, self._first(conditions))

    def approve(self, prompt: str, *, show: Any = None, timeout: float | None = None) -> bool:
        """Ask a person to approve. Raises Rejected after a rejection, or after the timeout."""
        end = self._wait(approval(prompt, show, timeout))
        return consent_of(self._session, prompt, end)

    def ask(self, prompt: str, *, options: Iterable[str] = (), timeout: float | None = None) -> Any:
        """Ask a person a question; returns the answer, or None after the timeout."""
        end = self._wait(question(prompt, options, timeout))
        return value_of(self._session, end)

    def map(
        self, fn: Callable[[U], T], items: Iterable[U], *, threads: int = MAP_THREADS
    ) -> list[T]:
        """Call `fn` for each item, in parallel; results in the order of the items.

        Each item is its own branch, so that on replay each finds its own calls, in whatever
        order the branches finish.
        """
        from holdfast.runtime.api.parallel import map_in_threads

        here = self._here
        return map_in_threads(fn, [(here.fork(), item) for item in items], threads)


class AsyncRun(RunBase):
    """The run, as its agent (an `async def`) sees it."""

    async def _wait(self, request: WaitCondition) -> e.WaitEnded:
        _, end = await self._first([request])
        return end

    async def _first(self, conditions: list[WaitCondition]) -> tuple[int, e.WaitEnded]:
        from holdfast.runtime.call.async_driver import drive_async_here

        here = self._here
        first: tuple[int, e.WaitEnded] = await drive_async_here(here, wait_first(here, conditions))
        return first

    async def checkpoint(self) -> None:
        """End an iteration: with `checkpoint="every_iteration"` everything so far is committed here."""
        from holdfast.runtime.call.async_driver import drive_async_here
        from holdfast.runtime.call.checkpoints import end_iteration

        here = self._here
        await drive_async_here(here, end_iteration(here, self._iteration))

    async def sleep(self, seconds: float) -> None:
        """Wait for some time. For a long wait the run is suspended; it survives restarts."""
        await self._wait(timer(seconds))

    async def wait_for(self, signal: str, *, timeout: float | None = None) -> Any:
        """Wait for a signal; returns its value, or None after the timeout. A signal sent before the wait is kept."""
        end = await self._wait(signals([signal], timeout))
        return value_of(self._session, end)

    async def wait_any(
        self, *waits: str | Approval | Question | Timer, timeout: float | None = None
    ) -> tuple[str, Any] | None:
        """Wait for the first of several; returns its name and value, or None after the timeout.

        A name means a signal. The others are cancelled: a late decision about them is refused,
        and a late signal is kept for the next wait.
        """
        conditions = any_of(waits, timeout)
        return choice_of(self._session, conditions, await self._first(conditions))

    async def approve(self, prompt: str, *, show: Any = None, timeout: float | None = None) -> bool:
        """Ask a person to approve. Raises Rejected after a rejection, or after the timeout."""
        end = await self._wait(approval(prompt, show, timeout))
        return consent_of(self._session, prompt, end)

    async def ask(
        self, prompt: str, *, options: Iterable[str] = (), timeout: float | None = None
    ) -> Any:
        """Ask a person a question; returns the answer, or None after the timeout."""
        end = await self._wait(question(prompt, options, timeout))
        return value_of(self._session, end)

    @overload
    async def map(self, fn: Callable[[U], Awaitable[T]], items: Iterable[U]) -> list[T]: ...
    @overload
    async def map(self, fn: Callable[[U], T], items: Iterable[U]) -> list[T]: ...
    async def map(self, fn: Callable[[U], Any], items: Iterable[U]) -> list[Any]:
        """Call `fn` for each item, concurrently; results in the order of the items. A plain function or tool works too, but
        it is called on the event loop, one item after the other."""
        import asyncio
        import inspect

        async def one(item: U) -> Any:
            found = fn(item)
            return await found if inspect.isawaitable(found) else found

        return list(await asyncio.gather(*(one(item) for item in items)))
