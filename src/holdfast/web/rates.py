"""Rates per client: a token bucket for each, in memory, with a bound on how many are remembered."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

CLIENTS_MAX: Final = 10_000


class Rates:
    """`per_second` on average, up to `burst` at once."""

    def __init__(
        self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second, self._burst, self._clock = per_second, burst, clock
        self._free_at: dict[str, float] = {}
        """When a client that has used its burst may continue; earlier times mean unused tokens."""

    def take(self, client: str) -> float:
        """0 if a request may be made now, else after how many seconds; at least 1."""
        now = self._clock()
        cost, most = 1 / self._per_second, self._burst / self._per_second
        free_at = max(self._free_at.pop(client, 0.0), now - most)
        if free_at > now - cost:
            self._free_at[client] = free_at
            return max(1.0, free_at + cost - now)
        self._free_at[client] = free_at + cost
        if len(self._free_at) > CLIENTS_MAX:
            del self._free_at[next(iter(self._free_at))]
        return 0.0
