"""A lease is kept by a thread that user code cannot hold up, and only by the process that was given it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from holdfast import AsyncRun, Holdfast, Options, Run, StoreUnavailable, agent, step, tool
from holdfast.runtime.log import clock
from support.waiting import PATIENCE_SECONDS, eventually
from support.workers import STORES, url_of

LEASE_SECONDS = 3.0  # of which two thirds may pass on a busy machine before one is renewed
LONG_ENOUGH = threading.Event()


def outlast_leases(hf: Holdfast, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Until the leases that runs have now would have ended: what waits for LONG_ENOUGH waits longer."""
    ends = [row.due_at for row in hf.runs() if row.status == "running" and row.due_at]
    assert len(ends) == len(hf.runs())

    def ended() -> bool:
        meanwhile()
        return hf.store.now() > max(ends)

    eventually(ended, "the end of the first leases")
    LONG_ENOUGH.set()


@pytest.fixture(autouse=True)
def _not_yet() -> None:
    LONG_ENOUGH.clear()


@step
def block() -> str:
    assert LONG_ENOUGH.wait(PATIENCE_SECONDS)
    return "done"


@step
async def block_the_loop() -> str:
    assert LONG_ENOUGH.wait(PATIENCE_SECONDS)  # the mistake that this is about
    return "done"


@agent
def blocking(run: Run) -> str:
    return block()


@agent
async def blocking_the_loop(run: AsyncRun) -> str:
    return await block_the_loop()


