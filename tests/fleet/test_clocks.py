"""Workers whose clocks are wrong by an hour agree on leases, timers and the times in the log."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg

from holdfast import Holdfast, Run, agent, tool
from holdfast.core.events import CallDoubted, RunClaimed, RunSuspended
from holdfast.store.base import MICROSECONDS, Filter, system_clock
from holdfast.store.sqlite import SQLiteStore
from holdfast.testing.clock import ManualClock
from support import chaos_agents
from support.fleet import ENDED, Fleet, People, tasks
from support.invariants import Evidence, check_all
from support.ledger import Ledger
from support.waiting import PATIENCE_SECONDS, eventually

HOUR_SECONDS = 3600
SKEWS = (-HOUR_SECONDS, HOUR_SECONDS, 0)


def now_us(url: str) -> int:
    """By the store's clock: that of the server, or of the machine on which the file is."""
    if not url.startswith("postgresql:"):
        return system_clock()
    with psycopg.connect(url) as db:
        found = db.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
        return int(found.fetchall()[0][0])


def ask_until_all_took_part(hf: Holdfast) -> None:
    """Have runs told by each worker what its own clock says."""
    off: set[int] = set()

    def all_took_part() -> bool:
        local, told = hf.start(chaos_agents.asking).result(timeout=PATIENCE_SECONDS)
        off.add(round((local - told) / HOUR_SECONDS))
        return off == {-1, 0, 1}

    eventually(all_took_part, lambda: f"more than that workers whose clocks are off by {off} h")


def test_clocks_that_are_an_hour_wrong_change_nothing(
    url: str, ledger: Ledger, tmp_path: Path
) -> None:
    """Clocks as Python code sees them, in each worker another. (On SQLite the kernel's is the store's.)"""

    def wrong(place: int) -> dict[str, str]:
        return {chaos_agents.SKEW: str(SKEWS[place])}

    with (
        Holdfast(url) as hf,
        Fleet(
            url,
            ledger,
            tmp_path,
            size=3,
            lease_seconds=15,
            concurrency=1,
            dawdle_seconds=0.1,
            environment=wrong,
        ),
    ):
        began = now_us(url)
        runs = {f"r-{t.name}": t for t in tasks(5.2)}
        for run_id, task in runs.items():
            hf.start(task.agent, id=run_id, **task.input)
        people = People(hf, ledger)

        def all_have_ended() -> bool:
            people.round()
            return {row.status for row in hf.runs()} <= {*ENDED}

        eventually(all_have_ended, lambda: f"the end of {hf.runs()}")
        ask_until_all_took_part(hf)
        ended = now_us(url)

        for row in hf.store.runs(Filter(), limit=100):
            x = Evidence(hf.store, row.id, ledger.effects(row.id))
            check_all(x)
            times = [record.time for record in x.records]
            assert began <= times[0] and times[-1] <= ended, "an event has another clock's time"
            count = [type(event) for event in x.events].count
            assert count(CallDoubted) == 0
            if not row.parent:  # taken from no one: once, and once more after each wait
                assert count(RunClaimed) == count(RunSuspended) + 1
        assert people.did["reopened"] == 0


@agent
def napping(run: Run) -> list[float]:
    before = run.now().timestamp()
    run.sleep(600)
    return [before, run.now().timestamp()]


def test_times_in_a_log_never_fall_when_the_clock_steps_back(tmp_path: Path) -> None:
    clock = ManualClock()
    with Holdfast(SQLiteStore(tmp_path / "h.db", clock=clock.now), agents=[napping]) as hf:
        hf.start(napping, id="r")
        clock.advance(-HOUR_SECONDS)
        hf.worker().run(once=True)
        clock.advance(601)
        hf.worker().run(once=True)

        times = [record.time for record, _ in hf.events("r")]
        assert times == sorted(times)


PAID: list[int] = []
INSIDE, GO_ON = threading.Event(), threading.Event()


@tool
def pay(amount: int) -> int:
    PAID.append(amount)
    INSIDE.set()
    assert GO_ON.wait(PATIENCE_SECONDS)
    return amount


@agent
def paying(run: Run) -> int:
    return pay(5)


def test_a_machine_whose_clock_jumps_claims_runs_of_live_workers_and_nothing_happens_twice(
    tmp_path: Path,
) -> None:
    """On SQLite. Forward: leases look ended, and a call under way is in doubt until someone decides. Back:
    what a dead worker left waits for so much longer."""
    jumped = 0
    PAID.clear()

    def opened() -> Holdfast:
        clock = lambda: system_clock() + jumped * MICROSECONDS  # noqa: E731
        return Holdfast(SQLiteStore(tmp_path / "h.db", clock=clock), agents=[paying])

    with opened() as hf, opened() as other:
        hf.start(paying, id="r")
        working = threading.Thread(target=hf.worker().run, kwargs={"once": True})
        working.start()
        assert INSIDE.wait(PATIENCE_SECONDS)
        jumped = HOUR_SECONDS
        assert 1 == other.worker().run(once=True)
        (doubt,) = other.get("r").in_doubt
        GO_ON.set()
        working.join()
        (known,) = other.get("r").in_doubt
        assert ((), [5]) == (doubt.evidence, PAID)
        assert known.evidence[0].outcome == "done"
        other.resolve("r", doubt.step, done=5, by="test")
        assert 1 == other.worker().run(once=True)
        assert 5 == other.result("r", timeout=1)

        other.start(paying, id="left")
        assert other.store.claim("left", worker="dead", lease_us=MICROSECONDS) is not None
        jumped = 0
        assert 0 == other.worker().run(once=True)
        jumped = HOUR_SECONDS + 2
        assert 1 == other.worker().run(once=True)
        assert [5, 5] == PAID
