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
from holdfast.lua.validate import problems_of
from holdfast.lua.vm import LuaLimits


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
    limits = LuaLimits(instructions=1_000_000)

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
        ("t = Tool(5)", "a.tac:1: Tool takes a table, not number"),
        ("t = Tool { name = '', function() end }", "a.tac:1: Tool: name must be a string"),
        ("t = Tool { risk = 5, function() end }", "a.tac:1: t: risk must be one of"),
        ("t = Tool { retry = 3, function() end }", "a.tac:1: Tool t: retry takes a table"),
        ("t = Tool { [true] = 1, function() end }", "a.tac:1: Tool t has more than one value"),
        ("\nt = Tool { use = 'host.nope' }", "a.tac:2: unknown Python tool 'nope'"),
        ("t = Tool { input = {a = field.string(5)}, function() end }", "a.tac:1: field.string"),
        (
            "t = Tool { input = {a = field.string}, function() end }",
            "a.tac:1: Tool t: input: field a must be field.string{} or another field, not a function",
        ),
        (
            "t = Tool { input = {a = field.string{required = 'yes'}}, function() end }",
            "a.tac:1: Tool t: input: field a: required must be true or false",
        ),
        (
            "t = Tool { input = {a = field.string{enum = 5}}, function() end }",
            "a.tac:1: Tool t: input: field a: enum must be a list",
        ),
        (
            "t = Tool { input = {a = field.string{enum = {1}}}, function() end }",
            "a.tac:1: Tool t: input: field a: enum must be a list of values of type string",
        ),
        (
            "t = Tool { input = {idempotency_key = field.integer{}}, function() end }",
            "a.tac:1: Tool t: input: field idempotency_key must be a string",
        ),
        ("a = Agent { model = 'gpt-5', max_turns = 'x' }", "a.tac:1: Agent a: max_turns must be"),
        (
            "t = Tool { function() end }\na = Agent { model = 'gpt-5', tools = {t, x = t} }",
            "a.tac:2: Agent a: tools must be a list of tools",
        ),
        (
            "local own = {}\nown[1] = own\na = Agent { model = 'gpt-5', tools = own }",
            "a.tac:3: Agent a: tools must be a list of tools",
        ),
        ("Mocks { a = {usage = 5} }", "a.tac:1: the mock of a: usage takes a table"),
        ("Mocks { a = {message = 5} }", "a.tac:1: the mock of a: message must be a string"),
        ("h = History(5)", "a.tac:1: History takes a list of messages"),
        ("Procedure { budget = 5, function() end }", "a.tac:1: Procedure: budget takes a table"),
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
def test_an_unknown_option_is_refused_with_its_name(body: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"Procedure {{ input = {{}}, function()\n{body}\nend }}")

    with (
        Holdfast(tmp_path / "h.db") as hf,
        pytest.raises(RunFailed, match=r"a\.tac:2: .*has no option"),
    ):
        hf.run(procedure(path), id="r")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("Stages({'late'})", "Stages must be declared at the top of the file"),
        ("Mocks {}", "Mocks must be declared at the top of the file"),
        ("local t = Tool { function() end }", "Tool must be declared at the top of the file"),
        ("File.write('a.txt', nil)", "File.write: the content must be a string, not nil"),
        ("File.write('a.txt', {1})", "File.write: the content must be a string, not table"),
        ("File.write('a.txt', true)", "File.write: the content must be a string, not boolean"),
        ("Stage.set({})", "Stage.set: the stage must be a string, not table"),
        ("Stage.set('sent')", "stage 'sent' is not declared; Stages has none"),
        ("Host.call({})", "Host.call: the tool must be a string, not table"),
        (
            "Retry.with_backoff(print, {max_attempts = 0})",
            "max_attempts must be a number of at least 1",
        ),
        ("Retry.with_backoff(print, {initial_delay = 'x'})", "initial_delay must be a number"),
        ("Retry.with_backoff(print, 5)", "Retry.with_backoff takes a table of options"),
        ("Iterations.exceeded()", "Iterations.exceeded: the limit must be a number"),
    ],
)
def test_a_wrong_argument_is_refused_with_its_line(body: str, says: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"Procedure {{ input = {{}}, function()\n{body}\nend }}")

    with Holdfast(tmp_path / "h.db") as hf, pytest.raises(RunFailed) as caught:
        hf.run(procedure(path), id="r")

    assert f"LuaError: a.tac:2: {says}" in str(caught.value).replace("Retry.with_backoff: ", "")


