"""A caller that waits for a run drives its children, too; and children keep the limits of their agents."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    AsyncHoldfast,
    AsyncRun,
    Holdfast,
    Options,
    Run,
    RunFailed,
    RunWaiting,
    agent,
    step,
)
from support.waiting import PATIENCE_SECONDS, eventually


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "runs.db")
    dsn: str = request.getfixturevalue("postgres_dsn")
    return dsn


@pytest.fixture
def hf(url: str) -> Iterator[Holdfast]:
    with Holdfast(url, options=Options(patience_seconds=0)) as made:
        yield made


@agent
def child(run: Run) -> Any:
    return run.wait_for("go")


@agent
def parent(run: Run) -> Any:
    return [child()]


@agent
def grandparent(run: Run) -> Any:
    return [parent()]


@agent(name="child")
async def child_async(run: AsyncRun) -> Any:
    return await run.wait_for("go")


@agent(name="parent")
async def parent_async(run: AsyncRun) -> Any:
    return [await child_async()]


def in_thread(work: Any) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    return thread, results


def signal_when_it_waits(hf: Holdfast, run_id: str, value: Any) -> None:
    eventually(lambda: any(r.id == run_id and r.status == "waiting" for r in hf.runs()), run_id)
    hf.signal(run_id, "go", value)


def test_a_parent_in_memory_executes_its_child_when_that_can_continue(hf: Holdfast) -> None:
    """No worker is there, and the parent stays in memory because another task of it makes a long call."""
    has_ended = threading.Event()

    @step
    async def until_the_child_has_ended() -> None:
        assert await asyncio.to_thread(has_ended.wait, PATIENCE_SECONDS)

    async def first() -> Any:
        value = await child_async()
        has_ended.set()
        return value

    @agent
    async def main(run: AsyncRun) -> Any:
        return (await asyncio.gather(first(), until_the_child_has_ended()))[0]

    thread, results = in_thread(lambda: hf.run(main, id="p"))
    signal_when_it_waits(hf, "p~1", 7)
    thread.join(PATIENCE_SECONDS)
    assert results == [7]


def test_a_child_that_was_cancelled_has_ended_when_waiting_for_its_parent_is_over(
    hf: Holdfast,
) -> None:
    @agent
    async def main(run: AsyncRun) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child_async())
            group.create_task(fails_when_the_child_waits())

    @step
    async def fails_when_the_child_waits() -> None:
        def waits() -> bool:
            return any(r.id.endswith("~1") and r.status == "waiting" for r in hf.runs())

        await asyncio.to_thread(eventually, waits, "the child waits")
        raise RuntimeError("it fails")

    with pytest.raises(RunFailed):
        hf.run(main, id="p", wait=True)
    assert {"p": "failed", "p~1": "cancelled"} == {run.id: run.status for run in hf.runs()}


def test_a_cancelled_run_below_a_child_that_completed_has_ended_when_waiting_is_over(
    hf: Holdfast,
) -> None:
    """Found by the fuzzer (seed 400032)."""

    @agent
    async def middle(run: AsyncRun) -> None:
        task = asyncio.create_task(child_async())
        await until_the_child_waits()
        task.cancel()

    @step
    async def until_the_child_waits() -> None:
        await asyncio.to_thread(eventually, lambda: has_begun("p~1~1"), "the child waits")

    @agent
    async def main(run: AsyncRun) -> None:
        await middle()

    def has_begun(run_id: str) -> bool:
        return any(r.id == run_id and r.status == "waiting" for r in hf.runs())

    hf.run(main, id="p", wait=True)
    assert "cancelled" == hf.get("p~1~1").status


@pytest.mark.parametrize("elsewhere", [False, True])
def test_waiting_for_a_run_executes_its_suspended_child(
    hf: Holdfast, url: str, elsewhere: bool
) -> None:
    """No worker is there; the signal comes from this process or from another one."""
    thread, results = in_thread(lambda: hf.run(parent, id="p", wait=True))
    with Holdfast(url) as other:
        signal_when_it_waits(other if elsewhere else hf, "p~1", "now")
        thread.join(PATIENCE_SECONDS)

    assert results == [["now"]]


def test_waiting_for_a_run_executes_what_is_two_levels_below(hf: Holdfast) -> None:
    thread, results = in_thread(lambda: hf.run(grandparent, id="p", wait=True))
    signal_when_it_waits(hf, "p~1~1", "now")
    thread.join(PATIENCE_SECONDS)

    assert results == [[["now"]]]


@pytest.mark.parametrize("agents", [(parent_async, child_async), (parent, child)])
def test_an_async_caller_that_waits_executes_the_suspended_child(url: str, agents: Any) -> None:
    async def main() -> Any:
        async with AsyncHoldfast(url, options=Options(patience_seconds=0)) as hf:
            running = asyncio.ensure_future(hf.run(agents[0], id="p", wait=True))
            await asyncio.to_thread(signal_when_it_waits, hf.sync, "p~1", "now")
            return await asyncio.wait_for(running, PATIENCE_SECONDS)

    assert asyncio.run(main()) == ["now"]


def test_a_child_that_fails_while_its_caller_waits_fails_the_parent(hf: Holdfast) -> None:
    @agent
    def failing(run: Run) -> None:
        run.wait_for("go")
        raise ValueError("no")

    @agent
    def main(run: Run) -> str:
        try:
            failing()
        except Exception as error:
            return type(error).__name__
        return "?"

    thread, results = in_thread(lambda: hf.run(main, id="p", wait=True))
    signal_when_it_waits(hf, "p~1", None)
    thread.join(PATIENCE_SECONDS)

    assert results == ["CallFailed"]


def test_a_caller_is_suspended_until_a_child_in_another_process_ends(
    hf: Holdfast, url: str
) -> None:
    begun, end = threading.Event(), threading.Event()

    @step
    def work() -> str:
        begun.set()
        assert end.wait(PATIENCE_SECONDS)
        return "done"

    @agent(name="child")
    def working(run: Run) -> Any:
        run.wait_for("go")
        return work()

    @agent(name="parent")
    def main(run: Run) -> Any:
        return working()

    with pytest.raises(RunWaiting):
        hf.run(main, id="p")
    with Holdfast(url, agents=[working]) as other:
        other.signal("p~1", "go")
        there, _ = in_thread(lambda: other.worker().run(once=True))
        assert begun.wait(PATIENCE_SECONDS)
        here, results = in_thread(lambda: hf.run(main, id="p", wait=True))
        eventually(lambda: hf.handle("p").status == "waiting", "the parent waits")
        end.set()
        here.join(PATIENCE_SECONDS)
        there.join(PATIENCE_SECONDS)

    assert results == ["done"]


def test_waiting_does_not_read_the_log_again_and_again(hf: Holdfast) -> None:
    read, reads = hf.store.read, []

    def counted(run_id: str, **how: Any) -> Any:
        reads.append((run_id, how))
        return read(run_id, **how)

    thread, results = in_thread(lambda: hf.run(parent, id="p", wait=True))
    eventually(
        lambda: hf.handle("p").status == "waiting" if hf.runs() else None, "the parent waits"
    )
    hf.store.read = counted  # type: ignore[method-assign]
    get, looks = hf.store.get, threading.Semaphore(0)

    def look(run_id: str) -> Any:
        looks.release()
        return get(run_id)

    hf.store.get = look  # type: ignore[method-assign]
    for _ in range(10):
        assert looks.acquire(timeout=PATIENCE_SECONDS)
    assert reads == []
    hf.signal("p~1", "go", 1)
    thread.join(PATIENCE_SECONDS)

    assert results == [[1]]


def test_one_worker_with_one_slot_executes_parent_and_child(hf: Holdfast) -> None:
    hf.engine.claims.register(child.__holdfast__)  # type: ignore[attr-defined]
    hf.start(grandparent, id="p")
    hf.engine.claims.register(parent.__holdfast__)  # type: ignore[attr-defined]
    worker = hf.worker(concurrency=1)
    thread, _ = in_thread(worker.run)
    try:
        signal_when_it_waits(hf, "p~1~1", "now")
        assert hf.result("p", timeout=PATIENCE_SECONDS) == [["now"]]
    finally:
        worker.stop()
        thread.join(PATIENCE_SECONDS)


# ── max_running ──────────────────────────────────────────────────────────────────────────────


def test_an_agent_that_calls_itself_makes_progress_with_one_slot(hf: Holdfast) -> None:
    @agent(max_running=1)
    def countdown(run: Run, n: int) -> int:
        return n if n == 0 else countdown(n - 1) + 1

    assert hf.run(countdown, id="p", n=3) == 3


def test_children_executed_in_place_keep_the_limit_of_their_agent(hf: Holdfast) -> None:
    inside, most, mutex = [0], [0], threading.Lock()

    @step
    def work(n: int) -> int:
        with mutex:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        gate.wait(0.05)
        with mutex:
            inside[0] -= 1
        return n

    gate = threading.Event()

    @agent(max_running=2)
    def limited(run: Run, n: int) -> int:
        return work(n)

    @agent
    def main(run: Run) -> int:
        return sum(run.map(limited, range(6), threads=6))

    assert hf.run(main, id="p", wait=True) == 15
    assert most[0] <= 2


def test_children_of_the_same_agent_in_parallel_do_not_exceed_it_nor_stop(hf: Holdfast) -> None:
    """The parent lends its seat to one of them; the others wait until it is suspended."""
    inside, most, mutex = [0], [0], threading.Lock()
    never = threading.Event()

    @step
    def work(n: int) -> int:
        with mutex:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        never.wait(0.05)
        with mutex:
            inside[0] -= 1
        return n

    @agent(max_running=1)
    def tree(run: Run, depth: int) -> int:
        if depth == 0:
            return work(1)
        return sum(run.map(tree, [depth - 1] * 3, threads=3))

    assert hf.run(tree, id="p", depth=2, wait=True) == 9
    assert most[0] == 1


def test_a_child_without_a_free_slot_is_left_to_workers(hf: Holdfast, url: str) -> None:
    begun, end = threading.Event(), threading.Event()

    @step
    def work(hold: bool) -> None:
        if hold:
            begun.set()
            assert end.wait(PATIENCE_SECONDS)

    @agent(max_running=1)
    def limited(run: Run, hold: bool = False) -> str:
        work(hold)
        return "done"

    @agent
    def main(run: Run) -> str:
        return limited()

    with Holdfast(url) as other:
        there, _ = in_thread(lambda: other.run(limited, id="first", hold=True))
        assert begun.wait(PATIENCE_SECONDS)
        with pytest.raises(RunWaiting, match="a free slot of limited"):
            hf.run(main, id="p")
        assert hf.handle("p~1").status == "pending"
        end.set()
        there.join(PATIENCE_SECONDS)

    hf.worker().run(once=True)
    assert hf.run(main, id="p") == "done"
