"""A caller of an async run may be cancelled anywhere (a client disconnects): no lease is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncHoldfast, AsyncRun, Holdfast, Options, Run, RunWaiting, agent, step, tool
from holdfast.core import events as e
from holdfast.runtime.exec.threads import uninterrupted
from support.waiting import PATIENCE_SECONDS, eventually

TURNS = 40
LEASE_US = 1_000_000


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "runs.db")
    dsn: str = request.getfixturevalue("postgres_dsn")
    return dsn


@step
async def work() -> int:
    await asyncio.sleep(0)
    return 1


@agent
async def main(run: AsyncRun) -> Any:
    await work()
    return await run.wait_for("go")


@agent
async def outer(run: AsyncRun) -> Any:
    return await main()


def is_free(hf: Holdfast, run_id: str) -> bool:
    """Whether no lease is kept here, and anyone may claim the run (if it exists and has not ended)."""
    if hf.engine.leases.sessions():
        return False
    row = hf.store.get(run_id)
    if row is None or row.status in ("completed", "failed", "cancelled"):
        return True
    claimed = hf.store.claim(run_id, worker="somebody", lease_us=LEASE_US)
    return claimed is not None and hf.store.release(run_id, claimed.epoch)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, RunWaiting):
        await task


async def suspended(hf: AsyncHoldfast, run_id: str, which: Any = main) -> None:
    with contextlib.suppress(RunWaiting):
        await hf.run(which, id=run_id)


@pytest.mark.parametrize("which", [main, outer], ids=["alone", "with a child"])
@pytest.mark.parametrize("resumed", [False, True], ids=["new", "resumed"])
def test_no_lease_is_left_whenever_the_caller_is_cancelled(
    url: str, which: Any, resumed: bool
) -> None:
    """FAULTS 130: at each turn of the event loop, one after the other."""

    async def check() -> None:
        async with AsyncHoldfast(url) as hf:
            for turns in range(TURNS):
                run_id = f"r{turns}"
                if resumed:
                    await suspended(hf, run_id, which)
                task = asyncio.ensure_future(hf.run(which, id=run_id))
                for _ in range(turns):
                    await asyncio.sleep(0)
                await cancelled(task)

                assert is_free(hf.sync, run_id), turns
                assert is_free(hf.sync, f"{run_id}~1"), turns

    asyncio.run(check())


class Blocked:
    """A method of a store whose first call from another thread stays inside, before or after the real one."""

    def __init__(self, store: Any, name: str, *, after: bool) -> None:
        self._real: Callable[..., Any] = getattr(store, name)
        self._after, self._loop_thread = after, threading.get_ident()
        self.entered, self.leave = threading.Event(), threading.Event()
        setattr(store, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.entered.is_set() or threading.get_ident() == self._loop_thread:
            return self._real(*args, **kwargs)
        if not self._after:
            self._stay()
        result = self._real(*args, **kwargs)
        if self._after:
            self._stay()
        return result

    def _stay(self) -> None:
        self.entered.set()
        assert self.leave.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("method", ["claim", "read", "release"])
def test_no_lease_is_left_when_the_caller_is_cancelled_inside_the_store(
    url: str, method: str, after: bool, times: int
) -> None:
    async def check() -> None:
        async with AsyncHoldfast(url) as hf:
            await suspended(hf, "r")
            await asyncio.to_thread(hf.sync.signal, "r", "go", 1)
            store = hf.sync.store
            if method == "release":  # is called when a run is closed that has not ended
                task = asyncio.ensure_future(hanging_run(hf))
                await begun.wait()
                task.cancel()
            blocked = Blocked(store, method, after=after)
            if method != "release":
                task = asyncio.ensure_future(hf.run(main, id="r"))
            assert await asyncio.to_thread(blocked.entered.wait, PATIENCE_SECONDS)
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0)
            blocked.leave.set()
            with pytest.raises(asyncio.CancelledError):
                await task

            assert is_free(hf.sync, "hanging" if method == "release" else "r")

    begun = asyncio.Event()

    @step
    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    @agent
    async def hanging(run: AsyncRun) -> None:
        await hang()

    async def hanging_run(hf: AsyncHoldfast) -> None:
        await hf.run(hanging, id="hanging")

    asyncio.run(check())


def test_a_caller_that_waits_and_is_cancelled_leaves_no_thread_waiting(url: str) -> None:
    async def check() -> None:
        async with AsyncHoldfast(url) as hf:
            task = asyncio.ensure_future(hf.run(outer, id="r", wait=True))
            await asyncio.to_thread(
                eventually,
                lambda: (row := hf.sync.store.get("r")) is not None and row.status == "waiting",
            )
            await cancelled(task)

            assert is_free(hf.sync, "r") and is_free(hf.sync, "r~1")

    asyncio.run(asyncio.wait_for(check(), PATIENCE_SECONDS))


@pytest.mark.parametrize("in_call", [True, False])
def test_a_sync_agent_whose_caller_is_cancelled_is_released_at_its_next_boundary(
    url: str, in_call: bool
) -> None:
    inside, leave = threading.Event(), threading.Event()
    made: list[int] = []

    @step
    def slow(n: int) -> int:
        made.append(n)
        inside.set()
        assert leave.wait(PATIENCE_SECONDS)
        return n

    @agent
    def plain(run: Run) -> int:
        return sum(slow(n) for n in range(3))

    async def check() -> None:
        async with AsyncHoldfast(url, agents=[plain]) as hf:
            task = asyncio.ensure_future(hf.run(plain, id="r"))
            if in_call:
                assert await asyncio.to_thread(inside.wait, PATIENCE_SECONDS)
            else:
                for _ in range(TURNS):
                    await asyncio.sleep(0)
            await cancelled(task)
            leave.set()
            await asyncio.to_thread(eventually, lambda: is_free(hf.sync, "r"), "its release")
            assert len(made) <= 1
            assert await hf.run(plain, id="r") == 3

    asyncio.run(check())


def test_the_lease_of_a_dead_owner_is_released_and_not_renewed(url: str) -> None:
    with Holdfast(url) as hf:
        with pytest.raises(RunWaiting):
            hf.run(main, id="r")
        engine = hf.engine
        row = hf.store.get("r")
        assert row is not None
        engine.claims.register(main.__holdfast__)  # type: ignore[attr-defined]
        claimed = engine.claims.claim(row, engine.agents["main"])
        owner = threading.Thread(target=lambda: None)
        owner.start()
        owner.join()
        engine._open(claimed, owner)
        assert [s.run_id for s in engine.leases.sessions()] == ["r"]

        engine.leases.renew()

        assert is_free(hf, "r")


def test_uninterrupted_work_ends_and_is_disposed_of_before_the_cancellation_is_raised() -> None:
    begun, leave = threading.Event(), threading.Event()
    disposed: list[str] = []

    def fetch() -> str:
        begun.set()
        assert leave.wait(PATIENCE_SECONDS)
        return "it"

    async def check() -> None:
        task = asyncio.ensure_future(uninterrupted(fetch, disposed.append))
        await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        leave.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert disposed == ["it"]

    asyncio.run(check())


@agent
async def working(run: AsyncRun) -> None:
    for _ in range(3):
        await work()


@agent
async def with_children(run: AsyncRun) -> Any:
    return await asyncio.gather(main(), working(), work(), run.wait_for("other"))


@pytest.mark.parametrize("how", ["cancelled", "stopped"])
def test_the_end_of_an_execution_is_not_recorded_as_a_cancellation_by_the_code(
    url: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller is cancelled, or its worker stops, at each boundary and some iterations of the loop later. A replay would wait
    for the code to cancel the call again, which it never does."""

    async def end_at(hf: AsyncHoldfast, number: int, turns: int) -> bool:
        """Whether the run met so many boundaries."""
        met, run_id, loop = 0, f"{how}-{number}-{turns}", asyncio.get_running_loop()

        def end(left: int) -> None:
            if left:
                loop.call_soon(end, left - 1)
            elif how == "cancelled":
                task.cancel()
            else:
                hf.sync.engine.sessions.stop([run_id], "the worker stops")

        def count(_where: str) -> None:
            nonlocal met
            met += 1
            if met == number:
                loop.call_soon_threadsafe(end, turns)

        hf.sync.engine.options.boundary = count
        task = asyncio.ensure_future(hf.run(with_children, id=run_id))
        with contextlib.suppress(asyncio.CancelledError, RunWaiting):
            await task
        events = [x for _, x in await hf.events(run_id)]
        assert not any(isinstance(x, e.CallFailure) and x.cut for x in events), run_id
        assert not any(isinstance(x, e.WaitEnded) and x.is_over("cut") for x in events), run_id
        return met >= number

    async def check() -> None:
        options = Options(boundary=lambda _: None, patience_seconds=0.01)
        async with AsyncHoldfast(url, options=options) as hf:
            for turns in (0, 1, 6):
                numbers = itertools.count(1)
                while await end_at(hf, next(numbers), turns):
                    pass

    asyncio.run(check())
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_an_undo_whose_caller_is_cancelled_is_not_recorded_as_given_up(tmp_path: Path) -> None:
    """The run was cancelled as its code returned, so that nothing else shows that it ends here."""
    url = str(tmp_path / "runs.db")
    undone: list[str] = []
    tasks: list[asyncio.Task[Any]] = []

    async def undo_it(result: str, idempotency_key: str) -> None:
        undone.append(idempotency_key)
        if len(undone) == 1:
            tasks[0].cancel()
            await asyncio.get_running_loop().create_future()

    @tool(undo=undo_it, risk="write_local")
    async def act(idempotency_key: str) -> str:
        return "acted"

    @agent(name="undone", on_failure="undo")
    async def undone_agent(_: AsyncRun) -> str:
        return await act()

    def come_to(name: str) -> None:
        if name == "before commit run_completed":
            with Holdfast(url) as other:
                other.cancel("r")

    async def be_cancelled() -> None:
        async with AsyncHoldfast(url, options=Options(boundary=come_to)) as hf:
            tasks.append(asyncio.ensure_future(hf.run(undone_agent, id="r")))
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]

    asyncio.run(be_cancelled())

    with Holdfast(url, agents=[undone_agent]) as hf:
        assert not [x for _, x in hf.events("r") if isinstance(x, e.CallFailure)]
        hf.worker().run(once=True)
        assert "cancelled" == hf.get("r").status
        assert 2 == len(undone) and 1 == len(set(undone))


