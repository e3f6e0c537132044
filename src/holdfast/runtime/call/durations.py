"""How long the calls took that a piece of code made: by their receipts, also of those that are answered from the log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

Durations = list[tuple[str, int]]
"""Names of calls and microseconds, in the order in which the code got their results."""
_MEASURED: Final[ContextVar[Durations | None]] = ContextVar("holdfast_durations", default=None)


@contextlib.contextmanager
def measured() -> Iterator[Durations]:
    """Within this block, and in the tasks that it starts, durations are collected in the list that it gives."""
    before, found = _MEASURED.get(), Durations()
    _MEASURED.set(found)
    try:
        yield found
    finally:
        _MEASURED.set(before)  # not by a token: a flow may be closed in another context


def note(name: str, duration_us: int) -> None:
    """A call of this name has returned."""
    found = _MEASURED.get()
    if found is not None:
        found.append((name, duration_us))
