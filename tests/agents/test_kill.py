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


@pytest.fixture(params=["from the log", "from snapshots"])
def resumes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A loop goes on from snapshots (here after every iteration), or from its log where there is none."""
    if request.param == "from snapshots":
        monkeypatch.setattr(checkpoints, "SNAPSHOT_BYTES", 1)
    return str(request.param)


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
def test_a_loop_killed_at_any_boundary_ends_as_if_nothing_had_happened(
    scenario: Scenario, ledger: Ledger, tmp_path: Path, record_property: Count, resumes: str
) -> None:
    stride = 3 if resumes == "from the log" else 4
    done = killed(
        scenario, ledger, on_sqlite(tmp_path), record_property, pairs=False, stride=stride
    )

    assert done >= 3


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@every_scenario
def test_every_pair_of_kills_of_a_loop_ends_the_same(
    scenario: Scenario, ledger: Ledger, tmp_path: Path, record_property: Count, resumes: str
) -> None:
    assert (
        killed(scenario, ledger, on_sqlite(tmp_path), record_property, pairs=True, stride=2) >= 50
    )


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
