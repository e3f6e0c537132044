"""Lines that wait for something that the log will bring: each is parked inside its await.

No exception passes through the code of the agent, so a `TaskGroup` does not take a wait for a failure.
Not here: when a wait is over (`core/waits.py`), when the run is suspended (`supervisor.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from holdfast.core.entry import Place
from holdfast.core.policy import MICROSECONDS
from holdfast.core.waits import OpenWait
from holdfast.errors import Suspend
from holdfast.runtime.lines.line import AgentLines, LineState
from holdfast.runtime.lines.run import ExecutedRun


class Parking:
    """The lines of one run that are parked, by the places of their waits."""

    def __init__(self, session: ExecutedRun, lines: AgentLines) -> None:
        self._session, self._lines = session, lines
        self.parked: dict[Place, asyncio.Future[None]] = {}

    async def park(self, wait: OpenWait, signal: Suspend) -> None:
        """Wait until the log has brought what is waited for; or forever, if the run is suspended."""
        session, line, is_cancelled = self._session, self._lines.current, False
        session.waits[wait.place], session.suspensions[wait.place] = wait, signal
        timer = self._wake_at(wait.until)
        try:
            while True:
                waiter = self.parked[wait.place] = self._lines.loop.create_future()
                self._lines.needs_order = True
                if line is not None:
                    line.does(LineState.PARKED)
                try:
                    await waiter
                    break
                except asyncio.CancelledError:
                    # A call in doubt holds its line, even if the code has stopped waiting for it.
                    if wait.kind != "decision" or session.is_ending:
                        raise
                    is_cancelled = True
        finally:
            if timer is not None:
                timer.cancel()
            del self.parked[wait.place]
            if self._lines.suspension is None:
                session.waits.pop(wait.place, None)
                session.suspensions.pop(wait.place, None)
            if line is not None and line.state is LineState.PARKED:
                line.state = LineState.CALLING
        if line is not None and is_cancelled:
            line.cancel_due = True

    def _wake_at(self, until: int | None) -> asyncio.TimerHandle | None:
        if until is None:
            return None
        seconds = max(0, until - self._session.store.now()) / MICROSECONDS
        return self._lines.loop.call_later(seconds + 0.001, self.look_again)

    def look_again(self, ended_children: Sequence[str] = (), *, is_asked: bool = False) -> bool:
        """Wake the lines whose wait is over; whether there were any. While the run is being suspended, only
        who suspends it may ask."""
        if self._lines.is_leaving and not is_asked:
            return False
        session, now = self._session, self._session.store.now()
        woken = [
            waiter
            for place, waiter in self.parked.items()
            if not waiter.done()
            and session.waits[place].is_over(session.journal, now, ended_children)
        ]
        for waiter in woken:
            waiter.set_result(None)
        return bool(woken)

    def look_again_soon(self, ended_children: Sequence[str] = ()) -> None:
        """The same from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._lines.loop.call_soon_threadsafe(self.look_again, ended_children)
