"""What the tests of the runtime share: a store file that can be opened again and again, as other
processes would, a clock that stands still until it is moved, and a crash at any boundary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Options
from holdfast.store.base import Store
from holdfast.store.postgres import PostgresStore
from holdfast.store.sqlite import SQLiteStore
from holdfast.testing.clock import ManualClock
from support.places import Place


class Crash(BaseException):
    """The process ends here: nothing that follows in it reaches the store."""


class Home:
    """One store file. `open` gives a new Holdfast on it, with an engine of its own."""

    def __init__(self, path: Path, clock: ManualClock) -> None:
        self.path = path
        self.clock = clock
        self._opened: list[Holdfast] = []

    def store(self) -> SQLiteStore:
        return SQLiteStore(self.path, clock=self.clock.now)

    def open(
        self,
        *agents: Callable[..., Any],
        crash_at: str = "",
        patience: float = 5.0,
        sleep: Callable[[float], None] | None = None,
        boundary: Callable[[str], None] | None = None,
    ) -> Holdfast:
        """With `crash_at`, the process dies when it first comes to that boundary."""

        def die(name: str) -> None:
            if name == crash_at:
                raise Crash(name)

        options = Options(
            patience_seconds=patience,
            sleep=sleep or self.clock.advance,
            boundary=die if crash_at else boundary,
        )
        hf = Holdfast(self.store(), agents=agents, options=options)
        self._opened.append(hf)
        return hf

    def crash(self, agent: Callable[..., Any], run_id: str, at: str, **input: Any) -> None:
        """Run the agent in a process that dies at this boundary."""
        self.crash_in(lambda hf: hf.run(agent, id=run_id, **input), at=at)

    def crash_in(
        self, act: Callable[[Holdfast], Any], *agents: Callable[..., Any], at: str
    ) -> None:
        """Do something in a process that dies at this boundary."""
        hf = self.open(*agents, crash_at=at)
        with pytest.raises(Crash, match=f"^{re.escape(at)}$"):
            act(hf)

    def close(self) -> None:
        for hf in self._opened:
            hf.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def home(tmp_path: Path, clock: ManualClock) -> Iterator[Home]:
    made = Home(tmp_path / "holdfast.db", clock)
    yield made
    made.close()


@pytest.fixture
def hf(home: Home) -> Holdfast:
    return home.open()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    clock = ManualClock()

    def make() -> Store:
        if request.param == "sqlite":
            return SQLiteStore(tmp_path / "runs.db", clock=clock.now)
        return PostgresStore(request.getfixturevalue("postgres_dsn"), clock=clock.now)

    made = Place(make, clock)
    yield made
    made.close()
