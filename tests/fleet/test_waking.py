"""Waiting costs nothing, and waking is orderly: however many runs wait, and however many wake at once."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Holdfast, Options, Run, agent, step
from holdfast.core.log import origin
from holdfast.runtime.declare import agent_spec
from holdfast.store.base import (
    MICROSECONDS,
    Append,
    NewRun,
    RowChange,
    RunRow,
    Wanted,
    system_clock,
)
from holdfast.store.bell import ANY
from holdfast.store.sqlite import SQLiteStore
from holdfast.testing.store_suite.bench import sealed
from support import fleet_agents
from support.bulk import fill
from support.workers import PATIENCE_SECONDS, STORES, Workers, until, url_of, workers

MANY = 10_000


@step
def now_is(n: int) -> int:
    return n


@agent
def sleeper(run: Run, n: int) -> int:
    run.sleep(3600)
    return n


@agent
def quick(run: Run, n: int) -> int:
    return now_is(n)


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.fixture
def hf(url: str) -> Iterator[Holdfast]:
    with Holdfast(url, agents=[sleeper, quick]) as made:
        yield made


class Counted:
    """Calls of one method of a store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, thing: object, name: str) -> None:
        self.calls = 0
        self.results: list[Any] = []
        self._method: Callable[..., Any] = getattr(thing, name)
        monkeypatch.setattr(thing, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        result = self._method(*args, **kwargs)
        self.results.append(result)
        return result


@pytest.fixture
def processes(url: str, tmp_path: Path) -> Iterator[Workers]:
    yield from workers(url, tmp_path)


def test_ten_thousand_waiting_runs_cost_no_thread_task_or_connection(
    url: str, processes: Workers
) -> None:
    """A worker process counts what it has open, without them and beside them."""
    with Holdfast(url) as hf:
        worker = processes.start("--concurrency", "4")
        for _ in range(8):  # until it has all that it will ever open
            alone = hf.start(fleet_agents.census).result(timeout=PATIENCE_SECONDS)
        now = hf.store.now()
        fill(url, MANY, agent="census", now=now, due=now + 3600 * MICROSECONDS, step=1000)
        beside = hf.start(fleet_agents.census).result(timeout=PATIENCE_SECONDS)

        assert all(beside[what] <= alone[what] for what in alone), (alone, beside)
        assert alone["threads"] < 20 and alone["tasks"] < 5 and alone["files and connections"] < 40
        assert worker.poll() is None


@pytest.mark.nightly
def test_a_worker_beside_ten_thousand_waiting_runs_idles(url: str, processes: Workers) -> None:
    with Holdfast(url) as hf:
        worker = processes.start()
        hf.start(fleet_agents.census).result(timeout=PATIENCE_SECONDS)
        now = hf.store.now()
        fill(url, MANY, agent="census", now=now, due=now + 3600 * MICROSECONDS, step=1000)
        before = cpu_seconds(worker.pid)
        time.sleep(10)  # what is measured is time in which nothing happens

        assert cpu_seconds(worker.pid) - before < 0.5


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def opened_in_the_past(url: str, seconds: int) -> Holdfast:
    """A store whose clock is behind; what is put there to sleep is due for the others."""

    def clock() -> int:
        return system_clock() - seconds * MICROSECONDS

    if not url.startswith("postgresql:"):
        return Holdfast(SQLiteStore(url, clock=clock), agents=[fleet_agents.dozing])
    from holdfast.store.postgres import PostgresStore

    return Holdfast(PostgresStore(url, clock=clock), agents=[fleet_agents.dozing])


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_ten_thousand_timers_due_at_once_are_drained_by_workers_in_order_and_without_a_stampede(
    url: str, processes: Workers
) -> None:
    """Two worker processes: each run is woken once, by each worker in the order in which they were due (but
    for those that are under way together), and workers have no more threads than ever."""
    concurrency, many = 5, int(os.environ.get("HOLDFAST_TIMERS") or MANY)
    with opened_in_the_past(url, 7200) as past:
        for n in range(many):
            past.start(fleet_agents.dozing, id=f"d{n}", n=n)
        assert many == past.worker(concurrency=4).run(once=True)
        rows = past.store.runs(limit=many)
    assert {("waiting", 1)} == {(row.status, row.epoch) for row in rows}
    due = [row.id[1:] for row in sorted(rows, key=lambda row: row.due_at or 0)]
    place = {f"woken {n}": place for place, n in enumerate(due)}

    at_work = [
        processes.start("--once", "--quiet", "--concurrency", str(concurrency)) for _ in "ab"
    ]
    threads = 0
    while any(one.poll() is None for one in at_work):
        threads = max(threads, *(threads_of(one.pid) for one in at_work))
        time.sleep(0.02)

    assert sorted(place) == sorted(processes.did())
    by_process: dict[str, list[int]] = {}
    for deed in processes.deeds:
        what, _, pid = deed.rpartition(" ")
        by_process.setdefault(pid, []).append(place[what])
    for woken in by_process.values():
        rank = {there: here for here, there in enumerate(sorted(woken))}
        off = [abs(rank[there] - here) for here, there in enumerate(woken)]
        assert max(off) < 4 * concurrency, max(off)
    assert threads <= concurrency + 10
    with Holdfast(url) as hf:
        rows = hf.store.runs(limit=many)
    assert {("completed", 2)} == {(row.status, row.epoch) for row in rows}


def threads_of(pid: int) -> int:
    try:
        return len(list(Path(f"/proc/{pid}/task").iterdir()))
    except OSError:  # it has just ended
        return 0


def test_ten_thousand_timers_due_at_once_drain_in_order_and_in_batches(
    url: str, hf: Holdfast
) -> None:
    """Four workers claim side by side: each run once, no worker sees an earlier time after a later one,
    and every claim but the last few is full."""
    now = hf.store.now()
    fill(url, MANY, agent="sleeper", now=now, due=now - 3600 * MICROSECONDS, step=1)
    batches: list[list[RunRow]] = []
    per_worker: list[list[int]] = []

    def drain(hf: Holdfast, name: str) -> None:
        order: list[int] = []
        per_worker.append(order)
        while rows := hf.store.claim_due(
            worker=name, lease_us=10**9, limit=200, wanted=[Wanted("sleeper")]
        ):
            batches.append(rows)
            order.extend(int(row.id.partition("-")[2]) for row in rows)

    others = [Holdfast(url) for _ in range(3)]
    threads = [
        threading.Thread(target=drain, args=(one, f"w{i}")) for i, one in enumerate([hf, *others])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in others:
        one.close()

    taken = [row.id for rows in batches for row in rows]
    assert (MANY, MANY) == (len(taken), len(set(taken)))
    assert all(order == sorted(order) for order in per_worker)
    assert len(batches) <= MANY / 200 + 4


def test_a_plain_step_wakes_those_who_wait_for_its_run_and_no_idle_worker(hf: Any) -> None:
    """Which would look for work at every step of every run in its process."""
    store = hf.store
    records = sealed(origin("r"), 3)
    store.create(NewRun("r", "quick", "digest"), records[:1])
    with store._bell.waiting(ANY) as due, store._bell.waiting("r") as grown:
        store.append(Append("r", 0, records[1:2]))
        by_a_step = (due.is_set(), grown.is_set())
        store.append(Append("r", 1, records[2:], change=RowChange(wake=True)))

        assert ((False, True), True) == (by_a_step, due.is_set())


class Pauses:
    """In the place of the event that a store waits for: notes for how long, and does not wait."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        return False

    def clear(self) -> None:
        """There is nothing to forget."""


def test_whoever_hears_nothing_looks_less_and_less_often(
    url: str, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a transaction pooler, and for what other processes do to a SQLite file."""
    pauses = Pauses()
    most = 0.25
    if url.startswith("postgresql:"):
        most = 1.0
        monkeypatch.setattr(
            hf.store, "_listener", SimpleNamespace(start=int, stop=int, hears=False)
        )
    bell = SimpleNamespace(waiting=lambda _: contextlib.nullcontext(pauses))
    monkeypatch.setattr(hf.store, "_bell", bell)

    asked = hf.store.wait_due(
        [Wanted("quick")], timeout=3600, or_when=lambda: len(pauses.seconds) == 20
    )
    monkeypatch.undo()

    assert asked
    first, last = pauses.seconds[:5], pauses.seconds[-5:]
    assert max(first) < 0.1 < 0.8 * most <= min(last)
    assert max(last) <= 1.2 * most


def test_a_worker_that_idles_is_woken_by_a_run_that_another_process_starts(
    url: str, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which it hears of at once where the store can tell."""
    worker = hf.worker()
    asked = Counted(monkeypatch, hf.store, "_next_to_do")
    working = threading.Thread(target=worker.run)
    working.start()
    until(lambda: asked.calls >= 1, "a first look")
    with Holdfast(url) as other:
        handle = other.start(quick, n=3)

        assert 3 == handle.result(timeout=PATIENCE_SECONDS)
    worker.stop()
    working.join()
    assert 1 == worker.taken


@pytest.mark.postgres
def test_postgresql_listens_once_notes_are_proven_to_arrive_and_then_hardly_polls(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.store.postgres import PostgresStore

    store = PostgresStore(postgres_dsn)
    try:
        store.wait_due([Wanted("x")], timeout=0.01)
        until(lambda: store._listener.hears, "a note of our own")
        asked = Counted(monkeypatch, store, "_next_to_do")
        assert not store.wait_due([Wanted("x")], timeout=1)

        assert asked.calls <= 2
    finally:
        store.close()


def test_runs_at_their_agents_limit_do_not_keep_a_worker_spinning(
    url: str, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is due and may not be taken is looked for at a gentle pace."""

    @agent(max_running=1)
    def narrow(run: Run) -> None:
        return None

    for i in range(3):
        hf.start(narrow, id=f"n{i}")
    assert hf.store.claim("n0", worker="elsewhere", lease_us=MICROSECONDS) is not None
    claimed = Counted(monkeypatch, hf.store, "claim_due")
    worker = hf.worker(agents=[narrow])
    working = threading.Thread(target=worker.run)
    working.start()

    for i in (1, 2):
        hf.result(f"n{i}", timeout=PATIENCE_SECONDS)
    worker.stop()
    working.join()

    assert claimed.calls < 40


@pytest.mark.postgres
def test_a_worker_that_sleeps_deeply_still_takes_up_what_another_left_within_two_leases(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim rings no bell, and neither does a death."""
    from holdfast.store.postgres import store as postgres

    lease = 2.0
    with Holdfast(postgres_dsn, agents=[quick], options=Options(lease_seconds=lease)) as hf:
        monkeypatch.setattr(postgres, "POLL_SECONDS_MIN", postgres.IDLE_SECONDS_MAX)
        asked = Counted(monkeypatch, hf.store, "_next_to_do")
        worker = hf.worker()
        working = threading.Thread(target=worker.run)
        working.start()
        until(lambda: asked.calls >= 1, "it sleeps")
        with Holdfast(postgres_dsn, options=Options(lease_seconds=lease)) as dying:
            dying.engine.create(agent_spec(quick), "left", {"n": 5})
            began = time.monotonic()

            assert 5 == dying.result("left", timeout=PATIENCE_SECONDS)
        assert time.monotonic() - began < 2 * lease
        worker.stop()
        working.join()
