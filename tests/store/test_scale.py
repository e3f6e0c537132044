"""At 100,000 runs every statement still goes by a run's id or by an index.

One scenario uses every statement of a store, as they are in the `.sql` files. SQLite tells how many
rows each stepped over; PostgreSQL shows its plans, and counts the scans that really happened.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.core.log import Blob, Head, origin
from holdfast.store import sql
from holdfast.store.base import (
    MICROSECONDS,
    Append,
    ClaimFilter,
    Creation,
    Filter,
    NewRun,
    RegisteredAgent,
    RowChange,
    Schedule,
    Snapshot,
    Store,
    system_clock,
)
from holdfast.store.sqlite import SQLiteStore
from holdfast.testing.store_suite.bench import sealed
from support.bulk import fill
from support.waiting import eventually

RUNS = 100_000
LEASE_US = 60 * MICROSECONDS


def use_everything(store: Store, pass_time: Callable[[int], None]) -> None:
    """Every statement, at least once."""

    def work(run_id: str, epoch: int | None = None, **rest: Any) -> Append:
        log = store.read(run_id)
        head = Head(log[-1].seq, log[-1].hash, log[-1].time) if log else origin(run_id)
        return Append(run_id, head.seq, sealed(head, 1, epoch=epoch or 0), epoch, **rest)

    for i, agent in enumerate(("busy", "busy", "rare", "rare", "parent", "child")):
        run = NewRun(f"r{i}", agent, "digest", parent="r4" if agent == "child" else "")
        store.create(Creation(run, sealed(origin(run.id), 1), blobs=[Blob("aa", b"x")])).wait()
    wanted = [ClaimFilter("busy", "", 50), ClaimFilter("rare")]
    taken = store.claim_due(
        worker="w", lease_us=LEASE_US, limit=2, filters=wanted, exclude=["nobody"]
    )
    held = [(row.id, row.epoch) for row in taken]
    assert [set(), 2] == [store.renew(held, lease_us=LEASE_US), len(held)]
    first, epoch = held[0]
    assert {"lost"} == store.renew([("lost", 1)], lease_us=LEASE_US)
    store.append(work(first, epoch, claims_key="key", blobs=[Blob("bb", b"y")]))
    store.append(work(first, None, change=RowChange(wake=True, wakes=("r4",))))
    with store.open_append(first, epoch) as opened:
        opened.commit(work(first, epoch))
    for ticket in [store.submit(work(run_id, epoch)) for run_id, epoch in held]:
        ticket.wait()
    store.snapshots.save(first, Snapshot(1, b"h", "", 0, b"s"))
    assert store.snapshots.newest(first) and store.find_key("key") and store.blob(first, "bb")
    assert store.wait(first, after=0, timeout=0) and store.get(first)
    assert {first} == set(store.heads([first, "nobody"])) and store.last_restart(first) == -1
    store.release(held[1][0], held[1][1])
    assert store.claim(held[1][0], worker="w", lease_us=LEASE_US)
    assert store.kinds() and store.wait_due(wanted, timeout=0)
    for which in (Filter(), Filter(status="waiting"), Filter(agent="rare"), Filter(parent="r4")):
        assert store.runs(which, limit=5)
        assert store.runs(which, limit=5, cursor=10**9)
    store.agents.register([known := RegisteredAgent("busy", "", b"{}", 1)])
    assert [known] == store.agents.all() and "rare" in store.agents.with_runs()
    schedule = Schedule("s", "busy", "@daily", "UTC", b"{}", 0, "latest", 0, 1)
    store.schedules.put(schedule)
    assert store.schedules.all() == store.schedules.due(["busy"]) == [schedule]
    assert store.schedules.advance(schedule, next_at=2, last_at=1)
    assert store.schedules.delete("s")
    moment = MICROSECONDS // 20
    for holder in ("a", "b"):
        store.limits.take_turn("t", holder, count=1, per_us=moment, slack_us=moment)
    pass_time(2 * moment)
    store.limits.take_turn("t", "b", count=1, per_us=moment, slack_us=moment)
    assert store.limits.take_seat("s", "h", run_id=first, epoch=epoch, limit=1)
    store.limits.leave_seat("s", "h")
    store.append(work(first, epoch, change=RowChange("completed")))
    assert store.delete(first)


# -- SQLite ------------------------------------------------------------------------------------


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[tuple[str, dict[str, dict[str, int]]]]:
    """A file with very many runs, and what each statement cost at most since they are there."""
    path = str(tmp_path / "h.db")
    store = SQLiteStore(path)
    now = store.now()
    store.close()
    fill(path, RUNS, agent="busy", now=now, due=now + 10**9, step=1000, ended_of=10)
    costs: dict[str, dict[str, int]] = defaultdict(dict)

    def profile(event: dict[str, Any]) -> None:
        seen = costs[" ".join(event["sql"].split())]
        for name, value in event["stmt_status"].items():
            seen[name] = max(seen.get(name, 0), value)

    def trace(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, profile)

    apsw.connection_hooks.append(trace)
    yield path, costs
    apsw.connection_hooks.remove(trace)


def test_sqlite_steps_over_few_rows_in_every_statement(
    traced: tuple[str, dict[str, dict[str, int]]],
) -> None:
    path, costs = traced
    passed: list[int] = []
    store = SQLiteStore(path, clock=lambda: system_clock() + sum(passed))
    use_everything(store, passed.append)
    store.close()

    used = {name: " ".join(text.split()) for name, text in sql.queries("sqlite").items()}
    assert set() == {name for name, text in used.items() if text not in costs}
    for name, text in used.items():
        cost = costs[text]
        assert cost["SQLITE_STMTSTATUS_FULLSCAN_STEP"] <= 20, (name, cost)
        assert cost["SQLITE_STMTSTATUS_VM_STEP"] <= 5_000, (name, cost)


# -- PostgreSQL --------------------------------------------------------------------------------


def wait_until(store: Store, at: int) -> None:
    """By the server's clock, as its statements go by that when they are not given another time."""
    eventually(lambda: store.now() > at, "that time passes")


