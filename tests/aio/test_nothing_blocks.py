"""No method of AsyncHoldfast, AsyncHandle or AsyncWorker blocks the event loop; each has a case here, or a test fails."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    AsyncHandle,
    AsyncHoldfast,
    AsyncRun,
    AsyncWorker,
    Holdfast,
    HoldfastError,
    Options,
    Run,
    RunFailed,
    RunWaiting,
    agent,
    app,
    step,
    tool,
)
from holdfast.store.opening import open_store
from support.loop_watchdog import LoopWatchdog

Case = Callable[[AsyncHoldfast], Awaitable[Any]]


class Crash(BaseException):
    """The process ends here."""


@step
def double(n: int) -> int:
    return 2 * n


@step
async def double_on_loop(n: int) -> int:
    return 2 * n


@tool
def send() -> None: ...


@tool(undo=lambda: None)
def undoable() -> None: ...


@agent
def plain(run: Run, n: int = 1) -> int:
    undoable()
    run.artifact("report", b"bytes", type="text/plain")
    run.state.n = double(n)
    return double(n + 1)


@agent
async def on_loop(run: AsyncRun, n: int = 1) -> int:
    return await double_on_loop(n)


@agent
async def parent(run: AsyncRun) -> int:
    return await on_loop(3)


@agent
def failing(run: Run) -> None:
    raise ValueError("no")


@agent
def signalled(run: Run) -> Any:
    return run.wait_for("go")


@agent
async def signalled_on_loop(run: AsyncRun) -> Any:
    return await run.wait_for("go")


@agent
def asking(run: Run) -> Any:
    return run.ask("Which one?")


@agent
def approved(run: Run) -> bool:
    return run.approve("Send it?")


@agent
def doubted(run: Run) -> None:
    send()


AGENTS = (
    plain,
    on_loop,
    parent,
    failing,
    signalled,
    signalled_on_loop,
    asking,
    approved,
    doubted,
)


def prepare(hf: Holdfast) -> None:
    """Runs in all the states that the cases need."""
    hf.register()
    hf.run(plain, id="done")
    with contextlib.suppress(RunFailed):
        hf.run(failing, id="failed")
    for which in (signalled, asking, approved):
        with contextlib.suppress(RunWaiting):
            hf.run(which, id=which.__name__)
    hf.start(on_loop, id="pending")
    hf.start(signalled_on_loop, id="due")
    hf.schedule(plain, cron="0 5 * * *", id="daily")

    def die(boundary: str) -> None:
        if boundary == "after send":
            raise Crash

    crashed = Holdfast(hf.store, agents=AGENTS, options=Options(boundary=die))
    with contextlib.suppress(Crash):
        crashed.run(doubted, id="doubted")
    crashed.engine.close()


# ── the cases ────────────────────────────────────────────────────────────────────────────────


async def runs_of_each_kind(hf: AsyncHoldfast) -> None:
    assert await hf.run(plain, 2) == 6
    assert await hf.run(on_loop, 2) == 4
    assert await hf.run(plain, id="done") == 4
    assert await hf.run(parent, wait=True) == 6
    with pytest.raises(RunWaiting):
        await hf.run(signalled_on_loop)
    with pytest.raises(RunFailed):
        await hf.run(failing, id="failed")


async def start_and_look(hf: AsyncHoldfast) -> None:
    handle = await hf.start(plain.bind(3), id="started", priority=2)
    assert "started" == handle.id
    assert "named" == (await hf.start("plain", id="named", n=3)).id


async def resume(hf: AsyncHoldfast) -> None:
    with pytest.raises(RunFailed):
        await hf.resume("failed", accept_new_steps=True)


async def rerun(hf: AsyncHoldfast) -> None:
    with pytest.raises(RunFailed):
        await hf.rerun("failed")


async def drive(hf: AsyncHoldfast) -> None:
    assert await hf.drive("pending") == 2


async def result(hf: AsyncHoldfast) -> None:
    waiting = asyncio.ensure_future(hf.result("pending"))
    await hf.drive("pending")
    assert await waiting == 2


async def stream(hf: AsyncHoldfast) -> None:
    waiting = asyncio.ensure_future(kinds(hf, "pending"))
    await hf.drive("pending")
    assert "run_completed" == (await waiting)[-1]


async def kinds(hf: AsyncHoldfast, run_id: str) -> list[str]:
    return [record.kind async for record, _ in hf.stream(run_id)]


async def schedule(hf: AsyncHoldfast) -> None:
    await hf.schedule(plain, cron="0 6 * * *", id="other")


async def value(hf: AsyncHoldfast) -> None:
    state = await hf.get("done")
    assert {"n": 2} == await hf.value("done", state.state)


async def items(hf: AsyncHoldfast) -> None:
    await hf.record("graph", id="thread")
    assert await hf.put_item("thread", "notes", "k", {"n": 1})
    found = await hf.item("thread", "notes", "k")
    assert [found] == await hf.items("thread")
    assert await hf.delete_item("thread", "notes", "k")
    await hf.finish("thread")
    await hf.delete("thread")


async def fork(hf: AsyncHoldfast) -> None:
    handle = await hf.fork("done", 1, id="forked")
    assert "forked" == handle.id


async def worker(hf: AsyncHoldfast) -> None:
    assert await hf.worker(agents=[on_loop]).run(once=True) == 1


async def close(hf: AsyncHoldfast) -> None:
    async with hf.worker():
        await hf.signal("due", "go", 5)
        assert await hf.result("due") == 5
        await hf.close()


async def import_run(hf: AsyncHoldfast) -> None:
    lines = await hf.export("done")
    with pytest.raises(HoldfastError):  # it is there already
        await hf.import_run(lines)


OF_HOLDFAST: dict[str, Case] = {
    "run": runs_of_each_kind,
    "start": start_and_look,
    "handle": lambda hf: hf.handle("done"),
    "resume": resume,
    "rerun": rerun,
    "drive": drive,
    "result": result,
    "worker": worker,
    "register": lambda hf: hf.register(on_loop),
    "agents": lambda hf: hf.agents(),
    "schedule": schedule,
    "schedules": lambda hf: hf.schedules(),
    "unschedule": lambda hf: hf.unschedule("daily"),
    "get": lambda hf: hf.get("done"),
    "at": lambda hf: hf.at("done", 1),
    "diff": lambda hf: hf.diff("done", 1, 3),
    "events": lambda hf: hf.events("done"),
    "stream": stream,
    "artifact": lambda hf: hf.artifact("done", "report"),
    "value": value,
    "runs": lambda hf: hf.runs(status="waiting"),
    "search": lambda hf: hf.search("status:waiting"),
    "timeline": lambda hf: hf.timeline("done"),
    "record": lambda hf: hf.record("graph", id="recorded"),
    "put_item": items,
    "item": items,
    "items": items,
    "delete_item": items,
    "finish": items,
    "delete": items,
    "verify": lambda hf: hf.verify("done"),
    "bulk": lambda hf: hf.bulk("cancel", "status:waiting", dry_run=True),
    "gc": lambda hf: hf.gc(older_than=0, dry_run=True),
    "export": lambda hf: hf.export("done"),
    "import_run": import_run,
    "doctor": lambda hf: hf.doctor(),
    "check": lambda hf: hf.check(on_loop),
    "replay": lambda hf: hf.replay("done"),
    "approve": lambda hf: hf.approve("approved"),
    "reject": lambda hf: hf.reject("approved"),
    "answer": lambda hf: hf.answer("asking", "this"),
    "signal": lambda hf: hf.signal("signalled", "go"),
    "resolve": lambda hf: hf.resolve("doubted", done=None),
    "patch": lambda hf: hf.patch("signalled", {"x": 1}),
    "pause": lambda hf: hf.pause("signalled"),
    "cancel": lambda hf: hf.cancel("signalled"),
    "undo": lambda hf: hf.undo("done"),
    "fork": fork,
    "close": close,
}


async def result_of_handle(hf: AsyncHoldfast) -> None:
    handle = await hf.handle("pending")
    waiting = asyncio.ensure_future(handle.result())
    await hf.drive("pending")
    assert await waiting == 2


async def stream_of_handle(hf: AsyncHoldfast) -> None:
    handle = await hf.handle("done")
    assert await handle.events() == [one async for one in handle.stream()]


async def of_handle(run_id: str, name: str, *args: Any, hf: AsyncHoldfast) -> Any:
    handle = await hf.handle(run_id)
    return await getattr(handle, name)(*args)


OF_HANDLE: dict[str, Case] = {
    "status": lambda hf: of_handle("done", "status", hf=hf),
    "state": lambda hf: of_handle("done", "state", hf=hf),
    "result": result_of_handle,
    "events": lambda hf: of_handle("done", "events", hf=hf),
    "stream": stream_of_handle,
    "signal": lambda hf: of_handle("signalled", "signal", "go", hf=hf),
    "cancel": lambda hf: of_handle("signalled", "cancel", hf=hf),
}


async def run_once(hf: AsyncHoldfast, *, own_loop: bool = False) -> None:
    await hf.signal("due", "go", 5)
    assert await hf.worker(concurrency=2, own_loop=own_loop).run(once=True) >= 2
    assert await hf.result("due") == 5


async def stop_worker(hf: AsyncHoldfast) -> None:
    made = hf.worker(concurrency=2)
    working = asyncio.ensure_future(made.run())
    await hf.result("pending")
    made.stop()
    await made.wait_stopped()
    await working
    assert 0 == made.under_way


OF_WORKER: dict[str, Case] = {
    "run": run_once,
    "stop": stop_worker,
    "wait_stopped": stop_worker,
    "under_way": stop_worker,
    "own_loop": partial(run_once, own_loop=True),
}


# ── the tests ────────────────────────────────────────────────────────────────────────────────


def public(cls: type) -> set[str]:
    return {
        name
        for name, member in inspect.getmembers(cls)
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    }


@pytest.mark.parametrize(
    ("cls", "cases", "others"),
    [
        (AsyncHoldfast, OF_HOLDFAST, {"sync"}),  # `sync` is for other threads
        (AsyncHandle, OF_HANDLE, set()),
        (AsyncWorker, OF_WORKER, set()),
    ],
)
def test_each_public_method_has_a_case(cls: type, cases: dict[str, Case], others: set[str]) -> None:
    assert set() == public(cls) - cases.keys() - others


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "h.db")
    dsn: str = request.getfixturevalue("postgres_dsn")
    return dsn


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], LoopWatchdog]]:
    """Makes a watchdog of the running loop; stores that are opened from then on are watched."""

    def make() -> LoopWatchdog:
        watchdog = LoopWatchdog()

        def opening(url: Any) -> Any:
            watchdog.check("opening the store")
            return watchdog.watched(open_store(url))

        monkeypatch.setattr(app, "open_store", opening)
        return watchdog

    return make


CASES = [
    pytest.param(case, id=f"{of}.{name}")
    for of, cases in (("hf", OF_HOLDFAST), ("handle", OF_HANDLE), ("worker", OF_WORKER))
    for name, case in cases.items()
]


@pytest.mark.parametrize("case", CASES)
def test_a_method_does_not_block_the_event_loop(
    case: Case, url: str, watched: Callable[[], LoopWatchdog]
) -> None:
    with Holdfast(url, agents=AGENTS) as hf:
        prepare(hf)

    async def check() -> LoopWatchdog:
        watchdog = watched()
        watchdog.watching = True
        async with AsyncHoldfast(url, agents=AGENTS) as hf:
            await case(hf)
        return watchdog

    watchdog = asyncio.run(check())

    assert [] == watchdog.found
    assert watchdog.calls > 0


def test_the_watchdog_finds_what_blocks(url: str, watched: Callable[[], LoopWatchdog]) -> None:
    async def check() -> list[str]:
        watchdog = watched()
        async with AsyncHoldfast(url, agents=AGENTS) as hf:
            await hf.run(plain, id="r")
            watchdog.watching = True
            hf.sync.get("r")
            watchdog.watching = False
            return watchdog.found

    found = asyncio.run(check())

    assert found and all("on the event loop" in one for one in found)
