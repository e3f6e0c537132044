"""A person approves a call with other arguments than those it was asked for: those are what is executed, recorded,
keyed and undone, and what the code asked for is what a replay is compared with."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import (
    Diverged,
    InvalidInput,
    Retry,
    Run,
    RunFailed,
    RunWaiting,
    agent,
    step,
    tool,
    views,
)
from holdfast.core import events as e
from holdfast.core.values import digest
from support.runs import of_kind, waits

GATE = ("external_action",)


class Desk:
    """An agent that refunds an order after an approval, and what its tool was called with."""

    def __init__(self, **options: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.asks_for = 500

        @tool(name="refund", **options)
        def refund(order: str, amount: int, idempotency_key: str = "") -> dict[str, Any]:
            self.calls.append((order, amount, idempotency_key))
            return {"refunded": amount}

        @agent(approve=GATE, name="desk")
        def desk(run: Run) -> Any:
            run.state.answer = refund("A1", self.asks_for)
            return run.state.answer["refunded"]

        self.agent = desk


def test_the_tool_is_called_with_the_edited_arguments_under_a_key_of_theirs(home: Any) -> None:
    desk = Desk()
    hf = home.open()
    waits(hf, desk.agent)

    hf.approve("r", args={"order": "A1", "amount": 50}, by="ann", why="half of it")

    assert home.open().run(desk.agent, id="r") == 50
    key = "r:1:refund:" + digest(b'{"amount":50,"order":"A1"}')
    assert desk.calls == [("A1", 50, key)]
    (intent,) = of_kind(hf, "r", e.CallStarted)
    assert (intent.key, views.to_plain(intent.args)) == (key, {"order": "A1", "amount": 50})
    (decision,) = of_kind(hf, "r", e.ApprovalDecided)
    assert decision.digest == digest(b'{"amount":500,"order":"A1"}')
    assert [line.text for line in hf.get("r").lines] == [
        "approved with edited arguments by ann: half of it"
    ]
    said = 'approved, with edited arguments order="A1" amount=50 by ann: half of it'
    assert said in [moment.text for moment in hf.timeline("r")]


def test_a_replay_and_a_fork_take_the_recorded_result(home: Any) -> None:
    desk = Desk()
    hf = home.open(desk.agent)
    waits(hf, desk.agent)
    hf.approve("r", args={"order": "A1", "amount": 50})
    hf.run(desk.agent, id="r")

    assert hf.replay("r").result == 50
    fork = hf.fork("r", 1).id
    assert hf.run(desk.agent, id=fork) == 50
    assert len(desk.calls) == 1


def test_code_that_makes_another_call_than_the_one_shown_diverges(home: Any) -> None:
    """Also if it asks for what the person made of it."""
    desk = Desk()
    hf = home.open()
    waits(hf, desk.agent)
    hf.approve("r", args={"order": "A1", "amount": 50})

    desk.asks_for = 50
    with pytest.raises(Diverged):
        home.open().run(desk.agent, id="r")

    assert desk.calls == []


def test_arguments_that_were_not_changed_are_not_an_edit(home: Any) -> None:
    desk = Desk()
    hf = home.open()
    waits(hf, desk.agent)

    hf.approve("r", args={"order": "A1", "amount": 500})

    (decision,) = of_kind(hf, "r", e.ApprovalDecided)
    assert decision.args is None


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"amount": 50}, "exactly these"),
        ({"order": "A1", "amount": 50, "idempotency_key": "mine"}, "exactly these"),
        ({"order": "A1", "amount": "50"}, "'amount' must be a number, not a string"),
        ({"order": ["A1"], "amount": 50}, "'order' must be a string, not a list"),
    ],
)
def test_an_edit_that_cannot_fit_is_refused_at_once(home: Any, args: Any, why: str) -> None:
    desk = Desk()
    hf = home.open()
    waits(hf, desk.agent)

    with pytest.raises(InvalidInput, match=why):
        hf.approve("r", args=args)

    assert of_kind(hf, "r", e.ApprovalDecided) == []
    hf.approve("r")
    assert hf.run(desk.agent, id="r") == 500


def test_an_edit_that_the_tool_does_not_accept_fails_the_call_and_a_resume_asks_again(
    home: Any,
) -> None:
    """A half is a number, as was shown; the parameter is a whole one."""
    desk = Desk()
    hf = home.open(desk.agent)
    waits(hf, desk.agent)
    hf.approve("r", args={"order": "A1", "amount": 0.5}, by="ann")

    with pytest.raises(
        RunFailed, match=r"refund was not called: what ann gave does not fit: at \$.amount"
    ):
        hf.run(desk.agent, id="r")
    assert desk.calls == []
    with pytest.raises(RunWaiting, match="approval of refund"):
        hf.resume("r")
    hf.approve("r", args={"order": "A1", "amount": 5})

    assert hf.run(desk.agent, id="r") == 5


def test_only_a_call_can_be_edited(home: Any) -> None:
    @agent
    def asks(run: Run) -> Any:
        return run.approve("Now?", show={"a": 1})

    hf = home.open()
    waits(hf, asks)

    with pytest.raises(InvalidInput, match="only the arguments of a tool call can be edited"):
        hf.approve("r", args={"a": 2})


def test_a_secret_reaches_the_tool_and_cannot_be_edited(home: Any) -> None:
    seen: list[tuple[str, str]] = []

    @tool(redact=("token",))
    def post(text: str, token: str) -> str:
        seen.append((text, token))
        return "ok"

    @agent(approve=GATE)
    def main(run: Run) -> Any:
        return post("hi", "s3cret-of-mine")

    hf = home.open()
    waits(hf, main)
    with pytest.raises(InvalidInput, match="'token' is redacted"):
        hf.approve("r", args={"text": "hi", "token": "other"})
    hf.approve("r", args={"text": "hello", "token": "[redacted]"})

    assert hf.run(main, id="r") == "ok"
    assert seen == [("hello", "s3cret-of-mine")]
    assert "s3cret-of-mine" not in "".join(hf.export("r"))


@pytest.mark.parametrize("moment", ["before refund", "after refund"])
def test_a_crash_calls_it_again_with_the_same_key_and_bytes(home: Any, moment: str) -> None:
    desk = Desk()
    hf = home.open()
    waits(hf, desk.agent)
    hf.approve("r", args={"order": "A1", "amount": 50})
    home.crash(desk.agent, "r", moment)

    assert home.open().run(desk.agent, id="r") == 50
    assert len(set(desk.calls)) == 1


def test_edited_arguments_that_new_code_does_not_accept_stop_a_started_call(home: Any) -> None:
    """It may have happened, so it cannot be recorded as not made."""

    def made(kind: type) -> Any:
        @tool
        def refund(amount: Any, idempotency_key: str = "") -> str:
            return f"refunded {amount}"

        spec = refund.__holdfast__
        spec.params.types["amount"] = kind

        @agent(approve=GATE, name="desk")
        def desk(run: Run) -> Any:
            return refund(500)

        return desk

    hf = home.open()
    waits(hf, made(float))
    hf.approve("r", args={"amount": 0.5})
    home.crash(made(float), "r", "after refund")

    with pytest.raises(Diverged, match="does not fit"):
        home.open().run(made(int), id="r")


def test_a_call_that_failed_is_retried_with_the_edited_arguments(home: Any) -> None:
    tried: list[tuple[int, str]] = []

    @tool(retry=Retry(attempts=2, initial=0))
    def refund(amount: int, idempotency_key: str = "") -> int:
        tried.append((amount, idempotency_key))
        if len(tried) < 4:
            raise ValueError("not now")
        return amount

    @agent(approve=GATE)
    def main(run: Run) -> Any:
        return refund(500)

    hf = home.open(main)
    waits(hf, main)
    hf.approve("r", args={"amount": 50})
    with pytest.raises(RunFailed, match="not now"):
        hf.run(main, id="r")

    assert hf.resume("r") == 50
    assert len(tried) == 4 and len(set(tried)) == 1


def test_an_undo_is_given_what_was_done(home: Any) -> None:
    undone: list[int] = []

    def take_back(amount: int) -> None:
        undone.append(amount)

    @tool(undo=take_back)
    def refund(amount: int) -> int:
        return amount

    @agent(approve=GATE, on_failure="undo")
    def main(run: Run) -> Any:
        refund(500)
        raise ValueError("no more")

    hf = home.open()
    waits(hf, main)
    hf.approve("r", args={"amount": 50})

    with pytest.raises(RunFailed, match="no more"):
        hf.run(main, id="r")
    assert undone == [50]


def test_a_step_without_an_intent_is_edited_too(home: Any) -> None:
    """Its receipt keeps what was executed; a replay compares what was asked for."""

    @tool(risk="read")
    def look_up(name: str) -> str:
        return f"about {name}"

    @agent(approve=("read",))
    def main(run: Run) -> Any:
        found = look_up("sam")
        run.wait_for("go")
        return found

    hf = home.open(main)
    waits(hf, main)
    hf.approve("r", args={"name": "ann"})
    waits(hf, main)
    hf.signal("r", "go")

    assert home.open(main).run(main, id="r") == "about ann"
    (call,) = hf.get("r").calls
    assert views.to_plain(call.args) == {"name": "ann"}


def test_a_fork_asks_again_for_what_the_code_asks_for(home: Any) -> None:
    """The edit belongs to the run whose request it answered."""
    desk = Desk()

    @step
    def begin() -> int:
        return 1

    @agent(approve=GATE)
    def main(run: Run) -> Any:
        begin()
        return desk.agent.__wrapped__(run)

    hf = home.open(main)
    waits(hf, main)
    hf.approve("r", args={"order": "A1", "amount": 50})
    hf.run(main, id="r")

    fork = hf.fork("r", 1).id
    with pytest.raises(RunWaiting, match="approval of refund"):
        hf.run(main, id=fork)
    hf.approve(fork)

    assert hf.run(main, id=fork) == 500


def test_large_arguments_can_be_edited(home: Any) -> None:
    sent: list[str] = []

    @tool
    def send(body: str) -> int:
        sent.append(body)
        return len(body)

    @agent(approve=GATE)
    def main(run: Run) -> Any:
        return send("x" * 100_000)

    hf = home.open()
    waits(hf, main)
    hf.approve("r", args={"body": "y" * 90_000})

    assert home.open().run(main, id="r") == 90_000
    assert sent == ["y" * 90_000]
    assert hf.verify("r").ok


def test_an_old_decision_has_no_arguments() -> None:
    """Logs that were written before decisions could carry arguments."""
    read = e.from_json("approval_decided", b'{"branch":"","index":0,"approved":true}')
    assert read == e.ApprovalDecided(branch="", index=0, approved=True)
    assert b"args" not in e.to_json(read)
