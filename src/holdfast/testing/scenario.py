"""A scenario: an agent, its input, mocks, and what people do while it runs.

`ScenarioSetup` says what happens; `ScenarioRun` makes it happen in a sandbox, one life (one process's share of the
run) after the other, until the run is at rest. It does not judge: the sentences of a spec do that
(`step_matcher`), and `crash` does it for a run that was killed on the way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from msgspec import Struct, field

from holdfast import BoundAgent, views
from holdfast.app import Holdfast
from holdfast.core.events import RunSuspended
from holdfast.core.state import RunState, Waiting
from holdfast.errors import Diverged, HoldfastError, InvalidInput, RunWaiting
from holdfast.runtime.declare.mocks import MockMissing
from holdfast.runtime.declare.specs import agent_spec
from holdfast.testing.sandbox import Sandbox, is_library

LIVES_MAX: Final = 60
RUN_ID: Final = "test"

How = Literal["run", "resume", "rerun"]


class Reaction(Struct, frozen=True):
    """A reaction to a waiting run: an approval or rejection, the answer to a question, or a signal.

    `about` narrows it to one tool, prompt, question or signal; empty is any.
    """

    kind: Literal["approval", "answer", "signal"]
    value: Any
    about: str = ""
    by: str = "test"

    def fits(self, wait: Waiting) -> bool:
        known = (wait.name, wait.tool, *wait.of)
        return wait.wait == self.kind and (not self.about or self.about in known)


class ScenarioAction(Struct, frozen=True):
    """One action: the run is executed, or something arrives from outside."""

    what: Literal["go", "signal", "time", "cancel", "decide"]
    how: How = "run"
    name: str = ""
    value: Any = None
    agent: Callable[..., Any] | None = None


class ScenarioSetup(Struct):
    """Everything that a scenario sets up before it is checked."""

    agent: Callable[..., Any]
    input: dict[str, Any] = field(default_factory=dict)
    mocks: dict[str, Any] = field(default_factory=dict)
    answers: list[Reaction] = field(default_factory=list)
    actions: list[ScenarioAction] = field(default_factory=list)
    may_doubt: set[str] = field(default_factory=set)
    strict: bool = False
    args: tuple[Any, ...] = ()
    """Input by position; `input` is by name."""
    module: dict[str, Any] | None = None
    """The names of the agent's file, where sync functions are mocked; default: where it is written."""

    @property
    def names(self) -> dict[str, Any]:
        return (
            inspect.unwrap(agent_spec(self.agent).fn).__globals__
            if self.module is None
            else self.module
        )


class ExecutionResult(Struct, frozen=True):
    """How one execution of a run ended: `killed`, `done`, `waiting`, or the name of an error."""

    says: str
    message: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


class Executor(Protocol):
    """Execute the run once: in this process, or in one that may be killed."""

    def __call__(
        self, stage: ScenarioRun, agent: Callable[..., Any], how: How
    ) -> ExecutionResult: ...


def execute_here(
    stage: ScenarioRun,
    agent: Callable[..., Any],
    how: How,
    boundary: Callable[[str], None] | None = None,
) -> ExecutionResult:
    """Execute the run in this process as far as it goes."""
    setup = stage.setup
    with stage.sandbox.patched(setup.names), stage.sandbox.holdfast(agent, boundary=boundary) as hf:
        try:
            if how == "resume":
                hf.resume(RUN_ID, by="test")
            elif how == "rerun":
                hf.rerun(RUN_ID, by="test")
            else:
                hf.run(BoundAgent(agent, setup.args, setup.input), id=RUN_ID)
        except RunWaiting as waiting:
            return ExecutionResult("waiting", waiting.waiting_for)
        except Diverged as diverged:
            sides = {
                "where": diverged.where,
                "recorded": diverged.recorded,
                "attempted": diverged.attempted,
                "at": _raised_at(diverged),
            }
            return ExecutionResult("Diverged", str(diverged), sides)
        except HoldfastError as error:
            return ExecutionResult(type(error).__name__, str(error))
        except MockMissing as missing:
            return ExecutionResult("MockMissing", str(missing), {"name": missing.name})
    return ExecutionResult("done")


