"""A store that several Holdfast objects of a test open, as other processes would, under one manual clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast import Holdfast, Options
from holdfast.store.base import Store
from holdfast.testing import ManualClock


class Place:
    """A store that several Holdfast objects open, as other processes would."""

    def __init__(self, make: Callable[[], Store], clock: ManualClock) -> None:
        self._make, self.clock = make, clock
        self._opened: list[Holdfast] = []

    def open(self, *agents: Any, boundary: Callable[[str], None] | None = None) -> Holdfast:
        options = Options(sleep=self.clock.advance, boundary=boundary)
        self._opened.append(Holdfast(self._make(), agents=agents, options=options))
        return self._opened[-1]

    def close(self) -> None:
        for hf in self._opened:
            hf.close()
