"""Agents whose logs were written by Holdfast 0.1, and are kept in `tests/runtime/logs_0_1`.

This code has not changed since, so those logs must replay and resume with it. `python -m support.old_logs FOLDER`
(in `tests/`, with the package of 0.1 in PYTHONPATH) wrote them: each agent once to its end, and once for each place
at which its process died.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import (
    AgentState,
    AsyncRun,
    Holdfast,
    HoldfastError,
    LLMAgent,
    Options,
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


class Crash(BaseException):
    """The process ends here."""


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
    got: list[Any] = [run.ask("how many?"), run.approve("may I?").by]
    run.sleep(0.01)
    got.append(run.wait_for("go"))
    got.append(run.wait_any("never", Timer(0.01)).index)
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


@dataclass(frozen=True)
class Scenario:
    """An agent, its input, and what people do when it waits for them."""

    agent: Any
    input: dict[str, Any] = field(default_factory=dict)
    others: tuple[Any, ...] = ()
    decide: Callable[[Holdfast, str], None] | None = None


def decide(hf: Holdfast, run_id: str) -> None:
    """Answer, approve and signal whatever the run is waiting for."""
    for wait in hf.get(run_id).waits:
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
    "waits": Scenario(waits, decide=decide),
    "maps": Scenario(maps),
    "gathers": Scenario(gathers),
    "races": Scenario(races),
    "parent": Scenario(parent, others=(child,)),
    "rounds": Scenario(rounds, {"goal": "three rounds"}),
    "undone": Scenario(undone),
    "helper": Scenario(helper, {"goal": "How is the weather in Bonn?"}),
}


def execute(hf: Holdfast, name: str) -> Any:
    """Bring the run of a scenario to its end; its result, or the name of the error that it ends with."""
    scenario = SCENARIOS[name]
    for _ in range(20):
        try:
            return hf.run(scenario.agent, id=name, **scenario.input)
        except RunWaiting:
            if scenario.decide is not None:
                scenario.decide(hf, name)
        except HoldfastError as error:
            return type(error).__name__
    raise AssertionError(f"{name} does not come to its end")


def _write(folder: Path) -> None:
    from holdfast.bundle import export

    for name, scenario in SCENARIOS.items():
        for die_at in (0, *range(2, 200, 3)):
            count = [0]

            def boundary(_: str, die_at: int = die_at, count: list[int] = count) -> None:
                count[0] += 1
                if count[0] == die_at:
                    raise Crash

            with tempfile.TemporaryDirectory() as home:
                url = str(Path(home) / "runs.db")
                agents = [scenario.agent, *scenario.others]
                DONE.clear()
                with Holdfast(url, agents=agents, options=Options(boundary=boundary)) as hf:
                    try:
                        execute(hf, name)
                    except Crash:
                        pass
                with Holdfast(url) as hf:
                    for row in hf.runs():
                        text = "\n".join(export(hf.store, row.id))
                        (folder / f"{name}-{die_at}-{row.id}.jsonl").write_text(
                            text + "\n", "utf-8"
                        )
            if die_at and count[0] < die_at:
                break


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
