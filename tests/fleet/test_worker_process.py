"""Workers as processes of their own, on both stores: they take what is due, in files and modules; and
when they are stopped they release their runs, so that others continue at once.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import apsw
import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast, Options, Run, agent
from holdfast.cli import worker
from holdfast.cli.verbs import cli
from holdfast.runtime.declare.specs import agent_spec
from holdfast.store.base import MICROSECONDS, system_clock
from holdfast.store.sqlite import SQLiteStore
from holdfast.store.sqlite import file as sqlite_file
from support import fleet_agents
from support.postgres import PostgresServer
from support.waiting import PATIENCE_SECONDS, Door
from support.workers import AGENTS, STORES, Workers, url_of, workers


@pytest.fixture(params=STORES)
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workers]:
    yield from workers(url_of(request.param, request, tmp_path), tmp_path)


@pytest.fixture
def hf(fleet: Workers) -> Iterator[Holdfast]:
    with Holdfast(fleet.url) as made:
        yield made


def test_a_worker_of_a_file_and_a_module_drains_the_queue_and_ends(
    fleet: Workers, hf: Holdfast
) -> None:
    plain = [hf.start(fleet_agents.doubling, n=i) for i in range(15)]
    tasks = [hf.start(fleet_agents.doubling_async, n=i) for i in range(15)]

    code, said, told = fleet.once(
        "--json", str(AGENTS) + ":doubling", target="support.fleet_agents:doubling_async"
    )

    assert (0, {"executed": 30}) == (code, json.loads(said))
    lines = [json.loads(line) for line in told.splitlines()]
    assert {("completed", "doubling"): 15, ("completed", "doubling_async"): 15} == {
        key: sum((line["status"], line["agent"]) == key for line in lines)
        for key in {(line["status"], line["agent"]) for line in lines}
    }
    assert [2 * i for i in range(15)] * 2 == [handle.result(timeout=1) for handle in plain + tasks]


def test_sigterm_releases_a_run_when_its_call_has_ended_and_others_continue_at_once(
    fleet: Workers, hf: Holdfast, door: Door
) -> None:
    hf.start(fleet_agents.three_calls, id="r", door=door.path)
    first = fleet.start("--lease", "3600", "--grace", "30")
    fleet.wait_for("begin a")

    first.send_signal(signal.SIGTERM)
    fleet.expect(first, "stopping: 1 run in progress")
    door.open()
    said, _ = first.communicate(timeout=PATIENCE_SECONDS)

    assert (0, "executed 1 run\n") == (first.returncode, said)
    assert ["begin a", "end a"] == fleet.did()
    row = hf.store.get("r")
    assert row is not None
    assert ("pending", "", 0) == (row.status, row.owner, row.claims)
    assert 0 == fleet.once("--lease", "3600")[0]
    assert ["a", "b", "c"] == hf.handle("r").result(timeout=1)
    assert [f"{what} {name}" for name in "abc" for what in ("begin", "end")] == fleet.did()


@pytest.mark.parametrize("signals", [1, 2])
def test_a_run_whose_call_outlasts_the_grace_time_is_released_as_after_a_crash(
    fleet: Workers, hf: Holdfast, door: Door, signals: int
) -> None:
    """By a short grace, or by a second signal: the lease of an hour is not waited for."""
    hf.start(fleet_agents.three_calls, id="r", door=door.path)
    process = fleet.start("--lease", "3600", "--grace", "0.3" if signals == 1 else "3600")
    fleet.wait_for("begin a")

    process.send_signal(signal.SIGTERM)
    if signals == 2:  # those that come together count once
        fleet.expect(process, "stopping: 1 run in progress")
        process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=PATIENCE_SECONDS)

    assert "released" in told
    row = hf.store.get("r")
    assert row is not None
    assert ("pending", "") == (row.status, row.owner)
    with Holdfast(fleet.url, agents=[fleet_agents.three_calls]) as other:
        assert other.store.claim("r", worker="w", lease_us=1) is not None


@pytest.mark.parametrize(
    "fleet",
    ["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.nightly])],
    indirect=True,
)
def test_a_run_that_kills_its_workers_is_quarantined_with_its_reason_and_others_continue(
    fleet: Workers, hf: Holdfast
) -> None:
    """Its log grows each time, by a claim and an intent; that is not progress."""
    hf.start(fleet_agents.deadly, id="deadly", priority=10)
    other = hf.start(fleet_agents.doubling, n=4)
    lives = 0
    while hf.handle("deadly").status != "quarantined":
        code, _, _ = fleet.once("--concurrency", "1", "--lease", "0.3")
        lives += 1
        assert lives < 20
        assert code in (0, 9)

    assert 8 == other.result(timeout=PATIENCE_SECONDS)
    assert 5 == fleet.did().count("die")
    row = hf.store.get("deadly")
    assert row is not None and "may kill its workers" in row.waiting_for
    assert "may kill its workers" in hf.get("deadly").waiting_for


def test_a_run_that_calls_sys_exit_does_not_end_its_worker_and_is_quarantined(
    fleet: Workers, hf: Holdfast
) -> None:
    hf.start(fleet_agents.leaving, id="leaving")
    other = hf.start(fleet_agents.doubling, n=4)

    code, _, told = fleet.once()

    assert (0, 8) == (code, other.result(timeout=1))
    assert "SystemExit" in told
    assert ("quarantined", 5) == (hf.handle("leaving").status, fleet.did().count("leave"))


def test_a_run_that_a_worker_may_not_execute_is_left_for_others_and_reported_once(
    fleet: Workers, hf: Holdfast
) -> None:
    """An agent that it does not know, and a version that it does not continue."""

    @agent(version="1")
    def versioned(run: Run) -> str:
        return "1"

    @agent
    def stranger(run: Run) -> str:
        return "?"

    handles = [
        hf.start(old, id=f"{old.__name__}-{i}") for old in (versioned, stranger) for i in (1, 2)
    ]
    ours = hf.start(fleet_agents.versioned, id="new")

    code, said, told = fleet.once()

    assert (0, "executed 1 run\n") == (code, said)
    assert "2" == ours.result(timeout=1)
    assert {"pending"} == {handle.status for handle in handles}
    assert 1 == told.count("not claimed: runs of versioned")
    assert 1 == told.count("not claimed: runs of stranger")
    assert "started with version '1', this worker runs '2'" in told


def test_a_worker_claims_an_abandoned_run_within_two_leases(fleet: Workers, hf: Holdfast) -> None:
    """While it works, not only at its start."""
    lease = 5  # two of them leave a busy machine time to be late
    fleet.start("--lease", str(lease))
    hf.start(fleet_agents.doubling, n=1).result(timeout=PATIENCE_SECONDS)
    with Holdfast(fleet.url, options=Options(lease_seconds=lease)) as dying:
        dying.engine.claims.create(agent_spec(fleet_agents.doubling), "left", {"n": 2}).wait()
    began = time.monotonic()

    assert 4 == hf.handle("left").result(timeout=PATIENCE_SECONDS)
    assert time.monotonic() - began < 2 * lease
    row = hf.store.get("left")
    assert row is not None and row.epoch == 2


def test_due_runs_that_no_worker_claims_are_shown_as_such(tmp_path: Path) -> None:
    """A worker that would know them is missing; that is not the store's fault."""

    @agent(version="7")
    def stranger(run: Run) -> str:
        return "?"

    start = system_clock() - 3600 * MICROSECONDS
    with Holdfast(SQLiteStore(tmp_path / "h.db", clock=lambda: start)) as hf:
        hf.start(stranger, id="r")

    def said(*words: str) -> Result:
        return CliRunner().invoke(cli, [*words, "--db", str(tmp_path / "h.db")])

    found, data = said("doctor"), said("doctor", "--json")

    assert 0 == found.exit_code
    assert "runs of stranger (version 7) have been due for 1 h" in found.stdout
    assert [{"agent": "stranger", "code_version": "7", "due_at": start}] == json.loads(data.stdout)[
        "overdue"
    ]
    in_vain = "a worker; due for 1 h: no worker for stranger (version 7) is free"
    for looked in (said("list"), said("show", "r"), said("list", "--json")):
        assert in_vain in looked.stdout


