"""Fixtures of the MCP server's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from support.mcp_tasks import AGENTS


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    """A store of its own, with the agents of these tests."""
    with Holdfast(tmp_path / "h.db", agents=AGENTS) as made:
        made.worker(agents=AGENTS).run(once=True)  # registers them
        yield made
