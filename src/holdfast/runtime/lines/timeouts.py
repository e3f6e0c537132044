"""Timeouts of the agent's code: which have fired, and which of them is in the log.

A timeout takes effect when no outcome is ready for the code: `asyncio.timeout` cancels its line, `asyncio.wait` returns. It
is recorded, so that on replay it does so at the same place among the outcomes. A replay is faster, and another one of several
timeouts could fire first: so each is identified.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from holdfast.core import events as e
from holdfast.core.entry import Place
from holdfast.runtime.lines.line import Line, TimeoutName
from holdfast.runtime.lines.run import ExecutedRun

NO_NAME: Final = TimeoutName(-1, 0)


class WaitTimeout:
    """The timeout of an `asyncio.wait`, or of an `asyncio.wait_for` in Python 3.11 (later ones use `asyncio.timeout`)."""

    def __init__(self, waiter: asyncio.Future[Any]) -> None:
        self._waiter = waiter

    def end_wait(self) -> None:
        """As asyncio does when the time has passed."""
        if not self._waiter.done():
            self._waiter.set_result(None)


class FiredTimeout(NamedTuple):
    """A timeout that has fired, and the line that it is about to cancel or to wake."""

    line: Line
    timeout: asyncio.Timeout | WaitTimeout

    def take_effect(self) -> None:
        if isinstance(self.timeout, WaitTimeout):
            self.timeout.end_wait()
        elif self.line.task is not None:
            self.line.is_cancelled()
            asyncio.Task.cancel(self.line.task)


class Timeouts:
    """The timeouts that the lines of a run have entered."""

    def __init__(self, session: ExecutedRun) -> None:
        self._session = session
        self._began_at = session.store.now()
        self._names: WeakKeyDictionary[asyncio.Timeout | WaitTimeout, TimeoutName] | None = None
        """Made with the first of them: most runs have none."""
        self.fired: list[FiredTimeout] = []
        """Those that have fired, and have had no effect yet."""

    def enter(self, line: Line, timeout: asyncio.Timeout | WaitTimeout) -> None:
        """The code of a line enters a timeout."""
        index = 0 if line.branch is None else line.branch.index
        last = line.last_timeout
        number = last.number + 1 if last.entered_at == index else 1
        if self._names is None:
            self._names = WeakKeyDictionary()
        line.last_timeout = self._names[timeout] = TimeoutName(index, number)

    def _name_of(self, timeout: asyncio.Timeout | WaitTimeout) -> TimeoutName:
        return NO_NAME if self._names is None else self._names.get(timeout, NO_NAME)

    def forget(self, timeout: asyncio.Timeout | WaitTimeout) -> bool:
        """The code has left a timeout: whether it had fired, without effect yet."""
        left = [x for x in self.fired if x.timeout is not timeout]
        is_known, self.fired = len(left) < len(self.fired), left
        return is_known

    def record_first(self) -> FiredTimeout:
        """Record the first of those that have fired."""
        first = self.fired[0]
        line, name = first.line, self._name_of(first.timeout)
        assert line.branch is not None
        fired = e.TimeoutFired(
            index=line.branch.index,
            branch=line.branch.path,
            within_us=self._session.store.now() - self._began_at,
            entered_at=name.entered_at,
            number=name.number,
        )
        self._session.buffer(fired)  # not if the run was stopped: then it takes effect at the end
        self.fired.remove(first)
        return first

    def take_again(self, place: Place, *, is_cut: bool) -> FiredTimeout | None:
        """If the next in the log is a timeout, and it has fired again: that one.

        A log that was written before timeouts were recorded has only what the code gave up (`is_cut`).
        """
        journal = self._session.journal
        entry = journal.entries[place]
        found = self.fired if is_cut else []
        if entry.timeout is not None:
            found = [x for x in self.fired if self._is_same(x, entry.timeout)]
        if not found:
            return None
        again = found[0]
        if entry.timeout is not None:
            self._session.view.show(entry.seq)
            journal.forget(*place)
            if isinstance(again.timeout, asyncio.Timeout):
                again.line.cancelled_before = entry.timeout.index
        self.fired.remove(again)
        return again

    def _is_same(self, fired: FiredTimeout, recorded: e.TimeoutFired) -> bool:
        """Whether a timeout that has fired is the one that is recorded. Version 0.1 recorded only its branch."""
        branch = fired.line.branch
        if branch is None or branch.path != recorded.branch:
            return False
        name = TimeoutName(recorded.entered_at, recorded.number)
        return name == NO_NAME or self._name_of(fired.timeout) == name
