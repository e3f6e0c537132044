"""Progress on stderr, for people at a terminal.

`Progress` prints, line by line, what a run that executes in this process does. It reads the log like any other
process. `counted` counts long work on one line; `busy` names work that cannot be counted.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

import click

from holdfast.core import events as e
from holdfast.core import log
from holdfast.errors import HoldfastError
from holdfast.store.base import Store
from holdfast.words.timeline import sentence

SHOWN = (
    e.CallSucceeded,
    e.CallFailure,
    e.CallDoubted,
    e.CallResolved,
    e.StageEntered,
    e.RunClaimed,
    e.DecisionMade,
)
LOOK_SECONDS = 0.2
COUNT_SECONDS = 0.1
ERASE = "\r\x1b[K"

T = TypeVar("T")


def counted(things: Iterable[T], what: str) -> Iterator[T]:
    """Yields the items; on a terminal, one line counts them and is erased at the end."""
    watched = sys.stderr.isatty()
    last = 0.0
    try:
        for number, thing in enumerate(things, 1):
            if watched and time.monotonic() - last >= COUNT_SECONDS:
                last = time.monotonic()
                click.echo(f"{ERASE}{what} {number:,} …", nl=False, err=True)
            yield thing
    finally:
        if last:
            click.echo(ERASE, nl=False, err=True)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Show what is in progress on a terminal, until it is done."""
    watched = sys.stderr.isatty()
    if watched:
        click.echo(f"{ERASE}{what} …", nl=False, err=True)
    try:
        yield
    finally:
        if watched:
            click.echo(ERASE, nl=False, err=True)


class Progress:
    """While open, says what is new in a run's log."""

    def __init__(self, store: Store, run_id: str, *, on: bool) -> None:
        self._store, self._run_id, self._on = store, run_id, on
        self._seen = -1
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="holdfast-progress", daemon=True)

    def __enter__(self) -> Progress:
        if self._on:
            self._seen = self._store.head(self._run_id)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._on:
            self._thread.join()

    def _follow(self) -> None:
        while True:
            last = self._over.wait(LOOK_SECONDS)
            try:
                self._say_news()
            except HoldfastError:  # whatever is wrong, the run itself will say it
                return
            if last:
                return

    def _say_news(self) -> None:
        if self._seen < 0 and self._store.get(self._run_id) is None:
            return
        for record in self._store.read(self._run_id, after=self._seen):
            self._seen = record.seq
            event = log.read_event(self._run_id, record)
            if isinstance(event, SHOWN):
                line = sentence(event)
                click.echo(f"  {line.what:<20}  {click.style(line.text, fg=line.colour)}", err=True)
