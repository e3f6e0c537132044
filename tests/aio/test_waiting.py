"""Callers that wait for runs on an event loop: many at once, cheaply, and cancelled at any time."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    AsyncHoldfast,
    AsyncRun,
    Holdfast,
    InvalidInput,
    NotFound,
    Run,
    RunBusy,
    RunFailed,
    agent,
    step,
)
from support.waiting import PATIENCE_SECONDS, eventually

WAITERS = 200


@step
async def double(n: int) -> int:
    return 2 * n


@agent
async def doubling(run: AsyncRun, n: int) -> int:
    return await double(n)


@agent
def failing(run: Run) -> None:
    raise ValueError("no")


@agent
def signalled(run: Run) -> Any:
    return run.wait_for("go")


AGENTS = (doubling, failing, signalled)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "h.db")
    dsn: str = request.getfixturevalue("postgres_dsn")
    return dsn


def test_many_callers_wait_for_results_with_few_threads(url: str) -> None:
    async def main() -> None:
        async with AsyncHoldfast(url, agents=AGENTS) as hf:
            handles = [await hf.start(doubling, n) for n in range(WAITERS)]
            waiting = asyncio.gather(*(handle.result() for handle in handles))
            await asyncio.sleep(0)
            async with hf.worker(concurrency=8):
                assert [2 * n for n in range(WAITERS)] == await waiting

            row = asyncio.gather(*(hf.result(handle.id) for handle in handles))
            assert [2 * n for n in range(WAITERS)] == await row

    asyncio.run(main())


def test_a_waiting_caller_holds_no_thread(url: str) -> None:
    async def main() -> None:
        async with AsyncHoldfast(url, agents=AGENTS) as hf:
            handles = [await hf.start(signalled) for _ in range(WAITERS)]
            waiting = [asyncio.ensure_future(handle.result()) for handle in handles]
            engine = hf.sync.engine

            def is_cheap() -> bool:  # threads that have looked at the runs are idle by then
                calls = [t for t in threading.enumerate() if t.name == "holdfast-call"]
                busy = len(calls) - engine.threads._idle
                return len(engine.logs._waiters) == WAITERS and busy <= 3

            await asyncio.to_thread(eventually, is_cheap, "waiting without threads")
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            assert all(task.cancelled() for task in waiting)

    asyncio.run(main())


def test_a_result_that_does_not_come_in_time_is_busy_and_a_failure_is_raised(url: str) -> None:
    async def main() -> None:
        async with AsyncHoldfast(url, agents=AGENTS) as hf:
            handle = await hf.start(signalled)
            with pytest.raises(RunBusy):
                await handle.result(timeout=0.01)
            with pytest.raises(InvalidInput):
                await handle.result(timeout="soon")  # type: ignore[arg-type]
            with pytest.raises(NotFound):
                await hf.result("unknown")
            failed = await hf.start(failing)
            async with hf.worker():
                with pytest.raises(RunFailed, match="no"):
                    await failed.result()

    asyncio.run(main())


def test_waiting_callers_hear_that_the_store_was_closed(url: str) -> None:
    async def main() -> None:
        hf = AsyncHoldfast(url, agents=AGENTS)
        handle = await hf.start(signalled)
        waiting = asyncio.ensure_future(handle.result())
        await asyncio.to_thread(eventually, lambda: hf.sync.engine.logs._waiters, "the wait")
        await hf.close()
        done, _ = await asyncio.wait([waiting], timeout=PATIENCE_SECONDS)
        assert done and waiting.exception() is not None

    asyncio.run(main())


# ── streams ──────────────────────────────────────────────────────────────────────────────────


def test_a_stream_gives_old_and_new_events_until_the_run_ends(url: str) -> None:
    async def main() -> None:
        async with AsyncHoldfast(url, agents=AGENTS) as hf:
            handle = await hf.start(signalled)
            seen: list[str] = []
            waits = asyncio.Event()

            async def follow() -> None:
                async for record, event in handle.stream():
                    assert event.stored_as == record.kind
                    seen.append(record.kind)
                    if record.kind == "run_suspended":
                        waits.set()

            following = asyncio.ensure_future(follow())
            async with hf.worker():
                await asyncio.wait_for(waits.wait(), PATIENCE_SECONDS)
                await handle.signal("go", 1)
                await following

            assert seen == [record.kind for record, _ in await handle.events()]
            assert "run_completed" == seen[-1]

    asyncio.run(main())


def test_a_stream_begins_anywhere_and_is_the_same_for_plain_code(url: str) -> None:
    with Holdfast(url, agents=AGENTS) as hf:
        hf.run(doubling, 2, id="r")
        handle = hf.handle("r")
        whole = hf.events("r")

        assert whole == list(hf.stream("r")) == list(handle.stream())
        assert whole[2:] == list(handle.stream(after=1))
        assert [] == list(hf.stream("r", after=len(whole) + 5))
        with pytest.raises(NotFound):
            hf.stream("unknown")


def test_a_stream_that_is_not_wanted_any_longer_ends_at_once(url: str) -> None:
    async def main() -> None:
        async with AsyncHoldfast(url, agents=AGENTS) as hf:
            handle = await hf.start(signalled)
            stream = handle.stream()
            assert "run_created" == (await anext(stream))[0].kind
            rest = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            rest.cancel()
            with pytest.raises(asyncio.CancelledError):
                await rest
            await stream.aclose()

    asyncio.run(main())
