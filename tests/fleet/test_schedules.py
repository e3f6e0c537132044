"""Schedules: one run for each time that is due, whatever the number of workers and whenever they die."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast import (
    Holdfast,
    InvalidInput,
    NotFound,
    Options,
    Run,
    StoreUnavailable,
    agent,
    step,
)
from holdfast.cli.verbs import cli
from holdfast.runtime.exec.schedules import run_id_for
from holdfast.store.base import MICROSECONDS, Store, system_clock
from holdfast.store.sqlite import SQLiteStore
from holdfast.testing import ManualClock
from support import fleet_agents
from support.waiting import PATIENCE_SECONDS, eventually
from support.workers import STORES, url_of, workers


@step
def noted(text: str) -> str:
    return text


@agent
def report(run: Run, about: str = "all") -> str:
    return noted(f"report on {about}")


@agent
def digest(run: Run) -> str:
    return noted("digest")


@pytest.fixture
def clock() -> ManualClock:
    made = ManualClock()
    start = round(datetime(2026, 10, 24, 12, tzinfo=UTC).timestamp()) * MICROSECONDS
    made.advance((start - made.now()) / MICROSECONDS)
    return made


Open = Callable[[], Holdfast]


@pytest.fixture(params=STORES)
def opened(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Open]:
    """Opens the same store again and again, as other workers would."""
    url = url_of(request.param, request, tmp_path)
    made: list[Holdfast] = []

    def store() -> Store:
        if request.param == "sqlite":
            return SQLiteStore(url, clock=clock.now)
        from holdfast.store.postgres import PostgresStore

        return PostgresStore(url, clock=clock.now)

    def open_() -> Holdfast:
        made.append(Holdfast(store(), agents=[report, digest]))
        return made[-1]

    yield open_
    for hf in made:
        hf.close()


@pytest.fixture
def opened_near_a_minute(tmp_path: Path) -> Iterator[Holdfast]:
    """With a clock that runs, and comes to a full minute soon."""
    offset = 57 * MICROSECONDS - system_clock() % (60 * MICROSECONDS)
    store = SQLiteStore(tmp_path / "h.db", clock=lambda: system_clock() + offset)
    with Holdfast(store, agents=[digest]) as hf:
        yield hf


def started(hf: Holdfast) -> list[str]:
    return sorted(row.id for row in hf.runs(limit=10_000))


def test_many_workers_start_one_run_for_each_time(opened: Open, clock: ManualClock) -> None:
    """Day after day, over the night on which clocks in Berlin are put back."""
    fleet = [opened() for _ in range(4)]
    fleet[0].schedule(report, cron="30 2 * * *", tz="Europe/Berlin", input={"about": "sales"})
    for _ in range(6):
        clock.advance(12 * 3600)
        threads = [threading.Thread(target=hf.worker().run, kwargs={"once": True}) for hf in fleet]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    expected = ["report@20261025T0030Z", "report@20261026T0130Z", "report@20261027T0130Z"]
    assert expected == started(fleet[0])
    assert {"report on sales"} == {fleet[1].result(run_id, timeout=1) for run_id in expected}
    (kept,) = fleet[2].schedules()
    assert ("report@20261027T0130Z", "30 2 * * *") == (
        f"report@{datetime.fromtimestamp((kept.last_at or 0) // MICROSECONDS, UTC):%Y%m%dT%H%MZ}",
        kept.cron,
    )


@pytest.mark.parametrize("kind", STORES)
def test_worker_processes_start_one_run_for_each_time_that_is_due(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A schedule that was made half an hour ago, for every minute, and no one was there."""
    url = url_of(kind, request, tmp_path)
    past = system_clock() - 1800 * MICROSECONDS

    def store() -> Store:
        if kind == "sqlite":
            return SQLiteStore(url, clock=lambda: past)
        from holdfast.store.postgres import PostgresStore

        return PostgresStore(url, clock=lambda: past)

    with Holdfast(store()) as then:
        then.schedule(fleet_agents.scheduled, cron="* * * * *", id="s", catch_up="all")
    with Holdfast(url) as hf, contextlib.contextmanager(workers)(url, tmp_path) as processes:
        at_work = [processes.start("--once", "--quiet") for _ in range(3)]
        assert [0, 0, 0] == [one.wait(PATIENCE_SECONDS) for one in at_work]

        minute = 60 * MICROSECONDS
        upto = hf.schedules()[0].next_at // minute
        due = [at * minute for at in range(past // minute + 1, upto)]
        assert sorted(run_id_for("s", at) for at in due) == started(hf)
        assert {"completed"} == {row.status for row in hf.runs(limit=100)}
        assert 30 <= len(due) == len(processes.deeds)


def test_a_worker_that_dies_after_starting_a_run_leaves_nothing_to_be_done_twice(
    opened: Open, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying, other = opened(), opened()
    dying.schedule(digest, cron="@hourly")
    clock.advance(3600)

    def dies(*_: Any, **__: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(dying.store.schedules, "advance", dies)
    with pytest.raises(KeyboardInterrupt):
        dying.worker().run(once=True)
    assert ["digest@20261024T1300Z"] == started(other)

    assert 1 == other.worker().run(once=True)
    assert ["digest@20261024T1300Z"] == started(other)


@pytest.mark.parametrize(
    ("catch_up", "missed"),
    [
        ("latest", ["digest@20261025T0000Z"]),
        ("all", [f"digest@202610{day}T{hour:02}00Z" for day, hour in ((24, 18), (25, 0))]),
        ("none", []),
    ],
)
def test_after_a_time_without_workers_as_much_is_caught_up_as_was_asked_for(
    opened: Open, clock: ManualClock, catch_up: Any, missed: list[str]
) -> None:
    hf = opened()
    hf.schedule(digest, cron="0 */6 * * *", catch_up=catch_up)
    clock.advance(17 * 3600)

    hf.worker().run(once=True)
    assert missed == started(hf)
    clock.advance(3600 + 1)
    hf.worker().run(once=True)
    assert [*missed, "digest@20261025T0600Z"] == started(hf)


def test_years_without_a_worker_are_passed_over_quickly(opened: Open, clock: ManualClock) -> None:
    hf = opened()
    hf.schedule(digest, cron="* * * * *")
    hf.schedule(report, cron="0 0 29 feb *")
    clock.advance(9 * 366 * 86_400)

    hf.worker().run(once=True)
    assert ["digest", "report"] == [run_id.partition("@")[0] for run_id in started(hf)]


def test_a_schedule_that_is_given_again_changes_nothing_and_another_one_replaces_it(
    opened: Open, clock: ManualClock
) -> None:
    hf = opened()
    first = hf.schedule(digest, cron="@daily", id="d")
    clock.advance(3600)
    assert first == hf.schedule(digest, cron="@daily", id="d")

    changed = hf.schedule(digest, cron="0 12 * * *", id="d", priority=3)
    assert [("d", "0 12 * * *", 3)] == [(s.id, s.cron, s.priority) for s in hf.schedules()]
    assert clock.now() < changed.next_at
    hf.unschedule("d")
    assert [] == hf.schedules()
    with pytest.raises(NotFound):
        hf.unschedule("d")


def test_what_makes_no_sense_is_refused_before_anything_is_kept(opened: Open) -> None:
    hf = opened()
    for wrong in (
        {"cron": "61 * * * *"},
        {"cron": "@daily", "tz": "Mars/Olympus"},
        {"cron": "@daily", "tz": "../../etc/passwd"},
        {"cron": "@daily", "input": {"no such parameter": 1}},
        {"cron": "@daily", "id": "no spaces"},
        {"cron": "@daily", "id": "x" * 151},
        {"cron": "@daily", "priority": 11},
        {"cron": "@daily", "catch_up": "some"},
    ):
        with pytest.raises(InvalidInput):
            hf.schedule(report, **wrong)
    assert [] == hf.schedules()


def test_a_worker_starts_only_schedules_of_its_agents(opened: Open, clock: ManualClock) -> None:
    hf = opened()
    hf.schedule(report, cron="@hourly")
    hf.schedule(digest, cron="@hourly")
    clock.advance(3600)

    hf.worker(agents=[digest]).run(once=True)

    assert ["digest@20261024T1300Z"] == started(hf)


def test_a_store_that_fails_while_a_schedule_is_due_loses_nothing(
    opened: Open, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = opened()
    hf.schedule(digest, cron="@hourly")
    clock.advance(3600)
    create, failures = hf.store.create, [StoreUnavailable("away"), StoreUnavailable("away")]

    def sometimes(*args: Any, **kwargs: Any) -> Any:
        if failures:
            raise failures.pop()
        return create(*args, **kwargs)

    monkeypatch.setattr(hf.store, "create", sometimes)
    worker = hf.worker()
    working = threading.Thread(target=worker.run)
    working.start()
    eventually(lambda: started(hf), "the run")
    worker.stop()
    working.join()

    assert ["digest@20261024T1300Z"] == started(hf)


def test_an_idle_worker_wakes_up_for_a_schedule(opened_near_a_minute: Holdfast) -> None:
    """By itself, at the right time, though it idled already when someone made the schedule."""
    hf = opened_near_a_minute
    worker = hf.worker()
    working = threading.Thread(target=worker.run)
    working.start()
    made = hf.schedule(digest, cron="* * * * *")
    # In three; or in a minute, on a machine that was slow to come here.
    eventually(hf.runs, "the run", seconds=200)
    now = hf.store.now()
    worker.stop()
    working.join()

    assert made.next_at <= now < made.next_at + 20 * MICROSECONDS


FULL, GO_ON = threading.Event(), threading.Event()


@step
def fill() -> None:
    FULL.set()
    assert GO_ON.wait(PATIENCE_SECONDS)


@agent
def filling(run: Run) -> None:
    fill()


@pytest.mark.parametrize("kind", STORES)
def test_a_worker_without_a_free_place_starts_what_is_due_for_others(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> None:
    """Within a second or so: it looks while it waits for one of its runs to end."""
    FULL.clear()
    GO_ON.clear()
    url = url_of(kind, request, tmp_path)
    if kind == "sqlite":
        store: Store = SQLiteStore(url, clock=clock.now)
    else:
        from holdfast.store.postgres import PostgresStore

        store = PostgresStore(url, clock=clock.now)
    options = Options(lease_seconds=10 * 3600)  # so that it outlives the clock that is moved
    with Holdfast(store, agents=[filling, digest], options=options) as hf:
        hf.schedule(digest, cron="@hourly")
        hf.start(filling, id="full")
        worker = hf.worker(concurrency=1)
        working = threading.Thread(target=worker.run)
        working.start()
        assert FULL.wait(PATIENCE_SECONDS)
        clock.advance(3600)
        began = time.monotonic()
        eventually(lambda: "digest@20261024T1300Z" in started(hf), "the run")
        took = time.monotonic() - began
        still_full = hf.handle("full").status
        GO_ON.set()
        assert "digest" == hf.result("digest@20261024T1300Z", timeout=PATIENCE_SECONDS)
        worker.stop()
        working.join()

    assert "running" == still_full
    assert took < 10


def test_the_command_line_has_the_same_verbs(tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(
        "from holdfast import Run, agent\n\n"
        "@agent\ndef greet(run: Run, name: str, times: int = 1) -> str:\n    return name\n"
    )

    def hf(*words: str, code: int = 0) -> Any:
        result = CliRunner().invoke(cli, [*words, "--db", str(tmp_path / "h.db"), "--json"])
        assert code == result.exit_code, result.output
        return json.loads(result.stdout) if not code else result.stderr

    file = str(tmp_path / "agents.py")
    made = hf(
        "schedule", file, "30 6 * * mon-fri", "--tz", "Europe/Berlin", "-p", "name=Sam", "--id", "g"
    )
    assert ("g", "greet", {"name": "Sam", "times": 1}) == (made["id"], made["agent"], made["input"])
    assert [made] == hf("schedules")["schedules"]
    assert "not a number from 0 to 59" in hf(
        "schedule", file, "x * * * *", "-p", "name=Sam", code=1
    )
    assert {"id": "g", "deleted": True} == hf("unschedule", "g")
    assert "no schedule" in hf("unschedule", "g", code=1)
    assert [] == hf("schedules")["schedules"]
