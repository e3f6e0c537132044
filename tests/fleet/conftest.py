"""What the tests of the fleet share: a ledger of effects, and a store that several processes open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.ledger import Ledger
from support.waiting import Door


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    server = Ledger().start()
    yield server
    server.stop()


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    """Shut until the test opens it: where agents wait."""
    with Door(tmp_path / "door") as made:
        yield made


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a store: an SQLite file, or an empty PostgreSQL database."""
    if request.param == "sqlite":
        return str(tmp_path / "fleet.db")
    dsn: str = request.getfixturevalue("postgres_dsn")
    return dsn
