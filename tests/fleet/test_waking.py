"""Waiting costs nothing, and waking is orderly: however many runs wait, and however many wake at once."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Holdfast, Options, Run, agent, step
from holdfast.core.log import origin
from holdfast.runtime.declare.specs import agent_spec
from holdfast.store.base import (
    MICROSECONDS,
    Append,
    ClaimFilter,
    Creation,
    NewRun,
    RowChange,
    RunRow,
    system_clock,
)
from holdfast.store.sqlite import SQLiteStore
from holdfast.store.wakeups import ANY
from holdfast.testing.store_suite.bench import sealed
from support import fleet_agents
from support.bulk import fill
from support.waiting import PATIENCE_SECONDS, eventually
from support.workers import STORES, Workers, url_of, workers

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
    """A worker process counts what it has open, without them and next to them."""
    with Holdfast(url) as hf:
        worker = processes.start("--concurrency", "4")
        counts = [hf.start(fleet_agents.census).result(timeout=PATIENCE_SECONDS) for _ in range(8)]
        alone = {what: max(count[what] for count in counts) for what in counts[0]}
        now = hf.store.now()
        fill(url, MANY, agent="census", now=now, due=now + 3600 * MICROSECONDS, step=1000)
        beside = hf.start(fleet_agents.census).result(timeout=PATIENCE_SECONDS)

        few = 5  # that happen to be open just now
        assert all(beside[what] <= alone[what] + few for what in alone), (alone, beside)
        assert alone["threads"] < 20 and alone["tasks"] < 5 and alone["files and connections"] < 40
        assert worker.poll() is None


@pytest.mark.nightly
def test_a_worker_idles_while_ten_thousand_runs_are_waiting(url: str, processes: Workers) -> None:
    with Holdfast(url) as hf:
        worker = processes.start()
        hf.start(fleet_agents.census).result(timeout=PATIENCE_SECONDS)
        now = hf.store.now()
        fill(url, MANY, agent="census", now=now, due=now + 3600 * MICROSECONDS, step=1000)
        before = cpu_seconds(worker.pid)
        with pytest.raises(subprocess.TimeoutExpired):
            # What is measured is time in which nothing happens.
            worker.wait(10)

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


def put_to_sleep(url: str, many: int) -> list[str]:
    """So many runs whose timers ended some time ago; their ids, in the order in which they are due."""
    with opened_in_the_past(url, 7200) as past:
        for n in range(many):
            past.start(fleet_agents.dozing, id=f"d{n}", n=n)
        assert many == past.worker(concurrency=4).run(once=True)
        rows = past.store.runs(limit=many)
    assert {("waiting", 1)} == {(row.status, row.epoch) for row in rows}
    assert many == len({row.due_at for row in rows})
    return [row.id for row in sorted(rows, key=lambda row: row.due_at or 0)]


def test_a_worker_claims_due_timers_in_order_and_as_many_as_it_has_free_slots(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One claim fills all free places, there are never more runs under way than places, and the first claim
    that finds nothing is made when nothing is left."""
    concurrency, due = 20, put_to_sleep(url, 200)
    monkeypatch.setenv("DEEDS", str(tmp_path / "deeds"))
    asked: list[tuple[int, int, list[str]]] = []
    with Holdfast(url, agents=[fleet_agents.dozing]) as hf:
        claim_due = hf.store.claim_due

        def claiming(**kwargs: Any) -> list[RunRow]:
            rows = claim_due(**kwargs)
            asked.append((len(kwargs["exclude"]), kwargs["limit"], [row.id for row in rows]))
            return rows

        monkeypatch.setattr(hf.store, "claim_due", claiming)
        assert len(due) == hf.worker(concurrency=concurrency).run(once=True)
        assert {"completed"} == {row.status for row in hf.runs(limit=len(due))}

    assert due == [run_id for _, _, ids in asked for run_id in ids]
    assert (0, concurrency, due[:concurrency]) == asked[0]
    assert {concurrency} == {under_way + limit for under_way, limit, _ in asked}
    full = [len(ids) == limit for _, limit, ids in asked]
    assert full == sorted(full, reverse=True), "a place stayed free while runs were due"
    woken = (tmp_path / "deeds").read_text("utf-8").splitlines()
    assert len(due) == len(woken) == len(set(woken))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("many", [100, pytest.param(MANY, marks=pytest.mark.nightly)])
