"""Our `.tac` files, in both dialects: each passes its own specs, also killed at every boundary; what is not supported
is refused with its line; together they use every name of the language."""

from __future__ import annotations

import re
from pathlib import Path

import lupa.lua54
import pytest

from holdfast.cli.test import find_tests
from holdfast.errors import InvalidInput
from holdfast.lua import load_program
from holdfast.lua.ops import Ops
from holdfast.lua.validate import problems_of
from holdfast.lua.vm import LuaLimits, Vm
from holdfast.testing.spec import run_scenario
from support.slim import Slim

FILES = Path(__file__).parent / "files"
RIGHT = sorted(FILES.glob("*.tac"))
# Explored at every change; the others every night.
DAILY = {"agent_loop", "recap", "state", "subprocedure", "tool_keyed"}
REFUSED = sorted((FILES / "refused").glob("*.tac"))

# Every name of the language: declarations, globals, helpers.
NAMES = [
    "Stages",
    "Tool",
    "Agent",
    "Procedure",
    "field.string",
    "field.number",
    "field.boolean",
    "field.array",
    "field.object",
    "field.integer",
    "Mocks",
    "Specifications",
    "Specification",
    "Step(",
    "Evaluations",
    "Toolset",
    "Prompt",
    "Hitl",
    "Model",
    "Signature",
    "Module",
    "History",
    "Message",
    "mcp.",
    "filters.",
    "contains",
    "equals",
    "matches",
    "Task",
    "IncludeTasks",
    "Context",
    "template",
    "system",
    "user",
    "assistant",
    "state.",
    "State.get",
    "State.set",
    "State.increment",
    "State.append",
    "State.all",
    "State.clear",
    "Stage.set",
    "Stage.advance",
    "Stage.current",
    "Stage.is",
    "Stage.history",
    "Log.debug",
    "Log.info",
    "Log.warn",
    "Log.error",
    "Iterations.current",
    "Iterations.exceeded",
    "Stop.requested",
    "Stop.reason",
    "Stop.success",
    "Stop.request",
    "Step.checkpoint",
    "checkpoint(",
    "Checkpoint.next_position",
    "Checkpoint.exists",
    "Checkpoint.get",
    '"clear_all"',
    '"clear_after"',
    "Human.approve",
    "Human.input",
    "Human.review",
    "Human.notify",
    "Human.escalate",
    "Human.select",
    "Human.multiple",
    "Human.inputs",
    '"upload"',
    '"custom"',
    "System.alert",
    "Retry.with_backoff",
    "max_attempts",
    "initial_delay",
    "max_delay",
    "backoff_factor",
    "Sleep",
    "File.read",
    "File.write",
    "File.exists",
    "File.size",
    "Json.encode",
    "Json.decode",
    "MessageHistory.append",
    "MessageHistory.inject_system",
    "MessageHistory.clear",
    "MessageHistory.get",
    "MessageHistory.head",
    "MessageHistory.tail",
    "MessageHistory.slice",
    "MessageHistory.keep_tail_tokens",
    "MessageHistory.rewind",
    "MessageHistory.checkpoint",
    "Session.append",
    "Session.history",
    "Procedure.run",
    '"spawn"',
    '"status"',
    '"wait"',
    '"cancel"',
    "Host.call",
    'require("tactus.tools.done")',
    "input.",
    "{state.",
    "{input.",
    "{params.",
    "{prepared.",
    "os.date",
    "os.time",
    "math.random",
    "debug.getinfo",
    ".called()",
    ".last_call()",
    ".last_result()",
    ".call_count()",
    ".reset()",
    ".call(",
    "returns",
    "temporal",
    "conditional",
    "error",
    "tool_calls",
    "usage",
    "description",
    "system_prompt",
    "initial_message",
    "tool_choice",
    "prepare",
    "provider",
    "temperature",
    ".response",
    ".message",
    ".output",
    ".data",
    ".usage",
    "required",
    "default",
    "from",
]

