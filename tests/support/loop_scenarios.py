"""Loops, and agents that buffer what they may: each is killed everywhere, under each strategy."""

from __future__ import annotations

from typing import Any

from holdfast import AgentState, AsyncRun, Holdfast, Phase, Run, agent, loop, step
from holdfast.core.policy import STRATEGIES
from support.kill import Scenario
from support.ledger import Ledger
from support.scenarios import book, pay, read_async, read_notes, send, send_async


@step
def weigh(text: str, number: int) -> str:
    return f"{text} {number}"


def research(run: Run, state: AgentState) -> AgentState:
    """Steps that may be repeated around effects that may not."""
    match state.phase:
        case Phase.PLANNING:
            notes = read_notes(state.goal)
            return state.with_plan(["send", "book"]).with_note("read", notes).to_executing()
        case Phase.EXECUTING:
            weighed = weigh("before", state.iteration)
            sent = send(to=state.goal)
            again = weigh("after", state.iteration)
            found = [weighed, sent["tool"], again, run.state.get("tries")]
            run.state.increment("tries")
            return state.record(found, name="send").with_fact("sent", sent["tool"]).to_reflecting()
        case _:
            if len(state.memory.tool_calls) < 2:
                return state.with_message("assistant", "once more").to_planning()
            room = book(room="blue")["tool"]
            return state.with_message("assistant", room).to_done([weigh("end", 0), room])


async def research_async(run: AsyncRun, state: AgentState) -> AgentState:
    if state.phase is Phase.PLANNING:
        return state.with_note("read", await read_async(state.goal)).to_executing()
    if state.phase is Phase.EXECUTING:
        sent = await send_async(to=state.goal)
        return state.record([sent["tool"], await read_async("after")]).to_reflecting()
    return state.to_done("over") if state.iteration > 5 else state.to_planning()


def careful(run: Run, state: AgentState) -> AgentState:
    """Each round pays once, whatever happens, and a word from outside is used up once."""
    if state.phase is Phase.PLANNING:
        paid = pay(run.id, state.iteration)["tool"]
        return state.record(paid, name="pay").to_executing()
    word = run.wait_for("go")
    after = state.with_fact(f"word {state.iteration}", word).to_reflecting()
    return after.to_done("over") if len(after.memory.facts) == 2 else after.to_planning()


def send_two(hf: Holdfast, run_id: str, ledger: Ledger) -> None:
    """Both words come while the loop waits for the first: the second one is kept for a later round."""
    hf.signal(run_id, "go", "first", signal_id="go-1")
    hf.signal(run_id, "go", "second", signal_id="go-2")


def plain(run: Run, name: str) -> Any:
    """An agent without a loop: it says itself where an iteration ends."""
    seen = []
    for number in range(2):
        run.stage = ("one", "two")[number]
        seen += [weigh("a", number), weigh("b", number)]
        run.state.seen = seen
        seen.append(send(to=name)["tool"])
        seen.append(weigh("c", number))
        run.checkpoint()
        run.state.rounds = number
    return [seen, run.state.all()]


def timeless(state: Any) -> Any:
    """What of a loop's last state must be equal however often it crashed."""
    if not isinstance(state, AgentState):
        return state
    memory = state.memory
    calls = [
        c.replace(time=0, duration=0.0) for c in memory.tool_calls
    ]  # measured, like every time
    return (
        state.goal,
        state.phase,
        state.iteration,
        [(m.role, m.content) for m in state.messages],
        [(f.key, f.value) for f in memory.facts],
        calls,
        memory.plan,
        memory.notes,
        state.answer,
    )


def loops(strategy: Any) -> list[Scenario]:
    """The scenarios under one checkpoint strategy."""
    declare = loop(max_iterations=20, checkpoint=strategy)
    goal = {"goal": "sam"}
    return [
        Scenario(f"research-{strategy}", declare(research), goal, essence=timeless),
        Scenario(f"async-{strategy}", declare(research_async), goal, essence=timeless),
        Scenario(f"careful-{strategy}", declare(careful), goal, send_two, essence=timeless),
        Scenario(
            f"plain-{strategy}",
            agent(checkpoint=strategy, stages=("one", "two"))(plain),
            {"name": "sam"},
        ),
    ]


ALL = tuple(scenario for strategy in STRATEGIES for scenario in loops(strategy))
