"""Very many runs, written to the tables of a store directly, because creating them one by one takes minutes."""

from __future__ import annotations

import contextlib

import apsw

COLUMNS = (
    """(id, agent, status, created_at, updated_at, due_at, input_digest, code_version, priority)"""
)
ONE = """'bulk-' || n, :agent, CASE WHEN n % :ended_of = 0 THEN 'waiting' ELSE 'completed' END, :now, :now,
         CASE WHEN n % :ended_of <> 0 THEN NULL WHEN :step = 0 THEN NULL ELSE :due + n * :step END,
         'digest', '', 0"""


def fill(
    url: str, count: int, *, agent: str, now: int, due: int, step: int, ended_of: int = 1
) -> None:
    """`count` runs with one event, key, blob and snapshot each, of which one in `ended_of` waits for `due + n * step` (in
    microseconds; for a person if `step` is 0) and the others have ended."""
    given = {
        "count": count,
        "agent": agent,
        "now": now,
        "due": due,
        "step": step,
        "ended_of": ended_of,
    }
    if url.startswith("postgresql:"):
        _fill_postgres(url, given)
        return
    numbers = "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < :count)"
    with contextlib.closing(apsw.Connection(url)) as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute(f"INSERT INTO runs {COLUMNS} {numbers} SELECT {ONE} FROM s", given)
        db.execute(
            "INSERT INTO events (run, seq, time, epoch, kind, data, hash) "
            "SELECT key, 0, 0, 0, 'run_created', x'00', x'00' FROM runs WHERE id LIKE 'bulk-%'"
        )
        db.execute("INSERT INTO keys SELECT 'key-' || key, key, 0 FROM runs WHERE id LIKE 'bulk-%'")
        db.execute("INSERT INTO blobs SELECT key, 'aa', x'00' FROM runs WHERE id LIKE 'bulk-%'")
        db.execute(
            "INSERT INTO snapshots SELECT key, 0, x'00', '', 0, x'00' FROM runs WHERE id LIKE 'bulk-%'"
        )
        db.execute("COMMIT")


def _fill_postgres(url: str, values: dict[str, object]) -> None:
    import re

    import psycopg

    one = re.sub(r"(?<!:):(\w+)", r"%(\1)s", ONE.replace("%", "%%"))
    with psycopg.connect(url) as db:
        db.execute(
            f"INSERT INTO holdfast.runs {COLUMNS} "
            f"SELECT {one} FROM generate_series(1, %(count)s::bigint) AS n",
            values,
        )
        db.execute(
            "INSERT INTO holdfast.events (run, seq, time, epoch, kind, data, hash) "
            "SELECT key, 0, 0, 0, 'run_created', '', '' FROM holdfast.runs WHERE id LIKE 'bulk-%'"
        )
        for table, columns in (
            ("keys", "'key-' || key, key, 0"),
            ("blobs", "key, 'aa', ''"),
            ("snapshots", "key, 0, '', '', 0, ''"),
        ):
            db.execute(  # type: ignore[call-overload]
                f"INSERT INTO holdfast.{table} SELECT {columns} FROM holdfast.runs WHERE id LIKE 'bulk-%'"
            )
