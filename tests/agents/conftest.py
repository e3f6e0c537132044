"""What the tests of agents share: a store of their own, and a provider that thinks as their module says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from support.provider import Provider


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    with Holdfast(tmp_path / "h.db") as opened:
        yield opened


@pytest.fixture(scope="module")
def provider(request: pytest.FixtureRequest) -> Iterator[Provider]:
    """A server that answers what `brain` of the test's module thinks of."""
    server = Provider(request.module.brain).start()
    yield server
    server.stop()
