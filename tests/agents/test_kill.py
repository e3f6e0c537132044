"""A loop that is killed anywhere continues from its last committed state, under every strategy."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.runtime.call import checkpoints
from support import loop_scenarios
from support.kill import Count, Scenario, kill, on_postgres, on_sqlite
from support.ledger import Ledger

every_scenario = pytest.mark.parametrize("scenario", loop_scenarios.ALL, ids=lambda s: s.name)


@pytest.fixture
def many_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop continues from its log as long as that is short; here from a snapshot as soon as it can."""
    monkeypatch.setattr(checkpoints, "SNAPSHOT_BYTES", 1)


@pytest.mark.parametrize(
    ("first", "scenario"),
    list(enumerate(loop_scenarios.ALL, start=2)),
    ids=[scenario.name for scenario in loop_scenarios.ALL],
)
def test_a_loop_killed_at_some_boundaries_ends_as_if_nothing_had_happened(
    first: int, scenario: Scenario, ledger: Ledger, tmp_path: Path, record_property: Count
) -> None:
    """At others in each scenario, so that together they are many; the night takes all of each."""
    make = on_sqlite(tmp_path)

    assert kill(scenario, make, ledger, record_property, first=first, stride=20) >= 1


@pytest.mark.usefixtures("many_snapshots")
@pytest.mark.parametrize("scenario", loop_scenarios.ALL[:3:2], ids=lambda s: s.name)
def test_a_loop_resumed_from_snapshots_ends_as_if_nothing_had_happened(
    scenario: Scenario, ledger: Ledger, tmp_path: Path, record_property: Count
) -> None:
    make = on_sqlite(tmp_path)

    assert kill(scenario, make, ledger, record_property, first=5, stride=17) >= 2


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@every_scenario
def test_every_kill_of_a_loop_ends_the_same(
    scenario: Scenario, ledger: Ledger, tmp_path: Path, record_property: Count
) -> None:
    assert kill(scenario, on_sqlite(tmp_path), ledger, record_property) >= 15


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("many_snapshots")
@every_scenario
def test_every_pair_of_kills_of_a_loop_ends_the_same(
    scenario: Scenario, ledger: Ledger, tmp_path: Path, record_property: Count
) -> None:
    make = on_sqlite(tmp_path)

    assert kill(scenario, make, ledger, record_property, pairs=True, stride=2) >= 50


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@every_scenario
def test_on_postgresql_a_killed_loop_ends_the_same(
    scenario: Scenario, ledger: Ledger, postgres_dsn: str, record_property: Count
) -> None:
    assert kill(scenario, on_postgres(postgres_dsn), ledger, record_property) >= 10