@pytest.mark.nightly
@pytest.mark.postgres
def test_a_worker_retries_while_a_server_restarts_and_stops_if_it_is_refused(
    killable_postgres: PostgresServer, tmp_path: Path
) -> None:
    server = killable_postgres
    name = server.create_database()
    with Holdfast(server.dsn(name)) as hf:
        hf.start(fleet_agents.doubling, id="r", n=4)
    made = contextlib.contextmanager(workers)
    with made(server.dsn("nobody_made_it"), tmp_path) as stranger:
        code, _, told = stranger.once()
        assert (1, True, False) == (code, "does not exist" in told, "waiting" in told)
    server.stop()
    with made(server.dsn(name), tmp_path) as fleet:
        process = fleet.start("--once")
        assert process.stderr is not None
        assert "waiting for the store" in process.stderr.readline()
        hasty = fleet.start()
        assert hasty.stderr is not None
        assert "waiting for the store" in hasty.stderr.readline()
        hasty.send_signal(signal.SIGTERM)  # it has nothing to release
        assert -signal.SIGTERM == hasty.wait(PATIENCE_SECONDS)
        server.start()
        said, _ = process.communicate(timeout=PATIENCE_SECONDS)
        assert (0, "executed 1 run\n") == (process.returncode, said)
    server.drop_database(name)