BIG = {"runs", "events", "blobs", "snapshots", "keys"}


@pytest.mark.postgres
def test_postgresql_scans_no_big_table_in_any_statement(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    from holdfast.store.postgres import PostgresStore, arrays
    from holdfast.store.postgres.connections import Connection

    store = PostgresStore(postgres_dsn)
    now = store.now()
    store.close()
    fill(postgres_dsn, RUNS, agent="busy", now=now, due=now + 10**9, step=1000, ended_of=10)
    with psycopg.connect(postgres_dsn, autocommit=True) as db:
        db.execute("ANALYZE")
    before = scans(postgres_dsn)
    store = PostgresStore(postgres_dsn)
    seen: dict[str, Any] = {}
    execute = Connection.execute

    def noting(self: Any, query: Any, params: Any = None, **rest: Any) -> Any:
        if isinstance(query, str):
            seen[query] = params
        return execute(self, query, params, **rest)

    monkeypatch.setattr(Connection, "execute", noting)
    use_everything(store, lambda us: wait_until(store, store.now() + us))
    monkeypatch.undo()
    store.close()

    ours = {text: name for name, text in store._q.items()}
    scanned: list[tuple[str, str]] = []
    missing = set(ours.values()) - OUT_OF_SCOPE
    with psycopg.connect(postgres_dsn, autocommit=True) as db:  # EXPLAIN executes nothing
        arrays.register(db)  # type: ignore[arg-type]
        for query, params in seen.items():
            name = ours.get(query)
            if name is None or name in OUT_OF_SCOPE:
                continue
            missing.discard(name)
            plan = db.execute("EXPLAIN (FORMAT JSON) " + query, params).fetchall()  # type: ignore[arg-type]
            scanned += [(name, table) for table in sequential(plan[0][0]) if table in BIG]
    after = scans(postgres_dsn)

    assert [] == scanned
    assert set() == missing - AFTER_TROUBLE
    assert before == after


AFTER_TROUBLE = {
    "append",
    "claimed_by",
    "released",
    "stored_hashes",
    "positions",
    "raise_epochs",
    "set_aside",
}
"""By run id, asked when an answer was lost or the server went back in time; and the append itself, which is
a function: the scans that were counted tell of it."""
OUT_OF_SCOPE = {
    "settings",
    "in_recovery",
    "schema_there",
    "schema_tables",
    "schema_steps",
    "schema_lock",
    "schema_create",
    "schema_begin",
    "schema_step",
    "may_write",
    "notify",
    "lock_names",
}
"""What is asked when a store is opened or examined, or touches no table."""


def sequential(plan: Any) -> Iterator[str]:
    """The tables that a plan reads from end to end."""
    if isinstance(plan, list):
        for part in plan:
            yield from sequential(part)
    elif isinstance(plan, dict):
        if plan.get("Node Type") == "Seq Scan":
            yield plan["Relation Name"]
        for part in plan.values():
            yield from sequential(part)


def scans(dsn: str) -> dict[str, int]:
    """How often each big table was read from end to end, once all others has left: a session hands its
    figures in before it is gone."""
    import psycopg

    ask = "SELECT relname, seq_scan FROM pg_stat_user_tables WHERE relname = ANY(%s)"
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    with psycopg.connect(dsn, autocommit=True) as db:
        eventually(lambda: db.execute(others).fetchone() == (0,), "everybody's leaving")  # type: ignore[call-overload]
        return dict(db.execute(ask, (list(BIG),)).fetchall())  # type: ignore[call-overload]