CUTS: list[type[BaseException]] = [KeyboardInterrupt, SystemExit]


@pytest.mark.parametrize("lines_first", [False, True], ids=["caller first", "caller last"])
@pytest.mark.parametrize("interrupt", [*CUTS, None], ids=["Ctrl-C", "exit", "main returns"])
def test_an_event_loop_that_ends_is_not_recorded_as_a_cancellation_by_the_code(
    url: str, interrupt: type[BaseException] | None, lines_first: bool
) -> None:
    """asyncio.run cancels all tasks in the order of a set. Whichever is the first, the run is resumed as after a crash."""
    armed = [interrupt]
    inside = asyncio.Event()

    @step
    async def slow() -> str:
        inside.set()
        if armed:
            await asyncio.get_running_loop().create_future()
        return "slow"

    @step
    async def ends() -> str:
        await inside.wait()
        if armed and armed[0] is not None:
            raise armed[0]
        if armed:
            asyncio.get_running_loop().stop()
            await asyncio.get_running_loop().create_future()
        return "ends"

    @agent
    async def both(run: AsyncRun) -> list[str]:
        return await asyncio.gather(slow(), ends())

    hf = AsyncHoldfast(url)
    loop = asyncio.new_event_loop()
    try:
        caller = loop.create_task(hf.run(both, id="r"))
        with contextlib.suppress(
            RuntimeError, *CUTS
        ):  # the loop was stopped before its future was done
            loop.run_until_complete(caller)
        left = sorted(asyncio.all_tasks(loop), key=lambda task: (task is caller) is lines_first)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        hf.sync.close()

    armed.clear()
    with Holdfast(url) as resumed:
        assert not [x for _, x in resumed.events("r") if isinstance(x, e.CallFailure)]
        assert ["slow", "ends"] == resumed.run(both, id="r")
