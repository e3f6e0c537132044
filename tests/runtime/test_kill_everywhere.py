"""A run that is killed anywhere goes on where it stopped, and the promise holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import scenarios
from support.kill import Count, Scenario, kill, on_postgres, on_sqlite
from support.ledger import Ledger

every_scenario = pytest.mark.parametrize("scenario", scenarios.ALL, ids=lambda s: s.name)


@every_scenario
def test_a_run_killed_at_any_boundary_ends_as_if_nothing_had_happened(
    scenario: Scenario, ledger: Ledger, tmp_path: Path, record_property: Count
) -> None:
    assert kill(scenario, on_sqlite(tmp_path), ledger, record_property) >= 15


@every_scenario
def test_a_run_killed_again_while_it_recovers_ends_the_same(
    scenario: Scenario, ledger: Ledger, tmp_path: Path, record_property: Count
) -> None:
    make = on_sqlite(tmp_path)

    assert kill(scenario, make, ledger, record_property, pairs=True, stride=4) >= 12


@every_scenario
def test_on_postgresql_a_killed_run_ends_the_same(
    scenario: Scenario, ledger: Ledger, postgres_dsn: str, record_property: Count
) -> None:
    assert kill(scenario, on_postgres(postgres_dsn), ledger, record_property, stride=3) >= 5


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@every_scenario
def test_every_pair_of_kills_ends_the_same(
    scenario: Scenario, ledger: Ledger, tmp_path: Path, record_property: Count
) -> None:
    assert kill(scenario, on_sqlite(tmp_path), ledger, record_property, pairs=True) >= 200


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@every_scenario
def test_on_postgresql_pairs_of_kills_end_the_same(
    scenario: Scenario, ledger: Ledger, postgres_dsn: str, record_property: Count
) -> None:
    assert kill(scenario, on_postgres(postgres_dsn), ledger, record_property, pairs=True) >= 200
