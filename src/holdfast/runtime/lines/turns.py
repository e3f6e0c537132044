"""The order in which the lines of a run continue: fixed by the log, because it decides races.

- Outcomes are handed to the code in the order of the log, one at a time. Between two of them the code runs until every
  line is blocked. Live execution and replay use the same rule, so both decide alike.
- Nothing new begins before every recorded outcome has been handed over.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.core.entry import Place
from holdfast.runtime.lines.line import AgentLines, Line, LineState
from holdfast.runtime.lines.run import ExecutedRun
from holdfast.runtime.lines.unasked import UnaskedOutcomes

_RUNNING: Final = LineState.RUNNING  # in Python 3.11 it takes long to look up a member of an Enum


class Turn(msgspec.Struct, eq=False):
    """One outcome that is to be handed to the code, or a call that is to begin.

    (A Struct, because one is made for every call, and C makes it.)
    """

    turns: Turns
    line: Line | None
    seq: int | None = None
    """The outcome is in the log, as this event."""
    granted: bool = False
    is_cut: bool = False
    """The code had stopped waiting here: it gets no answer."""
    given_up: BaseException | None = None
    """By this the code has stopped waiting again."""
    places: Sequence[Place] = ()
    attempted: object = ""
    waiter: asyncio.Future[None] | None = None

    def drop(self) -> None:
        """It has no outcome: its batch has failed."""
        self.turns.drop(self)


class Turns:
    """Whose turn it is, among the lines of one run."""

    def __init__(self, session: ExecutedRun, lines: AgentLines) -> None:
        self._session, self._lines = session, lines
        self.asking: dict[Place, Turn] = {}
        """By place: lines that ask for an outcome that is recorded there."""
        self.outcomes: list[Turn] = []
        """Outcomes that are written here, in the order of the log."""
        self.waiting_to_begin: list[Turn] = []
        """Lines that want to begin something new."""

    def outcome(self) -> Turn | None:
        """A turn for an outcome that is being written now: its place among all of them."""
        line = self._lines.current
        if line is None:
            return None
        turn = Turn(self, line)
        self.outcomes.append(turn)
        return turn

    def first_outcome(self, seq: int) -> Turn:
        """A turn for the outcome of what was the only line when it was sealed: it is before all others."""
        turn = Turn(self, self._lines.current, seq)
        self.outcomes.insert(0, turn)
        return turn

    def drop(self, turn: Turn) -> None:
        """See `Turn.drop`; from any thread."""
        with contextlib.suppress(ValueError):
            self.outcomes.remove(turn)

    async def take(self, turn: Turn) -> None:
        """Wait until this outcome, which is in the log, may be handed to the code."""
        if not self.take_now(turn):
            await self._wait(turn)

    def take_now(self, turn: Turn) -> bool:
        """Whether this outcome, which is in the log, may be handed to the code at once; then it is taken. It is the
        first of those that were written here, and no code of another line runs or is about to."""
        outcomes, seq = self.outcomes, turn.seq
        if not outcomes or outcomes[0] is not turn or seq is None:
            return False
        if self._lines.needs_order and self._runs_elsewhere(turn.line):
            return False
        if self._session.journal.outcomes or not self._session.log.knows_all:
            recorded = self.next_recorded()
            if recorded and recorded[0] < seq and not self._may_add_before(recorded):
                return False
        del outcomes[0]
        return True

    def _runs_elsewhere(self, line: Line | None) -> bool:
        """Whether code of another line runs, or is about to."""
        if self._lines.is_lone_outcome_due:
            return True
        own = 1 if line is not None and line.state is _RUNNING else 0
        return self._lines.hops > 0 or self._lines.running > own

    async def take_recorded(
        self, places: Sequence[Place], is_cut: bool = False, given_up: BaseException | None = None
    ) -> None:
        """Wait until the outcome that is recorded at these places is the next. If the code had stopped
        waiting there (`is_cut`), it gets no answer, and this ends when the code stops waiting again."""
        journal, line = self._session.journal, self._lines.current
        entry = journal.entries.get(places[0])
        if (
            line is None
            or entry is None
            or journal.retries.is_unbound(places[0], entry, journal.entries)
        ):
            return
        if self._lines.is_in_order and not is_cut:
            return
        turn = Turn(self, line)
        turn.places, turn.is_cut, turn.given_up = places, is_cut, given_up
        for place in places:
            self.asking[place] = turn
        try:
            await self._wait(turn)
        finally:
            for place in places:
                self.asking.pop(place, None)

    async def begin(self, attempted: object) -> None:
        """Wait until something new may begin: every recorded outcome has been handed over."""
        line = self._lines.current
        if line is None:
            return
        if self._lines.is_leaving:
            await self._lines.supervisor.stay()
        if self._lines.is_in_order:
            return
        recorded = self.next_recorded()
        if recorded is None or self._may_add_before(recorded):
            return
        turn = Turn(self, line)
        turn.attempted = attempted
        self.waiting_to_begin.append(turn)
        try:
            await self._wait(turn, keep=False)
        finally:
            if turn in self.waiting_to_begin:
                self.waiting_to_begin.remove(turn)

    def _may_add_before(self, recorded: tuple[int, Place]) -> bool:
        """Whether a person has accepted new steps among what was recorded until then."""
        return recorded[0] < self._session.journal.accepted

    async def _wait(self, turn: Turn, *, keep: bool = True) -> None:
        """Wait for a turn. A cancellation does not undo an outcome: it is delivered afterwards. Where the
        code had stopped waiting, the cancellation is the outcome: it too comes in the order of the log."""
        line, is_cancelled = turn.line, False
        assert line is not None
        while not (turn.granted or self._lines.is_over):
            turn.waiter = self._lines.loop.create_future()
            self._lines.needs_order = True
            line.does(LineState.ASKING)
            try:
                await turn.waiter
            except asyncio.CancelledError as cancelled:
                if not keep or self._session.is_ending:
                    raise
                if turn.is_cut:
                    turn.given_up = cancelled
                else:
                    is_cancelled = True
            finally:
                line.state = LineState.CALLING if line.state is LineState.ASKING else line.state
        if turn.given_up is not None:
            raise turn.given_up
        line.cancel_due = line.cancel_due or is_cancelled
        if self._session.stop_signal is not None and not self._lines.is_over:
            raise self._session.stop_signal

    def next_recorded(self) -> tuple[int, Place] | None:
        journal = self._session.journal
        found = journal.next_outcome()
        if not self._session.log.knows_all and (
            found is None or journal.entries[found[1]].failed_finally
        ):
            self._session.log.read_all()  # what follows may still change it
            found = journal.next_outcome()
        return found

    def grant(self, turn: Turn) -> None:
        turn.granted = True
        if turn.line is not None and turn not in self.waiting_to_begin:
            turn.line.runs()
        if turn.waiter is not None and not turn.waiter.done():
            turn.waiter.set_result(None)

    def advance(self) -> bool:
        """No code of the agent runs: hand over the next outcome. False if there is none to wait for either."""
        recorded = self.next_recorded()
        first = self.outcomes[0] if self.outcomes else None
        if recorded is not None and self._may_add_before(recorded):
            asked = self._first_asked()
            if asked is not None:
                self.grant(asked)
                return True
        elif recorded is not None and not (
            first is not None and first.seq is not None and first.seq <= recorded[0]
        ):
            self._hand_over_recorded(recorded[1])
            return True
        if self.waiting_to_begin:
            waiting, self.waiting_to_begin = self.waiting_to_begin, []
            for turn in waiting:
                turn.granted = True
                if turn.waiter is not None and not turn.waiter.done():
                    turn.waiter.set_result(None)
            return True
        if self._lines.is_lone_outcome_due:
            return True  # it is on its way
        if first is not None:
            if first.seq is not None and (first.waiter is not None or first.granted):
                del self.outcomes[0]
                self.grant(first)
            return True  # it is on its way
        return False

    def _hand_over_recorded(self, place: Place) -> None:
        """Hand over the outcome at this place, which is the next in the log, if the code asks for it."""
        asked = self.asking.get(place)
        if asked is not None and (asked.given_up or not asked.is_cut):
            self.grant(asked)
        elif not self._lines.time_out_again(
            place, is_cut=asked is not None and asked.is_cut
        ) and not (self._lines.is_calling):
            UnaskedOutcomes(self._session, self._lines, self).wait_for_code()

    def end(self) -> None:
        """The code has ended: those that wait for a recorded or committed outcome get it."""
        for turn in (*self.asking.values(), *self.outcomes):
            if not turn.is_cut:
                self.grant(turn)

    def _first_asked(self) -> Turn | None:
        """Of the recorded outcomes that the code asks for, the first in the log."""
        entries = self._session.journal.entries
        asked = [
            (entries[at].seq, turn)
            for at, turn in self.asking.items()
            if turn.given_up or not turn.is_cut
        ]
        return min(asked, key=lambda x: x[0])[1] if asked else None

    def stop(self, signal: BaseException) -> None:
        """Every line that is waiting for its turn gets this signal."""
        self._session.stop(signal)
        for turn in (*self.asking.values(), *self.waiting_to_begin):
            if not turn.granted:
                self.grant(turn)
