"""States of the runs that were read last, so that the next page of a long run does not read its whole log again.

Only a cache: what is new in the log is read and checked against the chain, and added to the state that is kept.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from typing import Final

from msgspec.structs import replace

from holdfast.core import log
from holdfast.core.fold import fold
from holdfast.core.log import Head
from holdfast.core.state import Call, RunState
from holdfast.errors import NoSuchRun
from holdfast.store.base import Store
from holdfast.views import row_of, with_owner

EVENTS_MAX: Final = 150_000
"""So many events, over all runs, may be kept folded: about 1 KB each."""


class StateCache:
    """The states of one server's runs. Safe in threads."""

    def __init__(self, events_max: int = EVENTS_MAX) -> None:
        self._kept: OrderedDict[str, tuple[Head, RunState]] = OrderedDict()
        self._events_max = events_max
        self._mutex = threading.Lock()

    def get(self, store: Store, run_id: str) -> RunState:
        """The state now, with every call."""
        state = self._folded(store, run_id)
        return with_owner(state, row_of(store, run_id), store.now())

    def calls(
        self, store: Store, run_id: str, *, after: int, limit: int
    ) -> tuple[tuple[Call, ...], int]:
        """The next calls after a step, and the event up to which that is true."""
        state = self._folded(store, run_id)
        page = replace(state, calls=_next(state.calls, after, limit))
        return with_owner(page, row_of(store, run_id), store.now()).calls, state.seq

    def _folded(self, store: Store, run_id: str) -> RunState:
        with self._mutex:
            head, state = self._kept.get(run_id, (log.origin(run_id), RunState()))
        if head.seq >= 0 and not _is_still(store, run_id, head):
            head, state = log.origin(run_id), RunState()  # it was deleted, and there is another one
        new = list(log.verify(run_id, head, store.read(run_id, after=head.seq)))
        if new:
            head, state = log.head_at(new[-1]), fold(state, new)
        if head.seq < 0:
            raise NoSuchRun(run_id)
        self._keep(run_id, head, state)
        return state

    def _keep(self, run_id: str, head: Head, state: RunState) -> None:
        with self._mutex:
            self._kept[run_id] = (head, state)
            self._kept.move_to_end(run_id)
            while len(self._kept) > 1 and self._events() > self._events_max:
                self._kept.popitem(last=False)

    def _events(self) -> int:
        return sum(head.seq + 1 for head, _ in self._kept.values())


def _next(calls: tuple[Call, ...], after: int, limit: int) -> tuple[Call, ...]:
    """The calls with the lowest steps after this one. Mostly step n is the nth call, and nothing has to be searched."""
    found = calls[after : after + limit]
    if all(call.step == after + n for n, call in enumerate(found, 1)):
        return found
    later = (call for call in calls if call.step > after)
    return tuple(heapq.nsmallest(limit, later, key=lambda call: call.step))


def _is_still(store: Store, run_id: str, head: Head) -> bool:
    """Whether the log still contains the event that a state ends with."""
    found = store.read(run_id, after=head.seq - 1, limit=1)
    return bool(found) and found[0].hash == head.hash
