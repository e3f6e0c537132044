"""What the code of a live run may see of its log.

It trails what is known (`Session.journal`): an event from outside becomes visible when the code's next call returns, which is
the same place on every replay. What the code itself has noted it sees at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from msgspec import Struct

from holdfast.core import events as e
from holdfast.core.events import Event, Noted, Usage, plain
from holdfast.core.fold import Draft
from holdfast.core.fold_knowledge import message_of
from holdfast.core.knowledge import change_state
from holdfast.core.parts import Message
from holdfast.core.state import QueuedPatch, RunState
from holdfast.runtime.log.writer import LogWriter

UNWRITTEN: Final = 2**63
"""The place of what is not in the log yet: after everything that is."""

E = TypeVar("E", bound=Event)


class _SeenState(Struct, frozen=True):
    """The user's state with the changes that the code made until it last read it."""

    version: tuple[int, int]
    """What the code had been shown, and which events were on their way."""
    ahead: int
    noted: int
    """How many of each have been applied."""
    state: dict[str, Any]

    def precedes(self, ahead: list[tuple[int, Noted]]) -> bool:
        """Whether what has come since comes after all that has been applied."""
        return not self.noted or len(ahead) == self.ahead


class AgentView:
    """The state of a run as its code sees it, and what it will see next."""

    __slots__ = (
        "_held_usage",
        "_mutex",
        "_now",
        "_seen",
        "_writer",
        "ahead",
        "draft",
        "unseen",
    )

    def __init__(self, writer: LogWriter, mutex: threading.RLock, now: Callable[[], int]) -> None:
        self._writer, self._mutex, self._now = writer, mutex, now
        self.draft = Draft.of(keep_calls=False)
        """What the code has been shown."""
        self.unseen: deque[tuple[int, int, Event]] = deque()
        """What is known and not shown yet: seq, time and event."""
        self.ahead: list[tuple[int, Noted]] = []
        """What the code noted, and is recorded further on than it has been shown."""
        self._held_usage: list[tuple[int, Usage]] = []
        self._seen: _SeenState | None = None

    def record(self, seq: int, time: int, event: Event, *, is_shown: bool) -> None:
        """An event is in the log. `is_shown`: the code sees it with what comes before it, and that is now."""
        if is_shown and not self.unseen:
            self.draft.apply(seq, time, event)
        else:
            self.unseen.append((seq, time, event))

    def show(self, seq: int) -> None:
        """Let the code see the log up to this event."""
        unseen, apply = self.unseen, self.draft.apply
        if not unseen and not self._held_usage:
            return
        with self._mutex:
            while unseen and unseen[0][0] <= seq:
                apply(*unseen.popleft())
            if self._held_usage:
                self._held_usage = [x for x in self._held_usage if x[0] > self.draft.seq]

    def open_since(self) -> int:
        """Since when anything of the run is open, at most. Its log is known to its end."""
        found = self.draft.open_since()
        return min(found, self.unseen[0][1]) if self.unseen else found

    def pending(self, kind: type[E]) -> list[E]:
        """What the code noted and is not shown yet: recorded further on, on its way, or not yet sent."""
        with self._mutex:  # other branches write at the same time
            ahead = [(seq, x) for seq, x in self.ahead if seq > self.draft.seq]
            if len(ahead) < len(self.ahead):
                self.ahead, self._seen = ahead, None
            in_flight = self._writer.in_flight(Noted)
            found = (*(x for _, x in self.ahead), *in_flight, *self._writer.noted)
        return [x for x in found if isinstance(x, kind)]

    def state(self) -> dict[str, Any]:
        """The user's state as the code sees it: what is shown, and its own changes since."""
        with self._mutex:
            version, noted = (self.draft.seq, self._writer.moves), self._writer.noted
            seen = self._seen
            if seen is None or seen.version != version or not seen.precedes(self.ahead):
                changes, state = self.pending(e.StateChanged), self.draft.open.state
            else:  # only what is new: code that changes its state often reads it as often
                ahead = (x for seq, x in self.ahead[seen.ahead :] if seq > self.draft.seq)
                found = (*ahead, *noted[seen.noted :])
                changes = [x for x in found if isinstance(x, e.StateChanged)]
                state = seen.state
            if changes:
                state = dict(state)  # other threads may be reading the one before
                for x in changes:
                    change_state(state, x.op, x.key, plain(x.value))
            self._seen = _SeenState(version, len(self.ahead), len(noted), state)
            return state

    def run_state(self) -> RunState:
        """Everything the code sees, with its own notes since."""
        with self._mutex:
            shown, waiting = self.draft.freeze(loop=False), self.pending(Noted)
            if not waiting:
                return shown
            seen = Draft.of(shown, keep_calls=False)
            for x in waiting:
                seen.apply(self.draft.seq, self._now(), x)
            return seen.freeze()

    def messages(self) -> list[Message]:
        """The dialogue as the code sees it; as in `run_state`, without a copy of all the rest."""
        with self._mutex:
            waiting, now = self.pending(e.MessageAdded), self._now()
            return [*self.draft.messages, *(message_of(x, now) for x in waiting)]

    def next_iteration(self) -> int:
        """The number of the iteration that ends now."""
        with self._mutex:
            unseen = (*(x for _, _, x in self.unseen), *self._writer.noted)
            return 1 + self.draft.iteration + sum(isinstance(x, e.IterationEnded) for x in unseen)

    def queued(self) -> list[QueuedPatch]:
        """Patches from outside that wait for an iteration to end: all that are known and not taken in."""
        with self._mutex:
            waiting = dict(self.draft.open.queued)
            for _, _, event in self.unseen:
                if isinstance(event, e.StatePatched) and (event.patch or event.operations):
                    waiting[event.id] = QueuedPatch(
                        event.id, event.patch, event.operations, event.by
                    )
            for event in (*(x for _, _, x in self.unseen), *self._writer.noted):
                if isinstance(event, e.IterationEnded):
                    for taken in event.taken:
                        waiting.pop(taken, None)
            return list(waiting.values())

    @property
    def child_steps(self) -> int:
        """How many calls its child runs had made, by their receipts."""
        return self.draft.child_steps

    @property
    def usage(self) -> Usage:
        """What the run has used up, with what is recorded and not shown yet."""
        with self._mutex:
            total, held = self.draft.usage, list(self._held_usage)
        for _, x in held:
            total = Usage(
                total.input_tokens + x.input_tokens,
                total.output_tokens + x.output_tokens,
                total.cost_usd + x.cost_usd,
            )
        return total

    def count_unshown(self, receipt: e.CallSucceeded, seq: int) -> None:
        """A receipt that was buffered counts at once, and is shown with the commit that held it."""
        if receipt.usage is not None:
            self._held_usage.append((seq, receipt.usage))

    def usage_is_at(self, receipt: e.CallSucceeded, seq: int) -> None:
        """A receipt's usage counts until it is shown: from where it is recorded now."""
        assert receipt.usage is not None
        if receipt.buffered:
            self._held_usage.remove((UNWRITTEN, receipt.usage))
        self._held_usage.append((seq, receipt.usage))
