"""A run that is killed anywhere continues where it stopped, and the promise holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.store.postgres import PostgresStore
from support import scenarios
from support.kill import Scenario
from support.slim import Slim

Count = Callable[[str, object], None]  # pytest's record_property; conftest.py adds the counts up
Explore = Callable[..., int]

every_scenario = pytest.mark.parametrize("scenario", scenarios.ALL, ids=lambda s: s.name)


@pytest.fixture
def explore(slim: Slim, record_property: Count) -> Explore:
    """Kill a scenario on a store; how many schedules there were."""

    def explored(scenario: Scenario, url: object, *, pairs: bool, stride: int) -> int:
        found = int(
            slim.call(
                "support.slim_scenarios:explored",
                scenario=scenario.name,
                url=str(url),
                pairs=pairs,
                stride=stride,
            )
        )
        record_property("kill schedules", found)
        return found

    return explored


@pytest.fixture
def postgres(postgres_dsn: str) -> str:
    PostgresStore(postgres_dsn).close()  # the schema is made once, not under the knife
    return postgres_dsn


@every_scenario
def test_a_run_killed_at_any_boundary_ends_as_if_nothing_had_happened(
    scenario: Scenario, explore: Explore, tmp_path: Path
) -> None:
    assert explore(scenario, tmp_path / "h.db", pairs=False, stride=1) >= 15


@every_scenario
def test_a_run_killed_again_while_it_recovers_ends_the_same(
    scenario: Scenario, explore: Explore, tmp_path: Path
) -> None:
    assert explore(scenario, tmp_path / "h.db", pairs=True, stride=4) >= 12


@every_scenario
def test_on_postgresql_a_killed_run_ends_the_same(
    scenario: Scenario, explore: Explore, postgres: str
) -> None:
    assert explore(scenario, postgres, pairs=False, stride=3) >= 5


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@every_scenario
def test_every_pair_of_kills_ends_the_same(
    scenario: Scenario, explore: Explore, tmp_path: Path
) -> None:
    assert explore(scenario, tmp_path / "h.db", pairs=True, stride=1) >= 200


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@every_scenario
def test_on_postgresql_pairs_of_kills_end_the_same(
    scenario: Scenario, explore: Explore, postgres: str
) -> None:
    assert explore(scenario, postgres, pairs=True, stride=1) >= 200
