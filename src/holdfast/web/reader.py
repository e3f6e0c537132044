"""Runs as the pages and the API show them: folded once, then continued from where the last reader stopped.

A page of a long run would otherwise fold its whole log for each viewer and each update. What is kept is only a cache of the
log, limited by the number of events, and every record is checked against the chain when it is read.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from holdfast.core import log
from holdfast.core.events import Usage
from holdfast.core.fold import Draft
from holdfast.core.log import Head
from holdfast.core.state import Call, RunState
from holdfast.errors import HoldfastError
from holdfast.store.base import RunRow, Store
from holdfast.views import with_owner
from holdfast.views.log import contradiction, row_of
from holdfast.views.spans import Spans
from holdfast.views.state import Checkpoints

PAGE: Final = 5000
MAX_EVENTS: Final = 200_000
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
    marks: Checkpoints
    strips: dict[tuple[object, ...], object]
    """Drawings that are continued as the run grows; see `pages/timeline.py`."""
    brief: RunState
    """The state without the calls that are done: most of what a page shows needs no more, and there may be many."""

    @property
    def status(self) -> str:
        return self.state.status

    def call(self, step: int) -> Call | None:
        """The call with this step number."""
        at = self._at(step)
        return None if at is None else self.state.calls[at]

    def step_next_to(self, step: int, by: int) -> int | None:
        """The step number of the call that is recorded next to this one."""
        at = self._at(step)
        if at is None or not 0 <= at + by < len(self.state.calls):
            return None
        return self.state.calls[at + by].step

    def _at(self, step: int) -> int | None:
        """Mostly step n is the nth call."""
        calls = self.state.calls
        if 0 < step <= len(calls) and calls[step - 1].step == step:
            return step - 1
        return next((n for n, call in enumerate(calls) if call.step == step), None)

    def calls(self, *, after: int, limit: int) -> tuple[Call, ...]:
        """The calls with the lowest steps after this one. Mostly step n is the nth call, and nothing is searched."""
        calls = self.state.calls
        found = calls[after : after + limit]
        if all(call.step == after + n for n, call in enumerate(found, 1)):
            return found
        later = (call for call in calls if call.step > after)
        return tuple(heapq.nsmallest(limit, later, key=lambda call: call.step))


class _CachedState:
    """One run that is kept. Its lock is held while it is read."""

    def __init__(self, run_id: str) -> None:
        self.lock = threading.Lock()
        self.reset(run_id)

    def reset(self, run_id: str) -> None:
        """Start over: what was kept is not of this run, or not all of an event was applied."""
        self.head = log.origin(run_id)
        self.draft, self.spans, self.marks = Draft.of(), Spans(), Checkpoints()
        self.spending: list[Spending] = []
        self.frozen: RunState | None = None
        self.brief = RunState()
        self.strips: dict[tuple[object, ...], object] = {}

    def advance(self, store: Store, run_id: str) -> RunState:
        """Apply what is new in the log; the state at its end."""
        while page := store.read(run_id, after=self.head.seq, limit=PAGE):
            for record in log.verify(run_id, self.head, page):
                event = log.read_event(run_id, record)
                before = self.draft.usage
                self.draft.apply(record.seq, record.time, event)
                self.spans.apply(record, event)
                if self.draft.usage is not before:
                    self.spending.append(Spending(self.draft.steps, record.time, self.draft.usage))
                self.head = log.head_at(record)
            self.frozen = None
            if len(page) < PAGE:
                break
        if self.frozen is None:
            self.frozen = self.draft.freeze()
            self.brief = _brief(self.frozen)
        return self.frozen


class RunReader:
    """The runs that were read last. Safe in threads."""

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self._kept: OrderedDict[str, _CachedState] = OrderedDict()
        self._max_events = max_events
        self._lock = threading.Lock()

    def read(self, store: Store, run_id: str) -> RunView:
        """The run now. NoSuchRun if it does not exist; LogDamaged if row and log contradict each other."""
        kept = self._entry(run_id)
        try:
            with kept.lock:
                row, state = self._row_and_state(store, run_id, kept)
                now = store.now()
                brief = with_owner(kept.brief, row, now)
                found = RunView(
                    row,
                    _with_calls_of(state, kept.brief, brief),
                    kept.spans,
                    kept.spending,
                    now,
                    kept.marks,
                    kept.strips,
                    brief,
                )
        except HoldfastError:
            self._forget(run_id)
            raise
        self._trim()
        return found

    def _row_and_state(
        self, store: Store, run_id: str, cached: _CachedState
    ) -> tuple[RunRow, RunState]:
        """Both of one moment: if they differ because the run was written in between, they are read again."""
        if not _is_still(store, run_id, cached.head):
            cached.reset(run_id)  # it was deleted, and there is another one
        while True:
            row = row_of(store, run_id)
            try:
                state = cached.advance(store, run_id)
            except BaseException:  # also an interrupt: what was folded half must not be continued
                cached.reset(run_id)
                raise
            damage = contradiction(row, state)
            if damage is None:
                return row, state
            if row == row_of(store, run_id):
                raise damage

    def _entry(self, run_id: str) -> _CachedState:
        with self._lock:
            kept = self._kept.get(run_id)
            if kept is None:
                kept = self._kept[run_id] = _CachedState(run_id)
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


def _brief(state: RunState) -> RunState:
    """The state without the calls that are done, but with the last one, so that it says that there are some."""
    calls = state.calls
    kept = tuple(c for c in calls[:-1] if c.status != "done" or c.unavailable) + calls[-1:]
    return replace(state, calls=kept, left_out=len(calls) - len(kept))


def _with_calls_of(state: RunState, before: RunState, brief: RunState) -> RunState:
    """The whole state as the brief one is shown: only calls that are not over can differ."""
    changed = {id(a): b for a, b in zip(before.calls, brief.calls, strict=True) if a is not b}
    calls = tuple(changed.get(id(c), c) for c in state.calls) if changed else state.calls
    return replace(state, status=brief.status, calls=calls)


def _is_still(store: Store, run_id: str, head: Head) -> bool:
    """Whether the log still contains the event that was read last."""
    if head.seq < 0:
        return True
    found = store.read(run_id, after=head.seq - 1, limit=1)
    return bool(found) and found[0].hash == head.hash