# Every sentence of a spec, as a regular expression.
SENTENCES = """
the procedure has started
the procedure runs
the \\w+ agent takes turns
the \\w+ agent takes a turn
the \\w+ parameter is \\w+
the input \\w+ is "\\w+"
the input \\w+ is \\[
the input \\w+ is [\\d.]+
the procedure should complete successfully
the procedure should fail
the \\w+ tool should be called$
the \\w+ tool should not be called
the \\w+ tool should be called at least \\d
the \\w+ tool should be called exactly \\d
the \\w+ tool should be called with \\w+=
the \\w+ tool should be called with \\w+ matching pattern
the state \\w+ should be \\w+
the state \\w+ should exist
the state should contain
the state \\w+ should match pattern
the state \\w+ should be similar to
the stage is
the stage should be
we are in stage
the stage should transition from \\w+ to \\w+
the output \\w+ should be
the output \\w+ should not be
the output \\w+ should exist
the output should contain
the output \\w+ should match pattern
the output should be similar to ".*" with \\d+% similarity
the output \\w+ should be similar to ".*" with \\d+% similarity
the stop reason should be
the stop reason should contain
the stop reason should match
the total iterations should be less than
the total iterations should be between
the agent should take at least \\d+ turns
the agent's context should include
""".strip().splitlines()


def name_of(path: Path) -> str:
    return path.stem


def all_text() -> str:
    return "\n".join(path.read_text() for path in FILES.rglob("*") if path.is_file())


def test_the_files_use_every_name_and_every_sentence() -> None:
    said = all_text()

    assert [] == [name for name in NAMES if name not in said]
    assert [] == [x for x in SENTENCES if not re.search(x, said, re.MULTILINE)]
    assert len(RIGHT) + len(REFUSED) >= 60


def test_the_files_use_every_global_that_the_language_defines() -> None:
    """Asked of the language itself, so that no new name stays without a file: each global, and each of its members."""
    code = re.sub(r"--(?!\[\[)[^\n]*", "", all_text())
    vm = Vm(Ops(load_program(RIGHT[0]), "here").table(), LuaLimits())
    of_lua = set(lupa.lua54.LuaRuntime(encoding=None).globals())
    unused = []
    for key, value in vm.sandbox[b"globals"].items():
        name = key.decode()
        members = value.keys() if lupa.lua54.lua_type(value) == "table" else ()
        wanted = [rf"\b{name}\b", *(rf"(\b{name}\.|\"){m.decode()}\b" for m in members)]
        unused += [one for one in wanted if key not in of_lua and not re.search(one, code)]

    assert [] == unused


@pytest.mark.parametrize("path", RIGHT, ids=name_of)
def test_a_file_passes_its_specs_and_is_valid(path: Path) -> None:
    file = find_tests(str(path), mock=True)

    for scenario in file.scenarios:
        verdict = run_scenario(scenario, file.context)
        assert verdict.ok, (verdict.problem, verdict.failed, verdict.expected, verdict.actual)
    assert [] == problems_of(path)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=() if path.stem in DAILY else pytest.mark.nightly, id=path.stem)
        for path in RIGHT
    ],
)
def test_a_file_that_is_killed_at_every_boundary_ends_the_same(path: Path, slim: Slim) -> None:
    reports = slim.call("support.slim_lua:explored", path=str(path))

    assert reports
    for report in reports:
        assert report["ok"], report["report"]
        assert report["boundaries"]


@pytest.mark.parametrize("path", REFUSED, ids=name_of)
def test_an_unsupported_option_is_refused_with_its_name_and_line(path: Path) -> None:
    line, says = re.match(r"-- refused: (\d+): (.*)", path.read_text()).groups()  # type: ignore[union-attr]

    with pytest.raises(InvalidInput) as caught:
        load_program(path)

    assert f":{line}: " in str(caught.value)
    assert says in str(caught.value)
    (problem,) = problems_of(path)
    assert int(line) == problem.line
    assert says in problem.says
