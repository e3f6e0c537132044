"""A machine that is suspended, as its processes see it: they stop, and when they continue, the times of day and since
boot have jumped while the monotonic clock has not.

    python -m support.suspended URL DOOR PAID SLEPT     (executes run `r`; SLEPT is the file of a `Machine`)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

JUMPING = (time.CLOCK_REALTIME, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_REALTIME))


class Machine:
    """How many seconds the machine has slept in all, in a file that all of its processes read."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def sleep(self, seconds: int) -> None:
        """Suspend and wake up again: the processes must be stopped meanwhile."""
        self.file.write_text(str(self.slept + seconds), "ascii")

    @property
    def slept(self) -> int:
        return int(self.file.read_text("ascii") or 0) if self.file.exists() else 0

    def jump(self, clock: Callable[[int], int]) -> Callable[[int], int]:
        """A function such as `time.clock_gettime_ns`, as it is on this machine."""

        def read(which: int) -> int:
            return clock(which) + (self.slept * 1_000_000_000 if which in JUMPING else 0)

        return read


def inhabit(machine: Machine) -> None:
    """Let this process be one of the machine's. Before Holdfast is imported, which keeps the functions."""
    assert "holdfast.store.base" not in sys.modules
    time.clock_gettime_ns = nanoseconds = machine.jump(time.clock_gettime_ns)
    time.clock_gettime = lambda which: nanoseconds(which) / 1e9


def main(url: str, door: str, paid: str, slept: str) -> None:
    inhabit(Machine(Path(slept)))
    from holdfast.errors import LeaseLost
    from support.suspended_agent import open_store, shopping

    with open_store(url) as hf:
        try:
            print(hf.run(shopping, id="r", door=door, paid=paid), flush=True)
        except LeaseLost:
            print("lost", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