def test_timers_due_at_once_are_drained_by_workers_in_order_and_without_a_stampede(
    url: str, processes: Workers, many: int
) -> None:
    """Two worker processes: each run is woken once, by each worker in the order in which they were due (but
    for those that are under way together), and workers have no more threads than ever."""
    concurrency, due = 5, put_to_sleep(url, many)
    place = {f"woken {run_id[1:]}": place for place, run_id in enumerate(due)}

    at_work = [
        processes.start("--once", "--quiet", "--concurrency", str(concurrency)) for _ in "ab"
    ]
    threads = most_threads(at_work)
    assert [0, 0] == [one.wait(PATIENCE_SECONDS) for one in at_work]

    assert sorted(place) == sorted(processes.did())
    by_process: dict[str, list[int]] = {}
    for deed in processes.deeds:
        what, _, pid = deed.rpartition(" ")
        by_process.setdefault(pid, []).append(place[what])
    for woken in by_process.values():
        rank = {there: here for here, there in enumerate(sorted(woken))}
        off = [abs(rank[there] - here) for here, there in enumerate(woken)]
        # A thread that stands still after it has claimed a run is overtaken by any number of others: there are few.
        assert sum(x >= 4 * concurrency for x in off) <= concurrency, off
        assert sum(off) / len(off) < concurrency, off
    assert 0 < threads <= concurrency + 10
    with Holdfast(url) as hf:
        rows = hf.store.runs(limit=many)
    assert {("completed", 2)} == {(row.status, row.epoch) for row in rows}


def most_threads(processes: list[subprocess.Popen[str]]) -> int:
    """The most threads that one of these had until all had ended."""
    most, alive = 0, {os.pidfd_open(one.pid): one.pid for one in processes}
    while alive:
        most = max(most, *map(threads_of, alive.values()))
        for ended in select.select(list(alive), [], [], 0.02)[0]:
            del alive[ended]
            os.close(ended)
    return most


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
            worker=name, lease_us=10**9, limit=200, filters=[ClaimFilter("sleeper")]
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
    store.create(Creation(NewRun("r", "quick", "digest"), records[:1])).wait()
    with store._wakeups.waiting(ANY) as due, store._wakeups.waiting("r") as grown:
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


def test_a_worker_without_notifications_polls_less_and_less_often(
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
    wakeups = hf.store._wakeups  # type: ignore[attr-defined]
    monkeypatch.setattr(wakeups, "waiting", lambda _: contextlib.nullcontext(pauses))

    asked = hf.store.wait_due(
        [ClaimFilter("quick")], timeout=3600, stop_when=lambda: len(pauses.seconds) == 20
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
    eventually(lambda: asked.calls >= 1, "a first look")
    with Holdfast(url) as other:
        handle = other.start(quick, n=3)

        assert 3 == handle.result(timeout=PATIENCE_SECONDS)
    worker.stop()
    working.join()
    assert 1 == worker.claimed


@pytest.mark.postgres
def test_postgresql_listens_once_notes_are_proven_to_arrive_and_then_hardly_polls(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.store.postgres import PostgresStore

    store = PostgresStore(postgres_dsn)
    try:
        store.wait_due([ClaimFilter("x")], timeout=0.01)
        eventually(lambda: store._listener.hears, "a note of our own")
        asked = Counted(monkeypatch, store, "_next_to_do")
        assert not store.wait_due([ClaimFilter("x")], timeout=1)

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
def test_an_idle_worker_still_claims_an_abandoned_run_within_two_leases(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim rings no bell, and neither does a death."""
    from holdfast.store.postgres import store as postgres

    lease = 5.0  # two of them leave a busy machine time to be late
    with Holdfast(postgres_dsn, agents=[quick], options=Options(lease_seconds=lease)) as hf:
        monkeypatch.setattr(postgres, "POLL_SECONDS_MIN", postgres.IDLE_SECONDS_MAX)
        asked = Counted(monkeypatch, hf.store, "_next_to_do")
        worker = hf.worker()
        working = threading.Thread(target=worker.run)
        working.start()
        eventually(lambda: asked.calls >= 1, "it sleeps")
        with Holdfast(postgres_dsn, options=Options(lease_seconds=lease)) as dying:
            dying.engine.claims.create(agent_spec(quick), "left", {"n": 5}).wait()
            began = time.monotonic()

            assert 5 == dying.result("left", timeout=PATIENCE_SECONDS)
        assert time.monotonic() - began < 2 * lease
        worker.stop()
        working.join()
