"""Limits that a whole fleet keeps together: runs of an agent, calls of a tool, and their rate."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    AsyncHoldfast,
    AsyncRun,
    Holdfast,
    InvalidInput,
    Options,
    Rate,
    Run,
    RunWaiting,
    agent,
    step,
    tool,
)
from holdfast.store.base import MICROSECONDS, ClaimFilter, Store
from holdfast.store.sqlite import SQLiteStore
from holdfast.testing import ManualClock
from support import fleet_agents
from support.fleet import listens
from support.waiting import PATIENCE_SECONDS, eventually
from support.workers import STORES, url_of, workers

ROOM_FOR = 2


class Room:
    """Counts who is inside at the same time. Each stays until someone else was turned away meanwhile, and
    those who come first until all who ask for a place have been answered: one too many would be let in."""

    def __init__(self, visits: int = 0, askers: int = 0) -> None:
        self._changed = threading.Condition()
        self._visits, self._askers = visits, askers
        self._answered: set[object] = set()
        self._refusals, self._inside = 0, 0
        self.came, self.most = 0, 0

    def answer(self, asker: object, *, refused: bool) -> None:
        with self._changed:
            self._answered.add(asker)
            self._refusals += refused
            self._changed.notify_all()

    def visit(self) -> None:
        with self._changed:
            self.came += 1
            self._inside += 1
            self.most = max(self.most, self._inside)
            self._changed.notify_all()
            before = self._refusals
            assert self._changed.wait_for(lambda: self._may_leave(before), PATIENCE_SECONDS)
            self._inside -= 1

    def _may_leave(self, refusals_before: int) -> bool:
        if self._inside > ROOM_FOR:
            return True  # it is proven: there is no need to wait for more
        if len(self._answered) < self._askers or (self._visits and self.most < ROOM_FOR):
            return False  # on a busy machine, the others may not have come yet
        return self._refusals > refusals_before or self.came >= self._visits


ROOMS: list[Room] = []
"""The one that is visited is the last."""


@tool(max_running=ROOM_FOR)
def use_gpu(n: int, idempotency_key: str = "") -> int:
    ROOMS[-1].visit()
    return n


@agent
def computing(run: Run, n: int) -> int:
    return use_gpu(n)


@agent
def computing_in_branches(run: Run) -> list[int]:
    return run.map(use_gpu, [1, 2, 3, 4, 5])


@step
def inside(n: int) -> int:
    ROOMS[-1].visit()
    return n


@agent(max_running=ROOM_FOR)
def narrow(run: Run, n: int) -> int:
    return inside(n)


AGENTS = [computing, computing_in_branches, narrow]


@pytest.fixture(params=STORES)
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Holdfast]]:
    """Three workers, each with a store of its own opening, as in three processes."""
    url = url_of(request.param, request, tmp_path)
    made = [Holdfast(url, agents=AGENTS) for _ in range(3)]
    yield made
    for hf in made:
        hf.close()


def noting(
    monkeypatch: pytest.MonkeyPatch,
    asked: object,
    name: str,
    room: Room,
    asker: Callable[..., object],
) -> None:
    """Tell the room who asked for a place in it, and whether there was one."""
    ask = getattr(asked, name)

    def asking(*args: Any, **kwargs: Any) -> Any:
        answer = ask(*args, **kwargs)
        room.answer(asker(*args, **kwargs), refused=not answer)
        return answer

    monkeypatch.setattr(asked, name, asking)


def work(fleet: list[Holdfast], concurrency: int = 4) -> None:
    """All of them drain the queue together."""
    threads = [
        threading.Thread(target=hf.worker(concurrency=concurrency).run, kwargs={"once": True})
        for hf in fleet
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("kind", STORES)
def test_worker_processes_keep_the_rate_of_a_tool_together(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Five in any second, over all workers."""
    url = url_of(kind, request, tmp_path)
    with Holdfast(url) as hf, contextlib.contextmanager(workers)(url, tmp_path) as processes:
        at_work = [processes.start("--concurrency", "2") for _ in range(3)]
        eventually(lambda: all(listens(one.pid) for one in at_work), "all three at work")
        handles = [hf.start(fleet_agents.asking, n=i) for i in range(14)]
        assert list(range(14)) == [handle.result(timeout=PATIENCE_SECONDS) for handle in handles]
        assert {None} == {one.poll() for one in at_work}

    began = sorted(float(line) for line in processes.did())
    assert 14 == len(began)
    # A process may be late to note what it did; without a limit for all, these would be next to nothing.
    assert all(later - earlier > 0.5 for earlier, later in zip(began, began[5:], strict=False))
    assert began[10] - began[0] > 1.5
    assert len({line.rpartition(" ")[2] for line in processes.deeds}) > 1, "one did it all"


