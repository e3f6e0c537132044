"""What a run that stopped says about how to continue: each piece of advice works as printed."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Approval,
    AsyncHoldfast,
    AsyncRun,
    Diverged,
    Holdfast,
    InvalidInput,
    NotFound,
    Question,
    Run,
    agent,
    step,
    tool,
)
from support.runs import waits


@tool(risk="external_action")
def pay(amount: int) -> int:
    return amount


@tool(risk="external_action")
async def pay_later(amount: int) -> int:
    return amount


@agent(approve=("external_action",))
def two_payments(run: Run) -> list[int]:
    return run.map(pay, [1, 2])


@agent(approve=("external_action",))
async def two_payments_async(run: AsyncRun) -> list[int]:
    return await run.map(pay_later, [1, 2])


@agent
def either(run: Run) -> str:
    came = run.wait_any(Approval("Send?"), Approval("Keep?"), Question("Why?"))
    return "" if came is None else came[0]


@agent
def asks_once(run: Run) -> bool:
    return run.approve("Send?")


def commands(how: str) -> list[str]:
    """The calls of `hf` in a piece of advice, one per open request."""
    return re.findall(r"hf\.(?:approve|answer)\([^)]*\)", how)


@pytest.mark.parametrize("paying", [two_payments, two_payments_async], ids=["sync", "async"])
def test_of_two_approvals_each_is_named_by_its_id_and_the_advice_works(
    home: Any, paying: Any
) -> None:
    hf = home.open()
    waiting = waits(hf, paying)
    ids = [wait.id for wait in hf.get("r").waits]

    said = commands(waiting.how)

    assert said == [f"hf.approve('r', {request!r})" for request in ids]
    for line in said:
        eval(line, {"hf": hf})
    assert home.open().run(paying, id="r") == [1, 2]


def test_requests_of_one_choice_are_named_by_their_ids(home: Any) -> None:
    hf = home.open()
    waiting = waits(hf, either)

    first, second, question = commands(waiting.how)

    assert (first, second) == ("hf.approve('r', '#0')", "hf.approve('r', '#1')")
    assert question == "hf.answer('r', VALUE)"  # the only question: it needs no id
    eval(second, {"hf": hf})
    assert home.open().run(either, id="r") == "Keep?"


def test_one_request_needs_no_id(home: Any) -> None:
    assert waits(home.open(), asks_once).how == "hf.approve('r'), or hf.reject('r')"


def test_a_decision_without_an_id_among_several_requests_lists_the_calls_that_work(
    home: Any,
) -> None:
    hf = home.open()
    waits(hf, two_payments)

    with pytest.raises(InvalidInput, match="2 approvals") as refused:
        hf.approve("r")

    for line in commands(str(refused.value)):
        eval(line, {"hf": hf})
    assert home.open().run(two_payments, id="r") == [1, 2]


# ── after a divergence ───────────────────────────────────────────────────────────────────────


@step
def first() -> int:
    return 1


@step
def added() -> int:
    return 2


def test_the_state_of_a_diverged_run_contains_both_sides_until_it_is_resumed(home: Any) -> None:
    @agent(name="changing")
    def before(run: Run) -> Any:
        first()
        return run.wait_for("payment")

    @agent(name="changing")
    def after(run: Run) -> Any:
        first()
        added()
        return run.wait_for("payment")

    waits(home.open(), before)
    with pytest.raises(Diverged):
        home.open().run(after, id="r")

    hf = home.open(before)
    diverged = hf.get("r").diverged
    assert diverged is not None
    assert diverged.recorded == "wait for signal 'payment'"
    assert diverged.attempted == "added({})"
    assert diverged.adds
    waits(hf, before)
    assert hf.get("r").diverged is None


# ── resume, paths, the beginning ─────────────────────────────────────────────────────────────


@agent
def adding(run: Run, x: int) -> int:
    run.state.x = x
    run.state.y = first()
    return x + run.state.y


def test_resume_of_a_completed_run_returns_its_result_without_the_code(home: Any) -> None:
    home.open().run(adding, id="r", x=1)

    assert Holdfast(home.store()).resume("r") == 2


def test_resume_of_a_completed_run_needs_no_code_in_async_either(home: Any) -> None:
    home.open().run(adding, id="r", x=1)

    async def resumed() -> Any:
        async with AsyncHoldfast(home.store()) as hf:
            return await hf.resume("r")

    assert asyncio.run(resumed()) == 2


def test_resume_of_an_unfinished_run_without_the_code_names_the_agent(home: Any) -> None:
    waits(home.open(), asks_once)

    with pytest.raises(NotFound, match="asks_once"):
        home.open().resume("r")


@pytest.mark.parametrize("url", ["~/x.db", "sqlite:///~/x.db", Path("~/x.db")], ids=str)
def test_a_store_below_the_home_folder_is_found_by_its_tilde(
    url: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "at home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "at home").mkdir()

    with Holdfast(url) as hf:
        assert hf.run(adding, id="r", x=1) == 2

    assert (tmp_path / "at home" / "x.db").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["at home"]


def test_step_1_can_be_compared_with_the_beginning(home: Any) -> None:
    hf = home.open()
    hf.run(adding, id="r", x=5)

    assert (hf.at("r", 0).state, hf.at("r", 0).steps) == ({"x": 5}, 0)
    assert hf.at("r", 0, "before").state == {}
    assert ("state.y", None, 1) in [(c.path, c.before, c.after) for c in hf.diff("r", 0, 1)]


def test_the_beginning_of_a_run_that_a_worker_claimed_is_the_same(home: Any) -> None:
    hf = home.open(adding)
    hf.start(adding, id="r", x=5)
    hf.worker().run(once=True)

    assert hf.at("r", 0).state == {"x": 5}


def test_a_run_without_steps_has_a_beginning_and_no_step_before_it(home: Any) -> None:
    hf = home.open()
    waits(hf, asks_once)

    assert hf.at("r", 0).steps == 0
    with pytest.raises(NotFound, match="no step -1"):
        hf.at("r", -1)
