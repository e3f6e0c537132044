"""Limits belong to the run: set for one run, kept while it is in a blocking call, and raised when it is resumed."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast import (
    AsyncHoldfast,
    AsyncRun,
    Budget,
    BudgetExceeded,
    DeadlineExceeded,
    Holdfast,
    InvalidInput,
    NotNow,
    Run,
    RunWaiting,
    agent,
    loop,
    step,
    tool,
)
from holdfast.agents.state import AgentState
from holdfast.core import events as e
from support.runs import of_kind, waits
from support.waiting import PATIENCE_SECONDS

SECOND = 1_000_000


@pytest.fixture
def gate() -> Any:
    """Where a call hangs until the test is over."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def real(tmp_path: Any) -> Any:
    with Holdfast(tmp_path / "real.db") as hf:
        yield hf


@step
def work(n: int) -> int:
    return n


@agent
def counting(run: Run, steps: int) -> int:
    return sum(work(n) for n in range(steps))


# ── a deadline cuts blocking calls ───────────────────────────────────────────────────────────


def hanging_agent(gate: threading.Event, calls: list[int], declare: Any) -> Any:
    @declare
    def hang() -> str:
        calls.append(1)
        if len(calls) == 1:
            gate.wait(PATIENCE_SECONDS)
        return "answer"

    @agent(deadline=0.3)
    def main(run: Run) -> str:
        return hang()

    return main


def test_a_blocking_step_is_cut_at_the_deadline_and_made_again_on_resume(
    real: Holdfast, gate: threading.Event
) -> None:
    calls: list[int] = []
    main = hanging_agent(gate, calls, step)

    with pytest.raises(DeadlineExceeded, match=r"hf\.resume\('r', deadline=60\)"):
        real.run(main, id="r")
    with pytest.raises(DeadlineExceeded):
        real.resume("r")

    assert "answer" == real.resume("r", deadline=60)
    assert 2 == len(calls)


def test_a_blocking_tool_that_is_cut_at_the_deadline_is_in_doubt(
    real: Holdfast, gate: threading.Event
) -> None:
    calls: list[int] = []
    main = hanging_agent(gate, calls, tool)

    with pytest.raises(DeadlineExceeded):
        real.run(main, id="r")

    state = real.get("r")
    assert ("failed", "in_doubt") == (state.status, state.call(1).status)
    with pytest.raises(RunWaiting, match="may or may not have happened"):
        real.resume("r", deadline=60)
    real.resolve("r", done="it was sent")
    assert "it was sent" == real.resume("r")
    assert [1] == calls


def test_a_timeout_that_ends_before_the_deadline_is_a_timeout(
    real: Holdfast, gate: threading.Event
) -> None:
    @step(timeout=0.1)
    def hang() -> None:
        gate.wait(PATIENCE_SECONDS)

    @agent(deadline=600)
    def main(run: Run) -> str:
        try:
            hang()
        except TimeoutError:
            return "timed out"
        return ""

    assert "timed out" == real.run(main, id="r")


def test_code_that_returns_after_its_deadline_has_failed(home: Any, clock: Any) -> None:
    @agent(deadline=10)
    def main(run: Run) -> str:
        work(1)
        clock.advance(11)  # its own computing
        return "too late"

    with pytest.raises(DeadlineExceeded):
        home.open().run(main, id="r")

    assert "failed" == home.open().get("r").status


# ── limits for one run ───────────────────────────────────────────────────────────────────────


def test_a_run_has_limits_of_its_own(hf: Holdfast) -> None:
    with pytest.raises(BudgetExceeded, match=r"max_steps is 2(.|\n)*budget=Budget\("):
        hf.run(counting, id="r", steps=5, budget=Budget(max_steps=2), deadline=60)

    state = hf.get("r")
    assert ({"max_steps": 2}, state.created_at + 60 * SECOND) == (state.budget, state.deadline_at)


def test_options_of_a_run_override_those_of_its_agent(hf: Holdfast) -> None:
    @agent(deadline=10, budget=Budget(max_steps=1, max_cost_usd=3))
    def main(run: Run) -> int:
        return work(1) + work(2)

    assert 3 == hf.run(main, id="r", budget=Budget(max_steps=9), deadline=100)
    state = hf.get("r")
    assert {"max_steps": 9, "max_cost_usd": 3} == state.budget
    assert state.created_at + 100 * SECOND == state.deadline_at


def test_the_same_command_again_does_not_move_the_deadline(home: Any, clock: Any) -> None:
    @agent
    def main(run: Run) -> Any:
        return run.wait_for("go")

    hf = home.open()
    waits(hf, main, deadline=60)
    clock.advance(50)
    waits(hf, main, deadline=60)
    clock.advance(11)

    with pytest.raises(DeadlineExceeded):
        hf.run(main, id="r", deadline=60)


def test_a_started_run_has_limits_of_its_own(hf: Holdfast) -> None:
    hf.start(counting, id="r", steps=5, budget=Budget(max_steps=2))
    hf.worker(agents=[counting]).run(once=True)

    assert "budget" == hf.get("r").failure.reason  # type: ignore[union-attr]


