"""When the code does not ask for what is recorded: how long to wait, and when the code has diverged.

Code that awaits something of its own (a timer) may still come to it. Not here: whose turn it is (`turns.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from holdfast.core.entry import Place
from holdfast.core.policy import MICROSECONDS
from holdfast.errors import Abandon
from holdfast.runtime.lines.line import AgentLines
from holdfast.runtime.lines.run import ExecutedRun

OTHER_CODE_SECONDS: Final = 600.0
"""How long code that awaits something unknown may take to ask for what is recorded; then it is other code."""
TIMER_SECONDS: Final = 2.0
"""How long it may take at least until a timer of the code that has fired is noticed here."""


class WaitingTurn(Protocol):
    """A line that wants to begin something new: `Turn` is one."""

    @property
    def attempted(self) -> object: ...


class UnaskedTurns(Protocol):
    """What is asked of the turns of the run: `Turns` is one."""

    @property
    def asking(self) -> Mapping[Place, object]: ...
    @property
    def waiting_to_begin(self) -> Sequence[WaitingTurn]: ...
    def next_recorded(self) -> tuple[int, Place] | None: ...
    def stop(self, signal: BaseException) -> None: ...


class UnaskedOutcomes:
    """What is done about a recorded outcome that no line asks for."""

    def __init__(self, session: ExecutedRun, lines: AgentLines, turns: UnaskedTurns) -> None:
        self._session, self._lines, self._turns = session, lines, turns

    def wait_for_code(self) -> None:
        """The next outcome in the log is not asked for, or the code had stopped waiting there.

        Code that awaits something of its own (a timer) may still come to it. Otherwise it is other code.
        """
        recorded = self._turns.next_recorded()
        assert recorded is not None
        cut, timeout = (
            self._turns.asking.get(recorded[1]),
            self._session.journal.entries[recorded[1]].timeout,
        )
        only_replay = self._session.only_replay
        if only_replay is not None and (cut is not None or timeout is not None):
            # Its timer may be long: a mere replay does not wait for it.
            self._lines.after_patience(lambda: self._turns.stop(Abandon(only_replay)))
        elif timeout is not None:
            self._diverge_after(timeout.within_us)
        elif cut is not None:
            self._diverge_after(self._cut_within_us(recorded[1]))
        elif self._lines.awaits_the_unknown:
            self._lines.after_patience(self._diverge, OTHER_CODE_SECONDS)
        else:
            self._diverge()

    def _diverge_after(self, within_us: int) -> None:
        """Something of the code's own, a timer, had cancelled a call within this time, and has yet to do so again. All
        lines are blocked, so it has been started, and takes no longer than before.

        If the process stood still, both times have come at once. So whatever the timer does has its time after that.
        """
        patience = self._session.patience_us / MICROSECONDS
        seconds = within_us / MICROSECONDS + patience
        if self._lines.awaits_the_unknown:
            seconds += OTHER_CODE_SECONDS
        last = max(patience, TIMER_SECONDS)
        self._lines.after_patience(lambda: self._lines.after_patience(self._diverge, last), seconds)

    def _cut_within_us(self, place: Place) -> int:
        """Within which time the code had stopped waiting: at least for as long as it had waited. A timer may have been
        started before that, but not before the run."""
        journal = self._session.journal
        entry = journal.entries[place]
        waited = entry.failures[-1].duration_us if entry.failures else 0
        if entry.ended is not None:
            waited = max(0, entry.ended_at - entry.wait_at)
        age = entry.ended_at - journal.life.created_at
        limit = round(OTHER_CODE_SECONDS * MICROSECONDS)
        return max(waited, age if 0 <= age < limit else limit)

    def _diverge(self) -> None:
        recorded = self._turns.next_recorded()
        if recorded is not None:
            attempted = (
                str(self._turns.waiting_to_begin[0].attempted)
                if self._turns.waiting_to_begin
                else "nothing"
            )
            self._turns.stop(self._session.not_asked(recorded[1], attempted))