# -- starting and stopping at bad moments ------------------------------------------------------


LOADING = """
import sys
from holdfast import Run, agent

@agent
def waits_to_begin(run: Run) -> str:
    return "begun"

print("loading", file=sys.stderr, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)]
)
def test_a_signal_while_a_worker_is_starting_ends_it_and_it_has_claimed_nothing(
    tmp_path: Path, number: int, code: int
) -> None:
    """There is nothing to release yet, so the system's own way of ending is the right one."""
    (tmp_path / "loading.py").write_text(LOADING)
    with contextlib.contextmanager(workers)(str(tmp_path / "h.db"), tmp_path) as fleet:

        @agent
        def waits_to_begin(run: Run) -> str:
            return "begun"

        with Holdfast(fleet.url) as hf:
            handle = hf.start(waits_to_begin, id="r")
            process = fleet.start(target=str(tmp_path / "loading.py"), stdin=subprocess.PIPE)
            assert process.stderr is not None
            assert "loading\n" == process.stderr.readline()

            process.send_signal(number)
            _, told = process.communicate(timeout=PATIENCE_SECONDS)

            assert code == process.returncode
            assert "Traceback" not in told
            row = hf.store.get("r")
            assert row is not None and ("pending", "", 0) == (row.status, row.owner, row.epoch)
            assert 0 == fleet.once(target=str(tmp_path / "loading.py"))[0]
            assert "begun" == handle.result(timeout=1)


def test_a_worker_retries_while_another_process_has_locked_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by one that was frozen while it made the file; opening it then fails, and is tried again."""
    path = tmp_path / "h.db"
    monkeypatch.setattr(sqlite_file, "BUSY_MS", 50)
    with contextlib.closing(apsw.Connection(str(path))) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        waited: list[float] = []

        def sleep(seconds: float) -> None:
            waited.append(seconds)
            if len(waited) == 2:
                holder.execute("ROLLBACK")

        monkeypatch.setattr(worker, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
        done = CliRunner().invoke(cli, ["worker", str(AGENTS), "--once", "--db", str(path)])

    assert (0, "executed 0 runs\n") == (done.exit_code, done.stdout)
    assert (2, 1) == (len(waited), done.stderr.count("waiting for the store"))


@pytest.mark.nightly
@pytest.mark.postgres
@pytest.mark.parametrize("immediate", [False, True])
def test_a_worker_whose_server_is_unavailable_at_a_renewal_continues_its_run(
    killable_postgres: PostgresServer, tmp_path: Path, door: Door, immediate: bool
) -> None:
    """It says so, keeps the run, renews when the server is back within the lease, and ends well."""
    server = killable_postgres
    name = server.create_database()
    with contextlib.contextmanager(workers)(server.dsn(name), tmp_path) as fleet:
        with Holdfast(fleet.url) as hf:
            hf.start(fleet_agents.until_told, id="r", door=door.path)
        process = fleet.start("--lease", "21")
        fleet.wait_for("begin")
        server.stop(immediate=immediate)
        fleet.expect(process, "leases could not be renewed")
        server.start()
        door.open()
        with Holdfast(fleet.url) as hf:
            assert "told" == hf.result("r", timeout=PATIENCE_SECONDS)
            row = hf.store.get("r")
            assert row is not None and 1 == row.epoch
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_SECONDS)
        assert 0 == process.returncode
    server.drop_database(name)
