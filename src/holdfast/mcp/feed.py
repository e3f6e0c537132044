"""Watches logs for clients that subscribed to changes, whichever process makes them.

One task polls the ends of all watched logs in one query, and sooner after a change by this server. Each watch has
the version that it has seen, so a subscriber that gives an older one is notified at once. A slow subscriber does
not delay the others: changes that come while it is being notified are notified once, afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from holdfast.errors import StoreError
from holdfast.store.base import Filter, Store

POLL_SECONDS_MIN: Final = 0.02
POLL_SECONDS_MAX: Final = 0.2
RETRY_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


class Subject(NamedTuple):
    """What is watched: one task, or the list of an agent's tasks ("" for those of all agents)."""

    task: str = ""
    agent: str = ""


class Watch:
    """One subscriber's interest in one subject. `seen` is the version that it has been notified of."""

    def __init__(
        self, subject: Subject, version: int, notify: Callable[[], Awaitable[None]]
    ) -> None:
        self.subject, self.seen = subject, version
        self.notify = notify
        self.is_busy = False
        self.is_dirty = False


class Feed:
    """All watches of one server."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watches: set[Watch] = set()
        self._woken = anyio.Event()
        self._tasks: TaskGroup | None = None

    @property
    def watches(self) -> int:
        """How many there are."""
        return len(self._watches)

    def add(self, watch: Watch) -> None:
        self._watches.add(watch)
        self.nudge()

    def remove(self, watches: Iterable[Watch]) -> None:
        self._watches.difference_update(watches)

    def nudge(self) -> None:
        """Look now: something was added, or this server has changed a task."""
        self._woken.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Poll while this is open."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._poll)
            try:
                yield
            finally:
                self._tasks = None
                tasks.cancel_scope.cancel()

    async def wait(self, task_id: str, version: int, timeout: float) -> bool:
        """Whether the task's log has grown beyond a version, within so many seconds."""
        changed = anyio.Event()

        async def notify() -> None:
            changed.set()

        watch = Watch(Subject(task_id), version, notify)
        self.add(watch)
        try:
            with anyio.move_on_after(timeout):
                await changed.wait()
        finally:
            self.remove([watch])
        return changed.is_set()

    async def _poll(self) -> None:
        pause = POLL_SECONDS_MIN
        while True:
            if not self._watches:
                await self._woken.wait()
            # Before the look: what comes during it is looked at again.
            self._woken = anyio.Event()
            try:
                subjects = frozenset(w.subject for w in self._watches)
                marks = await anyio.to_thread.run_sync(self.marks, subjects)
            except Exception as error:  # noqa: BLE001  (whatever it is: without this task no client is notified)
                is_known = isinstance(error, StoreError)
                _log.warning("cannot check for changes: %s; retrying", error, exc_info=not is_known)
                await anyio.sleep(RETRY_SECONDS)
                continue
            pause = POLL_SECONDS_MIN if self._compare(marks) else min(pause * 1.5, POLL_SECONDS_MAX)
            with anyio.move_on_after(pause):
                await self._woken.wait()
                pause = POLL_SECONDS_MIN

    def marks(self, subjects: Collection[Subject]) -> dict[Subject, int]:
        """How far each subject has come: the end of a task's log, the newest task of a list."""
        ends = self._store.heads(sorted(s.task for s in subjects if s.task))
        marks = {Subject(task): end for task, end in ends.items()}
        for subject in subjects:
            if not subject.task:
                newest = self._store.runs(Filter(agent=subject.agent), limit=1)
                marks[subject] = newest[0].cursor if newest else 0
        return marks

    def _compare(self, marks: dict[Subject, int]) -> bool:
        """Notify those whose subject has come further; whether there were any."""
        found = [w for w in self._watches if marks.get(w.subject, w.seen) > w.seen]
        for watch in found:
            watch.seen = marks[watch.subject]
            self._notify(watch)
        return bool(found)

    def _notify(self, watch: Watch) -> None:
        watch.is_dirty = True
        if not watch.is_busy and self._tasks is not None:
            watch.is_busy = True
            self._tasks.start_soon(self._deliver, watch)

    async def _deliver(self, watch: Watch) -> None:
        try:
            while watch.is_dirty:
                watch.is_dirty = False
                await watch.notify()
        except Exception:  # noqa: BLE001  (a subscriber that has gone must not end the feed)
            _log.debug("a subscriber disconnected", exc_info=True)
            self._watches.discard(watch)
        finally:
            watch.is_busy = False
