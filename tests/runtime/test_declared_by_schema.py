"""Agents and tools that are declared by a schema, and not by the signature of a Python function."""

from typing import Any

import pytest

from holdfast import (
    Holdfast,
    InvalidInput,
    LLMAgent,
    Parameter,
    ParamSchema,
    Run,
    RunFailed,
    agent,
    step,
    tool,
)
from holdfast.agents.schemas import tool_use
from holdfast.core.params import OMITTED, type_of
from holdfast.testing import ScriptedModel, call, say

MAIL = {
    "type": "object",
    "properties": {
        "from": {"type": "string", "minLength": 1, "description": "Who sends it."},
        "copies": {"type": "integer", "minimum": 1, "maximum": 5, "default": 1},
        "tags": {"type": "array", "items": {"type": "string"}},
        "kind": {"enum": ["plain", "html"], "default": "plain"},
    },
    "required": ["from"],
}


@tool(name="send-mail", schema=MAIL)
def send(idempotency_key: str, **given: Any) -> dict[str, Any]:
    assert idempotency_key
    return given


@agent(schema=MAIL)
def mailer(run: Run, **given: Any) -> dict[str, Any]:
    return send(**given)


def test_a_tool_is_called_with_what_its_schema_declares(tmp_path) -> None:
    with Holdfast(tmp_path / "a.db") as hf:
        assert hf.run(mailer, id="r", **{"from": "ann"}) == {
            "from": "ann",
            "copies": 1,
            "kind": "plain",
        }
        (call,) = hf.get("r").calls
        assert (call.name, call.effect) == ("send-mail", "keyed")


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({}, "'from' is missing"),
        ({"from": "ann", "nope": 1}, "'nope' is not a parameter"),
        ({"from": "ann", "copies": "two"}, "copies"),
        ({"from": "ann", "copies": 9}, "copies"),
        ({"from": "ann", "kind": "odd"}, "kind"),
        ({"from": "ann", "tags": [1]}, "tags"),
    ],
)
def test_an_agent_refuses_input_that_its_schema_forbids(
    tmp_path, given: dict[str, Any], wrong: str
) -> None:
    with Holdfast(tmp_path / "a.db") as hf:
        with pytest.raises(InvalidInput, match=wrong):
            hf.run(mailer, id="r", **given)
        assert hf.runs() == []


def test_a_tool_refuses_an_argument_that_its_schema_forbids(tmp_path) -> None:
    @agent
    def wrong(run: Run) -> None:
        send(**{"from": ""})

    with Holdfast(tmp_path / "a.db") as hf, pytest.raises(RunFailed, match="'from' is wrong"):
        hf.run(wrong)


def test_a_model_sees_the_schema_as_it_was_declared(tmp_path) -> None:
    assert tool_use(send).schema.parameters == {**MAIL, "additionalProperties": False}
    model = ScriptedModel(call("send-mail", **{"from": "bob"}), say("sent"))
    writer = LLMAgent("writer", model=model, tools=[send])
    with Holdfast(tmp_path / "a.db") as hf:
        hf.run(writer, "write", id="r")
        assert any(call.name == "send-mail" and call.status == "done" for call in hf.get("r").calls)


def test_parameters_are_declared_one_by_one_too(tmp_path) -> None:
    @step(
        schema=ParamSchema(
            (
                Parameter("class", str),
                Parameter("size", int, default=3),
                Parameter("x", int, OMITTED),
            )
        )
    )
    def make(**given: Any) -> Any:
        return given

    @agent
    def maker(run: Run) -> Any:
        return make("a"), make(**{"class": "b"}, size=4, x=5)

    with Holdfast(tmp_path / "a.db") as hf:
        assert hf.run(maker) == [{"class": "a", "size": 3}, {"class": "b", "size": 4, "x": 5}]
    for args, kwargs in (((1, 2, 3, 4), {}), (("a",), {"class": "b"}), ((), {})):
        with pytest.raises(TypeError):
            make.__holdfast__.params.bind(args, kwargs)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "object", "properties": []},
        {"type": "object", "required": ["x"]},
        {"type": "object", "properties": {"x": 5}},
        {"type": "object", "properties": {"idempotency_key": {}}},
        {"type": "object", "properties": {"": {}}},
        "nonsense",
    ],
)
def test_a_schema_that_declares_no_parameters_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidInput):
        tool(schema=schema)(lambda **given: given)


def test_json_schemas_are_checked_as_far_as_types_can_express() -> None:
    defs = {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}}
    assert type_of({"type": ["string", "null"]}, {}) == str | None
    assert type_of({"anyOf": [{"type": "integer"}, {"type": "string"}]}, {}) == int | str
    assert type_of({"type": "number"}, {}) == int | float
    assert type_of({"$ref": "#/$defs/Node"}, defs) == dict[str, Any]
    assert (
        type_of({"type": "object", "additionalProperties": {"type": "integer"}}, {})
        == dict[str, int]
    )
    assert type_of({"anyOf": [{"type": "integer"}, {}]}, {}) is Any
    assert type_of({"type": "mystery"}, {}) is Any
    two_lists = {"anyOf": [{"type": "array", "items": {"type": t}} for t in ("integer", "string")]}
    schema = ParamSchema.from_json_schema({"properties": {"x": two_lists}})
    assert schema.parameters[0].type is Any
