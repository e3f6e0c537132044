"""How tests wait: until something is so, or at a door that the test opens. Nothing else here sleeps.

Where there is an event (a line of a process, a notification of a store, a lock), wait for that; `eventually`
is for what rings no bell.
"""

from __future__ import annotations

import fcntl
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeVar

PATIENCE_SECONDS = 120  # far more than anything here takes; only a hang meets it
LOOK_AGAIN_SECONDS = 0.01

T = TypeVar("T")


def eventually(
    look: Callable[[], T],
    what: str | Callable[[], object] = "it",
    *,
    seconds: float = PATIENCE_SECONDS,
    pause: float = LOOK_AGAIN_SECONDS,
) -> T:
    """What is seen as soon as there is something to see; a failure that names it if there never is."""
    end = time.monotonic() + seconds
    while not (seen := look()):
        if time.monotonic() >= end:
            raise AssertionError(f"{what() if callable(what) else what} did not happen")
        time.sleep(pause)
    return seen


class Door:
    """A file that is locked until its test opens it. Any process that goes through it waits until
    then; once it is open it stays so."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._file = path.open("w", encoding="utf-8")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def open(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)  # also if a fork has the file, too

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()
        self._file.close()


def go_through(door: str) -> None:
    """Wait until this door is open. Signals are handled meanwhile, and other threads run.

    It looks again and again: a signal that arrives just before a blocking system call begins would be
    handled only after that call.
    """
    with Path(door).open(encoding="utf-8") as file:
        eventually(lambda: _is_open(file), f"the opening of {door}", seconds=math.inf)


def _is_open(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
