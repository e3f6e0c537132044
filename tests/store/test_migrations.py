"""A store of any older schema is brought up to date when it is opened, and its runs can be resumed.

`golden_rows.json` holds the rows that Holdfast wrote at schema 3, before wake-ups were counted: runs that are new,
waiting, completed (with a value outside its log and a caller's own key) and stopped in the middle of a tool. They are
put into each older schema with plain SQL, because the statements of today may need columns that it lacks.
"""

from __future__ import annotations

import base64
import contextlib
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from holdfast import Holdfast, Run, RunWaiting, agent, step, tool
from holdfast.store import sql
from holdfast.store.base import Store
from holdfast.store.sqlite import SQLiteStore
from holdfast.store.sqlite.file import APPLICATION_ID
from support.workers import url_of

if TYPE_CHECKING:
    import psycopg

GOLDEN = Path(__file__).parent / "golden_rows.json"
LATER = 1_800_000_000_000_000
"""The store's time in these tests: after all that is in the golden rows."""
OLDER = [
    pytest.param(kind, version, marks=[pytest.mark.postgres] if kind == "postgres" else [])
    for kind in ("sqlite", "postgres")
    for version in range(1, len(sql.migrations(kind)))
]

Row = dict[str, Any]
Execute = Callable[[str, list[Any]], Any]
"""Runs one statement with `?` as placeholders; the first column of its first row, if there is one."""


@step
def double(n: int) -> int:
    return 2 * n


@step
def large(n: int) -> str:
    raise AssertionError("it was done before")


@tool
def greet(name: str, idempotency_key: str = "") -> str:
    raise AssertionError("it was done before")


@tool
def pay(amount: int) -> str:
    raise AssertionError("it may have been done before")


@agent
def doubling(run: Run, n: int) -> int:
    first = double(n)
    run.wait_for("go")
    return double(first)


@agent
def writing(run: Run, n: int) -> str:
    greet("sam", idempotency_key="welcome:sam")
    return large(n)


@agent
def paying(run: Run, amount: int) -> str:
    return pay(amount)


@pytest.mark.parametrize(("kind", "version"), OLDER)
def test_runs_of_an_older_schema_are_resumed_in_the_newest(
    kind: str, version: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = url_of(kind, request, tmp_path)
    rows: dict[str, list[Row]] = json.loads(GOLDEN.read_text("utf-8"))
    with older_schema(kind, url, version) as execute:
        put_rows(execute, rows, "" if kind == "sqlite" else "holdfast.")

    with Holdfast(opened(kind, url), agents=[doubling, writing, paying]) as hf:
        assert schema_of(hf.store).endswith(str(len(sql.migrations(kind))))
        for row in rows["runs"]:
            found = hf.store.get(row["id"])
            assert found is not None
            assert (0, row["status"], row["due_at"]) == (found.woken, found.status, found.due_at)
            assert logged(rows, row["id"]) == [
                (x.seq, x.time, x.epoch, x.kind, x.data.decode(), x.hash.hex())
                for x in hf.store.read(row["id"])
            ]

        assert "x" * 70_000 == hf.result("completed", timeout=0) == hf.replay("completed").result
        for key in rows["keys"]:
            assert (key["run"], key["seq"]) == hf.store.find_key(key["key"])
        hf.signal("waiting", "go")
        hf.signal("new", "go")
        hf.worker().run(once=True)
        assert (16, 12) == (hf.result("waiting", timeout=1), hf.result("new", timeout=1))
        with pytest.raises(RunWaiting, match="may or may not have happened"):
            hf.resume("stopped")
        assert [] == hf.schedules()


SENTENCES = {
    "approval of refund": "approval",
    "approval: Send it?": "approval",
    "an answer: Which?": "answer",
    "a decision about step 2, pay, which may or may not have happened": "decision",
    "a person: its code is missing": "person",
    "the signal 'go'": "",
}


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_runs_that_are_waiting_for_people_are_found_after_the_migration(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Before, a row had only the sentence."""
    url = url_of(kind, request, tmp_path)
    (waiting,) = [x for x in json.loads(GOLDEN.read_text("utf-8"))["runs"] if x["id"] == "waiting"]
    rows = [waiting | {"id": f"r{i}", "waiting_for": text} for i, text in enumerate(SENTENCES)]
    with older_schema(kind, url, 3) as execute:
        put_rows(
            execute,
            {"runs": rows, "events": [], "keys": [], "blobs": []},
            "" if kind == "sqlite" else "holdfast.",
        )

    with contextlib.closing(opened(kind, url)) as store:
        found = {row.waiting_for: row.waiting_kinds for row in store.runs()}

    assert SENTENCES == found


def opened(kind: str, url: str) -> Store:
    if kind == "sqlite":
        return SQLiteStore(url, clock=lambda: LATER)
    from holdfast.store.postgres import PostgresStore

    return PostgresStore(url, clock=lambda: LATER)


@contextlib.contextmanager
def older_schema(kind: str, url: str, version: int) -> Iterator[Execute]:
    """A fresh store with the first steps of the schema."""
    steps = sql.migrations(kind)[:version]
    if kind == "sqlite":
        with contextlib.closing(apsw.Connection(url)) as db:
            for step in steps:
                db.execute(step.sql)
            db.pragma("application_id", APPLICATION_ID)
            db.pragma("user_version", version)
            yield lambda statement, values: db.execute(statement, values).get
        return

    import psycopg

    with psycopg.connect(url) as pg:
        pg.execute("CREATE SCHEMA holdfast")
        pg.execute(
            "CREATE TABLE holdfast.schema_steps (number int PRIMARY KEY, name text NOT NULL, "
            "checksum text NOT NULL, applied_at bigint NOT NULL)"
        )
        for step in steps:
            pg.execute(step.sql.encode())
            values = (step.number, step.name, step.checksum)
            pg.execute("INSERT INTO holdfast.schema_steps VALUES (%s, %s, %s, 0)", values)
        yield lambda statement, values: first_column(pg, statement, values)


def first_column(pg: psycopg.Connection[Any], statement: str, values: list[Any]) -> Any:
    done = pg.execute(statement.replace("?", "%s").encode(), values)
    row = done.fetchone() if done.description else None
    return row[0] if row else None


def put_rows(execute: Execute, rows: dict[str, list[Row]], schema: str) -> None:
    def insert(table: str, row: Row, returning: str = "") -> Any:
        places = ", ".join("?" * len(row))
        statement = f"INSERT INTO {schema}{table} ({', '.join(row)}) VALUES ({places}) {returning}"
        return execute(statement, list(row.values()))

    keys = {row["id"]: insert("runs", row, "RETURNING key") for row in rows["runs"]}
    for row in rows["events"]:
        stored = {"data": row["data"].encode(), "hash": bytes.fromhex(row["hash"])}
        insert("events", {**row, **stored, "run": keys[row["run"]]})
    for row in rows["blobs"]:
        data = zlib.decompress(base64.b64decode(row["data"]))
        insert("blobs", {**row, "data": data, "run": keys[row["run"]]})
    for row in rows["keys"]:
        insert("keys", {**row, "run": keys[row["run"]]})


def logged(rows: dict[str, list[Row]], run_id: str) -> list[tuple[Any, ...]]:
    fields = ("seq", "time", "epoch", "kind", "data", "hash")
    return [tuple(x[name] for name in fields) for x in rows["events"] if x["run"] == run_id]


def schema_of(store: Store) -> str:
    return next(found.value for found in store.examine() if found.name == "schema")
