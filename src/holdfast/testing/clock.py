"""A clock that stands still until a test moves it."""

from __future__ import annotations

from typing import Final

START_US: Final = 1_800_000_000_000_000
"""Where a manual clock starts, in microseconds since 1970: some day in 2027."""


class ManualClock:
    """Give `clock.now` to whatever wants a clock, then `advance` it."""

    def __init__(self, start_us: int = START_US) -> None:
        self._now_us = start_us

    def now(self) -> int:
        """Microseconds since 1970."""
        return self._now_us

    def advance(self, seconds: float) -> None:
        """Let time pass (or, with a negative number, step back as bad clocks do)."""
        self._now_us += round(seconds * 1_000_000)
