"""Agents whose logs were written by Holdfast 0.1, and are kept in `tests/runtime/logs_0_1`.

This code has not changed since, so those logs must verify, replay and resume with it (`tests/runtime/test_old_logs.py`).
`support/write_old_logs.py` wrote them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from holdfast import (
    AgentState,
    Approval,
    AsyncRun,
    CallFailed,
    Holdfast,
    HoldfastError,
    LLMAgent,
    Retry,
    Run,
    RunWaiting,
    Timer,
    agent,
    loop,
    step,
    tool,
)
from holdfast.agents.models.scripted import ScriptedModel, call

DONE: list[str] = []
"""What the tools did."""


# ── steps and tools ──────────────────────────────────────────────────────────────────────────


@step
def look(name: str) -> str:
    return f"saw {name}"


@step
async def alook(name: str) -> str:
    return f"saw {name}"


@tool
def pay(amount: int, *, idempotency_key: str = "") -> int:
    DONE.append(f"pay {amount}")
    return amount


@tool
async def apay(amount: int, *, idempotency_key: str = "") -> int:
    DONE.append(f"pay {amount}")
    return amount


@tool(check=lambda key: None)
def post(text: str) -> str:
    DONE.append(f"post {text}")
    return text


@tool(undo=lambda name: DONE.append(f"release {name}"))
def reserve(name: str, *, idempotency_key: str = "") -> str:
    DONE.append(f"reserve {name}")
    return name


@tool(risk="read")
async def never() -> None:
    await asyncio.Event().wait()


@tool(retry=Retry(3, initial=0.001))
def flaky(name: str, *, idempotency_key: str = "") -> str:
    DONE.append(f"flaky {name}")
    if DONE.count(f"flaky {name}") == 1:
        raise ConnectionRefusedError("not yet")
    return name


@tool
def refuse(name: str, *, idempotency_key: str = "") -> str:
    raise ValueError(f"no {name}")


@tool
def ring(name: str) -> str:
    """At most once: in doubt if its process dies in it."""
    DONE.append(f"ring {name}")
    return "ring"


@tool
def store_row(name: str, tx: Any) -> str:
    """Writes into the store's own database."""
    tx.execute("CREATE TABLE IF NOT EXISTS birds (name TEXT)")
    tx.execute(f"INSERT INTO birds VALUES ('{name}')")
    return name


@tool
def fail_once(name: str, *, idempotency_key: str = "") -> str:
    DONE.append(f"fail_once {name}")
    if DONE.count(f"fail_once {name}") == 1:
        raise ValueError("not the first time")
    return name


# ── agents ───────────────────────────────────────────────────────────────────────────────────


@agent
def plain(run: Run, name: str) -> list[Any]:
    got: list[Any] = [look(name), pay(3), post("hello"), flaky("once")]
    try:
        refuse("thanks")
    except Exception as error:
        got.append(type(error).__name__)
    run.state["count"] = len(got)
    run.note("seen", name)
    return [*got, bool(run.uuid()), run.random() < 2]


@agent
def waits(run: Run) -> list[Any]:
    got: list[Any] = [run.ask("how many?"), run.approve("may I?")]
    run.sleep(0.01)
    got.append(run.wait_for("go"))
    got.append(run.wait_any("never", Timer(0.01)))
    return [*got, pay(7)]


@agent
def maps(run: Run) -> list[Any]:
    def item(n: int) -> Any:
        return [look(str(n)), *run.map(lambda m: pay(10 * n + m), range(2))]

    return [*run.map(item, range(3)), look("end")]


@agent
async def gathers(run: AsyncRun) -> list[Any]:
    async def one(n: int) -> Any:
        await alook(str(n))
        return await asyncio.gather(apay(n), apay(10 * n))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(n)) for n in (1, 2)]
    return [*(task.result() for task in tasks), await alook("end")]


@agent
async def races(run: AsyncRun) -> list[Any]:
    async def slow() -> str:
        await asyncio.gather(alook("a"), alook("b"))
        await never()
        return "slow"

    async def fast() -> str:
        for name in "cde":
            await alook(name)
        await run.sleep(0.01)
        return "fast"

    tasks = [asyncio.ensure_future(slow()), asyncio.ensure_future(fast())]
    done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    await asyncio.wait(tasks)
    return [done.pop().result(), await apay(1)]


@agent
def child(run: Run, n: int) -> int:
    return pay(n) + 1


@agent
def parent(run: Run) -> list[Any]:
    return [child(n=1), *run.map(lambda n: child(n=n), [2, 3]), look("end")]


@loop(max_iterations=5)
def rounds(run: Run, state: AgentState) -> AgentState:
    look(str(state.iteration))
    pay(state.iteration)
    return state.to_done("over") if state.iteration == 3 else state.with_note("n", state.iteration)


@agent(on_failure="undo")
def undone(run: Run) -> None:
    reserve("red")
    reserve("blue")
    refuse("green")


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    DONE.append(f"weather {city}")
    return "sunny"


helper = LLMAgent(
    "helper",
    model=ScriptedModel(call("weather", city="Bonn"), "It is sunny."),
    tools=[weather],
)


