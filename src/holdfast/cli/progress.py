"""What a run is doing, line by line on stderr, while it executes in this process.

It reads the log as anybody could; the run does not know of it.
"""

from __future__ import annotations

import threading
from types import TracebackType

import click

from holdfast.cli.timeline import sentence
from holdfast.core import events as e
from holdfast.core import log
from holdfast.errors import HoldfastError
from holdfast.store.base import Store

SHOWN = (
    e.CallSucceeded,
    e.CallFailed,
    e.CallDoubted,
    e.CallResolved,
    e.StageEntered,
    e.RunClaimed,
    e.DecisionMade,
)
LOOK_SECONDS = 0.2


class Progress:
    """While open, says what is new in a run's log."""

    def __init__(self, store: Store, run_id: str, *, on: bool) -> None:
        self._store, self._run_id, self._on = store, run_id, on
        self._seen = -1
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="holdfast-progress", daemon=True)

    def __enter__(self) -> Progress:
        if self._on:
            known = self._store.read(self._run_id) if self._store.get(self._run_id) else []
            self._seen = known[-1].seq if known else -1
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
                said = sentence(event)
                click.echo(f"  {said.what:<20}  {click.style(said.text, fg=said.colour)}", err=True)
