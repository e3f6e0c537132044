"""What `holdfast.store.base` says in words, as checks that any store can run.

    from holdfast.testing import check_store

    def test_my_store(tmp_path):
        check_store(lambda clock: MyStore(tmp_path / uuid4().hex, clock=clock))

A store is done when it passes. Each check is a function that gets a `Bench` with a fresh, empty store
and says in one sentence what holds. With pytest, make a test of each:

    @pytest.mark.parametrize("check", store_checks(), ids=lambda check: check.__name__)
    def test_my_store(check, tmp_path):
        with Bench(lambda clock: MyStore(tmp_path / "my.db", clock=clock)) as bench:
            check(bench)

Nothing here knows a database or a test framework, and no check is waiting for time to pass: the clock is
moved by hand.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Final

from holdfast.testing.store_suite import (
    appending,
    creating,
    fleet,
    hostile,
    keeping,
    leases,
    queue,
    reading,
    waking,
    writing,
)
from holdfast.testing.store_suite.bench import Bench, MakeStore, Reopen

__all__ = ["Bench", "Check", "check_store", "store_checks"]

Check = Callable[[Bench], None]

SUBJECTS: Final = (
    creating,
    appending,
    reading,
    leases,
    queue,
    waking,
    keeping,
    writing,
    fleet,
    hostile,
)
STORE_CHECKS: Final[tuple[Check, ...]] = tuple(
    thing
    for subject in SUBJECTS
    for name, thing in vars(subject).items()
    if inspect.isfunction(thing)
    and thing.__module__ == subject.__name__
    and not name.startswith("_")
    and list(inspect.signature(thing).parameters) == ["bench"]
)


def store_checks() -> tuple[Check, ...]:
    """All checks. Each has a name that states the outcome, and a sentence as its docstring."""
    return STORE_CHECKS


def check_store(make_store: MakeStore, *, reopen: Reopen | None = None) -> None:
    """Run every check, each with its own store; raise with the names of those that failed.

    `make_store(clock)` returns a fresh, empty store whose time is `clock()`, in microseconds since
    1970. `reopen(store)` opens the same place once more while the given store stays open.
    """
    failures: list[Exception] = []
    for check in STORE_CHECKS:
        try:
            with Bench(make_store, reopen) as bench:
                check(bench)
        except Exception as error:  # noqa: BLE001 - collected, and raised together below
            error.add_note(f"{check.__name__}: {check.__doc__}")
            failures.append(error)
    if failures:
        names = ", ".join(error.__notes__[-1].partition(":")[0] for error in failures)
        raise ExceptionGroup(
            f"{len(failures)} of {len(STORE_CHECKS)} checks failed: {names}", failures
        )
