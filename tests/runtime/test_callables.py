"""What can be declared as a step, a tool or an agent: it works, or is refused with the reason where it is declared."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest
from msgspec import Meta

from holdfast import (
    AgentState,
    AsyncRun,
    InvalidInput,
    LLMAgent,
    Run,
    RunFailed,
    RunWaiting,
    agent,
    loop,
    step,
    tool,
)
from holdfast.agents.models import ScriptedModel, call
from holdfast.agents.schemas import tool_use


class Shop:
    """Tools as methods: what an instance holds is not recorded."""

    name = "class"

    def __init__(self, name: str) -> None:
        self.name, self.paid = name, []

    @tool
    def pay(self, cents: Annotated[int, Meta(gt=0)], idempotency_key: str = "") -> str:
        """Pay someone.

        Args:
            cents: How much.
        """
        self.paid.append((cents, idempotency_key))
        return f"{self.name} paid {cents}"

    @step
    async def look(self, number: int) -> str:
        await asyncio.sleep(0)
        return f"{self.name} saw {number}"

    @classmethod
    @step
    def kind(cls, number: int) -> str:
        return f"{cls.name} {number}"

    @staticmethod
    @step
    def double(number: int) -> int:
        return 2 * number

    paid: list[tuple[int, str]]


def test_a_method_is_a_tool_without_its_self(home: Any) -> None:
    shop = Shop("north")

    @agent
    def main(run: Run) -> list[Any]:
        return [shop.pay(5), shop.kind(1), shop.double(2), Shop.kind(3)]

    hf = home.open(main)
    assert ["north paid 5", "class 1", 4, "class 3"] == hf.run(main, id="r")
    first = hf.get("r").calls[0]
    assert b'{"cents":5}' == bytes(first.args.json)
    assert [(5, first.key)] == shop.paid
    assert ["pay", "kind", "double", "kind"] == [c.name for c in hf.get("r").calls]
    assert hf.replay("r").reached_end


def test_another_instance_answers_from_the_log(home: Any) -> None:
    def made(shop: Shop) -> Any:
        def main(run: Run) -> str:
            said = shop.pay(5)
            run.wait_for("go")
            return said

        return agent(main)

    first, second = Shop("first"), Shop("second")
    with pytest.raises(RunWaiting):
        home.open().run(made(first), id="r")
    hf = home.open()
    hf.signal("r", "go")
    assert "first paid 5" == hf.run(made(second), id="r")
    assert [] == second.paid


def test_a_constraint_holds_for_a_method(home: Any) -> None:
    shop = Shop("x")

    @agent
    def main(run: Run) -> str:
        return shop.pay(-5)

    with pytest.raises(RunFailed, match="'cents' is wrong"):
        home.open(main).run(main, id="r")
    assert [] == shop.paid


def test_an_async_method_is_awaited(home: Any) -> None:
    shop = Shop("x")

    @agent
    async def main(run: AsyncRun) -> list[str]:
        return await asyncio.gather(shop.look(1), shop.look(2))

    assert ["x saw 1", "x saw 2"] == home.open(main).run(main, id="r")


def test_a_model_is_given_a_bound_method(home: Any) -> None:
    shop = Shop("x")
    use = tool_use(shop.pay)
    assert "Pay someone." == use.schema.description
    assert ["cents"] == list(use.schema.parameters["properties"])
    main = LLMAgent("m", model=ScriptedModel(call("pay", cents=5), "Done."), tools=[shop.pay])

    assert "Done." == home.open(main).run(main, "Go", id="r")
    assert 1 == len(shop.paid)
    with pytest.raises(InvalidInput, match="pay is a method"):
        LLMAgent("m", model=ScriptedModel("x"), tools=[Shop.pay])


def test_outside_a_run_a_method_is_a_plain_call() -> None:
    shop = Shop("x")
    assert "x paid 5" == shop.pay(5)
    assert "x saw 1" == asyncio.run(shop.look(1))


def pay(cents: int, currency: str, idempotency_key: str = "") -> str:
    """Pay in a currency."""
    return f"{cents} {currency}"


class Adder:
    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, number: int) -> int:
        """Add a number."""
        return number + self.by


class AsyncAdder(Adder):
    async def __call__(self, number: int) -> int:  # type: ignore[override]
        return number + self.by


def test_partials_bound_methods_and_callable_objects_are_declared_like_functions(home: Any) -> None:
    in_euros = tool(functools.partial(pay, currency="EUR"))
    add = step(name="add")(Adder(2))
    plain = step(Adder(5).__call__)

    @agent
    def main(run: Run) -> list[Any]:
        return [in_euros(5), add(1), plain(1)]

    hf = home.open(main)
    assert ["5 EUR", 3, 6] == hf.run(main, id="r")
    calls = hf.get("r").calls
    assert ["pay", "add", "__call__"] == [c.name for c in calls]
    assert b'{"cents":5,"currency":"EUR"}' == bytes(calls[0].args.json)
    assert "Pay in a currency." == tool_use(in_euros).schema.description
    assert "Add a number." == tool_use(add).schema.description


def test_an_async_callable_object_is_awaited(home: Any) -> None:
    add = step(name="add")(AsyncAdder(2))

    @agent
    async def main(run: AsyncRun) -> int:
        return await add(1)

    assert 3 == home.open(main).run(main, id="r")


def numbers() -> Iterator[int]:
    yield 1


async def async_numbers() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("declare", [step, tool, step(timeout=3), agent])
@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (classmethod(pay), "put @classmethod above"),
        (staticmethod(pay), "put @staticmethod above"),
        (property(pay), "property"),
        (Shop, "Shop is a class"),
        (numbers, "numbers is a generator"),
        (async_numbers, "async_numbers is a generator"),
        (functools.partial(numbers), "numbers is a generator"),
        (Adder(1), "name="),
        (5, "takes a function, not 5"),
        (max, "parameters"),
    ],
)
def test_what_cannot_be_declared_is_refused_with_the_reason(
    declare: Any, fn: Any, says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        declare(fn)


def test_a_method_cannot_be_an_agent() -> None:
    """A worker finds an agent by its name; it has no instance to call it on."""
    with pytest.raises(InvalidInput, match="main is a method"):

        class Wrong:
            @agent
            def main(self, run: Run) -> None: ...


# ── async in plain code ──────────────────────────────────────────────────────────────────────


@step
async def fetch(number: int) -> int:
    await asyncio.sleep(0)
    return number


def test_an_async_step_is_still_a_coroutine_function() -> None:
    assert asyncio.iscoroutinefunction(fetch)
    assert inspect.iscoroutinefunction(fetch)


def forgets(run: Run) -> str:
    fetch(1)
    return "done"


def returns(run: Run) -> Any:
    return fetch(1)


def stores(run: Run) -> None:
    run.state.x = fetch(1)


def passes(run: Run) -> None:
    use(fetch(1))


@step
def use(value: Any) -> None: ...


@pytest.mark.parametrize("fn", [forgets, returns, stores, passes])
def test_an_async_step_that_is_not_awaited_fails_the_run_with_advice(fn: Any, home: Any) -> None:
    with pytest.raises(RunFailed, match=r"fetch is async and was not awaited.*async def"):
        home.open().run(agent(fn), id="r")


def test_the_same_holds_for_an_iteration_of_a_loop(home: Any) -> None:
    @loop(max_iterations=3)
    def main(run: Run, state: AgentState) -> AgentState:
        fetch(1)
        return state.to_executing().to_done()

    with pytest.raises(RunFailed, match="fetch is async and was not awaited"):
        home.open(main).run(main, "Go", id="r")


def test_a_plain_agent_may_run_a_loop_of_its_own(home: Any) -> None:
    @agent
    def main(run: Run) -> int:
        return asyncio.run(fetch(1)) + asyncio.run(fetch(2))

    assert 3 == home.open(main).run(main, id="r")


# ── names of parameters, and input by position ───────────────────────────────────────────────


@pytest.mark.parametrize("name", ["id", "wait", "priority"])
def test_a_parameter_with_the_name_of_an_option_of_hf_run_is_refused(name: str) -> None:
    def main(run: Run, **_: Any) -> None: ...

    first = inspect.Parameter("run", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    second = inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    main.__signature__ = inspect.Signature([first, second])  # type: ignore[attr-defined]
    with pytest.raises(InvalidInput, match=rf"`{name}`.*rename it.*\(run, {name}, /\)"):
        agent(main)


def test_by_position_it_may_have_that_name(home: Any) -> None:
    @agent
    def main(run: Run, id: str, wait: int, /) -> str:
        return f"{id} {wait}"

    @agent
    def parent(run: Run) -> str:
        return main("child", 5)

    hf = home.open(main, parent)
    assert "order 3" == hf.run(main, "order", 3, id="r-1")
    assert "child 5" == hf.run(parent, id="r-2")


@pytest.mark.parametrize(
    ("args", "given", "says"),
    [
        (("a", 1, 2), {}, "too many positional arguments"),
        ((), {"name": "a", "cuont": 3}, "cuont"),
        ((), {}, "missing a required argument: 'name'"),
        (("a",), {"name": "b"}, "multiple values"),
    ],
)
def test_an_input_error_lists_the_agents_parameters(
    args: Any, given: Any, says: str, home: Any
) -> None:
    @agent
    def main(run: Run, name: str, count: int = 0) -> str:
        return name * count

    hf = home.open(main)
    with pytest.raises(InvalidInput, match=says) as wrong:
        hf.run(main, *args, id="r", **given)
    assert "It takes (name: str, count: int = 0)" in str(wrong.value).replace("'", "")
    assert "aa" == hf.run(main, "a", 2, id="r")
