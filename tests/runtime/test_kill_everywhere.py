"""A run that is killed anywhere goes on where it stopped, and the promise holds."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.store.postgres import PostgresStore
from holdfast.store.sqlite import SQLiteStore
from support import scenarios
from support.kill import Clock, Scenario, explore
from support.ledger import Ledger


@pytest.fixture(scope="module")
def ledger() -> Iterator[Ledger]:
    server = Ledger().start()
    scenarios.use(server)
    yield server
    server.stop()


def prefix(scenario: Scenario) -> str:
    return f"{scenario.name}-{uuid.uuid4().hex[:6]}"


every_scenario = pytest.mark.parametrize("scenario", scenarios.ALL, ids=lambda s: s.name)


Count = Callable[[str, object], None]  # pytest's record_property; conftest.py adds the counts up


def on_sqlite(
    scenario: Scenario, ledger: Ledger, folder: Path, count: Count, *, pairs: bool, stride: int
) -> int:
    """Kill on a file of its own; the runs' names are new, because the ledger remembers all of them."""

    def make_store(clock: Clock) -> SQLiteStore:
        return SQLiteStore(folder / "h.db", clock=clock)

    found = explore(scenario, make_store, ledger, prefix(scenario), pairs=pairs, stride=stride)
    count("kill schedules", found.schedules)
    return found.schedules


def on_postgres(
    scenario: Scenario, ledger: Ledger, dsn: str, count: Count, *, pairs: bool, stride: int
) -> int:
    PostgresStore(dsn).close()  # the schema is made once, not under the knife

    def make_store(clock: Clock) -> PostgresStore:
        return PostgresStore(dsn, clock=clock)

    found = explore(scenario, make_store, ledger, prefix(scenario), pairs=pairs, stride=stride)
    count("kill schedules", found.schedules)
    return found.schedules


@every_scenario
def test_a_run_killed_at_any_boundary_ends_as_if_nothing_had_happened(
    scenario: Scenario, ledger: Ledger, tmp_path: Path, record_property: Count
) -> None:
    assert on_sqlite(scenario, ledger, tmp_path, record_property, pairs=False, stride=1) >= 15


@every_scenario
def test_a_run_killed_again_while_it_recovers_ends_the_same(
    scenario: Scenario, ledger: Ledger, tmp_path: Path, record_property: Count
) -> None:
    assert on_sqlite(scenario, ledger, tmp_path, record_property, pairs=True, stride=4) >= 12


@every_scenario
def test_on_postgresql_a_killed_run_ends_the_same(
    scenario: Scenario, ledger: Ledger, postgres_dsn: str, record_property: Count
) -> None:
    assert on_postgres(scenario, ledger, postgres_dsn, record_property, pairs=False, stride=3) >= 5


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@every_scenario
def test_every_pair_of_kills_ends_the_same(
    scenario: Scenario, ledger: Ledger, tmp_path: Path, record_property: Count
) -> None:
    assert on_sqlite(scenario, ledger, tmp_path, record_property, pairs=True, stride=1) >= 200


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@every_scenario
def test_on_postgresql_pairs_of_kills_end_the_same(
    scenario: Scenario, ledger: Ledger, postgres_dsn: str, record_property: Count
) -> None:
    assert on_postgres(scenario, ledger, postgres_dsn, record_property, pairs=True, stride=1) >= 200
