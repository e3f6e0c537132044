"""The sentences of Given and When: input, mocks, what people do, and running."""

from __future__ import annotations

from typing import Any

from holdfast.runtime.declare.mocks import mock_of
from holdfast.testing.builtin_steps.blocks import items_of, mapping_of, rows_of
from holdfast.testing.scenario import Reaction, ScenarioAction, ScenarioSetup
from holdfast.testing.step_matcher import sentence

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
    setup.input.update(mapping_of("the input", block))


# ── Given: mocks ─────────────────────────────────────────────────────────────────────────────


@sentence("the {tool} tool/step returns/answers {value:value}", on="setup")
def tool_returns(setup: ScenarioSetup, tool: str, value: Any) -> None:
    setup.mocks[tool] = mock_of(tool, {"returns": value})


@sentence("the {tool} tool/step returns/answers:", on="setup")
def tool_returns_block(setup: ScenarioSetup, tool: str, block: Any) -> None:
    value = mapping_of("the answer", block) if rows_of(block) else block
    setup.mocks[tool] = mock_of(tool, {"returns": value})


@sentence("the {tool} tool/step returns/answers in turn:", on="setup")
def tool_returns_in_turn(setup: ScenarioSetup, tool: str, block: Any) -> None:
    setup.mocks[tool] = mock_of(tool, {"sequence": items_of("the answers", block)})


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
    setup.mocks["model"] = mock_of("model", {"sequence": items_of("the answers", block)})


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
