"""A worker claims runs that are due, and continues when the store has failed for a moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Checkpoint,
    Holdfast,
    NotResumable,
    Run,
    RunWaiting,
    StoreUnavailable,
    agent,
    views,
)
from holdfast.runtime.exec.worker import Report
from holdfast.store.base import RunRow, Store
from holdfast.store.sqlite import SQLiteStore
from holdfast.testing.clock import ManualClock
from holdfast.words.advice import advice
from support.fleet_agents import double, doubling


def test_a_worker_executes_what_was_started_and_ends_when_nothing_is_due(tmp_path: Path) -> None:
    with Holdfast(tmp_path / "h.db", agents=[doubling]) as hf:
        handles = [hf.start(doubling, n=i) for i in range(5)]

        done = hf.worker(concurrency=2).run(once=True)

        assert (done, [h.result() for h in handles]) == (5, [0, 2, 4, 6, 8])


def test_a_store_that_fails_for_a_moment_does_not_end_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Holdfast(tmp_path / "h.db", agents=[doubling]) as hf:
        handle = hf.start(doubling, n=4)
        claim, failures = (
            hf.store.claim_due,
            [StoreUnavailable("restarting"), StoreUnavailable("restarting")],
        )

        def sometimes(**kwargs: Any) -> list[RunRow]:
            if failures:
                raise failures.pop()
            return claim(**kwargs)

        monkeypatch.setattr(hf.store, "claim_due", sometimes)

        hf.worker().run(once=True)

        assert handle.result(timeout=120) == 8


def test_a_worker_has_reported_every_run_when_it_ends(tmp_path: Path) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slowly(_: Report) -> None:
        began.set()
        assert go_on.wait(60)

    with Holdfast(tmp_path / "h.db", agents=[doubling]) as hf:
        hf.start(doubling, n=1)
        worker = threading.Thread(target=hf.worker(report=slowly).run, kwargs={"once": True})
        worker.start()
        assert began.wait(60)
        worker.join(0.3)  # too short only ever hides the fault
        waits = worker.is_alive()
        go_on.set()
        worker.join(60)

    assert (True, False) == (waits, worker.is_alive())


def test_a_run_that_kills_its_workers_is_quarantined_and_others_continue(tmp_path: Path) -> None:
    with Holdfast(tmp_path / "h.db", agents=[doubling]) as hf:
        poison = hf.start(doubling, id="poison", n=1)
        for _ in range(hf.engine.options.quarantine_after):  # as if each worker had died at once
            row = hf.store.claim("poison", worker="dead", lease_us=0)
            assert row is not None
        other = hf.start(doubling, n=3)

        hf.worker().run(once=True)

        assert (poison.status, other.status) == ("quarantined", "completed")
        assert "may kill its workers" in hf.get("poison").waiting_for
        assert hf.resume("poison") == 2


# ── before a resume ──────────────────────────────────────────────────────────────────────────

HOUR = 3600


def within_an_hour(body: Any) -> Any:
    return agent(checkpoint=Checkpoint(max_age=HOUR))(body)


@within_an_hour
def counting(run: Run) -> int:
    return double(4)


@within_an_hour
def sleeping(run: Run) -> str:
    run.sleep(3 * HOUR)
    return "slept"


@agent
def asking(run: Run) -> Any:
    return run.wait_for("go")


@within_an_hour
def delegating(run: Run) -> Any:
    return asking()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.nightly)])
def aging(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Holdfast]:
    """A store whose time is the test's, for agents that continue within an hour or not by themselves."""
    store: Store
    if request.param == "sqlite":
        store = SQLiteStore(tmp_path / "h.db", clock=clock.now)
    else:
        from holdfast.store.postgres import PostgresStore

        store = PostgresStore(request.getfixturevalue("postgres_dsn"), clock=clock.now)
    with Holdfast(store, agents=[counting, sleeping, delegating, asking]) as hf:
        yield hf


def test_a_worker_quarantines_a_run_that_is_too_old_with_advice_how_to_continue(
    aging: Holdfast, clock: ManualClock
) -> None:
    reports: list[Report] = []
    left = aging.start(counting, id="left")
    aging.store.claim("left", worker="dead", lease_us=1)
    clock.advance(2 * HOUR)
    with pytest.raises(NotResumable, match="age check failed"):
        aging.drive("left")

    first = aging.worker(report=reports.append).run(once=True)
    again = aging.worker(report=reports.append).run(once=True)

    said = "the age check failed: its last activity was 7,200 s ago, and its agent has max_age=3600"
    assert ("quarantined", 1, 0) == (left.status, first, again)
    assert [("waiting", True)] == [(x.status, said in x.detail) for x in reports]
    assert said in aging.get("left").waiting_for
    (way,) = views.next_steps(aging.store, "left")
    assert "holdfast resume FILE left --override age" == advice(way)
    with pytest.raises(RunWaiting, match=r"hf.resume\('left', override=\['age'\]\)"):
        aging.run(counting, id="left")
    assert 8 == aging.resume("left", override=["age"])


def test_a_run_is_not_too_old_for_a_worker_because_of_what_it_waited_for(
    aging: Holdfast, clock: ManualClock
) -> None:
    """Not in the queue, not for its own timer, not for a child that has just ended."""
    slept, parent = aging.start(sleeping, id="s"), aging.start(delegating, id="p")
    aging.worker().run(once=True)
    queued = aging.start(counting, id="q")
    clock.advance(3 * HOUR + 1)
    (child,) = aging.runs(parent="p")
    aging.signal(child.id, "go", "went")

    aging.worker().run(once=True)

    assert ("slept", "went", 8) == (slept.result(), parent.result(), queued.result())


def test_a_run_that_is_being_executed_is_busy_however_long_ago_it_was_claimed(
    aging: Holdfast, clock: ManualClock
) -> None:
    aging.start(counting, id="r")
    aging.store.claim("r", worker="busy", lease_us=5 * HOUR * 1_000_000)
    clock.advance(2 * HOUR)

    with pytest.raises(RunWaiting, match="busy, which is executing it"):
        aging.run(counting, id="r")
