"""Code that blocks an event loop is named: by run, step or tool, and line (FAULTS 68)."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncHoldfast, AsyncRun, Holdfast, Options, agent, step, tool
from holdfast.runtime.exec import watcher
from holdfast.runtime.exec.watcher import Stalls
from holdfast.runtime.log.branches import Branch
from support.waiting import PATIENCE_SECONDS

SEEN = threading.Event()
"""A warning was logged: what blocks need not do so any longer."""
AWAITS = threading.Event()
"""The patient run is on the event loop."""


def block() -> None:
    assert SEEN.wait(PATIENCE_SECONDS)


@step
async def thinking() -> str:
    block()
    return "thought"


@tool
async def sending(idempotency_key: str = "") -> str:
    block()
    return "sent"


@step
def computing() -> str:
    block()
    return "computed"


@step
async def awaiting() -> str:
    AWAITS.set()
    await asyncio.to_thread(block)
    return "awaited"


@agent
async def by_a_step(run: AsyncRun) -> str:
    return await thinking()


@agent
async def by_a_tool(run: AsyncRun) -> str:
    return await sending()


@agent
async def by_a_plain_step(run: AsyncRun) -> str:
    return computing()


@agent
async def by_its_own_code(run: AsyncRun) -> str:
    block()
    return "done"


@agent
async def in_a_task(run: AsyncRun) -> list[str]:
    return await asyncio.gather(thinking(), thinking())


@agent
async def patient(run: AsyncRun) -> str:
    return await awaiting()


class Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        if getattr(record, "run_id", "") == "guilty":  # not of a machine that is slow just now
            SEEN.set()

    def of(self, run_id: str) -> list[Any]:
        return [record for record in self.records if getattr(record, "run_id", "") == run_id]


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Warnings]:
    SEEN.clear()
    AWAITS.clear()
    monkeypatch.setattr(watcher, "CHECK_SECONDS", 0.02)
    made, log = Warnings(), logging.getLogger("holdfast.stall")
    log.addHandler(made)
    yield made
    log.removeHandler(made)
    SEEN.set()


@pytest.mark.parametrize(
    ("blocking", "call"),
    [
        (by_a_step, "thinking"),
        (by_a_tool, "sending"),
        (by_a_plain_step, "computing"),
        (in_a_task, "thinking"),
        (by_its_own_code, ""),
    ],
)
def test_a_worker_warns_once_of_code_that_blocks_its_loop_and_names_it(
    blocking: Callable[..., Awaitable[Any]], call: str, tmp_path: Path, warnings: Warnings
) -> None:
    with Holdfast(
        tmp_path / "h.db", agents=[blocking, patient], options=Options(lease_seconds=4.0)
    ) as hf:
        waiting = hf.start(patient, id="waiting")
        worker = hf.worker(concurrency=2)
        working = threading.Thread(target=worker.run)
        working.start()
        assert AWAITS.wait(PATIENCE_SECONDS)
        hf.start(blocking, id="guilty").result(timeout=PATIENCE_SECONDS)
        waiting.result(timeout=PATIENCE_SECONDS)
        worker.stop()
        working.join()

        (warned,) = warnings.of("guilty")
        assert call == warned.call
        assert warned.blocked_seconds > 0.2
        assert "test_stalls.py" in warned.stack and "in block" in warned.stack
        said = warned.getMessage()
        assert f"{call or 'code'} of run guilty" in said and "Runs affected: 1;" in said
        assert not warnings.of("waiting")


def test_the_users_own_event_loop_is_watched_too_and_a_responsive_one_is_not_reported(
    tmp_path: Path, warnings: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = threading.Semaphore(0), Stalls.look
    asked: list[object] = []

    def looking(self: Stalls, roots: Collection[Branch]) -> None:
        look(self, roots)
        asked.extend(one for one in self._questions.values() if one not in asked)
        looks.release()

    def be_looked_at(times: int) -> None:
        for _ in range(times):
            assert looks.acquire(timeout=PATIENCE_SECONDS)

    monkeypatch.setattr(Stalls, "look", looking)

    async def main() -> None:
        async with AsyncHoldfast(tmp_path / "h.db", options=Options(lease_seconds=0.6)) as hf:
            running = asyncio.ensure_future(hf.run(patient, id="patient"))
            await asyncio.to_thread(be_looked_at, 25)  # longer than a loop may stand still: 0.2 s
            assert len(asked) > 5  # another question follows only when one was answered
            assert not warnings.of("patient") and not running.done()
            await hf.run(by_a_step, id="guilty")
            await running

    asyncio.run(main())

    assert 1 == len(warnings.of("guilty"))
    assert not warnings.of("patient")
    assert "continues after" in warnings.records[-1].getMessage()
