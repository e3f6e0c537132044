"""FAULTS 133: the code no longer asks for an approval that the log has a request for."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import (
    Diverged,
    Rejected,
    Run,
    RunFailed,
    RunWaiting,
    agent,
    tool,
)
from holdfast.core import events as e
from holdfast.testing import ManualClock

GATE = ("external_action",)


class Outbox:
    """An agent that sends one mail, with or without asking for approval."""

    def __init__(self, home: Any) -> None:
        self.home = home
        self.sent: list[str] = []
        self.keys: list[str] = []

        @tool(name="send")
        def send(to: str, idempotency_key: str = "") -> str:
            self.sent.append(to)
            self.keys.append(idempotency_key)
            return "sent"

        self.send = send

    def open(self, *approve: str, catches: bool = False, approval_ttl: float | None = None) -> Any:
        """A new process whose code has this gate."""

        @agent(name="outbox", approve=approve, approval_ttl=approval_ttl)
        def outbox(run: Run) -> str:
            try:
                return self.send("sam")
            except Rejected as rejected:
                if catches:
                    return f"rejected: {rejected.message}"
                raise

        return self.home.open(outbox), outbox

    def asked(self, **options: Any) -> None:
        hf, outbox = self.open(*GATE, **options)
        with pytest.raises(RunWaiting, match="approval of send"):
            hf.run(outbox, id="r")


@pytest.fixture
def outbox(home: Any) -> Outbox:
    return Outbox(home)


def test_a_rejection_holds_although_the_code_no_longer_asks(outbox: Outbox) -> None:
    outbox.asked(catches=True)
    hf, ungated = outbox.open(catches=True)
    hf.reject("r", by="ann", why="not now")

    assert hf.run(ungated, id="r") == "rejected: rejected by ann: not now"
    assert outbox.sent == []
    assert hf.replay("r").reached_end


def test_a_pending_request_diverges_when_the_code_no_longer_asks(outbox: Outbox) -> None:
    outbox.asked()
    hf, ungated = outbox.open()

    with pytest.raises(Diverged, match="approval of send") as raised:
        hf.run(ungated, id="r")
    assert "without approval" in raised.value.attempted
    assert outbox.sent == []


def test_a_decision_after_that_is_still_possible_and_used(outbox: Outbox) -> None:
    outbox.asked()
    hf, ungated = outbox.open()
    with pytest.raises(Diverged):
        hf.run(ungated, id="r")
    hf.approve("r")

    assert hf.run(ungated, id="r") == "sent"
    assert outbox.sent == ["sam"]


def test_an_approval_is_used_once_although_the_code_no_longer_asks(outbox: Outbox) -> None:
    outbox.asked()
    hf, ungated = outbox.open()
    hf.approve("r")
    outbox.home.crash(ungated, "r", "after commit call_started")

    assert hf.run(ungated, id="r") == "sent"
    events = [(record.seq, x) for record, x in hf.events("r")]
    intents = [x for _, x in events if isinstance(x, e.CallStarted)]
    approvals = [seq for seq, x in events if isinstance(x, e.ApprovalDecided)]
    assert approvals == [intents[0].approval]
    assert outbox.sent == ["sam"]
    assert len(set(outbox.keys)) == 1


def test_a_request_that_has_expired_is_rejected_although_the_code_no_longer_asks(
    outbox: Outbox, clock: ManualClock
) -> None:
    outbox.asked(approval_ttl=60)
    clock.advance(61)
    hf, ungated = outbox.open(catches=True)

    assert "in time" in hf.run(ungated, id="r")
    assert outbox.sent == []


def test_resuming_a_run_that_failed_on_a_rejection_does_not_call_what_was_rejected(
    outbox: Outbox,
) -> None:
    """With the gate it asks again; without it no one could say yes."""
    outbox.asked()
    hf, gated = outbox.open(*GATE)
    hf.reject("r")
    with pytest.raises(RunFailed, match="rejected by"):
        hf.run(gated, id="r")
    hf, _ = outbox.open()

    with pytest.raises(Diverged, match="rejected"):
        hf.resume("r")
    assert outbox.sent == []


def test_resuming_a_run_whose_approved_step_failed_tries_it_again_without_the_gate(
    home: Any,
) -> None:
    """No one rejected it, and the code does not ask."""
    tries: list[int] = []

    @tool(risk="read")
    def look() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not yet")
        return "seen"

    def opened(*approve: str) -> Any:
        @agent(name="main", approve=approve)
        def main(run: Run) -> str:
            return look()

        return home.open(main), main

    hf, main = opened("read")
    with pytest.raises(RunWaiting):
        hf.run(main, id="r")
    hf.approve("r")
    with pytest.raises(RunFailed, match="not yet"):
        hf.run(main, id="r")
    hf, _ = opened()

    assert hf.resume("r") == "seen"


def test_a_tool_whose_risk_was_lowered_is_not_called_while_its_request_is_open(
    home: Any,
) -> None:
    sent: list[str] = []

    def opened(risk: str) -> Any:
        @tool(risk=risk)  # type: ignore[call-overload, untyped-decorator]
        def send(to: str) -> str:
            sent.append(to)
            return "sent"

        @agent(name="outbox", approve=GATE)
        def outbox(run: Run) -> Any:
            return send("sam")

        return home.open(outbox), outbox

    hf, outbox = opened("external_action")
    with pytest.raises(RunWaiting):
        hf.run(outbox, id="r")
    hf, outbox = opened("read")

    with pytest.raises(Diverged):
        hf.run(outbox, id="r")
    hf.reject("r")
    with pytest.raises(RunFailed, match="rejected by"):
        hf.run(outbox, id="r")
    assert sent == []