def test_workers_keep_the_number_of_calls_of_a_tool_together(
    fleet: list[Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(visits=15, askers=15)
    ROOMS.append(room)
    for hf in fleet:
        noting(monkeypatch, hf.store.limits, "take_seat", room, lambda _, holder, **__: holder)
    handles = [fleet[0].start(computing, n=i) for i in range(10)]
    handles.append(fleet[0].start(computing_in_branches))

    work(fleet)

    results = [handle.result(timeout=PATIENCE_SECONDS) for handle in handles]
    assert [*range(10), [1, 2, 3, 4, 5]] == results
    assert (15, ROOM_FOR) == (room.came, room.most)


def test_workers_keep_the_number_of_runs_of_an_agent_together(
    fleet: list[Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are not held up: they are taken in the meantime."""
    room = Room(visits=8, askers=3)
    ROOMS.append(room)
    for hf in fleet:
        noting(monkeypatch, hf.store, "claim_due", room, lambda *, worker, **_: worker)
    narrows = [fleet[0].start(narrow, n=i) for i in range(8)]

    threads = [hf.worker(concurrency=4) for hf in fleet]
    working = [threading.Thread(target=worker.run) for worker in threads]
    for thread in working:
        thread.start()
    results = [handle.result(timeout=PATIENCE_SECONDS) for handle in narrows]
    for worker in threads:
        worker.stop()
    for thread in working:
        thread.join()

    assert (list(range(8)), 8, ROOM_FOR) == (results, room.came, room.most)


def test_urgent_runs_come_first_and_no_run_waits_forever(fleet: list[Holdfast]) -> None:
    hf = fleet[0]
    order = [("low", -5), ("normal", 0), ("urgent", 5)]
    for name, priority in order:
        hf.start(narrow, id=name, n=1, priority=priority)

    rows = hf.store.claim_due(worker="w", lease_us=1, limit=3, filters=[ClaimFilter("narrow")])

    assert ["urgent", "normal", "low"] == [row.id for row in rows]
    with pytest.raises(InvalidInput):
        hf.start(narrow, n=1, priority=11)


# -- far turns, by a clock that is moved by hand -----------------------------------------------


@tool(rate=Rate(1, per=3600, name="provider"))
def send(n: int, idempotency_key: str = "") -> int:
    return n


@tool(rate=Rate(1, per=3600, name="provider"))
def send_also(n: int) -> int:
    return n


@agent
def sending(run: Run, n: int) -> int:
    return send(n) if n % 2 else send_also(n)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    url = url_of(request.param, request, tmp_path)
    if request.param == "sqlite":
        made: Store = SQLiteStore(url, clock=clock.now)
    else:
        from holdfast.store.postgres import PostgresStore

        made = PostgresStore(url, clock=clock.now)
    yield made
    made.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_run_with_a_long_wait_for_its_turn_is_suspended_and_keeps_its_turn(
    store: Store, clock: ManualClock
) -> None:
    """Two tools that name the same limit share it; who came first goes first, one an hour."""
    hf = Holdfast(store, agents=[sending], options=Options(sleep=clock.advance))
    handles = [hf.start(sending, id=f"r{i}", n=i) for i in range(4)]
    ended: list[list[str]] = []
    for _ in range(4):
        hf.worker().run(once=True)
        ended.append([handle.id for handle in handles if handle.status == "completed"])
        clock.advance(3601)

    assert [["r0"], ["r0", "r1"], ["r0", "r1", "r2"], ["r0", "r1", "r2", "r3"]] == ended


def test_a_run_waiting_for_its_turn_shows_it_and_a_crash_loses_at_most_one_turn(
    store: Store, clock: ManualClock
) -> None:
    class Crash(BaseException):
        pass

    def die(point: str) -> None:
        if point == "before commit call_started":
            raise Crash

    dying = Holdfast(store, agents=[sending], options=Options(boundary=die))
    with pytest.raises(Crash):
        dying.run(sending, id="r", n=1)
    hf = Holdfast(store, agents=[sending], options=Options(sleep=clock.advance))

    with pytest.raises(RunWaiting) as waiting:
        hf.resume("r")
    assert "a permit to call send (1 in 3600 s)" in str(waiting.value)
    row = store.get("r")
    assert row is not None and row.due_at == clock.now() + 3601 * MICROSECONDS
    clock.advance(3601)
    assert 1 == hf.worker().run(once=True)
    assert 1 == hf.result("r", timeout=1)


def test_seats_of_a_worker_that_died_are_free_when_its_lease_has_ended(
    store: Store, clock: ManualClock
) -> None:
    hf = Holdfast(store, agents=[computing], options=Options(sleep=clock.advance))
    ROOMS.append(Room())
    for name in ("dead1", "dead2"):
        hf.start(computing, id=name, n=1)
        row = store.claim(name, worker="dead", lease_us=60 * MICROSECONDS)
        assert row is not None
        assert store.limits.take_seat("use_gpu", name, run_id=name, epoch=row.epoch, limit=2)

    with pytest.raises(RunWaiting, match="a free slot of use_gpu"):
        hf.run(computing, id="r", n=7)
    clock.advance(61)

    assert 7 == hf.run(computing, id="r", n=7)


def test_async_calls_wait_for_their_turn_without_blocking_the_loop(tmp_path: Path) -> None:
    ticks: list[float] = []
    called: list[int] = []

    @step(rate=Rate(1, per=1.0))
    async def rated(n: int) -> int:
        called.append(len(ticks))
        return n

    @agent
    async def rated_twice(run: AsyncRun) -> list[int]:
        return [await rated(1), await rated(2)]

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()

        def tick() -> None:
            ticks.append(loop.time())
            loop.call_later(0.01, tick)

        async with AsyncHoldfast(tmp_path / "h.db") as hf:
            tick()
            return await hf.run(rated_twice)

    assert [1, 2] == asyncio.run(main())
    first, second = called
    assert second - first > 10


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Rate(0),
        lambda: Rate(1, per=0),
        lambda: Rate(1, per=-1),
        lambda: tool(max_running=0)(lambda: None),
        lambda: tool(rate=5)(lambda: None),  # type: ignore[call-overload]
        lambda: agent(max_running=1.5)(lambda run: None),  # type: ignore[call-overload]
    ],
)
def test_limits_that_make_no_sense_are_refused_when_declared(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(InvalidInput):
        wrong()
