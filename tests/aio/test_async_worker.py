"""A worker on the caller's event loop: it is awaited, shares the loop, and stops cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import pytest

from holdfast import AsyncHoldfast, AsyncRun, Run, agent, step
from holdfast.runtime.exec.worker import Report
from support.waiting import PATIENCE_SECONDS, eventually

LOOPS: list[asyncio.AbstractEventLoop] = []
INSIDE, LEAVE = threading.Event(), threading.Event()


@step
async def note_loop() -> None:
    LOOPS.append(asyncio.get_running_loop())


@agent
async def on_loop(run: AsyncRun) -> str:
    await note_loop()
    return "done"


@agent
def plain(run: Run) -> str:
    return threading.current_thread().name


@step
async def hang() -> None:
    INSIDE.set()
    await asyncio.Event().wait()


@agent
async def hanging(run: AsyncRun) -> None:
    await hang()


@step
def block() -> None:
    INSIDE.set()
    assert LEAVE.wait(PATIENCE_SECONDS)


@agent
def blocking(run: Run) -> None:
    block()


AGENTS = (on_loop, plain, hanging, blocking)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    LOOPS.clear()
    INSIDE.clear()
    LEAVE.clear()
    if request.param == "sqlite":
        return str(tmp_path / "h.db")
    dsn: str = request.getfixturevalue("postgres_dsn")
    return dsn


async def inside() -> None:
    assert await asyncio.to_thread(INSIDE.wait, PATIENCE_SECONDS)


async def is_claimable(hf: AsyncHoldfast, run_id: str) -> bool:
    def claim() -> bool:
        store = hf.sync.store
        claimed = store.claim(run_id, worker="another", lease_us=1_000_000)
        return claimed is not None and store.release(run_id, claimed.epoch)

    return await asyncio.to_thread(claim)


@pytest.mark.parametrize("own_loop", [False, True])
def test_async_agents_execute_on_the_callers_loop_or_on_one_of_the_worker(
    url: str, own_loop: bool
) -> None:
    async def main() -> None:
        async with AsyncHoldfast(url, agents=AGENTS) as hf:
            handles = [await hf.start(on_loop), await hf.start(plain)]

            assert await hf.worker(concurrency=2, own_loop=own_loop).run(once=True) == 2

            assert "done" == await handles[0].result()
            assert "MainThread" != await handles[1].result()
            assert (LOOPS == [asyncio.get_running_loop()]) is not own_loop

    asyncio.run(main())


def test_a_worker_in_a_with_block_works_while_the_block_runs(url: str) -> None:
    reports: list[Report] = []

    async def main() -> None:
        async with AsyncHoldfast(url, agents=AGENTS) as hf:
            async with hf.worker(report=reports.append):
                handle = await hf.start(on_loop)
                assert "done" == await handle.result()
            late = await hf.start(on_loop)
            assert "pending" == await late.status()

    asyncio.run(main())

    assert ["completed"] == [report.status for report in reports]


@pytest.mark.parametrize("which", [hanging, blocking], ids=["async", "plain"])
def test_a_cancelled_worker_releases_its_runs_before_it_ends(url: str, which: object) -> None:
    """Also those that are still inside a call when the grace period is over."""
    reports: list[Report] = []

    async def main() -> None:
        async with AsyncHoldfast(url, agents=AGENTS) as hf:
            await hf.start(which, id="r")  # type: ignore[call-overload]
            worker = hf.worker(grace=0.05, report=reports.append)
            working = asyncio.ensure_future(worker.run())
            await inside()
            for _ in range(3):
                working.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await working

            assert await is_claimable(hf, "r")
            LEAVE.set()

    asyncio.run(main())

    assert [("released", "r")] == [(report.status, report.run_id) for report in reports]


def test_a_loop_that_ends_ends_its_worker_and_leaves_no_lease(url: str) -> None:
    """As on Ctrl-C: asyncio.run cancels the worker and the agents on its loop, all at once."""

    async def main() -> None:
        hf = AsyncHoldfast(url, agents=AGENTS)
        await hf.start(hanging, id="r")
        asyncio.get_running_loop().set_debug(False)
        tasks.append(asyncio.ensure_future(hf.worker(grace=1).run()))
        await inside()
        apps.append(hf)

    tasks: list[asyncio.Future[int]] = []
    apps: list[AsyncHoldfast] = []
    asyncio.run(main())

    assert tasks[0].cancelled()
    sync = apps[0].sync
    with contextlib.closing(sync):
        eventually(lambda: not sync.engine.leases.sessions(), "the release of the run")
        row = sync.store.get("r")
        assert row is not None and not row.is_live(sync.store.now())


def test_closing_stops_workers_and_waits_for_them(url: str) -> None:
    async def main() -> None:
        hf = AsyncHoldfast(url, agents=AGENTS)
        await hf.start(hanging, id="r")
        worker = hf.worker(grace=0.05)
        working = asyncio.ensure_future(worker.run())
        await inside()
        await hf.close()

        assert 1 == await working
        async with AsyncHoldfast(url, agents=AGENTS) as again:
            assert await is_claimable(again, "r")

    asyncio.run(main())


def test_a_worker_that_was_stopped_before_it_began_claims_nothing(url: str) -> None:
    async def main() -> None:
        async with AsyncHoldfast(url, agents=AGENTS) as hf:
            handle = await hf.start(on_loop)
            worker = hf.worker()
            worker.stop()

            assert 0 == await worker
            assert "pending" == await handle.status()

    asyncio.run(main())