def test_limits_of_an_async_run_are_set_and_raised(tmp_path: Any) -> None:
    @agent
    async def main(run: AsyncRun) -> int:
        return work(1) + work(2)

    async def both() -> int:
        async with AsyncHoldfast(tmp_path / "a.db") as hf:
            with pytest.raises(BudgetExceeded):
                await hf.run(main, id="r", budget=Budget(max_steps=1))
            return int(await hf.resume("r", budget=Budget(max_steps=2)))

    assert 3 == asyncio.run(both())


@pytest.mark.parametrize("name", ["deadline", "budget"])
def test_a_parameter_that_hf_run_keeps_for_itself_is_refused_when_declared(name: str) -> None:
    scope: dict[str, Any] = {"Run": Run}
    exec(f"def plan(run: Run, {name}: int) -> int: return {name}", scope)
    exec(f"def free(run: Run, {name}: int, /) -> int: return {name}", scope)

    with pytest.raises(InvalidInput, match=f"option `{name}` of their own"):
        agent(scope["plan"])
    agent(scope["free"])


def test_a_positional_parameter_of_that_name_is_input(hf: Holdfast) -> None:
    @agent
    def plan(run: Run, budget: int, /) -> int:
        return budget

    assert 7 == hf.run(plan, 7, id="r", budget=Budget(max_steps=3))


@pytest.mark.parametrize(
    "wrong", [{"deadline": -1}, {"deadline": "60"}, {"budget": {"max_steps": 1}}, {"budget": 5}]
)
def test_limits_that_make_no_sense_are_refused_and_nothing_is_created(
    hf: Holdfast, wrong: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        hf.run(counting, id="r", steps=1, **wrong)

    assert [] == hf.runs()


# ── raised on resume ─────────────────────────────────────────────────────────────────────────


def test_a_budget_that_is_used_up_is_raised_on_resume_and_what_was_used_counts(
    hf: Holdfast,
) -> None:
    with pytest.raises(BudgetExceeded):
        hf.run(counting, id="r", steps=5, budget=Budget(max_steps=2))
    with pytest.raises(BudgetExceeded):
        hf.resume("r", budget=Budget(max_steps=4))

    assert 10 == hf.resume("r", budget=Budget(max_steps=5), by="ann", why="worth it")
    changed = of_kind(hf, "r", e.LimitsChanged)
    assert [{"max_steps": 4}, {"max_steps": 5}] == [x.budget for x in changed]
    assert ("ann", "worth it") == (changed[-1].by, changed[-1].why)


def test_the_deadline_of_a_waiting_run_can_be_raised(home: Any, clock: Any) -> None:
    @agent(deadline=60)
    def main(run: Run) -> Any:
        return run.wait_for("go")

    hf = home.open(main)
    waits(hf, main)
    with pytest.raises(RunWaiting):
        hf.resume("r", deadline=600)
    clock.advance(100)
    hf.signal("r", "go", 1)

    assert 1 == hf.resume("r")


def test_raised_limits_survive_a_loops_snapshots(hf: Holdfast) -> None:
    @loop(max_iterations=50, budget=Budget(max_steps=10))
    def main(run: Run, state: AgentState) -> AgentState:
        n = work(state.iteration)
        return state.to_done("ok") if n >= 30 else state

    with pytest.raises(BudgetExceeded):
        hf.run(main, id="r", goal="count")
    with pytest.raises(BudgetExceeded):
        hf.resume("r", budget=Budget(max_steps=20))

    hf.resume("r", budget=Budget(max_steps=90))
    assert {"max_steps": 90} == hf.get("r").budget


@pytest.mark.parametrize("limit", ["deadline", "budget"])
def test_raised_limits_hold_for_open_child_runs(home: Any, clock: Any, limit: str) -> None:
    late = [True]

    @agent
    def child(run: Run) -> int:
        first = work(1)
        if limit == "deadline" and late:
            late.clear()
            clock.advance(100)
        return first + work(2)

    @agent
    def parent(run: Run) -> int:
        return work(0) + child() + work(3)

    hf = home.open(parent, child)
    if limit == "deadline":
        with pytest.raises(DeadlineExceeded, match=r"hf\.resume\('r', deadline=60\)"):
            hf.run(parent, id="r", deadline=60)
        assert 6 == hf.resume("r", deadline=60)
    else:
        with pytest.raises(BudgetExceeded):
            hf.run(parent, id="r", budget=Budget(max_steps=3))
        assert 6 == hf.resume("r", budget=Budget(max_steps=10))


def test_the_limits_of_a_child_are_those_of_its_parent(home: Any) -> None:
    @agent
    def child(run: Run) -> Any:
        return run.wait_for("go")

    @agent(deadline=60)
    def parent(run: Run) -> Any:
        return child()

    hf = home.open(parent, child)
    waits(hf, parent)

    with pytest.raises(InvalidInput, match=r"hf\.resume\('r', …\)"):
        hf.resume("r~1", deadline=600)


def test_limits_of_a_run_that_has_completed_do_not_matter(hf: Holdfast) -> None:
    hf.run(counting, id="r", steps=2)

    assert 1 == hf.resume("r", deadline=5)


def test_limits_of_a_run_that_is_executed_elsewhere_are_not_changed(home: Any) -> None:
    hf = home.open(counting)
    hf.start(counting, id="r", steps=1)
    assert hf.store.claim("r", worker="another", lease_us=SECOND) is not None

    with pytest.raises(NotNow, match="being executed by another"):
        hf.resume("r", deadline=5)
