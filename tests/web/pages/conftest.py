"""A browser for the tests of a module, and one filled store for all tests of a worker process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support import gallery
from support.browser import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the session: while it is open, this thread has an event loop, and tests that start their own would fail."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of the gallery. Tests only read it."""
    path = tmp_path_factory.mktemp("gallery") / "h.db"
    gallery.fill(path)
    return path
