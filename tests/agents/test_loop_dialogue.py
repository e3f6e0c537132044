"""A loop's dialogue: recorded with its tool calls, rendered for a model, visible from outside."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    AgentState,
    AsyncHoldfast,
    AsyncRun,
    ContextTooLong,
    Holdfast,
    InvalidInput,
    Phase,
    Run,
    RunWaiting,
    loop,
    step,
    tool,
)
from holdfast.agents.state import Message, Role, ToolCall
from holdfast.testing.clock import ManualClock
from support.dialogues import check_anthropic, check_openai


def test_a_recorded_call_is_a_call_and_its_answer_in_the_dialogue() -> None:
    state = AgentState.begin("Why?").record("90 GB", name="check_disk", arguments={"disk": "a"})
    asked, answered = state.messages[1:]

    assert (Role.ASSISTANT, "check_disk") == (asked.role, asked.tool_calls[0].name)
    assert (Role.TOOL, "90 GB", asked.tool_calls[0].id) == (
        answered.role,
        answered.content,
        answered.tool_call_id,
    )
    assert "90 GB" == state.memory.tool_calls[0].result


def test_a_call_that_the_model_asked_for_is_answered_and_not_asked_for_again() -> None:
    asked = ToolCall("c1", "look", {"x": 1})
    state = AgentState.begin("Why?").with_message(
        Message(Role.ASSISTANT, "I look.", tool_calls=(asked, ToolCall("c2", "look")))
    )
    state = state.record(ToolCall("c1", "look", {"x": 1}, "seen")).record(
        ToolCall("c2", "look", error="timeout")
    )

    assert ["user", "assistant", "tool", "tool"] == [m.role for m in state.messages]
    assert ["seen", "error: timeout"] == [m.content for m in state.messages[2:]]
    assert {"error": True} == state.messages[3].metadata


def test_the_answer_is_the_assistants_last_message() -> None:
    state = AgentState.begin("Why?").to_executing()

    assert ("assistant", "Because.") == _last(state.to_done("Because."))
    assert ("assistant", {"ok": True}) == _last(state.to_done({"ok": True}))
    assert ("user", "Why?") == _last(state.to_done())
    said = state.with_message("assistant", "Because.")
    assert said.messages == said.to_done("Because.").messages


def _last(state: AgentState) -> tuple[str, Any]:
    return state.messages[-1].role, state.messages[-1].content


def long_dialogue() -> AgentState:
    state = AgentState.begin("Tell me everything.").with_message("system", "Be brief.")
    for number in range(30):
        state = state.record(f"chapter {number} " + "and so on " * 20, name="read")
    return state


def test_a_dialogue_is_rendered_and_truncated_for_a_model() -> None:
    state = long_dialogue()
    check_openai(state.for_model())
    short = state.for_model(max_tokens=2000, keep_last=5)
    check_openai(short)
    check_anthropic(dict(state.for_model(max_tokens=2000, shape="anthropic")))

    assert 62 == len(state.for_model())
    assert 12 <= len(short) < 40
    assert {"Tell me everything.", "Be brief."} == {m["content"] for m in short[:2]}
    assert "chapter 29" in short[-1]["content"]
    with pytest.raises(ContextTooLong):
        state.for_model(max_tokens=100)
    with pytest.raises(InvalidInput, match="shape"):
        state.for_model(shape="cohere")  # type: ignore[call-overload]


@step
def search(text: str) -> str:
    return f"found {text}"


@loop(max_iterations=9)
def researcher(run: Run, state: AgentState) -> AgentState:
    if state.phase is Phase.PLANNING:
        found = search(state.goal)
        return state.record(found, name="search", arguments={"text": state.goal}).to_executing()
    run.wait_for("go")
    return state.to_done(state.memory.tool_calls[-1].result)


def test_a_dialogue_is_visible_from_outside(hf: Holdfast) -> None:
    with pytest.raises(RunWaiting):
        hf.run(researcher, "why", id="r")
    assert ["user", "assistant", "tool"] == [m.role for m in hf.get("r").messages]
    hf.signal("r", "go")
    last = hf.run(researcher, "why", id="r")

    assert last.messages == hf.get("r").messages
    assert ("assistant", "found why") == (last.messages[-1].role, last.messages[-1].content)
    assert all(m.time for m in last.messages)
    assert hf.replay("r").reached_end


# ── time and duration ────────────────────────────────────────────────────────────────────────


def timed(tmp_path: Path, clock: ManualClock) -> Holdfast:
    from holdfast.store.sqlite import SQLiteStore

    return Holdfast(SQLiteStore(tmp_path / "h.db", clock=clock.now))


@pytest.mark.parametrize("checkpoint", ["every_step", "every_iteration", "on_state_change"])
def test_a_recorded_call_has_its_time_and_its_real_duration(
    tmp_path: Path, checkpoint: Any
) -> None:
    clock = ManualClock()

    @step
    def slow(seconds: float) -> float:
        clock.advance(seconds)
        return seconds

    @step
    def other() -> str:
        clock.advance(7)
        return "x"

    @loop(max_iterations=9, checkpoint=checkpoint)
    def main(run: Run, state: AgentState) -> AgentState:
        other()
        first, second = slow(2.5), slow(0.5)
        state = state.record(first, name="slow").record(second, name="slow")
        state = state.record(ToolCall("own", "mine", duration=9.0))
        return state.to_executing().to_done()

    with timed(tmp_path, clock) as hf:
        state = hf.run(main, "x", id="r")
        assert [2.5, 0.5, 9.0] == [c.duration for c in state.memory.tool_calls]
        assert all(c.time for c in state.memory.tool_calls)
        assert hf.replay("r").reached_end
        assert state == hf.get("r").agent_state


def test_a_call_in_a_transaction_has_its_duration_too(tmp_path: Path) -> None:
    """The first time as on a replay, where it always had one."""
    clock = ManualClock()

    @tool
    def book(tx: Any) -> int:
        clock.advance(4)
        return len(tx.execute("SELECT 5"))

    @loop(max_iterations=9)
    def main(run: Run, state: AgentState) -> AgentState:
        return state.record(book(), name="book").to_executing().to_done()

    with timed(tmp_path, clock) as hf:
        state = hf.run(main, "x", id="r")
        assert [4.0] == [c.duration for c in state.memory.tool_calls]
        assert hf.replay("r").reached_end


def test_one_call_and_one_record_belong_together_without_a_name(tmp_path: Path) -> None:
    clock = ManualClock()

    @step
    async def slow(seconds: float) -> float:
        await asyncio.sleep(0)
        clock.advance(seconds)
        return seconds

    @loop(max_iterations=9)
    async def main(run: AsyncRun, state: AgentState) -> AgentState:
        state = state.record(await slow(state.iteration))
        return state if state.iteration < 3 else state.to_executing().to_done()

    async def go() -> AgentState:
        from holdfast.store.sqlite import SQLiteStore

        async with AsyncHoldfast(SQLiteStore(tmp_path / "h.db", clock=clock.now)) as hf:
            last: AgentState = await hf.run(main, "x", id="r")
            return last

    assert [1.0, 2.0, 3.0] == [c.duration for c in asyncio.run(go()).memory.tool_calls]


def test_a_call_that_is_answered_from_the_log_keeps_the_duration_it_had(tmp_path: Path) -> None:
    """The iteration was interrupted after the call; the process that ends it did not make the call."""
    clock = ManualClock()

    @step
    def slow() -> str:
        clock.advance(3)
        return "x"

    @loop(max_iterations=9)
    def main(run: Run, state: AgentState) -> AgentState:
        found = slow()
        run.wait_for("go")
        return state.record(found, name="slow").to_executing().to_done()

    with timed(tmp_path, clock) as hf, pytest.raises(RunWaiting):
        hf.run(main, "x", id="r")
    with timed(tmp_path, clock) as hf:
        hf.signal("r", "go")
        assert [3.0] == [c.duration for c in hf.run(main, "x", id="r").memory.tool_calls]
