"""Both stores pass the suite that any third store can run."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.store.base import Store
from holdfast.store.sqlite import SQLiteStore
from holdfast.testing import Bench, check_store, store_checks

STORES = ("memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres))


def bench_of(kind: str, request: pytest.FixtureRequest) -> Bench:
    """A bench with a fresh store of this kind."""
    if kind == "memory":
        return Bench(lambda clock: SQLiteStore(":memory:", clock=clock))
    if kind == "sqlite":
        path = request.getfixturevalue("tmp_path") / "holdfast.db"

        def sqlite(clock: Callable[[], int]) -> Store:
            return SQLiteStore(path, clock=clock)

        return Bench(sqlite, lambda store: sqlite(store.now))

    from holdfast.store.postgres import PostgresStore

    dsn = request.getfixturevalue("postgres_dsn")

    def postgres(clock: Callable[[], int]) -> Store:
        return PostgresStore(dsn, clock=clock)

    return Bench(postgres, lambda store: postgres(store.now))


@pytest.mark.parametrize("check", store_checks(), ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", STORES)
def test_a_store_keeps_its_promises(
    kind: str, check: Callable[[Bench], None], request: pytest.FixtureRequest
) -> None:
    """What base.py says in words, check by check."""
    with bench_of(kind, request) as bench:
        check(bench)


def test_every_check_says_in_a_sentence_what_holds() -> None:
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


def test_a_store_that_breaks_a_promise_is_told_which() -> None:
    """A store without the fence fails the checks that are about it, by their names."""

    class Unfenced(SQLiteStore):
        def append(self, work: Any) -> None:
            super().append(type(work)(work.run_id, work.after, work.records, None, work.change))

    with pytest.raises(ExceptionGroup) as caught:
        check_store(lambda clock: Unfenced(":memory:", clock=clock))

    assert "an_append_under_another_epoch_is_lost" in str(caught.value)
    assert "a_new_run_is_pending_and_due_at_once" not in str(caught.value)
