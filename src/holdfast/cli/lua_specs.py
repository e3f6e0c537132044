"""The specs of a `.tac` file: its `Specifications`, `Step` sentences and `Mocks`, for `holdfast test`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import InvalidInput
from holdfast.runtime.declare.mocks import Mock, mocks_of
from holdfast.runtime.declare.specs import spec_of
from holdfast.testing.builtin_steps.values import (
    output_field_should_be,
    output_field_should_not_be,
    state_should_be,
    state_should_not_be,
)
from holdfast.testing.spec import Scenario, SpecContext, known_sentences, read_spec
from holdfast.testing.step_matcher import (
    Outcome,
    StepPattern,
    UnmetExpectation,
    json_or_text,
    sentence,
    sentences_in,
)

if TYPE_CHECKING:
    from holdfast.cli.load import AgentFile
    from holdfast.lua.program import Program


def lua_scenarios(loaded: AgentFile, mock: bool) -> tuple[SpecContext, list[Scenario]]:
    """Who takes part, and the scenarios of the file and of the .feature file next to it."""
    names = vars(loaded.module)
    program: Program = names["__lua__"]
    context = SpecContext(
        loaded.agents, loaded.chosen(), names, _mocks(program) if mock else {}, strict=mock
    )
    known = [*_own_sentences(program), *_OF_THE_LANGUAGE, *known_sentences(names)]
    scenarios: list[Scenario] = []
    for spec in program.declared.specs:
        scenarios += read_spec(spec.text, spec.file, known, first_line=spec.line)
    beside = Path(loaded.file).with_suffix(".feature")
    if beside.is_file():
        scenarios += read_spec(beside.read_text(encoding="utf-8"), str(beside), known)
    if not scenarios:
        raise InvalidInput(
            f"{loaded.file} has nothing to test: add Specifications([[Feature: …]]), or a file {beside.name}"
        )
    return context, scenarios


def _mocks(program: Program) -> dict[str, Mock]:
    """The mocks of the file. The tool `done` needs none: it contacts nothing, and its own function is executed."""
    from holdfast.lua.declared import DONE  # here, because lupa is optional

    declared = program.declared
    known = {
        *declared.tools,
        *declared.agents,
        "File.read",
        "File.write",
        "File.exists",
        "File.size",
    }
    unknown = [name for name in declared.mocks if name not in known]
    if unknown:
        raise InvalidInput(
            f"{program.path}: there is a mock of {unknown[0]!r}, but no tool or agent of that name; "
            f"the file has {', '.join(sorted(known))}"
        )
    own: dict[str, Mock] = {}
    if DONE in declared.tools and not declared.tools[DONE].host:
        own[DONE] = _executed(program.tool(DONE))
    return {**own, **mocks_of(declared.mocks)}


def _executed(tool: Callable[..., Any]) -> Mock:
    spec = spec_of(tool)
    assert spec is not None

    def mock(count: int, args: Mapping[str, Any]) -> Any:  # noqa: ARG001 - each call is executed
        return spec.fn(**args)

    return mock


# In a .tac file a value is compared as text, and True is true: 5 and "5" are equal. Specs of Python agents are exact.


@sentence("the state {key} should be {value:value}")
def _state_should_be(outcome: Outcome, key: str, value: Any) -> None:
    _one_of(state_should_be, outcome, key, value)


@sentence("the state {key} should not be {value:value}")
def _state_should_not_be(outcome: Outcome, key: str, value: Any) -> None:
    for form in _forms(value):
        state_should_not_be(outcome, key, form)


@sentence("the output {field} should be {value:value}")
def _output_should_be(outcome: Outcome, field: str, value: Any) -> None:
    _one_of(output_field_should_be, outcome, field, value)


@sentence("the output {field} should not be {value:value}")
def _output_should_not_be(outcome: Outcome, field: str, value: Any) -> None:
    for form in _forms(value):
        output_field_should_not_be(outcome, field, form)


def _one_of(expects: Callable[..., None], outcome: Outcome, key: str, value: Any) -> None:
    *others, last = _forms(value)
    for form in others:
        with contextlib.suppress(UnmetExpectation):
            return expects(outcome, key, form)
    return expects(outcome, key, last)


def _forms(value: Any) -> list[Any]:
    """What has the same text: 5 for "5", true for True; the value itself last."""
    if not isinstance(value, str):
        return [json.dumps(value, ensure_ascii=False), value]
    known = {"true": True, "false": False}
    return [known.get(value.lower(), json_or_text(value)), value]


def _own_sentences(program: Program) -> list[StepPattern]:
    return [
        StepPattern(step.text, "outcome", _custom_sentence(program, step.number, step.text))
        for step in program.declared.steps
    ]


def _custom_sentence(program: Program, number: int, sentence_text: str) -> Callable[..., None]:
    """A sentence of the file: its function gets the outcome and the values, and fails by an error or `false`."""
    from holdfast.lua.convert import from_lua, to_lua
    from holdfast.lua.vm import LuaError

    @sentence(sentence_text)
    def ask(outcome: Outcome, **values: Any) -> None:
        vm, fn = program.custom_step(number, outcome.state, outcome.run.stage)
        seen = {
            "state": outcome.state,
            "output": outcome.result,
            "status": outcome.status,
            "stage": outcome.run.stage,
            "error": outcome.error,
        }
        try:
            result = vm.call(fn, *(to_lua(vm.lua, x) for x in (seen, *values.values())))
        except LuaError as error:
            outcome.expect(sentence_text, error.message, holds=False)
        else:
            outcome.expect(sentence_text, from_lua(result), holds=result is not False)

    return ask


_OF_THE_LANGUAGE: Final = sentences_in(
    {
        fn.__name__: fn
        for fn in (_state_should_be, _state_should_not_be, _output_should_be, _output_should_not_be)
    }
)
