"""A model is told what a tool takes, and what it returns is read strictly."""

from __future__ import annotations

import datetime
import enum
from dataclasses import dataclass
from typing import Any, Literal

import pydantic
import pytest

from holdfast import InvalidInput, Run, agent, step, tool
from holdfast.agents.schemas import WrongArguments, tool_use, tool_uses
from holdfast.runtime.declare.json_schema import docstring_parts


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Place:
    street: str
    number: int = 1


class Card(pydantic.BaseModel):
    holder: str
    limit: int = 5


@tool
def order(
    item: str,
    amount: int,
    colour: Colour = Colour.RED,
    speed: Literal["slow", "fast"] = "slow",
    to: Place | None = None,
    tags: list[str] | None = None,
    idempotency_key: str = "",
) -> str:
    """Order something.

    It is delivered to the door.

    Args:
        item: What to order.
        amount (int): How many of them,
            at least one.
        idempotency_key: never shown

    Returns:
        nothing of interest
    """
    return item


@tool
def write(tx: Any, text: str) -> None:
    """Write a line."""


@step
def look(when: datetime.date, card: Card) -> str:
    """Look something up."""
    return str(when)


@agent
def helper(run: Run, question: str) -> str:
    """Find something out."""
    return question


def test_a_schema_contains_names_types_defaults_and_docstring_texts() -> None:
    schema = tool_use(order).schema

    assert ("order", "Order something.\n\nIt is delivered to the door.") == (
        schema.name,
        schema.description,
    )
    properties = schema.parameters["properties"]
    assert {"type": "string", "description": "What to order."} == properties["item"]
    assert {"type": "integer", "description": "How many of them, at least one."} == properties[
        "amount"
    ]
    assert ("slow", ["fast", "slow"]) == (
        properties["speed"]["default"],
        properties["speed"]["enum"],
    )
    assert "red" == properties["colour"]["default"]
    assert ["item", "amount"] == schema.parameters["required"]
    assert schema.parameters["additionalProperties"] is False
    assert {"Colour", "Place"} == set(schema.parameters["$defs"])


@pytest.mark.parametrize(
    ("fn", "shown"),
    [
        (order, {"item", "amount", "colour", "speed", "to", "tags"}),
        (write, {"text"}),
        (helper, {"question"}),
        (look, {"when", "card"}),
    ],
)
def test_parameters_that_the_runtime_fills_in_are_not_in_the_schema(
    fn: Any, shown: set[str]
) -> None:
    assert shown == set(tool_use(fn).schema.parameters["properties"])


def test_arguments_are_read_as_the_declared_types() -> None:
    read = tool_use(order).read(
        '{"item": "tea", "amount": 2, "colour": "blue", "to": {"street": "Elm"}, "tags": ["x"]}'
    )

    assert {
        "item": "tea",
        "amount": 2,
        "colour": Colour.BLUE,
        "to": Place("Elm"),
        "tags": ["x"],
    } == read
    card = tool_use(look).read('{"when": "2027-01-02", "card": {"holder": "ann"}}')
    assert {"when": datetime.date(2027, 1, 2), "card": Card(holder="ann")} == card


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"item": "tea"', "not valid JSON"),
        ('["tea"]', "must be a JSON object"),
        ('{"item": "tea"}', "'amount' is missing"),
        ('{"item": "tea", "amount": "two"}', "'amount' is wrong"),
        ('{"item": "tea", "amount": 2, "color": "red"}', "'color' is not an argument"),
        (
            '{"item": "tea", "amount": 2, "idempotency_key": "mine"}',
            "'idempotency_key' is not an argument",
        ),
        ('{"item": "tea", "amount": 2, "tags": {"a": 1}}', "'tags' is wrong"),
        ('{"item": "\ud800"}', "not valid JSON"),
    ],
)
def test_errors_of_wrong_arguments_help_the_model(text: str, says: str) -> None:
    with pytest.raises(WrongArguments, match=says):
        tool_use(order).read(text)


@pytest.mark.parametrize(
    ("doc", "name", "says"),
    [
        ("It does.\n\n:param x: the first\n    of two\n:returns: y", "x", "the first of two"),
        ("It does.\n\n:param int x: a number", "x", "a number"),
        (
            "It does.\n\nParameters\n----------\nx : int\n    the first\n    of two\ny\n    other",
            "x",
            "the first of two",
        ),
        ("It does.\n\nArgs:\n    x: see:\n        a: b\n    y: z", "x", "see: a: b"),
    ],
)
def test_docstrings_of_three_styles_are_understood(doc: str, name: str, says: str) -> None:
    about, said = docstring_parts(doc)

    assert ("It does.", says) == (about, said[name])


def plain(x: int) -> int:
    return x


@tool
def many(*names: str) -> None: ...


@tool(name="no spaces please")
def spaced() -> None: ...


@tool
def strange(what: Run) -> None: ...


@pytest.mark.parametrize(
    ("fn", "says"),
    [(plain, "@tool"), (many, "by name"), (spaced, "rename"), (strange, "JSON Schema")],
)
def test_a_function_that_no_model_could_call_is_refused_with_the_reason(fn: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        tool_use(fn, "agent devops")


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidInput, match="two tools named 'order'"):
        tool_uses([order, order], "agent devops")
