"""Tools and fields of a `.tac` file: their limits, their types, and what passes between Python and Lua."""

from __future__ import annotations

import datetime
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, InvalidInput, RunFailed, tool
from holdfast.lua import load_program, procedure
from holdfast.lua.vm import Limits


def written(folder: Path, source: str) -> Path:
    path = folder / "a.tac"
    path.write_text(source)
    return path


def test_each_call_of_a_tool_has_the_whole_instruction_limit(tmp_path: Path) -> None:
    """A worker's thread executes bodies for days: what earlier calls used does not count."""
    path = written(
        tmp_path,
        """
        spin = Tool { description = "x", input = {}, function() for i = 1, 400000 do end return 1 end }
        Procedure { input = {}, function() local n = 0 for i = 1, 5 do n = n + spin({}) end return n end }
        """,
    )
    limits = Limits(instructions=1_000_000)

    with Holdfast(tmp_path / "h.db") as hf:
        assert 5 == hf.run(procedure(path, limits=limits), id="r")


def test_an_interrupt_passes_through_pcall(tmp_path: Path) -> None:
    """Ctrl-C ends a loop that catches every error of Lua."""
    path = written(
        tmp_path,
        "Procedure { input = {}, function() while true do pcall(function() while true do end end) end end }",
    )

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with Holdfast(tmp_path / "h.db") as hf, pytest.raises(KeyboardInterrupt):
            hf.run(procedure(path), id="r")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_records_and_dates_of_a_python_tool_are_plain_tables_in_lua(tmp_path: Path) -> None:
    @dataclass
    class Order:
        number: int
        due: datetime.date

    @tool(risk="read")
    def find_order(number: int) -> Order:
        return Order(number, datetime.date(2026, 11, 17))

    path = written(
        tmp_path,
        """
        find_order = Tool { use = "host.find_order" }
        Procedure { input = {}, function()
          local order = find_order({number = 7})
          return {number = order.number, due = order.due, kind = type(order)}
        end }
        """,
    )

    with Holdfast(tmp_path / "h.db") as hf:
        found = hf.run(procedure(path, tools=[find_order]), id="r")

    assert {"number": 7, "due": "2026-11-17", "kind": "table"} == found


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tags": ["a", "b"]}, ""),
        ({"tags": ["a", 2]}, "tags"),
        ({"tags": "a"}, "tags"),
        ({"size": "M"}, ""),
        ({"size": "XXL"}, "size"),
        ({"class": "x"}, ""),
    ],
)
def test_the_input_is_checked_by_its_fields(given: Any, says: str, tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        Procedure {
          input = {
            tags = field.array{items = "string"}, size = field.string{enum = {"S", "M"}},
            class = field.string{},
          },
          function(input) return #(input.tags or {}) end
        }
        """,
    )
    with Holdfast(tmp_path / "h.db") as hf:
        if says:
            with pytest.raises(InvalidInput, match=says):
                hf.run(procedure(path), id="r", **given)
        else:
            assert len(given.get("tags", ())) == hf.run(procedure(path), id="r", **given)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            "\nProcedure { input = {id = field.string{}}, function() end }",
            "a.tac:2: agent a: hf.run",
        ),
        (
            "\n\nt = Tool { risk = 'much', function() end }\nProcedure { function() end }",
            "a.tac:3: ",
        ),
        ("Procedure { input = {n = field.number{items = 'string'}}, function() end }", "a.tac:1: "),
        ("Procedure { input = {n = field.array{items = 'text'}}, function() end }", "a.tac:1: "),
    ],
)
def test_a_wrong_declaration_is_refused_with_its_line(
    source: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput) as caught:
        load_program(written(tmp_path, source))

    assert says in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        'Human.approve{message = "Go?", colour = "red"}',
        'Human.input{message = "Name?", size = 3}',
        'Human.notify{message = "Hello", to = "sam"}',
        'Human.inputs{items = {{id = "a", message = "A?", colour = "red"}}}',
        "Retry.with_backoff(function() end, {attempts = 2})",
    ],
)
def test_an_option_that_is_not_known_is_refused_by_name(body: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"Procedure {{ input = {{}}, function()\n{body}\nend }}")

    with (
        Holdfast(tmp_path / "h.db") as hf,
        pytest.raises(RunFailed, match=r"a\.tac:2: .*has no option"),
    ):
        hf.run(procedure(path), id="r")
