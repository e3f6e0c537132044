"""A store of the first schema is brought up to date when it is opened, and its runs go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Holdfast, Run, agent, step
from holdfast.store import sql
from holdfast.store.base import Store
from holdfast.store.sqlite import SQLiteStore
from support.workers import STORES, url_of


@step
def double(n: int) -> int:
    return 2 * n


@agent
def doubling(run: Run, n: int) -> int:
    run.wait_for("go")
    return double(n)


@pytest.mark.parametrize("kind", STORES)
def test_runs_of_an_older_schema_go_on_in_the_newest(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url_of(kind, request, tmp_path)
    steps = sql.migrations
    dialect = "sqlite" if kind == "sqlite" else "postgres"

    def opened() -> Store:
        if kind == "sqlite":
            return SQLiteStore(url)
        from holdfast.store.postgres import PostgresStore

        return PostgresStore(url)

    with monkeypatch.context() as before:
        before.setattr(sql, "migrations", lambda dialect: steps(dialect)[:1])
        with Holdfast(opened()) as hf:
            handle = hf.start(doubling, id="old", n=4)
            assert schema_of(hf.store).endswith("1")
            created = hf.store.read(handle.id)

    with Holdfast(opened(), agents=[doubling]) as hf:
        assert schema_of(hf.store).endswith(str(len(steps(dialect))))
        assert created == hf.store.read("old")
        assert [("doubling", "")] == [kind[:2] for kind in hf.store.kinds()]
        hf.signal("old", "go")
        assert 1 == hf.worker().run(once=True)
        assert 8 == hf.result("old", timeout=1)
        assert [] == hf.schedules()


def schema_of(store: Store) -> str:
    return next(found.value for found in store.examine() if found.name == "schema")
