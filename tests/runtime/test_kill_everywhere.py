"""A run that is killed anywhere goes on where it stopped, and the promise holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import scenarios
from support.kill import Clock, Scenario, explore
from support.ledger import Ledger

from holdfast.store.sqlite import SQLiteStore


@pytest.fixture(scope="module")
def ledger() -> Iterator[Ledger]:
    server = Ledger().start()
    scenarios.use(server)
    yield server
    server.stop()


@pytest.mark.parametrize("scenario", scenarios.ALL, ids=lambda s: s.name)
def test_a_run_killed_at_any_boundary_ends_as_if_nothing_had_happened(
    scenario: Scenario, ledger: Ledger, tmp_path: Path
) -> None:
    def make_store(clock: Clock) -> SQLiteStore:
        return SQLiteStore(tmp_path / "h.db", clock=clock)

    found = explore(scenario, make_store, ledger, scenario.name)

    assert found.schedules >= found.points > 0
