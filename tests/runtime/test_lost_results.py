"""A result that could not be stored is not a dead end: a person says what it was. Where the type tells, it is refused before."""

from __future__ import annotations

import io
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CallFailed,
    Holdfast,
    NotFound,
    NotNow,
    NotStorable,
    Run,
    RunFailed,
    RunWaiting,
    agent,
    step,
    tool,
)


def connecting_agent(made: list[str], returns: Any = Any) -> Any:
    def connect() -> Any:
        made.append("connected")
        return object()

    connect.__annotations__["return"] = returns
    connected = tool(connect)

    @agent
    def main(run: Run) -> Any:
        return connected()

    return main


def test_a_person_enters_the_lost_result_and_the_run_continues(home: Any) -> None:
    made: list[str] = []
    main = connecting_agent(made)
    hf = home.open(main)

    with pytest.raises(RunFailed, match=r"hf\.resolve\('r', 1, done=…\), then hf\.resume\('r'\)"):
        hf.run(main, id="r")
    assert 1 == hf.get("r").failure.step
    hf.resolve("r", 1, done={"id": 7}, by="ann", why="the server says so")

    assert {"id": 7} == hf.resume("r")
    assert ["connected"] == made
    assert {"id": 7} == hf.replay("r").result
    call = hf.get("r").call(1)
    assert ("done", "", True) == (
        call.status,
        call.unavailable,
        call.resolution is not None and call.resolution.by == "ann",
    )


def test_it_is_found_without_its_step_and_by_name(home: Any) -> None:
    for run_id, which in (("a", None), ("b", "connect")):
        main = connecting_agent([])
        hf = home.open(main)
        with pytest.raises(RunFailed):
            hf.run(main, id=run_id)

        hf.resolve(run_id, which, done=1)

        assert 1 == hf.resume(run_id)


@pytest.mark.parametrize("how", [{"retry": True}, {"failed": "it did not"}])
def test_what_was_done_is_neither_repeated_nor_called_failed(home: Any, how: Any) -> None:
    main = connecting_agent([])
    hf = home.open(main)
    with pytest.raises(RunFailed):
        hf.run(main, id="r")

    with pytest.raises(NotNow, match="was executed, but its result was not stored"):
        hf.resolve("r", 1, **how)


def test_a_result_that_the_tool_could_never_give_can_be_corrected(home: Any) -> None:
    main = connecting_agent([], int)
    hf = home.open(main)
    with pytest.raises(RunFailed, match="ResultUnavailable"):
        hf.run(main, id="r")

    hf.resolve("r", 1, done="seven")
    with pytest.raises(RunWaiting, match="does not fit"):
        hf.resume("r")
    hf.resolve("r", 1, done=7)

    assert 7 == hf.resume("r")


def test_code_that_continued_without_the_result_may_take_another_path_with_it(home: Any) -> None:
    made: list[str] = []

    @step
    def tell(text: str) -> str:
        made.append(text)
        return text

    @tool
    def connect() -> Any:
        return object()

    @agent
    def main(run: Run) -> str:
        try:
            got = connect()
        except CallFailed:
            tell("lost")
            raise
        return tell(f"got {got}")

    hf = home.open(main)
    with pytest.raises(RunFailed):
        hf.run(main, id="r")
    hf.resolve("r", 1, done=7)

    assert "got 7" == hf.resume("r")
    assert ["lost", "got 7"] == made


def test_a_call_whose_result_is_known_cannot_be_resolved(hf: Holdfast) -> None:
    @tool
    def pay() -> int:
        return 1

    @agent
    def main(run: Run) -> int:
        return pay()

    hf.run(main, id="r")

    with pytest.raises(NotNow, match="not in doubt"):
        hf.resolve("r", 1, done=2)
    with pytest.raises(NotFound):
        hf.resolve("r", done=2)


# ── refused when it is declared ──────────────────────────────────────────────────────────────


class Connection:
    """Not a dataclass or the like."""


@dataclass
class Login:
    name: str
    connection: Connection


@dataclass
class Tree:
    children: list[Tree]
    at: Path


UNSTORABLE = [
    socket.socket,
    io.BytesIO,
    Connection,
    Login,
    list[Connection],
    Connection | None,
    dict[str, Login],
    Iterator[int],
    Callable[[], int],
]


@pytest.mark.parametrize("declare", [tool, step, tool(risk="read")])
@pytest.mark.parametrize("returns", UNSTORABLE, ids=str)
def test_a_return_type_that_cannot_be_stored_is_refused_when_declared(
    declare: Any, returns: Any
) -> None:
    def connect() -> Any: ...

    connect.__annotations__["return"] = returns

    with pytest.raises(
        NotStorable, match=r"the result of connect cannot be stored(.|\n)*return what identifies it"
    ):
        declare(connect)


def test_an_agents_return_type_that_cannot_be_stored_is_refused_when_declared() -> None:
    with pytest.raises(NotStorable, match="the result of agent main cannot be stored"):

        @agent
        def main(run: Run) -> socket.socket: ...


@pytest.mark.parametrize(
    "returns", [Tree, list[object], dict[str, Any], Path, bytes, tuple[int, ...], set[str]]
)
def test_other_return_types_are_accepted(returns: Any) -> None:
    def look() -> Any: ...

    look.__annotations__["return"] = returns

    tool(look)
