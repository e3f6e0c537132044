"""Fixtures of the server's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from holdfast import Holdfast
from holdfast.web.app import create_app
from support.web import AGENTS, TOKENS, credentials


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    """A store of its own, with the agents of these tests, registered."""
    with Holdfast(tmp_path / "h.db", agents=AGENTS) as made:
        made.register()
        yield made


@pytest.fixture
def client(hf: Holdfast) -> Iterator[TestClient]:
    """The application without a network, as an admin."""
    app = create_app(hf, credentials=credentials())
    headers = {"authorization": f"Bearer {TOKENS['admin']}"}
    with TestClient(app, base_url="http://127.0.0.1", headers=headers) as made:
        yield made
