"""`@loop`: an agent as a function from state to state, applied until its state is done.

Each iteration ends with one event that contains what it changed. A resumed loop loads its last committed
state and calls its function again: earlier iterations are not replayed, so an iteration costs the same
whether it is the tenth or the hundred-thousandth. Calls inside an iteration are recorded as everywhere.

This module declares loops and drives them through the flow of `runtime`; it does no I/O of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from holdfast.agents.loop_states import OwnStates, states_of
from holdfast.core import events as e
from holdfast.core import jsonpatch, loop_state, values
from holdfast.core.agent_state import AgentState, Phase
from holdfast.core.events import Value, plain
from holdfast.core.policy import BUDGET_PRESSURE, Budget, Checkpoint
from holdfast.errors import AgentFailed, InvalidInput, Stop
from holdfast.runtime.api.run import AsyncRun, Run
from holdfast.runtime.call.approval import require_approvals
from holdfast.runtime.call.checkpoints import end_iteration
from holdfast.runtime.call.enter import declared
from holdfast.runtime.call.gate import check_budget, gate
from holdfast.runtime.call.operations import Flow, Invoke
from holdfast.runtime.call.receipt import Durations, measured
from holdfast.runtime.call.task_factory import run_with_tasks
from holdfast.runtime.declare.agent_spec import (
    Agent,
    AgentSpec,
    AsyncAgent,
    Strategy,
    agent_spec_of,
)
from holdfast.runtime.declare.params import Params
from holdfast.runtime.exec.undo import register_names
from holdfast.runtime.log.branches import Branch
from holdfast.runtime.log.session import Session

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class LoopDecorator(Protocol):
    """What `@loop(…)` returns: it makes an agent of a function from state to state. The agent takes a goal or a first state,
    and what the function takes after its state."""

    @overload
    def __call__(
        self, fn: Callable[Concatenate[AsyncRun, S, P], Coroutine[Any, Any, R]], /
    ) -> AsyncAgent[Concatenate[str | S, P], R]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[Run, S, P], R], /
    ) -> Agent[Concatenate[str | S, P], R]: ...


def loop(
    *,
    max_iterations: int,
    checkpoint: Strategy | Checkpoint = "every_step",
    name: str | None = None,
    stages: Iterable[str] = (),
    deadline: float | None = None,
    budget: Budget | None = None,
    approve: Iterable[str] = (),
    approval_ttl: float | None = None,
    on_failure: Literal["", "undo"] = "",
    version: str = "",
    continues: Iterable[str] = (),
    max_running: int | None = None,
    redact: Iterable[str] = (),
    exempt: Iterable[str] = (),
    until: Callable[[Any], bool] | None = None,
) -> LoopDecorator:
    """A function from state to state, applied until the state is done (or failed).

    `hf.run(researcher, "the question")` creates the first state; you can pass a state instead. The result is
    the last state. After `max_iterations` the run fails with IterationsExceeded. `budget` is checked before
    each call; a budget in the state, before each iteration.

    The state may also be a dataclass, a msgspec Struct or a pydantic model: then pass the first one, and
    `until` recognises the last one.
    """
    _check_limit(max_iterations)
    options = {
        "checkpoint": checkpoint,
        "name": name,
        "stages": stages,
        "deadline": deadline,
        "budget": budget,
        "approve": approve,
        "approval_ttl": approval_ttl,
        "on_failure": on_failure,
        "version": version,
        "continues": continues,
        "max_running": max_running,
        "redact": redact,
        "exempt": exempt,
    }

    def declare(fn: Callable[..., Any]) -> Any:
        params, states = _params(fn, until)

        def body(
            session: Session, spec: AgentSpec, run: Any, root: Branch, kwargs: dict[str, Any]
        ) -> Flow[Any]:
            return _Loop(session, spec, run, root, states, max_iterations).flow(kwargs)

        spec = agent_spec_of(fn, {**options, "body": body}, params)
        return declared(fn, spec)

    return declare


def _check_limit(limit: object) -> None:
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise InvalidInput(f"max_iterations must be a whole number of 1 or more, not {limit!r}")


def _params(
    fn: Callable[..., Any], until: Callable[[Any], bool] | None
) -> tuple[Params, OwnStates]:
    """A loop's input is a goal (or a first state) and whatever its function takes after the state."""
    name = getattr(fn, "__name__", repr(fn))
    own = list(inspect.signature(fn).parameters.values())
    if len(own) < 2 or any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in own[:2]):
        raise InvalidInput(f"loop {name} must take the run and its state: def {name}(run, state)")
    found = Params.from_function(fn)
    states = states_of(name, found.types.get(own[1].name, AgentState), until)
    if any(p.name == "goal" for p in own[2:]):
        raise InvalidInput(f"loop {name}: `goal` is reserved for the first state; use another name")

    def entry() -> None: ...

    goal = inspect.Parameter("goal", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    entry.__signature__ = inspect.Signature([goal, *own[2:]])  # type: ignore[attr-defined]
    extra = {p.name: found.types[p.name] for p in own[2:] if p.name in found.types}
    entry.__annotations__ = {"goal": states.input, **extra, "return": states.kind}
    given = {p.name for p in own[1:]} | {"return"}
    unresolved = {n: why for n, why in found.unresolved.items() if n in given}
    return replace(Params.from_function(entry), unresolved=unresolved), states


class _Loop:
    """One loop of one run, in this process."""

    def __init__(
        self,
        session: Session,
        spec: AgentSpec,
        run: Any,
        root: Branch,
        states: OwnStates,
        max_iterations: int,
    ) -> None:
        self.session, self.spec, self.run, self.root = session, spec, run, root
        self.states, self.kind, self.max_iterations = states, states.stored, max_iterations
        self.fn = run_with_tasks(spec.fn, root) if spec.is_async else spec.fn
        self.declared = session.lineage.policy
        self.has_begun = False

    def flow(self, kwargs: dict[str, Any]) -> Flow[Any]:
        """Apply the function until the state is done; the last state."""
        session, root = self.session, self.root
        register_names(session, self.spec.fn)
        root.index = session.view.draft.iteration_index + 1
        goal = kwargs.pop("goal")
        state = self._kept()
        if state is None:
            state = yield from self._begin(goal)
        if state.phase is Phase.ERROR:  # it failed, and someone has resumed it
            state = state.to_planning()
        while not state.is_over:
            state = yield from self._iterate(state, kwargs)
        if state.phase is Phase.ERROR:
            raise AgentFailed(state.error or "the agent changed to ERROR without a reason")
        return self.states.shown(state)

    def _kept(self) -> Any:
        document = self.session.view.draft.loop.frozen()
        return None if document is None else msgspec.convert(document, self.kind)

    def _begin(self, goal: Any) -> Flow[AgentState]:
        now = self.session.store.now()
        first = self.states.first(goal)
        first = msgspec.structs.replace(first, session=self.session.run_id, iteration=0).stamped(
            now
        )

        def make(index: int) -> e.IterationEnded:
            data = Value(json=Raw(first.stored()))
            return e.IterationEnded(index=index, iteration=0, phase=first.phase, state=data)

        recorded = yield from end_iteration(self.root, make, ends_run=True)  # with the first commit
        if recorded.state is None:
            raise self.session.diverged("its first state", "none", "a loop")
        return msgspec.json.decode(bytes(recorded.state.json), type=self.kind)

    def _iterate(self, state: AgentState, kwargs: dict[str, Any]) -> Flow[AgentState]:
        session, root = self.session, self.root
        if state.iteration >= self.max_iterations:
            said = f"not done after {state.iteration} iterations (max_iterations={self.max_iterations})"
            raise session.stop(Stop("iterations", said))
        if not self._comes_again():
            gate(session)  # a loop without calls must also end when it is cancelled
            session.check_lease()
            check_budget(session, state.budget.limits())
        require_approvals(session, self.declared, state.required_approvals)
        number = state.iteration + 1
        given = state.at_iteration(number)
        with measured() as durations:
            raw: object = yield Invoke(
                session,
                self.fn,
                kwargs,
                root,
                self.spec.is_async,
                args=(self.run, self.states.shown(given)),
            )
        session.check_alive()
        if root.waiting is not None:
            raise root.waiting  # the code caught it and continued
        if not isinstance(raw, self.states.kind):
            raise InvalidInput(
                f"loop {self.spec.name} must return a {self.states.kind.__name__}, not {raw!r} "
                f"(iteration {number}); return the state unchanged for another iteration"
            )
        returned = self.states.returned(given, raw).at_iteration(number)
        return (yield from self._end(state, returned, durations))

    def _comes_again(self) -> bool:
        """Whether the code of this iteration comes to what the log contains: to its calls, or to the failure for
        which the run is being undone, which only the code itself can say."""
        session, root = self.session, self.root
        journal, is_first, self.has_begun = session.journal, not self.has_begun, True
        if session.log.reaches(root.path, root.index) or journal.unasked():
            return True
        return is_first and journal.life.undoing and journal.life.undo is None

    def _end(
        self, before: AgentState, returned: AgentState, durations: Durations
    ) -> Flow[AgentState]:
        session = self.session
        made: list[AgentState] = []

        def make(index: int) -> e.IterationEnded:
            now = session.store.now()
            new, taken, refused = returned.timed(durations).stamped(now), [], []
            if self.run.budget.pressure:
                new = new.with_flag(BUDGET_PRESSURE)
            for queued in session.view.queued():
                patched, why = loop_state.apply_queued(new, queued, time=now)
                why = why or self.states.wrong(patched)
                new = new if why else patched
                taken.append(queued.id)
                refused += [why] if why else []
            made.append(new)
            data = loop_state.encode(loop_state.delta(before, new))
            return e.IterationEnded(
                index=index,
                iteration=new.iteration,
                phase=new.phase,
                delta=Value(json=Raw(data)),
                taken=tuple(taken),
                refused=tuple(refused),
            )

        recorded = yield from end_iteration(
            self.root, make, changed=returned.phase != before.phase, ends_run=returned.is_over
        )
        return made[0] if made else self._replayed(before, recorded, returned)

    def _replayed(
        self, before: AgentState, recorded: e.IterationEnded, returned: AgentState
    ) -> AgentState:
        """The state that the log contains; Diverged if the code now makes another one of it."""
        if recorded.delta is None:
            raise self.session.diverged("the end of an iteration", "no state", "a loop")
        document = jsonpatch.apply(values.decode(before.stored()), plain(recorded.delta))
        kept: AgentState = msgspec.convert(document, self.kind)
        if BUDGET_PRESSURE in kept.memory.flags:  # raised when the iteration ended
            returned = returned.with_flag(BUDGET_PRESSURE)
        again = returned.stamped(kept.updated_at)
        if not recorded.taken and _timeless(kept) != _timeless(again):
            raise self.session.diverged(
                f"the end of iteration {recorded.iteration}", _shown(kept), _shown(returned)
            )
        return kept


def _timeless(state: AgentState) -> AgentState:
    """A state without what a loop fills in when an iteration ends."""
    calls = tuple(msgspec.structs.replace(c, duration=0.0) for c in state.memory.tool_calls)
    memory = msgspec.structs.replace(state.memory, tool_calls=calls)
    return msgspec.structs.replace(state, memory=memory, created_at=0, updated_at=0)


def _shown(state: AgentState) -> str:
    text = state.stored().decode()
    return text if len(text) <= 200 else text[:199] + "…"
