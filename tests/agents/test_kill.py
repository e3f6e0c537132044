"""A loop that is killed anywhere goes on from its last committed state, under every strategy."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.runtime import checkpoints
from holdfast.store.postgres import PostgresStore
from holdfast.store.sqlite import SQLiteStore
from support import loop_scenarios, scenarios
from support.kill import Clock, MakeStore, Scenario, explore
from support.ledger import Ledger

Count = Callable[[str, object], None]  # pytest's record_property; conftest.py adds the counts up

every_scenario = pytest.mark.parametrize("scenario", loop_scenarios.ALL, ids=lambda s: s.name)


@pytest.fixture(scope="module")
def ledger() -> Iterator[Ledger]:
    server = Ledger().start()
    scenarios.use(server)
    yield server
    server.stop()


@pytest.fixture
def many_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop goes on from its log as long as that is short; here from a snapshot as soon as it can."""
    monkeypatch.setattr(checkpoints, "SNAPSHOT_BYTES", 1)


def killed(
    scenario: Scenario, ledger: Ledger, make: MakeStore, count: Count, *, pairs: bool, stride: int
) -> int:
    name = f"{scenario.name}-{uuid.uuid4().hex[:6]}"
    found = explore(scenario, make, ledger, name, pairs=pairs, stride=stride)
    count("kill schedules", found.schedules)
    return found.schedules


def on_sqlite(folder: Path) -> MakeStore:
    def make_store(clock: Clock) -> SQLiteStore:
        return SQLiteStore(folder / "h.db", clock=clock)

    return make_store


@every_scenario
def test_a_loop_killed_at_many_boundaries_ends_as_if_nothing_had_happened(
    scenario: Scenario, ledger: Ledger, tmp_path: Path, record_property: Count
) -> None:
    make = on_sqlite(tmp_path)

    assert killed(scenario, ledger, make, record_property, pairs=False, stride=7) >= 2


@pytest.mark.usefixtures("many_snapshots")
@pytest.mark.parametrize("scenario", loop_scenarios.ALL[:3], ids=lambda s: s.name)
def test_a_loop_that_goes_on_from_snapshots_ends_as_if_nothing_had_happened(
    scenario: Scenario, ledger: Ledger, tmp_path: Path, record_property: Count
) -> None:
    make = on_sqlite(tmp_path)

    assert killed(scenario, ledger, make, record_property, pairs=False, stride=7) >= 2


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@every_scenario
def test_every_kill_of_a_loop_ends_the_same(
    scenario: Scenario, ledger: Ledger, tmp_path: Path, record_property: Count
) -> None:
    make = on_sqlite(tmp_path)

    assert killed(scenario, ledger, make, record_property, pairs=False, stride=1) >= 15


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("many_snapshots")
@every_scenario
def test_every_pair_of_kills_of_a_loop_ends_the_same(
    scenario: Scenario, ledger: Ledger, tmp_path: Path, record_property: Count
) -> None:
    make = on_sqlite(tmp_path)

    assert killed(scenario, ledger, make, record_property, pairs=True, stride=2) >= 50


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@every_scenario
def test_on_postgresql_a_killed_loop_ends_the_same(
    scenario: Scenario, ledger: Ledger, postgres_dsn: str, record_property: Count
) -> None:
    PostgresStore(postgres_dsn).close()  # the schema is made once, not under the knife

    def make_store(clock: Clock) -> PostgresStore:
        return PostgresStore(postgres_dsn, clock=clock)

    assert killed(scenario, ledger, make_store, record_property, pairs=False, stride=1) >= 10