@pytest.mark.parametrize("kind", STORES)
def test_code_that_blocks_longer_than_its_lease_does_not_lose_it(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """In a thread and on the event loop, while another worker waits for runs to take over."""
    url = url_of(kind, request, tmp_path)
    agents = [blocking, blocking_the_loop]
    with (
        Holdfast(url, agents=agents, options=Options(lease_seconds=LEASE_SECONDS)) as hf,
        Holdfast(url, agents=agents) as greedy,
    ):
        handles = [hf.start(fn, id=fn.__name__) for fn in agents]
        worker, rival = hf.worker(concurrency=2), greedy.worker(concurrency=2)
        threads = [threading.Thread(target=worker.run, kwargs={"once": True})]
        threads[0].start()
        eventually(lambda: worker.claimed == 2, "both runs begun")
        threads.append(threading.Thread(target=rival.run))
        threads[1].start()
        outlast_leases(hf)

        results = [handle.result(timeout=PATIENCE_SECONDS) for handle in handles]
        rival.stop()
        for thread in threads:
            thread.join()

        assert (["done", "done"], 0) == (results, rival.claimed)
        assert {1} == {row.epoch for row in hf.runs()}


@pytest.mark.parametrize("kind", STORES)
def test_renewal_of_an_expired_lease_is_refused_even_if_the_run_was_not_claimed(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with Holdfast(url_of(kind, request, tmp_path), agents=[blocking]) as hf:
        hf.start(blocking, id="r")
        row = hf.store.claim("r", worker="w", lease_us=1000)
        assert row is not None
        eventually(lambda: not row.is_live(hf.store.now()), "the end of the lease")

        assert {"r"} == hf.store.renew([("r", row.epoch)], lease_us=10**9)
        assert hf.store.claim("r", worker="w2", lease_us=1000) is not None


@step
async def wait_long_enough() -> str:
    assert await asyncio.to_thread(LONG_ENOUGH.wait, PATIENCE_SECONDS)
    return "done"


@agent
async def awaiting(run: AsyncRun) -> str:
    return await wait_long_enough()


@pytest.mark.postgres
def test_leases_are_renewed_while_every_connection_of_the_pool_is_busy(postgres_dsn: str) -> None:
    """Those who hold them may be users' tools; an async run is looked after over the pool meanwhile."""
    from holdfast.store.postgres import PostgresStore

    store = PostgresStore(postgres_dsn, pool_size=1)
    with (
        Holdfast(store, agents=[awaiting], options=Options(lease_seconds=LEASE_SECONDS)) as hf,
        Holdfast(postgres_dsn) as rival,
    ):
        handle = hf.start(awaiting, id="r")
        worker = hf.worker()
        working = threading.Thread(target=worker.run)
        working.start()
        eventually(lambda: hf.engine.cancel_watcher._awaiting, "the run begun")

        def reach_for_it() -> None:
            assert rival.store.claim("r", worker="rival", lease_us=1) is None

        with store._pool.link():
            outlast_leases(rival, meanwhile=reach_for_it)
            reach_for_it()

        assert "done" == handle.result(timeout=PATIENCE_SECONDS)
        worker.stop()
        working.join()
        assert {1} == {row.epoch for row in hf.runs()}


STARTED = threading.Semaphore(0)
NEVER = threading.Event()


@step
def never_ends() -> None:
    STARTED.release()
    NEVER.wait(PATIENCE_SECONDS)


@agent
def endless(run: Run) -> None:
    never_ends()


@pytest.mark.parametrize("kind", STORES)
def test_workers_that_were_asked_to_stop_do_not_count_against_a_run(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """However often it was released without progress; workers that vanish do count."""
    NEVER.clear()
    with Holdfast(url_of(kind, request, tmp_path), agents=[endless]) as hf:
        hf.start(endless, id="r")
        most = hf.engine.options.quarantine_after
        for _ in range(most + 2):
            worker = hf.worker(grace=0.0)
            working = threading.Thread(target=worker.run)
            working.start()
            assert STARTED.acquire(timeout=PATIENCE_SECONDS)
            worker.stop()
            working.join()
        row = hf.store.get("r")
        assert row is not None
        assert ("pending", 0, most + 2) == (row.status, row.claims, row.epoch)

        for _ in range(most):
            vanished = hf.store.claim("r", worker="vanished", lease_us=0)
            assert vanished is not None
        hf.worker().run(once=True)
        assert "quarantined" == hf.handle("r").status
        NEVER.set()
        for thread in threading.enumerate():
            if thread.name.startswith("holdfast-worker"):
                thread.join(PATIENCE_SECONDS)


def test_every_start_and_every_fork_has_a_name_of_its_own(tmp_path: Path) -> None:
    with Holdfast(tmp_path / "h.db") as one, Holdfast(tmp_path / "h.db") as two:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(write, one.engine.claims.worker.encode())
            os._exit(0)
        os.waitpid(pid, 0)
        forked = os.read(read, 1000).decode()
        os.close(read)
        os.close(write)

        assert 3 == len({one.engine.claims.worker, two.engine.claims.worker, forked})
        assert one.engine.claims.worker == one.engine.claims.worker


BEGUN: list[str] = []
GO_ON = threading.Event()


@tool
def slow(idempotency_key: str = "") -> str:
    BEGUN.append(idempotency_key)
    if len(BEGUN) == 1:
        GO_ON.wait(PATIENCE_SECONDS)
    return "done"


@agent
def one_slow_call(run: Run) -> str:
    return slow()


def test_a_worker_does_not_claim_a_run_that_it_is_executing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease has ended because the store was away; it continues with the run when that has ended here."""
    BEGUN.clear()
    GO_ON.clear()
    with Holdfast(
        tmp_path / "h.db", agents=[one_slow_call], options=Options(lease_seconds=1.0)
    ) as hf:
        renew, away = hf.store.renew, threading.Event()

        def renewing(held: Sequence[tuple[str, int]], *, lease_us: int) -> set[str]:
            if not away.is_set():
                raise StoreUnavailable("away")
            return renew(held, lease_us=lease_us)

        monkeypatch.setattr(hf.store, "renew", renewing)
        handle = hf.start(one_slow_call, id="r")
        worker = hf.worker(concurrency=4)
        thread = threading.Thread(target=worker.run)
        thread.start()
        eventually(lambda: BEGUN, "the call")
        row = hf.store.get("r")
        assert row is not None
        eventually(lambda: not row.is_live(hf.store.now()), "the end of the lease")
        hf.start(one_slow_call, id="other").result(timeout=PATIENCE_SECONDS)  # it claims meanwhile

        assert 1 == sum(key.startswith("r:") for key in BEGUN)
        away.set()
        GO_ON.set()
        assert "done" == handle.result(timeout=PATIENCE_SECONDS)
        worker.stop()
        thread.join()
        assert 1 == len({key for key in BEGUN if key.startswith("r:")})


RENEWED = threading.Event()


@step
def last_until_renewed() -> bool:
    return RENEWED.wait(PATIENCE_SECONDS)


@agent
def lasting(run: Run) -> bool:
    return last_until_renewed()


def test_a_renewal_that_fails_in_an_unexpected_way_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread that keeps leases outlives it, so the run does not lose its own."""
    RENEWED.clear()
    with Holdfast(tmp_path / "h.db", options=Options(lease_seconds=4.5)) as hf:
        renew, failures = hf.store.renew, [RuntimeError("a bug")]

        def renewing(held: Sequence[tuple[str, int]], *, lease_us: int) -> set[str]:
            if failures:
                raise failures.pop()
            lost = renew(held, lease_us=lease_us)
            RENEWED.set()
            return lost

        monkeypatch.setattr(hf.store, "renew", renewing)

        assert hf.run(lasting, id="r")
        assert {1} == {row.epoch for row in hf.runs()}
    assert "a bug" in caplog.text


def test_closing_stops_the_workers(tmp_path: Path) -> None:
    hf = Holdfast(tmp_path / "h.db", agents=[blocking])
    thread = threading.Thread(target=hf.worker().run)
    thread.start()

    hf.close()
    thread.join(PATIENCE_SECONDS)

    assert not thread.is_alive()


def test_time_that_the_machine_slept_counts_against_a_lease() -> None:
    """CLOCK_MONOTONIC stands still meanwhile; a laptop that wakes up must not believe it."""
    before = time.clock_gettime(time.CLOCK_BOOTTIME)

    assert before <= clock.elapsed() <= time.clock_gettime(time.CLOCK_BOOTTIME)
