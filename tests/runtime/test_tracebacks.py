"""The traceback of a failure: the author's frames, Holdfast's own folded."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import AgentState, AsyncRun, Run, RunFailed, agent, loop, step, tool

PACKAGE = str(Path(holdfast.__file__).parent)


def parse(text: str) -> Any:
    return json.loads(text)


@tool(timeout=60)
def pay(text: str) -> Any:
    return parse(text)


@step
async def pay_later(text: str) -> Any:
    await asyncio.sleep(0)
    return parse(text)


def helping(text: str) -> Any:
    return pay(text)


@agent
def through_a_helper(run: Run) -> Any:
    return helping("{")


@agent
async def in_a_task(run: AsyncRun) -> Any:
    return await asyncio.create_task(pay_later("{"))


@agent
def in_plain_code(run: Run) -> Any:
    try:
        return parse("{")
    except ValueError as error:
        raise KeyError("amount") from error


@agent
def in_threads(run: Run) -> Any:
    return run.map(pay, ["{"])


@loop(max_iterations=2)
def in_an_iteration(run: Run, state: AgentState) -> AgentState:
    return state.replace(goal=parse("{"))


def trace(hf: Any, failing: Any) -> str:
    with pytest.raises(RunFailed):
        hf.run(failing, id="r", **({"goal": "x"} if failing is in_an_iteration else {}))
    text: str = hf.get("r").failure.error.traceback
    return text


@pytest.mark.parametrize(
    ("failing", "frames"),
    [
        (through_a_helper, ["in pay", "in parse", "in through_a_helper", "in helping"]),
        (in_a_task, ["in pay_later", "in parse", "in in_a_task"]),
        (in_plain_code, ["in in_plain_code", "in parse"]),
        (in_threads, ["in pay", "in parse", "in in_threads"]),
        (in_an_iteration, ["in in_an_iteration", "in parse"]),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_failures_traceback_has_the_authors_frames_and_none_of_ours(
    home: Any, failing: Any, frames: list[str]
) -> None:
    text = trace(home.open(), failing)

    places = [text.find(f"{frame}\n") for frame in frames]
    assert places == sorted(places) and places[0] >= 0, text
    assert PACKAGE not in text
    first_frame = text.partition('  File "')[2]
    assert first_frame.startswith(__file__)
    assert "inside Holdfast not shown" in text.splitlines()[-1]
    assert "no running event loop" not in text


def test_the_traceback_of_a_call_is_folded_too(home: Any) -> None:
    hf = home.open()
    trace(hf, through_a_helper)

    error = hf.get("r").call(1).error

    assert "in parse" in error.traceback
    assert PACKAGE not in error.traceback


def test_a_group_of_failures_shows_the_authors_frames_of_each(home: Any) -> None:
    @agent
    async def main(run: AsyncRun) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(pay_later("{"))
            group.create_task(pay_later("["))

    text = trace(home.open(), main)

    assert text.count("in parse") == 2, text
    assert PACKAGE not in text


def test_a_long_traceback_keeps_its_first_frames_and_the_error(home: Any) -> None:
    @agent
    def main(run: Run) -> int:
        def down(n: int) -> int:
            raise_at = ValueError("x" * 5_000) if n == 0 else None
            if raise_at is not None:
                raise raise_at
            return up(n - 1)

        def up(n: int) -> int:
            return down(n)

        return down(100)

    text = trace(home.open(), main)

    assert len(text) <= 8_000
    assert "in main" in text.partition("…")[0]
    assert text.partition("…")[2].rstrip().endswith("inside Holdfast not shown)")


def test_a_secret_is_not_in_a_traceback_even_where_it_is_cut(home: Any) -> None:
    secret = "open-sesame-" * 1_000

    @tool(redact=("password",))
    def login(password: str) -> None:
        raise ValueError(f"wrong password {password}")

    @agent
    def main(run: Run) -> None:
        login(secret)

    assert "sesame" not in trace(home.open(), main)
