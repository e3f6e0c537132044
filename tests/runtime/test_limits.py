"""Deadlines, budgets, cancellation and pausing: how a run is ended or held from outside its code."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from holdfast import (
    AsyncHoldfast,
    Budget,
    BudgetExceeded,
    DeadlineExceeded,
    Holdfast,
    InvalidInput,
    NotNow,
    Options,
    Run,
    RunCancelled,
    RunFailed,
    RunWaiting,
    agent,
    step,
    tool,
)
from holdfast.core import events as e
from holdfast.core.events import Usage
from support.runs import Hanging, of_kind, waits


def waiting_run(home: Any, **declared: Any) -> Holdfast:
    """Run `r` waits for what never comes; workers of this Holdfast know its agent."""

    @agent(**declared)
    def main(run: Run) -> None:
        run.wait_for("never")

    hf: Holdfast = home.open(main)
    waits(hf, main)
    return hf


# ── deadlines ────────────────────────────────────────────────────────────────────────────────


def test_no_call_begins_after_the_deadline(home: Any, clock: Any) -> None:
    ran: list[str] = []

    @step
    def slow(name: str) -> None:
        ran.append(name)
        clock.advance(6)

    @agent(deadline=10)
    def main(run: Run) -> None:
        for name in "abc":
            slow(name)

    hf = home.open()
    with pytest.raises(DeadlineExceeded):
        hf.run(main, id="r")

    assert ran == ["a", "b"]
    state = hf.get("r")
    assert (state.status, state.failure.reason) == ("failed", "deadline")
    assert state.deadline_at == state.created_at + 10_000_000


def test_the_deadline_is_absolute_and_a_restart_does_not_move_it(home: Any, clock: Any) -> None:
    ran: list[str] = []

    @step
    def work(name: str) -> None:
        ran.append(name)

    @agent(deadline=10)
    def main(run: Run) -> None:
        work("a")
        work("b")

    home.crash(main, "r", "after commit call_succeeded")
    clock.advance(11)

    with pytest.raises(DeadlineExceeded):
        home.open().run(main, id="r")
    assert ran == ["a"]


def test_the_deadline_ends_a_waiting_run_even_if_no_process_was_running(
    home: Any, clock: Any
) -> None:
    @agent(deadline=3600)
    def main(run: Run) -> None:
        run.wait_for("never")

    with pytest.raises(RunWaiting):
        home.open().run(main, id="r")
    clock.advance(3600)
    hf = home.open(main)

    assert hf.worker().run(once=True) == 1

    assert hf.handle("r").status == "failed"
    with pytest.raises(DeadlineExceeded):
        hf.handle("r").result()


@pytest.mark.parametrize("wait", ["approval", "gated", "sleep", "doubt"])
def test_the_deadline_ends_every_kind_of_wait(home: Any, clock: Any, wait: str) -> None:
    @tool
    def pay() -> None: ...

    @agent(deadline=3600, approve=("external_action",) if wait == "gated" else ())
    def main(run: Run) -> None:
        if wait == "approval":
            run.approve("ok?")
        elif wait == "sleep":
            run.sleep(10**6)
        else:
            pay()

    if wait == "doubt":
        home.crash(main, "r", "after pay")
    hf = home.open(main)
    with pytest.raises(RunWaiting):
        hf.run(main, id="r")
    clock.advance(3601)
    hf.worker().run(once=True)

    assert hf.handle("r").status == "failed"
    if wait == "doubt":
        assert [c.status for c in hf.get("r").calls] == ["in_doubt"]  # it stays visible


def test_a_deadline_cannot_be_swallowed(home: Any, clock: Any) -> None:
    ran: list[str] = []

    @step
    def slow(name: str) -> None:
        ran.append(name)
        clock.advance(20)

    @agent(deadline=10)
    def main(run: Run) -> str:
        slow("a")
        try:
            slow("b")
        except BaseException:  # what is tested: code that swallows everything
            pass
        try:
            slow("c")
        except:  # noqa: E722
            pass
        return "finished anyway"

    with pytest.raises(DeadlineExceeded):
        home.open().run(main, id="r")
    assert ran == ["a"]


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), "5", 10**12])
def test_a_deadline_that_makes_no_sense_is_refused_when_declared(bad: Any) -> None:
    with pytest.raises(InvalidInput, match="deadline of main"):

        @agent(deadline=bad)
        def main(run: Run) -> None: ...


# ── budgets ──────────────────────────────────────────────────────────────────────────────────


def test_max_steps_allows_exactly_so_many_calls(home: Any) -> None:
    ran: list[int] = []

    @step
    def work(n: int) -> None:
        ran.append(n)

    @agent(budget=Budget(max_steps=3))
    def main(run: Run, n: int) -> None:
        for i in range(n):
            work(i)

    hf = home.open()
    hf.run(main, id="fits", n=3)
    ran.clear()
    with pytest.raises(BudgetExceeded, match="max_steps is 3"):
        hf.run(main, id="r", n=4)

    assert ran == [0, 1, 2]
    state = hf.get("r")
    assert (state.status, state.failure.reason, state.failure.error.type) == (
        "failed",
        "budget",
        "budget",
    )


class Answer(dict[str, Any]):
    """What a model client returns: a dict that says what it used."""

    usage = Usage(input_tokens=60, output_tokens=30, cost_usd=0.25)


def test_tokens_and_cost_count_as_the_provider_reports_them(home: Any) -> None:
    @step
    def ask() -> dict[str, Any]:
        return Answer(text="hi")

    @agent(budget=Budget(max_llm_tokens=200, max_cost_usd=10))
    def main(run: Run) -> list[Any]:
        before = run.budget
        assert ask() == {"text": "hi"}
        middle = run.budget
        ask()
        after = run.budget
        return [
            before.pressure,
            middle.pressure,
            after.pressure,
            after.left["max_llm_tokens"],
            after.used["max_cost_usd"],
        ]

    hf = home.open()

    assert hf.run(main, id="r") == [False, False, True, 20.0, 0.5]
    assert hf.get("r").usage == Usage(120, 60, 0.5)


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (Budget(max_llm_tokens=100), "max_llm_tokens is 100, and 180 are used"),
        (Budget(max_cost_usd=0.3), "max_cost_usd is 0.3, and 0.5 are used"),
    ],
)
def test_no_call_begins_when_tokens_or_money_are_used_up(
    home: Any, budget: Budget, says: str
) -> None:
    asked: list[int] = []

    @step
    def ask() -> dict[str, Any]:
        asked.append(1)
        return Answer(text="hi")

    @agent(budget=budget)
    def main(run: Run) -> None:
        for _ in range(5):
            ask()

    with pytest.raises(BudgetExceeded, match=says):
        home.open().run(main, id="r")
    assert len(asked) == 2


def test_a_budget_holds_over_restarts(home: Any) -> None:
    asked: list[int] = []

    @step
    def ask() -> dict[str, Any]:
        asked.append(1)
        return Answer(text="hi")

    @agent(budget=Budget(max_llm_tokens=100))
    def main(run: Run) -> None:
        ask()
        ask()
        run.state.pressure = run.budget.pressure
        ask()

    home.crash(main, "r", "after commit call_succeeded")

    with pytest.raises(BudgetExceeded):
        home.open().run(main, id="r")
    assert len(asked) == 2


def test_max_wall_time_counts_from_the_start_even_while_the_run_is_suspended(
    home: Any, clock: Any
) -> None:
    @step
    def work() -> None: ...

    @agent(budget=Budget(max_wall_time=60))
    def main(run: Run) -> None:
        work()
        run.wait_for("go")
        work()

    hf = home.open()
    with pytest.raises(RunWaiting):
        hf.run(main, id="r")
    clock.advance(61)
    hf.signal("r", "go")

    with pytest.raises(BudgetExceeded, match="max_wall_time"):
        home.open().run(main, id="r")


def test_max_wall_time_ends_a_waiting_run(home: Any, clock: Any) -> None:
    hf = waiting_run(home, budget=Budget(max_wall_time=60))
    clock.advance(61)
    hf.worker().run(once=True)

    assert hf.handle("r").status == "failed"


@pytest.mark.parametrize(
    "bad",
    [
        {"max_steps": -1},
        {"max_cost_usd": float("nan")},
        {"max_llm_tokens": "9"},
        {"max_wall_time": float("inf")},
        {"max_steps": True},
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="Budget"):
        Budget(**bad)


def test_a_run_that_used_up_its_budget_stays_so_on_resume(home: Any) -> None:
    @step
    def work() -> None: ...

    @agent(budget=Budget(max_steps=1))
    def main(run: Run) -> None:
        work()
        work()

    hf = home.open(main)
    for how in (lambda: hf.run(main, id="r"), lambda: hf.resume("r"), lambda: hf.run(main, id="r")):
        with pytest.raises(BudgetExceeded):
            how()


# ── cancelling ───────────────────────────────────────────────────────────────────────────────


def test_cancel_ends_the_run_at_its_next_call(home: Any) -> None:
    other = home.open()
    ran: list[str] = []

    @step
    def work(name: str) -> None:
        ran.append(name)
        if name == "a":
            other.cancel("r", by="ann", why="changed my mind")

    @agent
    def main(run: Run) -> None:
        work("a")
        work("b")

    hf = home.open()
    with pytest.raises(RunCancelled, match="cancelled by ann: changed my mind"):
        hf.run(main, id="r")

    assert ran == ["a"]
    assert hf.get("r").status == "cancelled"
    (ended,) = of_kind(hf, "r", e.RunCancellation)
    assert (ended.by, ended.why) == ("ann", "changed my mind")
    with pytest.raises(RunCancelled):
        hf.run(main, id="r")


def test_no_tool_begins_after_a_cancellation_that_came_just_before_its_intent(home: Any) -> None:
    other = home.open()
    ran: list[str] = []

    @tool
    def pay() -> None:
        ran.append("paid")

    @agent
    def main(run: Run) -> None:
        pay()

    hf = home.open(
        boundary=lambda name: other.cancel("r") if name == "before commit call_started" else None
    )
    with pytest.raises(RunCancelled):
        hf.run(main, id="r")

    assert ran == []
    assert of_kind(hf, "r", e.CallStarted) == []


def test_a_tool_that_is_under_way_is_recorded_before_the_run_is_cancelled(home: Any) -> None:
    other = home.open()

    @tool
    def pay() -> str:
        other.cancel("r")
        return "paid"

    @agent
    def main(run: Run) -> str:
        return pay()

    hf = home.open()
    with pytest.raises(RunCancelled):
        hf.run(main, id="r")
    assert [c.status for c in hf.get("r").calls] == ["done"]


def test_tools_under_way_in_other_branches_are_recorded_when_the_run_is_cancelled(
    home: Any,
) -> None:
    other = home.open()
    cancelled, entered = threading.Event(), threading.Event()

    @tool
    def pay() -> str:
        entered.set()
        assert cancelled.wait(120)
        return "paid"

    @step
    def work() -> None: ...

    def branch(name: str) -> None:
        if name == "pay":
            pay()
            return
        assert entered.wait(120)
        other.cancel("r")
        try:
            work()  # its receipt meets the cancellation
            work()
        finally:
            cancelled.set()

    @agent
    def main(run: Run) -> None:
        run.map(branch, ["pay", "work"])

    hf = home.open()
    with pytest.raises(RunCancelled):
        hf.run(main, id="r")
    assert {c.name: c.status for c in hf.get("r").calls if c.name == "pay"} == {"pay": "done"}


def test_a_waiting_run_is_cancelled_by_the_next_worker(home: Any) -> None:
    hf = waiting_run(home)
    hf.cancel("r", by="ann")
    hf.cancel("r", by="bob")  # the first one counts
    hf.worker().run(once=True)

    with pytest.raises(RunCancelled, match="ann"):
        hf.handle("r").result()
    assert len(of_kind(hf, "r", e.CancelRequested)) == 1


def test_a_paused_run_can_be_cancelled(home: Any) -> None:
    hf = waiting_run(home)
    hf.pause("r")
    hf.cancel("r")
    hf.worker().run(once=True)

    assert hf.handle("r").status == "cancelled"


def test_a_call_in_doubt_stays_visible_on_a_cancelled_run(home: Any) -> None:
    @tool
    def pay() -> None: ...

    @agent
    def main(run: Run) -> None:
        pay()

    home.crash(main, "r", "after pay")
    hf = home.open(main)
    hf.cancel("r")
    hf.worker().run(once=True)

    assert hf.handle("r").status == "cancelled"
    assert [c.name for c in hf.get("r").in_doubt] == ["pay"]
    hf.resolve("r", done=None, by="ann")
    assert hf.get("r").in_doubt == ()


def test_a_run_that_has_ended_cannot_be_cancelled_paused_or_patched(home: Any) -> None:
    @agent
    def main(run: Run) -> None: ...

    hf = home.open()
    hf.run(main, id="r")
    before = hf.events("r")

    for act in (hf.cancel, hf.pause, lambda i: hf.patch(i, {"x": 1}), lambda i: hf.signal(i, "x")):
        with pytest.raises(NotNow, match="completed"):
            act("r")
    assert hf.events("r") == before


def test_an_async_call_is_cancelled_for_real(home: Any) -> None:
    """The await that the agent is in ends, also from another process, and nothing says it failed."""
    hanging = Hanging()

    async def story() -> None:
        async with AsyncHoldfast(home.store()) as hf:
            task = await hanging.begin(hf)
            await hf.cancel("r", by="ann")
            with pytest.raises(RunCancelled, match="ann"):
                await asyncio.wait_for(task, 120)

    asyncio.run(story())
    assert hanging.ended == ["cancelled"]
    assert home.open().get("r").status == "cancelled"


def test_an_async_call_is_cancelled_from_another_process_long_before_its_lease_is_renewed(
    home: Any,
) -> None:
    async def story() -> None:
        hour = Options(lease_seconds=3600)
        async with AsyncHoldfast(home.store(), options=hour) as hf:
            task = await Hanging().begin(hf)
            await asyncio.to_thread(home.open().cancel, "r", by="ann")
            with pytest.raises(RunCancelled, match="ann"):
                await asyncio.wait_for(task, 120)

    asyncio.run(story())


def test_an_async_call_that_hangs_does_not_outlive_the_deadline_of_its_run(
    home: Any, clock: Any
) -> None:
    async def story() -> None:
        async with AsyncHoldfast(home.store()) as hf:
            task = await Hanging(deadline=60).begin(hf)
            clock.advance(61)
            with pytest.raises(DeadlineExceeded):
                await asyncio.wait_for(task, 120)

    asyncio.run(story())
    assert home.open().get("r").status == "failed"


def test_an_async_tool_that_was_cancelled_with_its_run_is_in_doubt(home: Any) -> None:
    async def story() -> None:
        async with AsyncHoldfast(home.store()) as hf:
            task = await Hanging(tool).begin(hf)
            await hf.cancel("r")
            with pytest.raises(RunCancelled):
                await asyncio.wait_for(task, 120)
            assert [c.status for c in (await hf.get("r")).calls] == ["in_doubt"]

    asyncio.run(story())


# ── pausing ──────────────────────────────────────────────────────────────────────────────────


def test_pause_stops_at_the_next_call_and_resume_continues(home: Any) -> None:
    other = home.open()
    ran: list[str] = []

    @step
    def work(name: str) -> str:
        ran.append(name)
        if ran == ["a"]:
            other.pause("r", by="ann", why="lunch")
        return name

    @agent
    def main(run: Run) -> str:
        return work("a") + work("b")

    hf = home.open(main)
    with pytest.raises(RunWaiting, match="a person to resume it"):
        hf.run(main, id="r")
    assert (ran, hf.handle("r").status) == (["a"], "paused")
    with pytest.raises(RunWaiting, match="resume"):
        hf.run(main, id="r")
    assert hf.worker().run(once=True) == 0

    assert hf.resume("r", by="bob") == "ab"
    assert ran == ["a", "b"]


def test_a_waiting_run_that_is_paused_does_not_continue_when_its_signal_arrives(home: Any) -> None:
    @agent
    def main(run: Run) -> Any:
        return run.wait_for("go")

    hf = home.open(main)
    with pytest.raises(RunWaiting):
        hf.run(main, id="r")
    hf.pause("r")
    with pytest.raises(NotNow, match="already paused"):
        hf.pause("r")
    hf.signal("r", "go", 5)
    assert hf.worker().run(once=True) == 0
    assert hf.handle("r").status == "paused"

    assert hf.resume("r") == 5


def test_the_deadline_does_not_stop_for_a_pause(home: Any, clock: Any) -> None:
    @agent(deadline=60)
    def main(run: Run) -> None:
        run.wait_for("go")

    hf = home.open(main)
    with pytest.raises(RunWaiting):
        hf.run(main, id="r")
    hf.pause("r")
    clock.advance(61)

    with pytest.raises(DeadlineExceeded):
        hf.resume("r")


@pytest.mark.parametrize("kind", ["step", "tool"])
def test_a_run_that_kills_its_workers_is_quarantined(home: Any, kind: str) -> None:
    """Recovery attempts are counted when the run is claimed, so a poison run cannot hold up others."""
    lives = home.path.with_name("lives")
    well = [False]

    def die() -> None:
        with lives.open("a") as file:
            file.write("x")
        if not well:
            return
        os._exit(9)

    poison = step(die) if kind == "step" else tool(name="die")(lambda idempotency_key="": die())

    @agent
    def main(run: Run) -> str:
        poison()
        return "lived"

    def live() -> int:
        pid = os.fork()
        if pid == 0:
            try:
                home.open().run(main, id="r")
            finally:
                os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    codes = []
    while not codes or codes[-1] == 9:
        codes.append(live())
        home.clock.advance(31)  # its lease ends
    hf = home.open(main)

    assert 3 <= len(lives.read_text()) <= 10
    with pytest.raises(RunWaiting, match=r"without progress|never returned") as waiting:
        hf.run(main, id="r")
    assert "r" in waiting.value.how
    assert hf.handle("r").status == "quarantined"
    well.clear()
    if kind == "tool":
        hf.resolve("r", retry=True)
    assert hf.resume("r", by="ann", why="fixed") == "lived"


def test_stopping_a_run_repeatedly_does_not_quarantine_it(home: Any) -> None:
    pressed = [0]

    @step
    def slow() -> str:
        pressed[0] += 1
        if pressed[0] < 12:
            raise KeyboardInterrupt
        return "done"

    @agent
    def main(run: Run) -> str:
        return slow()

    for _ in range(11):
        with pytest.raises(KeyboardInterrupt):
            home.open().run(main, id="r")

    assert home.open().run(main, id="r") == "done"


def test_a_sync_agents_failure_reason_is_error(home: Any) -> None:
    @agent
    def main(run: Run) -> None:
        raise ValueError("no")

    hf = home.open()
    with pytest.raises(RunFailed) as failed:
        hf.run(main, id="r")
    assert failed.value.reason == "error"
    assert hf.get("r").failure.reason == "error"
