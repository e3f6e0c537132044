"""`holdfast test FILE.tac --mock`: what has no mock is an error that names it; states are compared as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.cli.verbs import cli

FILE = """
send = Tool {
  description = "Send a text.",
  input = {text = field.string{required = true}},
  function(args) return {sent = args.text} end
}
writer = Agent { provider = "openai", model = "gpt-5", system_prompt = "You write." }
local done = require("tactus.tools.done")
Mocks { %(mocks)s }
Procedure {
  function()
    %(body)s
  end
}
Specifications([[
Feature: mocks
  Scenario: it runs
    When the procedure runs
    Then %(then)s
]])
"""
CALLS = {
    "a tool": ("send", 'return send({text = "hello"})'),
    "a tool in pcall": ("send", 'return {ok = pcall(send, {text = "hello"})}'),
    "an agent": ("writer", 'return writer({message = "Write."}).response'),
    "an agent in pcall": ("writer", 'return {ok = pcall(writer, {message = "Write."})}'),
}


def played(
    folder: Path,
    body: str,
    mocks: str = "",
    then: str = "the procedure should complete successfully",
    options: tuple[str, ...] = (),
) -> dict[str, Any]:
    path = folder / "file.tac"
    path.write_text(FILE % {"mocks": mocks, "body": body, "then": then})
    result = CliRunner().invoke(cli, ["test", str(path), "--mock", "--json", *options])
    (scenario,) = json.loads(result.stdout)["scenarios"]
    assert result.exit_code == (0 if scenario["ok"] else 1)
    assert isinstance(scenario, dict)
    return scenario


@pytest.mark.parametrize(("name", "body"), CALLS.values(), ids=CALLS)
def test_a_call_without_a_mock_is_an_error_that_names_it(
    name: str, body: str, tmp_path: Path
) -> None:
    scenario = played(tmp_path, body)

    assert not scenario["ok"]
    assert f"{name} has no mock; it was not executed" in scenario["problem"]


@pytest.mark.parametrize(
    ("body", "mocks"),
    [
        (CALLS["a tool"][1], "send = {returns = {sent = true}}"),
        (CALLS["an agent"][1], 'writer = {message = "A text."}'),
        ('return done({reason = "all said"})', ""),
    ],
    ids=["a tool", "an agent", "the tool done"],
)
def test_a_call_with_a_mock_or_without_a_connection_runs(
    body: str, mocks: str, tmp_path: Path
) -> None:
    scenario = played(tmp_path, body, mocks)

    assert scenario["ok"], scenario


@pytest.mark.parametrize(
    ("sentence", "holds"),
    [
        ("the state number should be 5", True),
        ('the state number should be "5"', True),
        ("the state text should be 5", True),
        ('the state text should be "5"', True),
        ("the state flag should be true", True),
        ("the state number should be 6", False),
        ("the state text should be 6", False),
        ("the state missing should be 5", False),
        ("the state number should not be 6", True),
        ("the state number should not be 5", False),
        ("the state text should not be 5", False),
    ],
)
def test_a_state_is_compared_as_text(sentence: str, holds: bool, tmp_path: Path) -> None:
    body = 'state.number, state.text, state.flag = 5, "5", true'

    scenario = played(tmp_path, body, then=sentence)

    assert holds == scenario["ok"], scenario