@agent(stages=("collecting", "over"))
def keeps(run: Run, name: str) -> list[Any]:
    """State, messages, facts, a plan, artifacts and values that do not fit into an event."""
    run.stage = "collecting"
    run.plan(["look", "pay"])
    with run.doing("look"):
        run.state.seen = look(name * 40_000)
    run.messages.add("user", "how is it?")
    run.messages.add("assistant", look("well"))
    run.state.increment("count", 2)
    run.state.append("names", name)
    run.fact("colour", "grey", source="look")
    run.ask_later("why?")
    run.artifact("picture", b"0123456789" * 10_000)
    with run.doing("pay"):
        run.decide("amount", pay(4), why="cheap", options=["4", "5"])
    del run.state["names"]
    run.stage = "over"
    return [len(run.state.seen), run.state.count, run.state.names, bool(run.now())]


@agent
def writes(run: Run) -> list[Any]:
    return [store_row("owl"), look("owl"), store_row("crow")]


@agent
def doubts(run: Run) -> list[Any]:
    return [look("bell"), ring("bell"), pay(2, idempotency_key="doubts-own-key"), ring("again")]


@agent(approve=("external_action",))
def gated(run: Run) -> list[Any]:
    first = run.wait_any("go", Approval("now?"), Timer(3600))
    return [first, pay(6), look("end")]


@agent
def fails(run: Run) -> list[Any]:
    """Fails, is resumed, and continues on another path."""
    try:
        first = fail_once("bird")
    except CallFailed as error:
        run.state.error = error.error_type
        pay(1)
        raise
    return [first, pay(8)]


@agent(checkpoint="on_state_change")
def buffers(run: Run) -> list[Any]:
    got: list[Any] = []
    for n in range(4):
        got.append(look(str(n)))
        if n % 2:
            run.state.n = n
    return [*got, pay(9)]


@agent
async def parallel_waits(run: AsyncRun) -> list[Any]:
    async def one(name: str) -> Any:
        await alook(name)
        return await run.wait_for(name)

    return [*await asyncio.gather(one("go"), run.sleep(0.01), apay(5)), await alook("end")]


@agent
def map_waits(run: Run) -> list[Any]:
    def one(n: int) -> Any:
        look(str(n))
        return run.wait_for("go", timeout=3600) if n == 1 else pay(n)

    return [*run.map(one, range(3)), look("end")]


@agent(on_failure="undo")
def stopped(run: Run) -> None:
    """Is cancelled, and undone."""
    reserve("red")
    reserve("blue")
    run.wait_for("never")


@dataclass(frozen=True)
class Scenario:
    """An agent, its input, and what people do with its run."""

    agent: Any
    input: dict[str, Any] = field(default_factory=dict)
    others: tuple[Any, ...] = ()
    cancelled: bool = False
    resumed: bool = False
    """Whether a person resumes the run when it has failed."""
    both_stores: bool = False
    """Whether its logs differ between SQLite and PostgreSQL."""


def decide(hf: Holdfast, run_id: str) -> None:
    """Answer, approve, signal and resolve whatever the run is waiting for."""
    state = hf.get(run_id)
    for doubt in state.calls:
        if doubt.status == "in_doubt":
            hf.resolve(run_id, doubt.step, done=doubt.name, by="ann")
    for wait in state.waits:
        if wait.decided:
            continue
        if wait.wait == "answer":
            hf.answer(run_id, 5)
        elif wait.wait == "approval":
            hf.approve(run_id, by="ann")
        elif wait.wait == "signal" and wait.name == "go":
            hf.signal(run_id, "go", 9)


SCENARIOS = {
    "plain": Scenario(plain, {"name": "a bird"}),
    "waits": Scenario(waits),
    "maps": Scenario(maps),
    "gathers": Scenario(gathers),
    "races": Scenario(races),
    "parent": Scenario(parent, others=(child,)),
    "rounds": Scenario(rounds, {"goal": "three rounds"}),
    "undone": Scenario(undone),
    "helper": Scenario(helper, {"goal": "How is the weather in Bonn?"}),
    "keeps": Scenario(keeps, {"name": "bird"}),
    "writes": Scenario(writes, both_stores=True),
    "doubts": Scenario(doubts),
    "gated": Scenario(gated),
    "fails": Scenario(fails, resumed=True),
    "buffers": Scenario(buffers),
    "parallel_waits": Scenario(parallel_waits),
    "map_waits": Scenario(map_waits),
    "stopped": Scenario(stopped, cancelled=True),
}


def execute(hf: Holdfast, name: str) -> Any:
    """Bring the run of a scenario to its end; its result, or the name of the error that it ends with."""
    scenario = SCENARIOS[name]
    resumed = not scenario.resumed
    for _ in range(20):
        try:
            result = hf.run(scenario.agent, id=name, **scenario.input)
            return result.answer if isinstance(result, AgentState) else result
        except RunWaiting:
            decide(hf, name)
            if scenario.cancelled:
                hf.cancel(name, by="ann")
        except HoldfastError as error:
            if resumed:
                return type(error).__name__
            resumed = True
            hf.resume(name)
    raise AssertionError(f"{name} does not end")
