"""For the small process (`slim.py`): kill a scenario everywhere, on any store, with a ledger of its own."""

from __future__ import annotations

import atexit
from functools import cache

from holdfast.store.base import Store
from holdfast.store.sqlite import SQLiteStore
from support import scenarios
from support.kill import Clock, explore
from support.ledger import Ledger


def explored(scenario: str, url: str, *, pairs: bool, stride: int) -> int:
    """How many schedules were killed without a violation; AssertionError at the first one."""
    known = {one.name: one for one in scenarios.ALL}
    found = explore(
        known[scenario], lambda clock: _store(url, clock), _ledger(), pairs=pairs, stride=stride
    )
    return found.schedules


@cache
def _ledger() -> Ledger:
    server = Ledger().start()
    atexit.register(server.stop)
    scenarios.use(server)
    return server


def _store(url: str, clock: Clock) -> Store:
    if not url.startswith("postgresql:"):
        return SQLiteStore(url, clock=clock)
    from holdfast.store.postgres import PostgresStore

    return PostgresStore(url, clock=clock)
