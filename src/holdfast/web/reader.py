"""Runs as the pages show them: folded once, then continued from where the last viewer stopped.

A page of a long run would otherwise fold its whole log for each viewer and each update. What is kept is only a cache of the
log, limited by the number of events, and every record is checked against the chain when it is read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.core import log
from holdfast.core.events import Usage
from holdfast.core.fold import Draft
from holdfast.core.log import Head
from holdfast.core.state import RunState
from holdfast.errors import NoSuchRun
from holdfast.store.base import RunRow, Store
from holdfast.views import with_owner
from holdfast.views.log import contradiction, row_of
from holdfast.views.moments import Checkpoints
from holdfast.views.spans import Spans

PAGE: Final = 5000
MAX_EVENTS: Final = 400_000
"""So many events, over all runs, may be kept folded."""


@dataclass(frozen=True, slots=True)
class Spending:
    """What had been used when a call ended."""

    step: int
    time: int
    total: Usage


@dataclass
class RunView:
    """A run up to an event: its row, its state, and its spans."""

    row: RunRow
    state: RunState
    spans: Spans
    spending: list[Spending]
    now: int
    drawn: dict[tuple[object, ...], Any]
    """What was drawn of these events, for the next viewer; see `run.timeline_values`."""
    marks: Checkpoints

    @property
    def status(self) -> str:
        return self.state.status


@dataclass
class _Kept:
    head: Head
    draft: Draft = field(default_factory=Draft)
    spans: Spans = field(default_factory=Spans)
    spending: list[Spending] = field(default_factory=list)
    frozen: RunState | None = None
    drawn: dict[tuple[object, ...], Any] = field(default_factory=dict)
    marks: Checkpoints = field(default_factory=Checkpoints)
    lock: threading.Lock = field(default_factory=threading.Lock)


class RunReader:
    """The runs that were read last."""

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._max_events = max_events
        self._lock = threading.Lock()

    def read(self, store: Store, run_id: str) -> RunView:
        """The run now. NoSuchRun if it does not exist; LogDamaged if row and log contradict each other."""
        kept = self._entry(run_id)
        with kept.lock:
            row = store.get(run_id)
            if row is None:
                self._forget(run_id)
                raise NoSuchRun(run_id)
            try:
                self._advance(store, run_id, kept)
            except Exception:
                self._forget(run_id)  # the run may be another one of the same name
                raise
            if kept.frozen is None:
                kept.frozen = kept.draft.freeze()
            state = kept.frozen
            row = row_of(store, run_id)  # not older than the log that was read
            damage = contradiction(row, state)
            if damage is not None and row == row_of(store, run_id) and kept.head.seq == state.seq:
                self._forget(run_id)
                raise damage
            now = store.now()
            shown = with_owner(state, row, now)
            found = RunView(row, shown, kept.spans, kept.spending, now, kept.drawn, kept.marks)
        self._trim()
        return found

    def _entry(self, run_id: str) -> _Kept:
        with self._lock:
            kept = self._kept.get(run_id)
            if kept is None:
                kept = self._kept[run_id] = _Kept(log.origin(run_id))
            self._kept.move_to_end(run_id)
            return kept

    def _forget(self, run_id: str) -> None:
        with self._lock:
            self._kept.pop(run_id, None)

    def _trim(self) -> None:
        with self._lock:
            while len(self._kept) > 1 and self._events() > self._max_events:
                self._kept.popitem(last=False)

    def _events(self) -> int:
        return sum(kept.head.seq + 1 for kept in self._kept.values())

    def _advance(self, store: Store, run_id: str, kept: _Kept) -> None:
        while page := store.read(run_id, after=kept.head.seq, limit=PAGE):
            for record in log.verify(run_id, kept.head, page):
                event = log.read_event(run_id, record)
                before = kept.draft.usage
                kept.draft.apply(record.seq, record.time, event)
                kept.spans.apply(record, event)
                if kept.draft.usage is not before:
                    kept.spending.append(Spending(kept.draft.steps, record.time, kept.draft.usage))
                kept.head = log.head_at(record)
            kept.frozen, kept.drawn = None, {}
            if len(page) < PAGE:
                return
