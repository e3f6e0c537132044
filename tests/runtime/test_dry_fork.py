"""A dry fork executes one step of a run again, in isolation: tools are mocked and the run stays as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import (
    AgentState,
    AsyncHoldfast,
    AsyncRun,
    Diverged,
    Holdfast,
    InvalidInput,
    LLMAgent,
    NotFound,
    NotMocked,
    NotNow,
    OpenAIModel,
    Retry,
    Run,
    RunFailed,
    agent,
    loop,
    step,
    tool,
)
from holdfast.testing import ScriptedModel
from support.places import Place
from support.runs import waits

executed: list[str] = []
"""What was executed for real."""


@pytest.fixture(autouse=True)
def nothing_executed() -> None:
    executed.clear()


@step
def price(item: str) -> int:
    executed.append("price")
    return len(item) * 10


@tool(risk="external_action", retry=Retry(attempts=3, initial=3600))
def charge(amount: int, idempotency_key: str = "") -> dict[str, str]:
    executed.append("charge")
    return {"id": f"c-{amount}"}


@tool(risk="read")
def look_up(item: str) -> str:
    executed.append("look_up")
    return "in stock"


@tool
def send(text: str) -> str:
    executed.append("send")
    return "m-1"


@agent
def order(run: Run, item: str) -> str:
    run.state.stock = look_up(item)
    run.state.charged = charge(price(item))["id"]
    run.state.mail = send(f"paid {run.state.charged}")
    return run.state.mail


@pytest.fixture
def ordered(place: Place) -> Holdfast:
    hf: Holdfast = place.open(order)
    hf.run(order, id="r", item="lamp")
    executed.clear()
    return hf


def log(hf: Holdfast) -> list[bytes]:
    return [record.hash for row in hf.runs() for record, _ in hf.events(row.id)]


def test_a_step_is_executed_again_with_a_mock_and_the_result_reports_what_it_did(
    ordered: Holdfast,
) -> None:
    dry = ordered.fork("r", step=3, mocks={"charge": {"returns": {"id": "other"}}})

    assert (dry.run_id, dry.step, dry.name, dry.status) == ("r", 3, "charge", "done")
    assert dry.args == {"amount": 40}
    assert dry.result == {"id": "other"}
    assert dry.recorded.status == "done"
    assert dry.before.state == {"stock": "in stock"}
    assert dry.after.state == {"stock": "in stock", "charged": "other"}
    changes = {change.path: (change.before, change.after) for change in dry.changes}
    assert changes["state.charged"] == (None, "other")


def test_nothing_real_executes_and_the_run_stays_as_it_is(ordered: Holdfast) -> None:
    before = log(ordered)

    ordered.fork("r", step=3, mocks={"charge": lambda amount: {"id": f"mock {amount}"}})

    assert executed == []
    assert log(ordered) == before
    assert [row.id for row in ordered.runs()] == ["r"]


@pytest.mark.parametrize(("number", "name"), [(1, "look_up"), (3, "charge"), (4, "send")])
def test_a_tool_without_a_mock_is_refused_by_its_name(
    ordered: Holdfast, number: int, name: str
) -> None:
    with pytest.raises(NotMocked, match=f"^{name} .*nothing was executed"):
        ordered.fork("r", step=number, mocks={})

    assert executed == []


def test_a_plain_step_is_executed_unless_it_is_mocked(ordered: Holdfast) -> None:
    assert ordered.fork("r", step=2, mocks={}).result == 40
    assert executed == ["price"]
    assert ordered.fork("r", step=2, mocks={"price": {"returns": 7}}).result == 7
    assert executed == ["price"]


def test_the_first_step_and_the_last_can_be_executed_again(ordered: Holdfast) -> None:
    first = ordered.fork("r", step=1, mocks={"look_up": {"returns": "sold out"}})
    last = ordered.fork("r", step=4, mocks={"send": {"returns": "m-2"}})

    assert first.after.state == {"stock": "sold out"}
    assert last.args == {"text": "paid c-40"}
    assert last.after.state["mail"] == "m-2"


def test_a_failing_mock_shows_how_the_step_fails_without_waiting_between_attempts(
    ordered: Holdfast,
) -> None:
    dry = ordered.fork("r", step=3, mocks={"charge": {"raises": ConnectionError("refused")}})

    assert dry.status == "failed"
    assert dry.error is not None and dry.error.message == "refused"
    assert len(dry.call.attempts) == 3
    assert "in test_a_failing" not in dry.error.traceback


def test_the_failed_step_of_a_failed_run_can_be_tried_with_another_answer(place: Place) -> None:
    @tool
    def flaky() -> str:
        raise ValueError("broken")

    @agent
    def failing(run: Run) -> str:
        run.state.answer = flaky()
        return run.state.answer

    hf = place.open(failing)
    with pytest.raises(RunFailed):
        hf.run(failing, id="r")

    dry = hf.fork("r", step=1, mocks={"flaky": {"returns": "fixed"}})

    assert (dry.recorded.status, dry.status) == ("failed", "done")
    assert dry.after.state == {"answer": "fixed"}
    assert hf.get("r").status == "failed"


def test_state_can_be_changed_before_the_step(place: Place) -> None:
    @agent
    def telling(run: Run) -> str:
        look_up("lamp")
        return send(f"to {run.state.get('to', 'sam')}")

    hf = place.open(telling)
    hf.run(telling, id="r")

    dry = hf.fork("r", 2, mocks={"send": {"returns": "m-2"}}, state={"to": "ann"})

    assert dry.args == {"text": "to ann"}
    assert dry.before.state == {"to": "ann"}
    with pytest.raises(InvalidInput, match="before its first step"):
        hf.fork("r", 1, mocks={"look_up": {"returns": ""}}, state={"to": "ann"})


def test_an_approval_that_was_given_counts(place: Place) -> None:
    @agent(approve=("external_action",))
    def careful(run: Run) -> str:
        return send("hello")

    hf = place.open(careful)
    waits(hf, careful)
    hf.approve("r", by="ann")
    hf.run(careful, id="r")
    executed.clear()

    assert hf.fork("r", step=1, mocks={"send": {"returns": "m-2"}}).result == "m-2"
    assert executed == []


def test_parallel_calls_next_to_the_step_are_answered_from_the_log(place: Place) -> None:
    @agent
    def mapping(run: Run) -> list[Any]:
        run.state.sent = run.map(send, ["a", "b", "c"])
        return run.state.sent

    hf = place.open(mapping)
    hf.run(mapping, id="r")
    executed.clear()
    second = next(c for c in hf.get("r").calls if c.branch == "0-2")

    dry = hf.fork("r", step=second.step, mocks={"send": {"returns": "other"}})

    assert dry.args == {"text": "b"}
    assert dry.after.state == {} or dry.after.state["sent"] == ["m-1", "other", "m-1"]
    assert executed == []


@tool
async def send_later(text: str) -> str:
    executed.append("send_later")
    await asyncio.sleep(0)
    return f"sent {text}"


def test_a_step_of_an_async_agent_with_tasks(place: Place) -> None:
    @agent
    async def gathering(run: AsyncRun) -> list[str]:
        await send_later("first")
        both = await asyncio.gather(send_later("a"), send_later("b"))
        run.state.both = both
        return [*both, await send_later("last")]

    hf = place.open(gathering)
    hf.run(gathering, id="r")
    executed.clear()
    chosen = next(c for c in hf.get("r").calls if hf.value("r", c.args) == {"text": "b"})

    dry = hf.fork("r", step=chosen.step, mocks={"send_later": {"returns": "mocked"}})

    assert (dry.args, dry.result) == ({"text": "b"}, "mocked")
    assert executed == []


def test_from_an_event_loop_too(ordered: Holdfast) -> None:
    async def forked() -> Any:
        async with AsyncHoldfast(ordered.store, agents=[order]) as hf:
            return await hf.fork("r", step=3, mocks={"charge": {"returns": {"id": "x"}}})

    assert asyncio.run(forked()).result == {"id": "x"}


def test_the_tools_of_a_child_run_are_mocked_too(place: Place) -> None:
    @agent
    def parent(run: Run) -> str:
        return order(item="lamp")

    hf = place.open(parent, order)
    hf.run(parent, id="r")
    executed.clear()

    with pytest.raises(NotMocked, match="look_up has no mock"):
        hf.fork("r", step=1, mocks={})
    mocks = {
        "look_up": {"returns": "much"},
        "charge": {"returns": {"id": "x"}},
        "send": {"returns": "m-9"},
    }
    assert hf.fork("r", step=1, mocks=mocks).result == "m-9"
    assert executed == ["price"]
    assert {row.id for row in hf.runs()} == {"r", "r~1"}


def test_a_step_of_a_loop(place: Place) -> None:
    @loop(max_iterations=5)
    def counting(run: Run, state: AgentState) -> AgentState:
        noted = state.with_note(f"n{state.iteration}", send(f"iteration {state.iteration}"))
        return noted if state.iteration < 2 else noted.to_done("done")

    hf = place.open(counting)
    hf.run(counting, id="r", goal="count")
    executed.clear()

    dry = hf.fork("r", step=2, mocks={"send": {"returns": "mocked"}})

    assert (dry.step, dry.result) == (2, "mocked")
    assert executed == []


def test_a_model_without_a_mock_is_refused_and_not_contacted(place: Place) -> None:
    place.open().run(LLMAgent("writer", model=ScriptedModel("a poem")), id="r", goal="write")
    real = LLMAgent(
        "writer", model=OpenAIModel("some-model", api_key="none", base_url="http://127.0.0.1:9")
    )
    hf = place.open(real)

    with pytest.raises(NotMocked, match="model has no mock"):
        hf.fork("r", step=1, mocks={})
    dry = hf.fork("r", step=1, mocks={"model": {"returns": "a song"}})

    assert dry.result["text"] == "a song"


def test_a_scripted_model_needs_no_mock(place: Place) -> None:
    writer = LLMAgent("writer", model=ScriptedModel("a poem"))
    hf = place.open(writer)
    hf.run(writer, id="r", goal="write")

    assert hf.fork("r", step=1, mocks={}).result["text"] == "a poem"


def test_a_step_that_is_declared_to_contact_something_needs_a_mock(place: Place) -> None:
    @step(outside=True)
    def draft() -> str:
        executed.append("draft")
        return "text"

    @agent
    def drafting(run: Run) -> str:
        return draft()

    hf = place.open(drafting)
    hf.run(drafting, id="r")

    with pytest.raises(NotMocked, match="draft has no mock"):
        hf.fork("r", step=1, mocks={})
    assert executed == ["draft"]


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda hf: hf.fork("r", step=9, mocks={}), NotFound, "no step 9"),
        (lambda hf: hf.fork("r", step=0, mocks={}), NotFound, "no step 0"),
        (lambda hf: hf.fork("r", step=3, mocks={}, id="x"), InvalidInput, "creates no run"),
        (lambda hf: hf.fork("r", step=3, mocks=["charge"]), InvalidInput, "must be a dict"),
        (lambda hf: hf.fork("r", step=3, mocks={"charge": 1}), InvalidInput, "the mock of charge"),
        (lambda hf: hf.fork("gone", step=3, mocks={}), NotFound, "gone"),
    ],
)
def test_what_cannot_be_forked_is_refused(
    ordered: Holdfast, call: Callable[[Holdfast], Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        call(ordered)


def test_changed_code_diverges_as_on_a_resume(ordered: Holdfast, place: Place) -> None:
    @agent(name="order")
    def changed(run: Run, item: str) -> str:
        return send(item)

    with pytest.raises(Diverged):
        place.open(changed).fork("r", step=3, mocks={"charge": {"returns": {}}})


def test_a_step_before_a_rerun_is_refused(place: Place) -> None:
    hf = place.open(order)
    hf.run(order, id="r", item="lamp")
    hf.rerun("r")

    with pytest.raises(NotNow, match="before the run was started over"):
        hf.fork("r", step=3, mocks={"charge": {"returns": {}}})


def test_a_deadline_that_has_passed_since_does_not_count(place: Place, clock: Any) -> None:
    @agent(deadline=60)
    def urgent(run: Run) -> str:
        return send("quick")

    hf = place.open(urgent)
    hf.run(urgent, id="r")
    clock.advance(3600)

    assert hf.fork("r", step=1, mocks={"send": {"returns": "again"}}).result == "again"