class ScenarioRun:
    """One execution of a scenario, in its own folder."""

    def __init__(
        self,
        folder: Path,
        setup: ScenarioSetup,
        execute: Executor = execute_here,
        *,
        settles_doubt: bool = False,
    ) -> None:
        self.setup = setup
        self.sandbox = Sandbox(folder, setup.mocks, strict=setup.strict)
        self.ends: list[ExecutionResult] = []
        self.doubts: list[dict[str, Any]] = []
        self._execute = execute
        self._settles_doubt = settles_doubt
        self._left = list(setup.answers)

    def close(self) -> None:
        self.sandbox.close()

    def perform(self) -> ExecutionResult:
        """Execute it to its end, and return the last result."""
        if not any(act.what == "go" for act in self.setup.actions):
            raise InvalidInput("nothing runs in this scenario; add `When the agent runs`")
        for act in self.setup.actions:
            if act.what == "go":
                if self._go(act.agent or self.setup.agent, act.how).says == "MockMissing":
                    break
            else:
                self._from_outside(act)
        return self.ends[-1]

    def _go(self, agent: Callable[..., Any], how: How) -> ExecutionResult:
        """Bring the run on until it ends, or is waiting for something that the scenario does not provide."""
        for _ in range(LIVES_MAX):
            self.sandbox.journal.add("life")
            ended = self._execute(self, agent, how)
            self.ends.append(ended)
            how = "run"
            if ended.says == "killed":
                self._release_leases()
            elif ended.says != "waiting" or not self._supply(agent):
                return ended
        return ExecutionResult("stuck", f"the run did not end within {LIVES_MAX} resumes")

    def _release_leases(self) -> None:
        """The process is known to be dead: its lease need not run out."""
        store = self.sandbox.store()
        try:
            for run_id in _family(store, RUN_ID):
                row = store.get(run_id)
                if row is not None and row.status == "running":
                    store.release(run_id, row.epoch)
        finally:
            store.close()

    def runs(self) -> list[RunState]:
        """The run and its children, as they stand."""
        store = self.sandbox.store()
        try:
            return [views.get(store, run_id) for run_id in _family(store, RUN_ID)]
        finally:
            store.close()

    # ── from outside ─────────────────────────────────────────────────────────────────────

    def _from_outside(self, act: ScenarioAction) -> None:
        if act.what == "time":
            self.sandbox.clock.skip(act.value)
            return
        with self.sandbox.holdfast() as hf:
            if act.what == "signal":
                if hf.store.get(RUN_ID) is None:
                    raise InvalidInput("a signal needs a run; add `When the agent runs` before it")
                hf.signal(RUN_ID, act.name, act.value, by="test")
            elif act.what == "cancel":
                hf.cancel(RUN_ID, by="test")
            else:
                answer: Reaction = act.value
                if not self._answered(hf, RUN_ID, [answer]):
                    raise InvalidInput(f"nothing is waiting for this {answer.kind}")

    def _supply(self, agent: Callable[..., Any]) -> bool:
        """Give the run what it is waiting for, if there is something to give."""
        with self.sandbox.holdfast(agent) as hf:
            for run_id in _family(hf.store, RUN_ID):
                state = hf.get(run_id)
                if self._settles_doubt and self._settle(hf, state):
                    return True
                if self._answered(hf, run_id, self._left):
                    return True
                if self._time_passed(hf, state):
                    return True
        return False

    def _settle(self, hf: Holdfast, state: RunState) -> bool:
        """Settle calls in doubt as a person would who can see the world: done, or try again."""
        for call in state.in_doubt:
            args = views.to_plain(call.args) if call.args is not None else {}
            done = [
                did
                for did in self.sandbox.journal.read("did")
                if did["name"] == call.name
                and "error" not in did
                and did["args"] == args
                and did["key"] in ("", call.key)
            ]
            calls = [c for c in state.calls if c.name == call.name and c.status == "done"]
            same = [c for c in calls if c.args is not None and views.to_plain(c.args) == args]
            happened = len(done) > len(same) or (bool(done) and done[-1]["key"] == call.key != "")
            nth = [c.step for c in state.calls if c.name == call.name].index(call.step)
            self.doubts.append(
                {
                    "name": call.name,
                    "step": call.step,
                    "effect": call.effect,
                    "nth": nth,
                    "happened": happened,
                }
            )
            if happened:
                hf.resolve(state.id, call.step, done=done[-1]["result"], by="test")
            else:
                hf.resolve(state.id, call.step, retry=True, by="test")
        return bool(state.in_doubt)

    @staticmethod
    def _answered(hf: Holdfast, run_id: str, answers: list[Reaction]) -> bool:
        for wait in hf.get(run_id).waits:
            answer = None if wait.decided else next((a for a in answers if a.fits(wait)), None)
            if answer is None:
                continue
            if answer.kind == "signal":
                answers.remove(answer)  # sent once; a decision stands for every request alike
                hf.signal(run_id, answer.about, answer.value, by=answer.by)
            elif answer.kind == "answer":
                hf.answer(run_id, answer.value, wait.id, by=answer.by)
            elif answer.value:
                hf.approve(run_id, wait.id, by=answer.by)
            else:
                hf.reject(run_id, wait.id, by=answer.by)
            return True
        return False

    def _time_passed(self, hf: Holdfast, state: RunState) -> bool:
        """Skip to the end of a timer or of a wait between attempts. What people may still decide waits."""
        if state.status != "waiting" or any(
            w.wait in ("approval", "answer") and not w.decided for w in state.waits
        ):
            return False
        last = [x for _, x in hf.events(state.id) if isinstance(x, RunSuspended)]
        if not last or last[-1].wake_at is None:
            return False
        self.sandbox.clock.skip(max(0, last[-1].wake_at - hf.store.now()) / 1_000_000 + 0.001)
        return True


def _raised_at(error: BaseException) -> str:
    """Where in the user's code the call was made that an error is about."""
    found, seen = "", set()
    below: BaseException | None = error
    while below is not None and id(below) not in seen:
        seen.add(id(below))
        trace = below.__traceback__
        while trace is not None:
            if not is_library(trace.tb_frame):
                found = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
            trace = trace.tb_next
        below = None if found else below.__context__
    return found


def _family(store: Any, run_id: str) -> list[str]:
    """A run and its children, theirs too."""
    found = [run_id]
    for row in store.runs(_children(run_id), limit=1000):
        found += _family(store, row.id)
    return found


def _children(run_id: str) -> Any:
    from holdfast.store.base import Filter

    return Filter(parent=run_id)
