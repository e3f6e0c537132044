"""Workers are killed and frozen at random while they bring runs of every kind to their end.

The everyday versions make the same choices each time (when each falls is the machine's affair). The long ones
(`make chaos`) make others each time; the seed is printed, and HOLDFAST_CHAOS_SEED repeats it.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import psycopg
import pytest

from support.fleet import Chaos, Plan, Report
from support.ledger import Ledger
from support.postgres import PostgresServer

GIVEN = os.environ.get("HOLDFAST_CHAOS_SEED")
EVERYDAY = int(GIVEN or 20)
ANOTHER = int(GIVEN or random.SystemRandom().randrange(10**6))


def short(seed: int, restart_every_seconds: float = 0.0) -> Plan:
    return Plan(
        seed,
        runs=30,
        workers=3,
        lease_seconds=1.0,
        start_seconds=4.0,
        harm_seconds=8.0,
        limit_seconds=240.0,
        kill_every_seconds=0.8,
        freeze_every_seconds=1.0,
        restart_every_seconds=restart_every_seconds,
        sleep_seconds=5.2,
        dawdle_seconds=0.15,
    )


def long(seed: int, restart_every_seconds: float = 0.0) -> Plan:
    return Plan(
        seed,
        runs=500,
        workers=8,
        lease_seconds=2.0,
        start_seconds=90.0,
        harm_seconds=110.0,
        limit_seconds=600.0,
        kill_every_seconds=0.8,
        freeze_every_seconds=0.8,
        restart_every_seconds=restart_every_seconds,
        dawdle_seconds=0.15,
    )


def tell(store: str, plan: Plan, report: Report) -> None:
    sys.stdout.write(
        f"{store}, seed {plan.seed}: {plan.runs} runs by {plan.workers} workers ended in {report.seconds:.0f} s, "
        f"with {report.kills} kills, {report.freezes} freezes, {dict(report.restarts)} restarts; "
        f"{report.claims} claims, {report.evidence} late receipts kept as evidence, people {dict(report.people)}; "
        f"{report.invariants_checked} checks of invariants in {report.logs_checked} logs; "
        f"effects twice where a check by the user answered too late: {dict(report.twice)}\n"
    )


def on_sqlite(plan: Plan, ledger: Ledger, folder: Path) -> Report:
    sys.stdout.write(f"seed {plan.seed}\n")
    report = Chaos(plan, str(folder / "fleet.db"), ledger, folder).run()
    tell("SQLite", plan, report)
    return report


def on_postgres(plan: Plan, ledger: Ledger, folder: Path, server: PostgresServer) -> Report:
    sys.stdout.write(f"seed {plan.seed}\n")
    name = server.create_database()

    def restart(how: str) -> None:
        server.stop(immediate=how == "immediate")
        server.start()

    report = Chaos(plan, server.dsn(name), ledger, folder, restart=restart).run()
    tell("PostgreSQL", plan, report)
    with psycopg.connect(server.dsn()) as db:
        left = db.execute(
            "SELECT application_name, state, query FROM pg_stat_activity WHERE datname = %s", [name]
        ).fetchall()
    assert left == []  # no one is left waiting, listening or in a transaction
    server.drop_database(name)
    return report


def test_runs_end_and_the_promise_holds_while_workers_are_killed_and_frozen(
    ledger: Ledger, tmp_path: Path
) -> None:
    report = on_sqlite(short(EVERYDAY), ledger, tmp_path)

    assert report.kills >= 3 and report.freezes >= 2


def test_on_postgresql_the_promise_holds_while_the_server_restarts_too(
    ledger: Ledger, tmp_path: Path, killable_postgres: PostgresServer
) -> None:
    report = on_postgres(short(EVERYDAY, 3.0), ledger, tmp_path, killable_postgres)

    assert report.kills >= 3 and report.freezes >= 2 and report.restarts.total() >= 1


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_five_hundred_runs_survive_a_long_chaos(ledger: Ledger, tmp_path: Path) -> None:
    report = on_sqlite(long(ANOTHER), ledger, tmp_path)

    assert report.kills >= 50 and report.freezes >= 50


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_on_postgresql_five_hundred_runs_survive_a_long_chaos(
    ledger: Ledger, tmp_path: Path, killable_postgres: PostgresServer
) -> None:
    report = on_postgres(long(ANOTHER, 8.0), ledger, tmp_path, killable_postgres)

    assert report.kills >= 50 and report.freezes >= 50 and report.restarts.total() >= 5