@pytest.mark.parametrize(
    ("body", "state"),
    [
        ("state[1234567], state[1234568] = 1, 2", {"1234567": 1, "1234568": 2}),
        ("state[1.5], state[2.0] = 1, 2", {"1.5": 1, "2": 2}),
        (
            "state.flags = {0, 1} state.flags[1] = false state.flags[2] = true",
            {"flags": [False, True]},
        ),
        ("state.list = {1} table.insert(state.list, 2)", {"list": [1, 2]}),
        ("state.list = {} state.list[1] = {} state.list[1].x = 1", {"list": [{"x": 1}]}),
    ],
)
def test_the_state_keeps_what_a_file_assigns(body: str, state: Any, tmp_path: Path) -> None:
    path = written(tmp_path, f"Procedure {{ input = {{}}, function()\n{body}\nend }}")

    with Holdfast(tmp_path / "h.db") as hf:
        hf.run(procedure(path), id="r")

        assert state == hf.get("r").state


@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", b"#!/usr/bin/env lua\n", b"\xef\xbb\xbf# x\n"])
def test_a_byte_order_mark_and_a_line_for_the_shell_are_skipped(
    before: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "a.tac"
    path.write_bytes(before + b"Procedure { input = {}, function() return nope end }")

    with Holdfast(tmp_path / "h.db") as hf:
        assert hf.run(procedure(path), id="r") is None
    (problem,) = problems_of(path)
    assert (
        1 + before.count(b"\n"),
        "unknown global 'nope'; declare it with local, or assign it",
    ) == (
        problem.line,
        problem.says,
    )


def test_validate_finds_the_line_whatever_the_folder_is_called(tmp_path: Path) -> None:
    """The place is read from Lua's error, not from the sentence around it."""
    folder = tmp_path / "it cannot be loaded: here"
    folder.mkdir()
    path = folder / "a.tac"
    path.write_text("\nStages(5)\nProcedure { function() end }\n")

    (problem,) = problems_of(path)

    assert (2, False) == (problem.line, "cannot be loaded" in problem.says)


def test_validate_accepts_multiple_assignment_and_bytes_that_are_not_text(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.tac"
    path.write_bytes(
        b"a, b, c = 1, 2, 3 -- \xff\nProcedure { input = {}, function() return a + b + c end }"
    )

    assert [] == problems_of(path)


def test_a_required_idempotency_key_is_filled_in_by_the_runtime(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        send = Tool {
          description = "x", input = {idempotency_key = field.string{required = true}},
          function(args) return args.idempotency_key end
        }
        Procedure { input = {}, function() return send({}) end }
        """,
    )

    with Holdfast(tmp_path / "h.db") as hf:
        assert str(hf.run(procedure(path), id="r")).startswith("r:1:send:")


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (b'local a = 1\nrequire("lib")', "lib.lua:2: require: module lib requires itself"),
        (b"\nreturn {", "lib.lua:2: unexpected symbol near <eof>"),
    ],
)
def test_an_error_in_a_module_is_reported_with_its_file_at_the_line_that_requires_it(
    module: bytes, says: str, tmp_path: Path
) -> None:
    (tmp_path / "lib.lua").write_bytes(module)
    path = written(tmp_path, '\nlocal lib = require("lib")\nProcedure { function() end }')

    (problem,) = problems_of(path)

    assert (2, says) == (problem.line, problem.says)


def test_a_byte_order_mark_of_a_module_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "lib.lua").write_bytes(b"\xef\xbb\xbfreturn {x = 7}")
    path = written(
        tmp_path, 'local lib = require("lib")\nProcedure { function() return lib.x end }'
    )

    with Holdfast(tmp_path / "h.db") as hf:
        assert 7 == hf.run(procedure(path), id="r")


def test_a_retry_with_a_fraction_of_an_attempt_still_raises_the_last_error(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        Procedure { input = {}, function()
          Retry.with_backoff(function() error("no") end, {max_attempts = 2.5, initial_delay = 0})
        end }
        """,
    )

    with Holdfast(tmp_path / "h.db") as hf, pytest.raises(RunFailed, match=r"a\.tac:3: no"):
        hf.run(procedure(path), id="r")
