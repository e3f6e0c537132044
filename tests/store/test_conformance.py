"""Both stores pass the suite that any third store can run."""

import contextlib
import itertools
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from holdfast.core.log import Blob
from holdfast.errors import LogDamaged
from holdfast.store.base import Snapshot, Store
from holdfast.store.sqlite import SQLiteStore
from holdfast.testing import Bench, check_store, store_checks

if TYPE_CHECKING:
    from support.postgres import Postgres

STORES = ("memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres))


@pytest.fixture(scope="module")
def shared_dsn(postgres_server: "Postgres") -> Iterator[str]:
    """One database for all checks, each in a schema of its own: making databases takes longest."""
    name = postgres_server.create_database()
    yield postgres_server.dsn(name)
    postgres_server.drop_database(name)


def schema_of(request: pytest.FixtureRequest) -> str:
    return f"test_{zlib.crc32(request.node.nodeid.encode())}"


def bench_of(kind: str, request: pytest.FixtureRequest) -> Bench:
    """A bench with a fresh store of this kind."""
    if kind == "memory":
        return Bench(lambda clock: SQLiteStore(":memory:", clock=clock))
    if kind == "sqlite":
        path = sqlite_path(request)

        def sqlite(clock: Callable[[], int]) -> Store:
            return SQLiteStore(path, clock=clock)

        return Bench(sqlite, lambda store: sqlite(store.now))

    from holdfast.store.postgres import PostgresStore

    dsn = request.getfixturevalue("shared_dsn")
    schema = schema_of(request)

    def postgres(clock: Callable[[], int]) -> Store:
        return PostgresStore(dsn, schema=schema, clock=clock)

    return Bench(postgres, lambda store: postgres(store.now))


@pytest.mark.parametrize("check", store_checks(), ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", STORES)
def test_a_store_keeps_its_promises(
    kind: str, check: Callable[[Bench], None], request: pytest.FixtureRequest
) -> None:
    """What base.py says in words, check by check."""
    with bench_of(kind, request) as bench:
        check(bench)


@pytest.mark.parametrize("kind", STORES[1:])
def test_a_deleted_run_leaves_no_row_in_any_table(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """Also where no one could reach it any more: what was deleted must not lie on the disk."""
    with bench_of(kind, request) as bench:
        for run_id in ("gone", "kept"):
            bench.create(run_id, worker="w")
            bench.append(run_id, epoch=1, blobs=[Blob("aa", b"x")], claims_key=f"key of {run_id}")
            bench.store.snapshots.save(run_id, Snapshot(1, b"h", "v", 0, b"s"))
            bench.settle(run_id)
        both = rows_of(kind, request)
        assert bench.store.delete("gone")
        one = rows_of(kind, request)

    assert {"runs": 2, "events": 6, "blobs": 2, "snapshots": 2, "keys": 2} == both
    assert {table: count // 2 for table, count in both.items()} == one


def rows_of(kind: str, request: pytest.FixtureRequest) -> dict[str, int]:
    """How many rows each table holds, asked past the store."""
    tables = ("runs", "events", "blobs", "snapshots", "keys")
    if kind == "sqlite":
        with contextlib.closing(apsw.Connection(str(sqlite_path(request)))) as db:
            return {table: db.execute(f"SELECT count(*) FROM {table}").get for table in tables}

    import psycopg

    schema = schema_of(request)
    with psycopg.connect(request.getfixturevalue("shared_dsn")) as pg:
        counts = [
            pg.execute(f"SELECT count(*) FROM {schema}.{table}").fetchone() for table in tables
        ]
    return {table: count[0] for table, count in zip(tables, counts, strict=True) if count}


def sqlite_path(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.getfixturevalue("tmp_path")
    return folder / "holdfast.db"


def test_a_name_that_is_no_longer_valid_text_is_reported_as_damage(
    request: pytest.FixtureRequest,
) -> None:
    """In SQLite a flipped bit can make text invalid: that run is named, others continue."""
    with bench_of("sqlite", request) as bench:
        bench.create("hit")
        bench.create("well")
        with contextlib.closing(apsw.Connection(str(sqlite_path(request)))) as db:
            db.execute("UPDATE events SET kind = CAST(x'ff6e' AS TEXT) WHERE run = 1")
        with pytest.raises(LogDamaged) as found:
            bench.log("hit")

        assert ("hit", 0) == (found.value.run_id, found.value.seq)
        assert 1 == bench.length("well")


def test_every_check_has_a_sentence_that_states_what_must_be_true() -> None:
    """Names and docstrings are what a store's author reads when a check fails."""
    checks = store_checks()

    assert len(checks) > 50
    assert len(checks) == len({check.__name__ for check in checks})
    assert [] == [
        check.__name__ for check in checks if not (check.__doc__ or "").rstrip().endswith(".")
    ]


def test_the_whole_suite_passes_in_one_call(tmp_path: Path) -> None:
    """The way in for those who do not use pytest."""
    paths = (tmp_path / f"{i}.db" for i in itertools.count())

    check_store(lambda clock: SQLiteStore(next(paths), clock=clock))


def test_a_store_that_breaks_a_guarantee_gets_a_report_of_which() -> None:
    """A store without the fence fails the checks that are about it, by their names."""

    class Unfenced(SQLiteStore):
        def append(self, work: Any) -> None:
            super().append(type(work)(work.run_id, work.after, work.records, None, work.change))

    with pytest.raises(ExceptionGroup) as caught:
        check_store(lambda clock: Unfenced(":memory:", clock=clock))

    assert "an_append_under_another_epoch_is_lost" in str(caught.value)
    assert "a_new_run_is_pending_and_due_at_once" not in str(caught.value)
