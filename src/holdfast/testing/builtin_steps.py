"""The built-in sentences: input, mocks, people and signals in Given; running in When; calls, state, stages,
output, decisions, status and budget in Then.

`step_matcher` defines what a sentence is. Each function here is one: the list of what a
spec can contain is this file, read from top to bottom.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from holdfast.errors import InvalidInput
from holdfast.runtime.declare.mocks import mock_of
from holdfast.testing.scenario import Reaction, ScenarioAction, ScenarioSetup
from holdfast.testing.step_matcher import (
    Outcome,
    StepPattern,
    json_or_text,
    sentence,
    sentences_in,
    shown,
)

_NOWHERE: Final = object()
SIMILAR_PERCENT: Final = 80


def _at(value: Any, path: str) -> Any:
    """What is at a dotted path; a number is a place in a list."""
    for key in path.split("."):
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif (
            isinstance(value, list | tuple)
            and key.lstrip("-").isdigit()
            and -len(value) <= int(key) < len(value)
        ):
            value = value[int(key)]
        else:
            return _NOWHERE
    return value


def _there(value: Any) -> str:
    return "nothing" if value is _NOWHERE else shown(value)


def _compare(what: str, actual: Any, value: Any) -> None:
    Outcome.expect(f"{what} to be {shown(value)}", _there(actual), _same(actual, value))


def _same(a: Any, b: Any) -> bool:
    """Equal, and alike: true is not 1."""
    return a is not _NOWHERE and json.dumps(a, sort_keys=True, default=repr) == json.dumps(
        b, sort_keys=True, default=repr
    )


def _contains(what: str, actual: Any, value: Any) -> None:
    holds = (
        str(value) in actual
        if isinstance(actual, str)
        else actual is not _NOWHERE
        and isinstance(actual, list | tuple | Mapping)
        and value in actual
    )
    Outcome.expect(f"{what} to contain {shown(value)}", _there(actual), holds)


def _searched(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error as error:
        raise InvalidInput(f"{pattern!r} is not a regular expression: {error}") from None


def _matched(what: str, actual: Any, pattern: str) -> None:
    holds = actual is not _NOWHERE and _searched(pattern, _as_text(actual))
    Outcome.expect(f"{what} to match {pattern!r}", _there(actual), holds)


def _similar(what: str, actual: Any, text: str, percent: float) -> None:
    from difflib import SequenceMatcher

    ratio = 0.0 if actual is _NOWHERE else SequenceMatcher(None, _as_text(actual), text).ratio()
    Outcome.expect(
        f"{what} to be {percent:g}% similar to {text!r}",
        f"{_there(actual)} ({ratio:.0%})",
        ratio * 100 >= percent,
    )


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)


def _bounded(what: str, actual: Any, low: float | None, high: float | None) -> None:
    is_number = isinstance(actual, int | float) and not isinstance(actual, bool)
    holds = is_number and (low is None or actual >= low) and (high is None or actual <= high)
    bound = f"at least {low}" if low is not None else f"at most {high}"
    Outcome.expect(f"{what} to be {bound}", _there(actual), holds)


# ── Given: input ─────────────────────────────────────────────────────────────────────────────


@sentence("the {name} input/parameter is {value:value}", on="setup")
@sentence("the input/parameter {name} is {value:value}", on="setup")
def input_is(setup: ScenarioSetup, name: str, value: Any) -> None:
    setup.input[name] = value


@sentence("the input/parameter {name} is:", on="setup")
def input_is_block(setup: ScenarioSetup, name: str, block: Any) -> None:
    setup.input[name] = block


@sentence("the input/inputs/parameters is/are:", on="setup")
@sentence("the input/inputs/parameters:", on="setup")
def inputs_are(setup: ScenarioSetup, block: Any) -> None:
    setup.input.update(_mapping("the input", block))


def _mapping(what: str, block: Any) -> dict[str, Any]:
    """A JSON object, or a table of two columns (with or without a head `name | value`)."""
    if isinstance(block, Mapping):
        return dict(block)
    rows = _rows(block)
    if rows and all(len(row) == 2 for row in rows):
        body = rows[1:] if rows[0] in (["name", "value"], ["key", "value"]) else rows
        return {name: json_or_text(value) for name, value in body}
    raise InvalidInput(f"{what}: use a table of names and values, or a JSON object in quotes")


def _rows(block: Any) -> list[list[str]]:
    is_table = isinstance(block, list) and all(isinstance(row, list) for row in block)
    return block if is_table else []


def _items(what: str, block: Any) -> list[Any]:
    """A JSON list, or a table of one column."""
    rows = _rows(block)
    if rows and all(len(row) == 1 for row in rows):
        return [json_or_text(row[0]) for row in rows]
    if isinstance(block, list) and not rows:
        return block
    raise InvalidInput(f"{what}: use a table of one column, or a JSON list in quotes")


# ── Given: mocks ─────────────────────────────────────────────────────────────────────────────


@sentence("the {tool} tool/step returns/answers {value:value}", on="setup")
def tool_returns(setup: ScenarioSetup, tool: str, value: Any) -> None:
    setup.mocks[tool] = mock_of(tool, {"returns": value})


@sentence("the {tool} tool/step returns/answers:", on="setup")
def tool_returns_block(setup: ScenarioSetup, tool: str, block: Any) -> None:
    value = _mapping("the answer", block) if _rows(block) else block
    setup.mocks[tool] = mock_of(tool, {"returns": value})


@sentence("the {tool} tool/step returns/answers in turn:", on="setup")
def tool_returns_in_turn(setup: ScenarioSetup, tool: str, block: Any) -> None:
    setup.mocks[tool] = mock_of(tool, {"sequence": _items("the answers", block)})


@sentence("the {tool} tool/step fails with {message}", on="setup")
def tool_fails(setup: ScenarioSetup, tool: str, message: str) -> None:
    setup.mocks[tool] = mock_of(tool, {"error": message})


@sentence(
    "the {tool} tool/step fails {times:int} time(s), then returns/answers {value:value}", on="setup"
)
def tool_fails_first(setup: ScenarioSetup, tool: str, times: int, value: Any) -> None:
    failures = [{"error": "mocked failure"}] * times
    answers = [*failures, *([{"returns": value}] * 1000)]
    setup.mocks[tool] = mock_of(tool, {"sequence": answers})


@sentence("the model answers {value:value}", on="setup")
def model_answers(setup: ScenarioSetup, value: Any) -> None:
    setup.mocks["model"] = mock_of("model", {"returns": value})


@sentence("the model answers in turn:", on="setup")
def model_answers_in_turn(setup: ScenarioSetup, block: Any) -> None:
    """Texts, and `{"tool": "check_disk", "with": {"path": "/"}}` where it calls a tool."""
    setup.mocks["model"] = mock_of("model", {"sequence": _items("the answers", block)})


# ── Given: what people do ────────────────────────────────────────────────────────────────────


@sentence("the approval of {about} is granted/given", on="setup")
@sentence("the approval is granted/given", on="setup")
def approval_granted(setup: ScenarioSetup, about: str = "") -> None:
    setup.answers.append(Reaction("approval", True, about))


@sentence("the approval of {about} is rejected/refused", on="setup")
@sentence("the approval is rejected/refused", on="setup")
def approval_rejected(setup: ScenarioSetup, about: str = "") -> None:
    setup.answers.append(Reaction("approval", False, about))


@sentence("the answer to {question} is {value:value}", on="setup")
@sentence("the answer is {value:value}", on="setup")
def answer_is(setup: ScenarioSetup, value: Any, question: str = "") -> None:
    setup.answers.append(Reaction("answer", value, question))


@sentence("the signal {name} comes with {value:value}", on="setup")
@sentence("the signal {name} comes", on="setup")
def signal_comes(setup: ScenarioSetup, name: str, value: Any = None) -> None:
    setup.answers.append(Reaction("signal", value, name))


@sentence("a person resolves/settles doubts about {tool}", on="setup")
def doubt_is_settled(setup: ScenarioSetup, tool: str) -> None:
    setup.may_doubt.add(tool)


# ── When ─────────────────────────────────────────────────────────────────────────────────────


@sentence("the procedure/agent/run has started", on="setup")
def has_started(setup: ScenarioSetup) -> None:
    """Nothing: a scenario starts the run where it says `runs` or `takes a turn`."""


@sentence("the {agent} agent takes (a )turn(s)", on="setup")
def takes_turns(setup: ScenarioSetup, agent: str) -> None:  # noqa: ARG001 - all agents of the run take theirs
    setup.actions.append(ScenarioAction("go"))


@sentence("the procedure/agent/run runs( again)", on="setup")
def runs(setup: ScenarioSetup) -> None:
    setup.actions.append(ScenarioAction("go"))


@sentence("the run is resumed", on="setup")
def is_resumed(setup: ScenarioSetup) -> None:
    setup.actions.append(ScenarioAction("go", "resume"))


@sentence("the run is rerun", on="setup")
def is_rerun(setup: ScenarioSetup) -> None:
    setup.actions.append(ScenarioAction("go", "rerun"))


@sentence("the run is cancelled", on="setup")
def is_cancelled(setup: ScenarioSetup) -> None:
    setup.actions.append(ScenarioAction("cancel"))


@sentence("{seconds:number} second(s) pass(es)", on="setup")
def seconds_pass(setup: ScenarioSetup, seconds: float) -> None:
    setup.actions.append(ScenarioAction("time", value=seconds))


@sentence("the signal {name} is sent with {value:value}", on="setup")
@sentence("the signal {name} is sent", on="setup")
def signal_is_sent(setup: ScenarioSetup, name: str, value: Any = None) -> None:
    setup.actions.append(ScenarioAction("signal", name=name, value=value))


@sentence("the request is approved", on="setup")
def is_approved(setup: ScenarioSetup) -> None:
    setup.actions.append(ScenarioAction("decide", value=Reaction("approval", True)))


@sentence("the request is rejected", on="setup")
def is_rejected(setup: ScenarioSetup) -> None:
    setup.actions.append(ScenarioAction("decide", value=Reaction("approval", False)))


@sentence("the question is answered with {value:value}", on="setup")
def is_answered(setup: ScenarioSetup, value: Any) -> None:
    setup.actions.append(ScenarioAction("decide", value=Reaction("answer", value)))


# ── Then: tool calls ─────────────────────────────────────────────────────────────────────────


@sentence("the {tool} tool/step should be called")
def should_be_called(outcome: Outcome, tool: str) -> None:
    outcome.expect(
        f"{tool} to be called", f"called: {outcome.named_calls()}", bool(outcome.calls_of(tool))
    )


@sentence("the {tool} tool/step should not be called")
def should_not_be_called(outcome: Outcome, tool: str) -> None:
    calls = outcome.calls_of(tool)
    outcome.expect(f"{tool} not to be called", f"called {len(calls)} times", not calls)


@sentence("the {tool} tool/step should be called (exactly ){times:int} time(s)")
def should_be_called_times(outcome: Outcome, tool: str, times: int) -> None:
    count = len(outcome.calls_of(tool))
    outcome.expect(
        f"{tool} to be called {_times(times)}", f"called {_times(count)}", count == times
    )


@sentence("the {tool} tool/step should be called at least {times:int} time(s)")
def should_be_called_at_least(outcome: Outcome, tool: str, times: int) -> None:
    count = len(outcome.calls_of(tool))
    outcome.expect(
        f"{tool} to be called at least {_times(times)}", f"called {_times(count)}", count >= times
    )


@sentence("the {tool} tool/step should be called at most {times:int} time(s)")
def should_be_called_at_most(outcome: Outcome, tool: str, times: int) -> None:
    count = len(outcome.calls_of(tool))
    outcome.expect(
        f"{tool} to be called at most {_times(times)}", f"called {_times(count)}", count <= times
    )


@sentence("the {tool} tool/step should be tried {times:int} time(s)")
def should_be_tried(outcome: Outcome, tool: str, times: int) -> None:
    count = sum(call.attempts for call in outcome.calls_of(tool))
    outcome.expect(f"{tool} to be tried {_times(times)}", f"tried {_times(count)}", count == times)


def _times(count: int) -> str:
    return f"{count} time" if count == 1 else f"{count} times"


@sentence("the {tool} tool/step should be called with {args:value}")
def should_be_called_with(outcome: Outcome, tool: str, args: Any) -> None:
    """`{"to": "sam"}`, or `to="sam" n=5`."""
    _called_with(outcome, tool, args if isinstance(args, Mapping) else _pairs(str(args)))


@sentence("the {tool} tool/step should be called with:")
def should_be_called_with_block(outcome: Outcome, tool: str, block: Any) -> None:
    _called_with(outcome, tool, _mapping("the arguments", block))


def _pairs(text: str) -> dict[str, Any]:
    found = re.findall(
        r'(\w+)\s*=\s*("(?:[^"\\]|\\.)*"|\S+?)(?=,?\s+(?:and\s+)?\w+\s*=|,?\s*$)', text
    )
    if not found:
        raise InvalidInput(
            f'{text} is neither name=value nor a JSON object; write: called with to="sam" n=5'
        )
    return {name: json_or_text(value) for name, value in found}


def _called_with(outcome: Outcome, tool: str, expected: Mapping[str, Any]) -> None:
    calls = outcome.calls_of(tool)
    fits = any(
        all(_same(_at(call.args, key), value) for key, value in expected.items()) for call in calls
    )
    actual = " and ".join(shown(call.args) for call in calls) or "it was not called"
    outcome.expect(f"{tool} to be called with {shown(dict(expected))}", actual, fits)


@sentence("the {tool} tool/step should be called with {name} matching (pattern ){pattern}")
def should_be_called_matching(outcome: Outcome, tool: str, name: str, pattern: str) -> None:
    given = [_at(call.args, name) for call in outcome.calls_of(tool)]
    holds = any(isinstance(x, str) and _searched(pattern, x) for x in given)
    actual = " and ".join(map(_there, given)) or "it was not called"
    outcome.expect(f"{tool} to be called with {name} matching {pattern!r}", actual, holds)


@sentence("the tools should be called in (this )order: {tools:value}")
def should_be_called_in_order(outcome: Outcome, tools: Any) -> None:
    _in_order(outcome, [name.strip() for name in str(tools).split(",")])


@sentence("the tools should be called in (this )order:")
def should_be_called_in_order_block(outcome: Outcome, block: Any) -> None:
    _in_order(outcome, [str(name) for name in _items("the order", block)])


@sentence("the {tool} tool/step should be called before the {other} tool/step")
def should_be_called_before(outcome: Outcome, tool: str, other: str) -> None:
    _in_order(outcome, [tool, other])


def _in_order(outcome: Outcome, names: list[str]) -> None:
    for name in names:
        outcome.calls_of(name)
    calls = iter([call.name for call in outcome.calls])
    outcome.expect(
        f"calls in the order {', '.join(names)}",
        outcome.named_calls(),
        all(name in calls for name in names),
    )


@sentence("the {tool} tool/step should fail")
def tool_should_fail(outcome: Outcome, tool: str) -> None:
    calls = outcome.calls_of(tool)
    outcome.expect(
        f"{tool} to fail",
        ", ".join(c.status for c in calls) or "it was not called",
        any(c.status == "failed" for c in calls),
    )


# ── Then: state, output, decisions ───────────────────────────────────────────────────────────


@sentence("the state {key} should be {value:value}")
def state_should_be(outcome: Outcome, key: str, value: Any) -> None:
    _compare(f"state {key}", _at(outcome.state, key), value)


@sentence("the state {key} should be:")
def state_should_be_block(outcome: Outcome, key: str, block: Any) -> None:
    _compare(f"state {key}", _at(outcome.state, key), block)


@sentence("the state {key} should not be {value:value}")
def state_should_not_be(outcome: Outcome, key: str, value: Any) -> None:
    actual = _at(outcome.state, key)
    outcome.expect(
        f"state {key} not to be {shown(value)}", _there(actual), not _same(actual, value)
    )


@sentence("the state {key} should contain {value:value}")
def state_should_contain(outcome: Outcome, key: str, value: Any) -> None:
    _contains(f"state {key}", _at(outcome.state, key), value)


@sentence("the state {key} should be at least {limit:number}")
def state_at_least(outcome: Outcome, key: str, limit: float) -> None:
    _bounded(f"state {key}", _at(outcome.state, key), limit, None)


@sentence("the state {key} should be at most {limit:number}")
def state_at_most(outcome: Outcome, key: str, limit: float) -> None:
    _bounded(f"state {key}", _at(outcome.state, key), None, limit)


@sentence("the state {key} should exist")
def state_should_exist(outcome: Outcome, key: str) -> None:
    found = _at(outcome.state, key)
    outcome.expect(
        f"state {key} to exist",
        f"state has {', '.join(outcome.state) or 'nothing'}",
        found is not _NOWHERE and found is not None,
    )


@sentence("the state should contain {key}")
def state_should_contain_key(outcome: Outcome, key: str) -> None:
    state_should_exist(outcome, key)


@sentence("the state {key} should match pattern {pattern}")
def state_should_match(outcome: Outcome, key: str, pattern: str) -> None:
    _matched(f"state {key}", _at(outcome.state, key), pattern)


@sentence("the state {key} should be similar to {text} with {percent:number}% similarity")
@sentence("the state {key} should be similar to {text}")
def state_should_be_similar(
    outcome: Outcome, key: str, text: str, percent: float = SIMILAR_PERCENT
) -> None:
    _similar(f"state {key}", _at(outcome.state, key), text, percent)


@sentence("the state {key} should not exist")
def state_should_not_exist(outcome: Outcome, key: str) -> None:
    found = _at(outcome.state, key)
    outcome.expect(f"state {key} not to exist", _there(found), found is _NOWHERE or found is None)


@sentence("the output should be {value:value}")
def output_should_be(outcome: Outcome, value: Any) -> None:
    _compare("the output", outcome.result, value)


@sentence("the output should be:")
def output_should_be_block(outcome: Outcome, block: Any) -> None:
    _compare("the output", outcome.result, _mapping("the output", block) if _rows(block) else block)


@sentence("the output should contain {value:value}")
def output_should_contain(outcome: Outcome, value: Any) -> None:
    _contains("the output", outcome.result, value)


@sentence("the output {field} should be {value:value}")
def output_field_should_be(outcome: Outcome, field: str, value: Any) -> None:
    _compare(f"output {field}", _at(outcome.result, field), value)


@sentence("the output {field} should not be {value:value}")
def output_field_should_not_be(outcome: Outcome, field: str, value: Any) -> None:
    actual = _at(outcome.result, field)
    outcome.expect(
        f"output {field} not to be {shown(value)}", _there(actual), not _same(actual, value)
    )


@sentence("the output {field} should match pattern {pattern}")
def output_field_should_match(outcome: Outcome, field: str, pattern: str) -> None:
    _matched(f"output {field}", _at(outcome.result, field), pattern)


@sentence("the output should match pattern {pattern}")
def output_should_match(outcome: Outcome, pattern: str) -> None:
    _matched("the output", outcome.result, pattern)


@sentence("the output should be similar to {text} with {percent:number}% similarity")
@sentence("the output should be similar to {text}")
def output_should_be_similar(outcome: Outcome, text: str, percent: float = SIMILAR_PERCENT) -> None:
    _similar("output", outcome.result, text, percent)


@sentence("the output {field} should be similar to {text} with {percent:number}% similarity")
@sentence("the output {field} should be similar to {text}")
def output_field_should_be_similar(
    outcome: Outcome, field: str, text: str, percent: float = SIMILAR_PERCENT
) -> None:
    _similar(f"output {field}", _at(outcome.result, field), text, percent)


@sentence("the output {field} should contain {value:value}")
def output_field_should_contain(outcome: Outcome, field: str, value: Any) -> None:
    _contains(f"output {field}", _at(outcome.result, field), value)


@sentence("the output {field} should exist")
def output_field_should_exist(outcome: Outcome, field: str) -> None:
    found = _at(outcome.result, field)
    outcome.expect(
        f"output {field} to exist", outcome.result, found is not _NOWHERE and found is not None
    )


@sentence("the output {field} should not exist")
def output_field_should_not_exist(outcome: Outcome, field: str) -> None:
    found = _at(outcome.result, field)
    outcome.expect(
        f"output {field} not to exist", _there(found), found is _NOWHERE or found is None
    )


@sentence("the decision {name} should be {value:value}")
def decision_should_be(outcome: Outcome, name: str, value: Any) -> None:
    made = outcome.decisions.get(name, (_NOWHERE, ""))[0]
    _compare(f"decision {name}", made, value)


@sentence("the decision {name} should be made")
def decision_should_be_made(outcome: Outcome, name: str) -> None:
    outcome.expect(
        f"decision {name} to be made",
        f"made: {', '.join(outcome.decisions) or 'none'}",
        name in outcome.decisions,
    )


# ── Then: stage ──────────────────────────────────────────────────────────────────────────────


@sentence("we are in stage {stage}")
@sentence("the stage is {stage}")
@sentence("the stage should be {stage}")
def stage_should_be(outcome: Outcome, stage: str) -> None:
    _known_stages(outcome, [stage])
    outcome.expect(
        f"the stage to be {stage}", outcome.run.stage or "none", outcome.run.stage == stage
    )


@sentence("the stage should go/transition from {first} to {second}")
def stage_should_go(outcome: Outcome, first: str, second: str) -> None:
    _known_stages(outcome, [first, second])
    history = outcome.run.stage_history
    pairs = list(itertools.pairwise(history))
    outcome.expect(
        f"the stage to go from {first} to {second}",
        " → ".join(history) or "none",
        (first, second) in pairs,
    )


@sentence("the stages should be {stages:value}")
def stages_should_be(outcome: Outcome, stages: Any) -> None:
    wanted = [name.strip() for name in re.split(r",|→|->", str(stages))]
    _known_stages(outcome, wanted)
    history = list(outcome.run.stage_history)
    outcome.expect(
        f"the stages {' → '.join(wanted)}", " → ".join(history) or "none", history == wanted
    )


def _known_stages(outcome: Outcome, names: Iterable[str]) -> None:
    for name in names:
        if name not in outcome.run.stages:
            known = ", ".join(outcome.run.stages) or "none"
            raise InvalidInput(f"unknown stage {name!r}; the agent declares {known}")


# ── Then: the run ────────────────────────────────────────────────────────────────────────────


@sentence("the procedure/agent/run should complete( successfully)")
def should_complete(outcome: Outcome) -> None:
    outcome.expect("the run to complete", _status(outcome), outcome.status == "completed")


@sentence("the procedure/agent/run should fail")
def should_fail(outcome: Outcome) -> None:
    outcome.expect("the run to fail", _status(outcome), outcome.status == "failed")


@sentence("the procedure/agent/run should fail with {message:value}")
def should_fail_with(outcome: Outcome, message: Any) -> None:
    should_fail(outcome)
    outcome.expect(
        f"the failure to say {str(message)!r}", outcome.error, str(message) in outcome.error
    )


@sentence("the run( status) should be {status}")
def status_should_be(outcome: Outcome, status: str) -> None:
    outcome.expect(f"the run to be {status}", _status(outcome), outcome.status == status)


@sentence("the run should wait for {what:value}")
def should_wait_for(outcome: Outcome, what: Any) -> None:
    holds = outcome.status == "waiting" and str(what) in outcome.waiting_for
    outcome.expect(f"the run to wait for {what}", _status(outcome), holds)


def _status(outcome: Outcome) -> str:
    more = outcome.error or (f"for {outcome.waiting_for}" if outcome.waiting_for else "")
    return outcome.status + (f" ({more})" if more else "")


@sentence("the stop reason should be {reason:value}")
def stop_reason_should_be(outcome: Outcome, reason: Any) -> None:
    _compare("the stop reason", _stop_reason(outcome), str(reason))


@sentence("the stop reason should contain {text:value}")
def stop_reason_should_contain(outcome: Outcome, text: Any) -> None:
    _contains("the stop reason", _stop_reason(outcome), text)


@sentence("the stop reason should match (pattern ){pattern}")
def stop_reason_should_match(outcome: Outcome, pattern: str) -> None:
    _matched("the stop reason", _stop_reason(outcome), pattern)


def _stop_reason(outcome: Outcome) -> Any:
    """What the run noted under `stop`: {"reason": …}."""
    return _at(outcome.run.notes, "stop.reason")


@sentence("the total iterations should be less than {limit:int}")
def iterations_less_than(outcome: Outcome, limit: int) -> None:
    count = _iterations(outcome)
    outcome.expect(f"fewer than {limit} iterations", f"{count} iterations", count < limit)


@sentence("the total iterations should be between {least:int} and {most:int}")
def iterations_between(outcome: Outcome, least: int, most: int) -> None:
    count = _iterations(outcome)
    outcome.expect(
        f"between {least} and {most} iterations", f"{count} iterations", least <= count <= most
    )


@sentence("the agent should take at least {least:int} turn(s)")
def turns_at_least(outcome: Outcome, least: int) -> None:
    count = _iterations(outcome)
    outcome.expect(f"at least {least} turns", f"{count} turns", count >= least)


def _iterations(outcome: Outcome) -> int:
    """What the run noted under `iterations`; else a loop's, or how often a model was asked."""
    noted = outcome.run.notes.get("iterations")
    if isinstance(noted, int):
        return noted
    return outcome.run.iteration or sum(call.name == "model" for call in outcome.calls)


@sentence("the agent's context should include {text:value}")
def context_should_include(outcome: Outcome, text: Any) -> None:
    said = [_as_text(message.content) for message in outcome.run.messages]
    holds = any(str(text) in one for one in said)
    outcome.expect(f"a message with {str(text)!r}", " | ".join(said) or "no messages", holds)


@sentence("the run should use at most {limit:int} step(s)")
def steps_at_most(outcome: Outcome, limit: int) -> None:
    outcome.expect(
        f"at most {limit} steps", f"{outcome.run.steps} steps", outcome.run.steps <= limit
    )


@sentence("the run should use at most {limit:int} token(s)")
def tokens_at_most(outcome: Outcome, limit: int) -> None:
    used = outcome.run.usage.input_tokens + outcome.run.usage.output_tokens
    outcome.expect(f"at most {limit} tokens", f"{used} tokens", used <= limit)


@sentence("the run should cost at most {limit:number} USD/dollars")
def cost_at_most(outcome: Outcome, limit: float) -> None:
    used = outcome.run.usage.cost_usd
    outcome.expect(f"a cost of at most {limit} USD", f"{used} USD", used <= limit)


def builtin_sentences() -> list[StepPattern]:
    """All sentences of this module."""
    return sentences_in(globals())
