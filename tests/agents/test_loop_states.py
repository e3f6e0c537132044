"""Loops over states of the user's own kind, and reading typed state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from holdfast import (
    AgentState,
    AsyncHoldfast,
    AsyncRun,
    Budget,
    BudgetExceeded,
    Holdfast,
    InvalidInput,
    IterationsExceeded,
    Message,
    Phase,
    Run,
    RunFailed,
    RunWaiting,
    agent,
    loop,
    step,
)
from holdfast.agents.state import PlanStep


@dataclass
class AsDataclass:
    count: int = 0
    found: list[str] = field(default_factory=list)


class AsStruct(msgspec.Struct):
    count: int = 0
    found: list[str] = msgspec.field(default_factory=list)


class AsModel(pydantic.BaseModel):
    count: int = pydantic.Field(default=0, ge=0)
    found: list[str] = []


KINDS: list[type[Any]] = [AsDataclass, AsStruct, AsModel]
each_kind = pytest.mark.parametrize("kind", KINDS)


@step
def search(number: int) -> str:
    return f"hit {number}"


def searching(kind: type[Any], wait_at: int = 0, **options: Any) -> Callable[..., Any]:
    def searcher(run: Run, state: Any, wanted: int = 3) -> Any:
        if state.count == wait_at - 1:
            run.wait_for("go")
        return kind(count=state.count + 1, found=[*state.found, search(state.count)])

    searcher.__annotations__ |= {"state": kind, "return": kind}
    options = {"max_iterations": 9, "until": lambda state: len(state.found) == 3, **options}
    return loop(**options)(searcher)


@each_kind
@pytest.mark.parametrize("checkpoint", ["every_step", "every_iteration", "on_state_change"])
def test_a_loop_goes_from_state_to_state_of_any_kind(
    kind: type[Any], checkpoint: Any, hf: Holdfast
) -> None:
    main = searching(kind, checkpoint=checkpoint)
    last = hf.run(main, kind(), id="r")

    assert isinstance(last, kind)
    assert (3, ["hit 0", "hit 1", "hit 2"]) == (last.count, last.found)
    assert last == hf.run(main, kind(), id="r")
    assert last == hf.replay("r").result
    assert 3 == hf.get("r").iteration


@each_kind
def test_it_is_resumed_from_its_last_state(kind: type[Any], tmp_path: Path) -> None:
    main = searching(kind, wait_at=3)
    with Holdfast(tmp_path / "h.db") as hf, pytest.raises(RunWaiting):
        hf.run(main, kind(), id="r")
    with Holdfast(tmp_path / "h.db", agents=[main]) as hf:
        hf.signal("r", "go")
        assert 3 == hf.resume("r").count
        assert ["search"] * 3 == [c.name for c in hf.get("r").calls]


@each_kind
def test_a_state_that_was_changed_in_place_is_the_next_one_and_not_the_last(
    kind: type[Any], hf: Holdfast
) -> None:
    given: list[int] = []

    def grow(run: Run, state: Any) -> Any:
        given.append(len(state.found))
        state.found.append("x")
        return state

    grow.__annotations__ |= {"state": kind, "return": kind}
    main = loop(max_iterations=9, until=lambda state: len(state.found) == 3)(grow)
    first = kind()

    assert ["x"] * 3 == hf.run(main, first, id="r").found
    assert ([0, 1, 2], []) == (given, first.found)


def test_an_append_is_all_that_is_written(hf: Holdfast) -> None:
    """A list that grows makes a log that grows with it, and not with its square."""
    main = searching(AsStruct)
    hf.run(main, AsStruct(), id="r")
    from holdfast.core import events as e

    deltas = [
        bytes(x.delta.json)
        for _, x in hf.events("r")
        if isinstance(x, e.IterationEnded) and x.delta
    ]
    assert b"hit 0" not in deltas[2]
    assert b"hit 2" in deltas[2]


def test_an_async_loop_has_them_too(tmp_path: Path) -> None:
    @loop(max_iterations=9, until=lambda state: state.count == 2)
    async def main(run: AsyncRun, state: AsStruct) -> AsStruct:
        await asyncio.sleep(0)
        return AsStruct(state.count + 1)

    async def go() -> Any:
        async with AsyncHoldfast(tmp_path / "h.db") as hf:
            return await hf.run(main, AsStruct(), id="r")

    assert 2 == asyncio.run(go()).count


def test_limits_and_failures_are_those_of_any_loop(hf: Holdfast) -> None:
    with pytest.raises(IterationsExceeded):
        hf.run(searching(AsStruct, max_iterations=2), AsStruct(), id="short")
    with pytest.raises(BudgetExceeded):
        hf.run(searching(AsStruct, budget=Budget(max_steps=1)), AsStruct(), id="poor")
    assert [] == hf.run(searching(AsStruct, until=lambda _: True), AsStruct(), id="done").found

    @loop(max_iterations=3, until=lambda state: False)
    def wrong(run: Run, state: AsModel) -> AsModel:
        return AsModel.model_construct(count=-1, found=[])

    with pytest.raises(RunFailed, match="greater than or equal to 0"):
        hf.run(wrong, AsModel(), id="wrong")

    @loop(max_iterations=3, until=lambda state: False)
    def nothing(run: Run, state: AsStruct) -> AsStruct:
        return None  # type: ignore[return-value]

    with pytest.raises(RunFailed, match="must return a AsStruct, not None"):
        hf.run(nothing, AsStruct(), id="nothing")


def test_its_state_can_be_patched_from_outside(hf: Holdfast) -> None:
    main = searching(AsDataclass, wait_at=1)
    with pytest.raises(RunWaiting):
        hf.run(main, AsDataclass(), id="r")
    hf.patch("r", [{"op": "replace", "path": "/value/count", "value": 10}])
    hf.signal("r", "go")
    assert 12 == hf.run(main, AsDataclass(), id="r").count


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({}, AsStruct, "until="),
        ({"until": 5}, AsStruct, "until must be a function"),
        ({"until": lambda state: True}, AgentState, "to_done"),
        ({"until": lambda state: True}, int, "dataclass, a msgspec Struct"),
        ({"until": lambda state: True}, dict[str, Any], "dataclass, a msgspec Struct"),
    ],
)
def test_a_wrong_declaration_is_refused(options: Any, kind: Any, says: str) -> None:
    def main(run: Run, state: Any) -> Any: ...

    main.__annotations__ |= {"state": kind, "return": kind}
    with pytest.raises(InvalidInput, match=says):
        loop(max_iterations=3, **options)(main)


# ── replace ──────────────────────────────────────────────────────────────────────────────────


def test_replace_gives_a_new_state_that_is_checked() -> None:
    state = AgentState.begin("x")
    other = state.replace(goal="y", budget=Budget(max_steps=3))

    assert ("x", "y", 3) == (state.goal, other.goal, other.budget.max_steps)
    assert Phase.PLANNING is other.phase
    assert ("b",) == state.memory.replace(questions=["b"]).questions
    assert "done" == PlanStep("a").replace(status="done").status
    assert "bye" == Message("user", "hi").replace(content="bye").content
    for wrong in ({"gaol": "z"}, {"budget": 5}, {"messages": ["hi"]}, {"goal": 5}):
        with pytest.raises(InvalidInput):
            state.replace(**wrong)


# ── typed state of agents ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "read",
    [
        lambda run: run.state.cuont,
        lambda run: run.state["cuont"],
        lambda run: run.state.get("cuont", 5),
        lambda run: "cuont" in run.state,
    ],
)
@each_kind
def test_reading_a_field_that_is_not_declared_is_an_error(
    kind: type[Any], read: Any, hf: Holdfast
) -> None:
    @agent(state=kind)
    def main(run: Run) -> Any:
        assert 0 == run.state.count
        return read(run)

    with pytest.raises(RunFailed, match=r"state\.cuont is not declared; declared are count, found"):
        hf.run(main, id="r")
