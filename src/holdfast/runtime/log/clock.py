"""How much time has passed in this process's world: for leases and timeouts, never for the log.

The times in the log are the store's (`store.now`).
"""

from __future__ import annotations

import time
from functools import partial
from typing import Final

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


elapsed: Final = partial(time.clock_gettime, _CLOCK)
"""Seconds since some moment in the past; those of the machine's sleep too, where it can tell."""
