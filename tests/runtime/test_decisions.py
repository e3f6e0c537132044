"""What is decided from outside is checked against what is open, and costs no more the older the run is."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast, Rejected, Run, RunCancelled, RunWaiting, agent, step, tool


@step
def look(i: int) -> int:
    return i


@tool
def send(to: str) -> str:
    return f"sent to {to}"


def waits(hf: Holdfast, agent: Any, run_id: str = "r", **input: Any) -> str:
    with pytest.raises(RunWaiting) as waiting:
        hf.run(agent, id=run_id, **input)
    return waiting.value.waiting_for


# ── what is over is not in the way of what is open ───────────────────────────────────────────


def test_a_request_that_expired_is_not_in_the_way_of_the_next(home: Any, clock: Any) -> None:
    @agent(approve=("external_action",), approval_ttl=60)
    def main(run: Run) -> str:
        try:
            return send("ann")
        except Rejected:
            return send("bob")

    hf = home.open()
    assert waits(hf, main) == "approval of send"
    clock.advance(61)
    waits(hf, main)

    hf.approve("r")

    assert hf.run(main, id="r") == "sent to bob"


def test_a_step_that_was_approved_waits_for_nobody_any_more(home: Any) -> None:
    @agent(approve=("read",))
    def main(run: Run) -> int:
        look(1)
        return look(2)

    hf = home.open()
    waits(hf, main)
    hf.approve("r")
    waits(hf, main)

    (wait,) = hf.get("r").waits
    assert (wait.index, wait.decided) == (1, False)


def test_a_run_that_was_begun_anew_can_be_cancelled_again(home: Any) -> None:
    @agent
    def main(run: Run) -> None:
        run.wait_for("never")

    hf = home.open()
    for _ in range(2):
        waits(hf, main)
        hf.cancel("r")
        with pytest.raises(RunCancelled):
            hf.run(main, id="r")
        with pytest.raises(RunWaiting):
            home.open(main).rerun("r")
