"""The primary dies in the middle of the load and its standby takes over.

With synchronous replication nothing that was acknowledged is lost. With asynchronous replication it
can be: then the runs that the store has forgotten part of stop and say so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from holdfast import Holdfast, HoldfastError
from holdfast.errors import ReadOnlyStore
from holdfast.store.base import ClaimFilter
from support import chaos_agents
from support.fleet import ENDED, Fleet, People, tasks
from support.invariants import Evidence, check_all
from support.ledger import Ledger
from support.postgres import PostgresServer, StandbyServer, failover_dsn
from support.waiting import PATIENCE_SECONDS, eventually

LEASE_SECONDS = 2.0


@dataclass
class Pair:
    """A primary, its standby, and a database that clients find on whichever takes writes."""

    primary: PostgresServer
    standby: StandbyServer
    database: str
    url: str

    def wait_until_replicated(self) -> None:
        """Until the standby has everything that is committed now."""
        with psycopg.connect(self.primary.dsn(), autocommit=True) as db:
            here = db.execute("SELECT pg_current_wal_lsn()").fetchone()
            assert here is not None
            behind = "SELECT count(*) FROM pg_stat_replication WHERE flush_lsn < %s"
            eventually(lambda: db.execute(behind, here).fetchall() == [(0,)], "replication")

    def fail_over(self) -> None:
        self.primary.kill9()
        self.standby.promote()


@contextlib.contextmanager
def pair(*, synchronous: bool) -> Iterator[Pair]:
    with PostgresServer() as primary:
        name = primary.create_database()
        with StandbyServer(primary) as standby:
            primary.wait_for_standby(synchronous=synchronous)
            yield Pair(primary, standby, name, failover_dsn(primary, standby, name))


def serve_until_all_have_ended(people: People, hf: Holdfast, wanted: set[str]) -> None:
    ended: set[str] = set()

    def all_have_ended() -> bool:
        with contextlib.suppress(HoldfastError):  # the store is away for a moment
            people.round()
            ended.update(row.id for status in ENDED for row in hf.runs(status=status, limit=500))
        return wanted <= ended

    eventually(
        all_have_ended, lambda: f"the end of {[hf.store.get(run_id) for run_id in wanted - ended]}"
    )


def look_but_do_not_touch(servers: Pair, run_id: str) -> None:
    """A standby can be read; no one claims, starts or schedules there (FAULTS 46)."""
    with Holdfast(servers.standby.dsn(servers.database), agents=[chaos_agents.chained]) as replica:
        eventually(lambda: replica.store.get(run_id) is not None)
        assert replica.get(run_id).agent
        for touch in (
            lambda: replica.store.claim_due(
                worker="w", lease_us=1, limit=1, filters=[ClaimFilter("chained")]
            ),
            lambda: replica.store.claim(run_id, worker="w", lease_us=1),
            lambda: replica.schedule(chaos_agents.chained, cron="@daily", input={"name": "sam"}),
            lambda: replica.start(chaos_agents.chained, name="sam"),
        ):
            with pytest.raises(ReadOnlyStore, match="standby"):
                touch()


@pytest.mark.postgres
def test_with_synchronous_replication_a_failover_loses_nothing(
    ledger: Ledger, tmp_path: Path
) -> None:
    with (
        pair(synchronous=True) as servers,
        Holdfast(servers.url) as hf,
        Fleet(
            servers.url, ledger, tmp_path, size=3, lease_seconds=LEASE_SECONDS, dawdle_seconds=0.1
        ),
    ):
        kinds = tasks(5.2)
        runs = {f"r-{i}-{kinds[i % 12].name}": kinds[i % 12] for i in range(36)}
        people = People(hf, ledger)
        for number, (run_id, task) in enumerate(runs.items()):
            hf.start(task.agent, id=run_id, **task.input)
            people.round()
            people.remember(run_id)
            if number == 12:
                look_but_do_not_touch(servers, run_id)
            if number == 24:
                servers.fail_over()
        serve_until_all_have_ended(people, hf, set(runs))

        with psycopg.connect(servers.url) as db:
            assert db.info.port == servers.standby.port
        for run_id, task in runs.items():
            row = hf.store.get(run_id)
            assert row is not None and row.status == task.final
            effects = [x for x in ledger.effects(run_id) if x["run"] == run_id]
            check_all(Evidence(hf.store, run_id, effects, earlier_logs=people.earlier[run_id]))


def paid(ledger: Ledger, run_id: str) -> list[int]:
    return [effect["args"]["amount"] for effect in ledger.effects(run_id)]


@pytest.mark.postgres
def test_runs_whose_acknowledged_events_a_failover_lost_stop_with_the_reason(
    ledger: Ledger, tmp_path: Path
) -> None:
    with (
        pair(synchronous=False) as servers,
        Holdfast(servers.url) as hf,
        Fleet(
            servers.url, ledger, tmp_path, size=3, lease_seconds=LEASE_SECONDS, dawdle_seconds=0.2
        ),
    ):
        runs = [f"r-{i}" for i in range(4)]
        for run_id in runs:
            hf.start(chaos_agents.spending, id=run_id, times=100)
        hf.start(chaos_agents.sleeper, id="waits", name="sam", seconds=0)
        eventually(lambda: all(len(paid(ledger, run_id)) >= 2 for run_id in runs))
        eventually(lambda: hf.get("waits").status == "waiting")
        hf.start(chaos_agents.spending, id="ends", times=0)  # so that all is replicated
        assert hf.result("ends", timeout=PATIENCE_SECONDS) == 0
        servers.wait_until_replicated()
        servers.primary.cut_off_standbys()
        before = {run_id: len(paid(ledger, run_id)) for run_id in runs}
        hf.signal("waits", "go", 1)  # acknowledged, and lost
        assert hf.result("waits", timeout=PATIENCE_SECONDS) == [1, "send"]
        eventually(lambda: all(len(paid(ledger, run_id)) >= before[run_id] + 2 for run_id in runs))

        servers.fail_over()

        eventually(lambda: all(status(hf, run_id) == "quarantined" for run_id in [*runs, "waits"]))
        # Others are claimed again, so these could have been.
        assert hf.start(chaos_agents.spending, times=1).result(timeout=PATIENCE_SECONDS) == 1
        for run_id in [*runs, "waits"]:
            row = hf.store.get(run_id)
            assert row is not None and row.status == "quarantined"
            assert "lost acknowledged events" in row.waiting_for
        for run_id in runs:
            amounts = paid(ledger, run_id)
            assert amounts == sorted(set(amounts)), f"paid twice: {amounts}"
        assert hf.get("ends").status == "completed"


def status(hf: Holdfast, run_id: str) -> str:
    with contextlib.suppress(HoldfastError):
        row = hf.store.get(run_id)
        return row.status if row else "gone"
    return ""
