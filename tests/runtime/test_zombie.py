"""A worker that only seemed dead can do no harm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast import AsyncRun, Holdfast, LeaseLost, Options, Run, RunWaiting, agent, step, tool

SENT: list[str] = []


@tool
def send(to: str, idempotency_key: str = "") -> str:
    SENT.append(idempotency_key)
    return f"sent to {to}"


@tool
def pay(amount: int) -> str:
    SENT.append(f"paid {amount}")
    return f"paid {amount}"


@agent
def sending(run: Run, to: str) -> str:
    return send(to)


@agent
def paying(run: Run, amount: int) -> str:
    return pay(amount)


class Frozen:
    """A worker that freezes at a boundary past its lease, while another one takes the run over."""

    def __init__(self, path: Path, point: str, meanwhile: Callable[[Holdfast], object]) -> None:
        self.point, self.meanwhile, self.path = point, meanwhile, path
        SENT.clear()
        self.worker = Holdfast(path, options=Options(lease_seconds=2.0, boundary=self.freeze))

    def freeze(self, point: str) -> None:
        if point == self.point:
            self.worker.engine.leases.close()  # nothing of a frozen process renews its lease
            with Holdfast(self.path) as other:
                self.meanwhile(other)


def test_a_worker_frozen_before_the_effect_does_not_begin_it(tmp_path: Path) -> None:
    def take_over(other: Holdfast) -> None:
        assert other.run(sending, id="r", wait=True, to="sam") == "sent to sam"

    frozen = Frozen(tmp_path / "h.db", "after commit call_started", take_over)

    with pytest.raises(LeaseLost):
        frozen.worker.run(sending, id="r", to="sam")

    assert len(SENT) == 1


def test_the_receipt_of_a_worker_that_lost_its_lease_is_evidence_and_no_more(
    tmp_path: Path,
) -> None:
    def take_over(other: Holdfast) -> None:
        while True:
            with pytest.raises(RunWaiting) as waiting:
                other.run(paying, id="r", amount=5)
            if "may or may not have happened" in str(waiting.value):
                return

    frozen = Frozen(tmp_path / "h.db", "after pay", take_over)

    with pytest.raises(LeaseLost):
        frozen.worker.run(paying, id="r", amount=5)

    with Holdfast(tmp_path / "h.db", agents=[paying]) as hf:
        (call,) = hf.get("r").in_doubt
        assert call.evidence and call.evidence[0].outcome == "done"
        hf.resolve("r", call.step, done="paid 5", by="sam", why="the worker said so")
        assert hf.resume("r") == "paid 5"
    assert SENT == ["paid 5"]


GIVEN: list[int] = []


@step
async def draw(number: int) -> int:
    return number


@agent
async def drawing(run: AsyncRun) -> int:
    GIVEN.append(await draw(1))
    GIVEN.append(await draw(2))
    return 2


def test_a_worker_that_lost_its_lease_is_not_given_what_the_next_one_recorded(
    tmp_path: Path,
) -> None:
    """Found by the fuzzer (seed 3600250): a look for cancellations read what the other worker had recorded."""

    def take_over(other: Holdfast) -> None:
        frozen.point = ""  # once
        with ThreadPoolExecutor() as another:  # here, an event loop is running
            another.submit(other.run, drawing, id="r", wait=True).result()
        frozen.worker.engine.cancel_watcher.notice_cancel("r")
        GIVEN.clear()

    frozen = Frozen(tmp_path / "h.db", "after commit call_succeeded", take_over)

    with pytest.raises(LeaseLost):
        frozen.worker.run(drawing, id="r")

    assert 2 not in GIVEN


BLOCKING: list[Callable[[], None]] = []
"""What blocks the loop once."""


@step
async def hang() -> None:
    await asyncio.get_running_loop().create_future()


@agent
async def limiting(run: AsyncRun) -> str:
    """While the loop is blocked, a timeout fires that ends a call."""
    if BLOCKING:
        asyncio.get_running_loop().call_later(0.01, BLOCKING.pop())
    try:
        async with asyncio.timeout(0.05):
            await hang()
    except TimeoutError:
        await draw(1)
    return "done"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("turns", range(7))
def test_a_run_that_lost_its_lease_ends_although_a_timeout_has_fired_without_effect_yet(
    tmp_path: Path, turns: int
) -> None:
    """Found by the fuzzer (seed 4024001): it waited for a call that only the timeout would have ended."""

    def block() -> None:
        worker.engine.leases.close()
        with ThreadPoolExecutor() as another, Holdfast(tmp_path / "h.db") as other:
            another.submit(other.run, limiting, id="r", wait=True).result()
        look(turns)

    def look(turns: int) -> None:
        """See that the lease was lost, after some turns of the loop."""
        if turns:
            asyncio.get_running_loop().call_soon(look, turns - 1)
        else:
            worker.engine.leases.renew()

    BLOCKING[:] = [block]
    worker = Holdfast(tmp_path / "h.db", options=Options(lease_seconds=0.5))

    with pytest.raises(LeaseLost):
        worker.run(limiting, id="r")

    assert worker.get("r").status == "completed"
