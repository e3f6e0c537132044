"""A parameter's annotation is part of the model's schema, and is checked before anything happens."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NewType, TypedDict

import annotated_types
import msgspec
import pydantic
import pytest
from msgspec import Meta
from pydantic import Field

from holdfast import (
    CallFailed,
    Holdfast,
    InvalidInput,
    LLMAgent,
    Run,
    RunFailed,
    agent,
    loop,
    step,
    tool,
)
from holdfast.agents.models import ScriptedModel, call
from holdfast.agents.schemas import tool_use
from holdfast.core import events as e
from holdfast.core.agent_state import AgentState
from holdfast.runtime.declare.specs import spec_of

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForCheckers

paid: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    paid.clear()


@dataclasses.dataclass
class Order:
    amount: Annotated[int, Field(gt=0)]


class Sum(msgspec.Struct):
    amount: Annotated[int, Meta(gt=0)]


def _positive(amount: int) -> int:
    if amount <= 0:
        raise ValueError("must be positive")
    return amount


def by_field(amount: Annotated[int, Field(gt=0, le=100)]) -> None:
    paid.append(amount)


def by_meta(amount: Annotated[int, Meta(gt=0, le=100)]) -> None:
    paid.append(amount)


def by_annotated_types(
    amount: Annotated[int, annotated_types.Gt(0), annotated_types.Le(100)],
) -> None:
    paid.append(amount)


def by_validator(amount: Annotated[int, pydantic.AfterValidator(_positive)]) -> None:
    paid.append(amount)


def optional(amount: Annotated[int, Field(gt=0)] | None) -> None:
    paid.append(amount)


def inside_a_list(amount: list[Annotated[int, Meta(gt=0)]]) -> None:
    paid.append(amount)


def inside_a_dataclass(amount: Order) -> None:
    paid.append(amount)


def inside_a_struct(amount: Sum) -> None:
    paid.append(amount)


Amount = NewType("Amount", Annotated[int, Field(gt=0, le=100)])  # type: ignore[valid-newtype]
Debt = NewType("Debt", Annotated[int, Meta(gt=0, le=100)])  # type: ignore[valid-newtype]


def by_new_type(amount: Amount) -> None:
    paid.append(amount)


def by_new_type_of_meta(amount: Debt) -> None:
    paid.append(amount)


def by_meta_around_a_field(
    amount: Annotated[Annotated[int, Field(le=100)], Meta(gt=0)],
) -> None:
    paid.append(amount)


def by_field_around_meta(
    amount: Annotated[Annotated[int, Meta(le=100)], Field(gt=0)],
) -> None:
    paid.append(amount)


class Bill(TypedDict):
    amount: Annotated[int, Field(gt=0)]


class Row(NamedTuple):
    amount: Annotated[int, Meta(gt=0)]


def inside_a_typed_dict(amount: list[Bill]) -> None:
    paid.append(amount)


def inside_a_named_tuple(amount: Row | None) -> None:
    paid.append(amount)


def inside_a_new_type(amount: dict[str, Amount]) -> None:
    paid.append(amount)


CONSTRAINED = [
    by_field,
    by_meta,
    by_annotated_types,
    by_new_type,
    by_new_type_of_meta,
    by_meta_around_a_field,
    by_field_around_meta,
    by_validator,
    optional,
]
AMOUNT = -5_000_000
NESTED: list[tuple[Any, Any]] = [
    (inside_a_list, [1, AMOUNT]),
    (inside_a_dataclass, Order(AMOUNT)),
    (inside_a_struct, Sum(AMOUNT)),
    (inside_a_typed_dict, [{"amount": AMOUNT}]),
    (inside_a_named_tuple, Row(AMOUNT)),
    (inside_a_new_type, {"a": AMOUNT}),
]
WRONG = [*((fn, AMOUNT) for fn in CONSTRAINED), *NESTED]


@pytest.mark.parametrize("declare", [tool, step, tool(risk="read", redact=["amount"])])
@pytest.mark.parametrize(("fn", "amount"), WRONG, ids=lambda x: getattr(x, "__name__", ""))
def test_a_constraint_is_checked_before_the_call(
    fn: Any, amount: Any, declare: Any, home: Any
) -> None:
    pay = declare(fn)

    @agent
    def main(run: Run) -> None:
        pay(amount)

    hf = home.open(main)
    with pytest.raises(
        RunFailed, match=f"{fn.__name__} was not called: 'amount' is wrong"
    ) as failed:
        hf.run(main, id="r")

    assert "InvalidInput" == failed.value.error_type
    assert "5000000" not in str(failed.value)  # it may be a secret
    assert [] == paid
    assert ["failed"] == [c.status for c in hf.get("r").calls]
    assert not [x for _, x in hf.events("r") if isinstance(x, e.CallStarted)]


@pytest.mark.parametrize("fn", CONSTRAINED)
def test_a_value_that_fits_the_constraint_is_passed_on_unchanged(fn: Any, home: Any) -> None:
    pay = tool(fn)

    @agent
    def main(run: Run) -> None:
        pay(amount=50)

    home.open(main).run(main, id="r")
    assert [50] == paid


@pytest.mark.parametrize("fn", CONSTRAINED[:8])
def test_a_model_gets_the_validation_error_and_may_try_again(fn: Any, home: Any) -> None:
    model = ScriptedModel(call(fn.__name__, amount=AMOUNT), call(fn.__name__, amount=7), "Paid.")
    main = LLMAgent("clerk", model=model, tools=[tool(fn)])
    hf = home.open(main)

    assert "Paid." == hf.run(main, "Pay", id="r")
    assert [7] == paid
    assert "'amount' is wrong" in hf.get("r").messages[2].content


@pytest.mark.parametrize("fn", CONSTRAINED[:7])
def test_a_constraint_is_in_the_schema(fn: Any) -> None:
    shown = tool_use(tool(fn)).schema.parameters["properties"]["amount"]
    assert {"type": "integer", "exclusiveMinimum": 0, "maximum": 100} == shown


def test_the_input_of_an_agent_is_checked_before_there_is_a_run(home: Any) -> None:
    @agent
    def buy(run: Run, amount: Annotated[int, Field(gt=0)]) -> int:
        return amount

    hf = home.open(buy)
    with pytest.raises(InvalidInput, match=r"at \$\.amount, .*greater than 0"):
        hf.run(buy, id="r", amount=-1)
    assert [] == hf.runs()
    assert 5 == hf.run(buy, id="r", amount=5)


def test_a_description_reaches_the_schema_from_wherever_it_is_written() -> None:
    @tool
    def pay(
        a: Annotated[int, Field(description="by pydantic")],
        b: Annotated[int, Meta(description="by msgspec")],
        c: Annotated[int, "by a plain text"],
        d: int,
        e: Annotated[int, "in the annotation"],
    ) -> None:
        """Pay.

        Args:
            d: by the docstring
            e: in the docstring
        """

    properties = tool_use(pay).schema.parameters["properties"]
    assert {
        "a": "by pydantic",
        "b": "by msgspec",
        "c": "by a plain text",
        "d": "by the docstring",
        "e": "in the annotation",
    } == {name: schema["description"] for name, schema in properties.items()}


def test_a_recorded_call_is_returned_although_its_constraint_is_narrower_now(home: Any) -> None:
    """What happened, happened; only a new call is checked."""

    def made(limit: int) -> Any:
        def pay(amount: Any) -> str:
            paid.append(amount)
            return "paid"

        pay.__annotations__["amount"] = Annotated[int, Meta(le=limit)]
        declared = tool(pay)

        def main(run: Run) -> str:
            first: str = declared(amount=50)
            run.wait_for("go")
            return first

        return agent(main)

    wide, narrow = made(100), made(10)
    hf = home.open(wide)
    with pytest.raises(Exception, match="go"):
        hf.run(wide, id="r")
    hf.signal("r", "go")

    assert "paid" == home.open(narrow).run(narrow, id="r")
    assert [50] == paid


def test_code_that_catches_the_error_continues_and_replays(home: Any) -> None:
    pay = tool(by_field)

    @step
    def note(text: str) -> str:
        return text

    @agent
    def main(run: Run) -> str:
        try:
            pay(AMOUNT)
        except CallFailed:
            note("too much")
        return note("done")

    hf: Holdfast = home.open(main)
    assert "done" == hf.run(main, id="r")
    assert "done" == hf.replay("r").result
    assert ["by_field", "note", "note"] == [c.name for c in hf.get("r").calls]


def test_resuming_checks_again_and_calls_nothing(home: Any) -> None:
    pay = tool(by_field)

    @agent
    def main(run: Run) -> None:
        pay(AMOUNT)

    hf = home.open(main)
    with pytest.raises(RunFailed):
        hf.run(main, id="r")
    with pytest.raises(RunFailed, match="was not called"):
        hf.resume("r")
    assert [] == paid


# ── resolving ────────────────────────────────────────────────────────────────────────────────


def test_an_annotation_that_cannot_be_resolved_is_refused_where_it_is_declared() -> None:
    with pytest.raises(InvalidInput, match=r"pay: .*amount.*'OnlyForCheckers'.*TYPE_CHECKING"):

        @tool
        def pay(to: str, amount: OnlyForCheckers) -> None: ...

    with pytest.raises(InvalidInput, match="result"):

        @step
        def total() -> OnlyForCheckers: ...

    with pytest.raises(InvalidInput, match="amount"):

        @agent
        def buy(run: Run, amount: OnlyForCheckers) -> None: ...

    with pytest.raises(InvalidInput, match="amount"):

        @loop(max_iterations=3)
        def look(run: Run, state: AgentState, amount: OnlyForCheckers) -> AgentState: ...


def test_an_annotation_of_what_the_runtime_fills_in_may_be_for_type_checkers_only() -> None:
    @tool
    def write(tx: OnlyForCheckers, amount: int) -> None: ...

    @agent
    def main(run: OnlyForCheckers, amount: int) -> None: ...

    for fn in (write, main):
        spec = spec_of(fn)
        assert spec is not None
        assert int is spec.params.types["amount"]


def test_types_that_are_local_to_a_function_are_found() -> None:
    @dataclasses.dataclass
    class Local:
        amount: int

    class Shop:
        @dataclasses.dataclass
        class Item:
            name: str

        @staticmethod
        @step
        def sell(item: Item, to: Local) -> Local:
            return to

    spec = spec_of(Shop.sell)
    assert spec is not None
    assert (Shop.Item, Local) == (spec.params.types["item"], spec.params.types["to"])
    assert Local is spec.result.declared


def test_a_constraint_written_as_a_default_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"write amount: Annotated\[…, Field"):

        @tool
        def pay(amount: int = Field(gt=0)) -> None: ...


def test_the_command_line_reads_an_annotated_text_as_text(tmp_path: Any) -> None:
    from holdfast.cli.load import converted

    assert "12" == converted("12", Annotated[str, Field(max_length=3)])
    assert 12 == converted("12", Annotated[int, Field(gt=0)])
    assert json.loads("12") == 12
