"""Appends/s and latency of the two stores, next to the raw database doing the same inserts.

The raw database inserts rows of the same size into a table of the same shape, with the same
durability: one row per commit, and as many rows per commit as our group commit reached.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import apsw
from msgspec import Raw

from bench.harness import Report, Series, folder, postgres, rate
from holdfast.core import events as e
from holdfast.core import log
from holdfast.core.log import Head
from holdfast.store.base import Append, Creation, NewRun, Store
from holdfast.store.sqlite import SQLiteStore

PAYLOAD = e.Value(json=Raw(b'"' + b"x" * 900 + b'"'))  # an event of about 1 KB
EVENT_BYTES = 980  # what `Feeder` appends, in its stored form
LEASE_US = 600_000_000


class Feeder:
    """Runs to append to, each with its own chain."""

    def __init__(self, store: Store, prefix: str, runs: int) -> None:
        self.store = store
        self.heads: dict[str, Head] = {}
        for i in range(runs):
            run_id = f"{prefix}-{i}"
            created = e.RunCreated(run_id=run_id, agent="bench", input=e.NULL)
            head, records = log.seal(log.origin(run_id), [created], epoch=1, time=store.now())
            store.create(
                Creation(NewRun(run_id, "bench", "x"), records, worker="bench", lease_us=LEASE_US)
            ).wait()
            self.heads[run_id] = head

    def next(self, run_id: str) -> Append:
        head = self.heads[run_id]
        event = e.CallSucceeded(index=head.seq, step=head.seq + 1, name="work", result=PAYLOAD)
        self.heads[run_id], records = log.seal(head, [event], epoch=1, time=self.store.now())
        return Append(run_id, head.seq, records, 1, before=head.hash)

    def alone(self, count: int) -> None:
        (run_id,) = self.heads
        for _ in range(count):
            self.store.append(self.next(run_id))

    def together(self, each: int) -> None:
        async def one(run_id: str) -> None:
            for _ in range(each):
                await self.store.submit(self.next(run_id))

        async def all_of_them() -> None:
            await asyncio.gather(*(one(run_id) for run_id in self.heads))

        asyncio.run(all_of_them())


class Commits:
    """Counts batches, to let the raw database use as many rows per commit."""

    def __init__(self, store: Any) -> None:
        group = store._group
        self.sizes: list[int] = []
        commit = group._commit

        def counted(batch: Sequence[Append]) -> Any:
            self.sizes.append(len(batch))
            return commit(batch)

        group._commit = counted

    def per_commit(self) -> int:
        rows = max(1, round(sum(self.sizes) / len(self.sizes)))
        self.sizes.clear()
        return rows


# ── the raw databases ────────────────────────────────────────────────────────────────────────


class RawSQLite:
    name = "raw SQLite"

    def __init__(self, path: Path, row_bytes: int = EVENT_BYTES) -> None:
        self.data = os.urandom(row_bytes)
        self.db = apsw.Connection(str(path))
        self.db.pragma("journal_mode", "wal")
        self.db.pragma("synchronous", "FULL")
        self.db.execute(
            "CREATE TABLE e (run INTEGER, seq INTEGER, time INTEGER, epoch INTEGER, hash BLOB, kind TEXT, data BLOB);"
            "CREATE UNIQUE INDEX e_by_run ON e (run, seq)"
        )
        self.key = 0

    def insert(self, count: int, per_commit: int) -> None:
        statement, row = (
            "INSERT INTO e VALUES (?, ?, ?, ?, ?, ?, ?)",
            (1, 1, b"h" * 32, "call_succeeded", self.data),
        )
        for first in range(0, count, per_commit):
            self.key += 1
            self.db.execute("BEGIN IMMEDIATE")
            for run in range(min(per_commit, count - first)):
                self.db.execute(statement, (run, self.key, *row))
            self.db.execute("COMMIT")


class RawPostgres:
    name = "raw PostgreSQL"

    def __init__(self, dsn: str, row_bytes: int = EVENT_BYTES) -> None:
        import psycopg

        self.data = os.urandom(row_bytes)
        self.db = psycopg.connect(dsn, autocommit=True)
        self.db.execute(
            "CREATE TABLE e (run bigint, seq bigint, time bigint, epoch bigint, kind text, data bytea, hash bytea,"
            " PRIMARY KEY (run, seq))"
        )
        self.key = 0

    def insert(self, count: int, per_commit: int) -> None:
        row = (1, 1, "call_succeeded", self.data, b"h" * 32)
        for first in range(0, count, per_commit):
            self.key += 1
            rows = min(per_commit, count - first)
            if rows == 1:
                self.db.execute(
                    "INSERT INTO e VALUES (%s, %s, %s, %s, %s, %s, %s)",
                    (0, self.key, *row),
                    binary=True,
                )
                continue
            with (
                self.db.transaction(),
                self.db.cursor().copy("COPY e FROM STDIN (FORMAT BINARY)") as copy,
            ):
                copy.set_types(["int8", "int8", "int8", "int8", "text", "bytea", "bytea"])
                for run in range(rows):
                    copy.write_row((run, self.key, *row))


# ── the benchmark ────────────────────────────────────────────────────────────────────────────


def measure(
    report: Report,
    label: str,
    make: Callable[[], Any],
    raw: RawSQLite | RawPostgres,
    rounds: int,
    scale: int,
) -> None:
    for runs, goal in ((1, 0.60), (50, 0.35), (500, 0.35)):
        ours, theirs = Series(label, "appends/s"), Series(raw.name, "rows/s")
        count = (1000 if runs == 1 else 20_000) // scale
        each = max(1, count // runs)
        sizes: list[int] = []
        store = make()  # kept open over the rounds, as the raw connection is
        commits = Commits(store)
        for n in range(rounds + 1):
            feeder = Feeder(store, f"{label}-{runs}-{n}-{time.monotonic_ns()}", runs)
            commits.sizes.clear()
            work = partial(feeder.alone, count) if runs == 1 else partial(feeder.together, each)
            ours_now = rate(each * runs, work)
            per_commit = 1 if runs == 1 else commits.per_commit()
            theirs_now = rate(count, partial(raw.insert, count, per_commit))
            if n:  # the first round only warms up
                ours.values.append(ours_now)
                theirs.values.append(theirs_now)
                sizes.append(per_commit)
        store.close()
        rows = round(statistics.median(sizes))
        report.add(
            f"{label}, {runs} run{'s'[: runs > 1]}, {rows} rows a commit", ours, theirs, goal
        )


def flat(report: Report, label: str, store: Store, events: int) -> None:
    """Cost per append from the first event of a run to the last."""
    feeder = Feeder(store, f"flat-{label}", 1)
    (run_id,) = feeder.heads
    window = max(100, events // 100)
    first = rate(window, lambda: feeder.alone(window))
    left = events - 2 * window
    while left > 0:  # the middle in big appends, to get there quickly
        head = feeder.heads[run_id]
        size = min(500, left)
        new = [
            e.CallSucceeded(index=head.seq + i, step=head.seq + i, name="work", result=PAYLOAD)
            for i in range(size)
        ]
        feeder.heads[run_id], records = log.seal(head, new, epoch=1, time=store.now())
        store.append(Append(run_id, head.seq, records, 1, before=head.hash))
        left -= size
    again = rate(window, lambda: feeder.alone(window))
    last = rate(window, lambda: feeder.alone(window))
    cost = statistics.median([first / again, first / last])
    report.fact(f"{label}: cost of append {events:,} against append 1", f"{cost:.2f}×", cost <= 1.2)


def main(*, rounds: int, quick: bool, databases: Sequence[str], results: Path) -> None:
    scale = 40 if quick else 1
    report = Report("append", rounds, results)
    if "sqlite" in databases:
        with folder() as here:
            _on_sqlite(report, here, rounds, scale)
        report.keep()
    if "postgres" in databases:
        with postgres() as dsn:
            if dsn is not None:
                _on_postgres(report, dsn, rounds, scale)
    report.show()


def _on_sqlite(report: Report, folder: Path, rounds: int, scale: int) -> None:
    path, events = folder / "ours.db", 100_000 // scale
    measure(
        report, "SQLite", lambda: SQLiteStore(path), RawSQLite(folder / "raw.db"), rounds, scale
    )
    store = SQLiteStore(folder / "flat.db")
    flat(report, "SQLite", store, events)
    store.close()
    size = (folder / "flat.db").stat().st_size / events
    report.fact("SQLite: bytes on disk per 1 KB event", f"{size:,.0f}", size <= 1600)


def _on_postgres(report: Report, dsn: str, rounds: int, scale: int) -> None:
    from holdfast.store.postgres import PostgresStore

    events = 100_000 // scale
    measure(report, "PostgreSQL", lambda: PostgresStore(dsn), RawPostgres(dsn), rounds, scale)
    store = PostgresStore(dsn, schema="flat")
    flat(report, "PostgreSQL", store, events)
    store.close()
    size = _relation_bytes(dsn) / events
    report.fact("PostgreSQL: bytes on disk per 1 KB event", f"{size:,.0f}", size <= 1600)


def _relation_bytes(dsn: str) -> int:
    import psycopg

    with psycopg.connect(dsn) as db:
        found = db.execute("SELECT pg_total_relation_size('flat.events')").fetchone()
        return int(found[0]) if found else 0
