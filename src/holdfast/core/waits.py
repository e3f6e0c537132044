"""What branches of a run are waiting for, and whether the log has brought it.

The rule that decides whether a suspended run is woken is here, once for every kind of wait: a run may be
suspended only if, according to its log, no open wait is over. Pure: journal and time go in.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final, Literal

from msgspec import Raw, Struct

from holdfast.core import events as e
from holdfast.core import values
from holdfast.core.entry import Entry, Place
from holdfast.core.events import Value
from holdfast.core.journal import Journal

LOST: Final = "lost"
"""The outcome of a wait when another one of the same `wait_any` ended first."""

CUT: Final = "cut"
"""The outcome of a wait that the agent's own code gave up."""

WaitKind = Literal["request", "approval", "decision", "timer", "child"]


class OpenWait(Struct, frozen=True, gc=False):
    """What one branch is waiting for, whether it is in memory or not.

    `request` is a wait of the agent's code (timer, signal, approval, question; `several` of them from this place
    on, of which the first to come wins), `approval` that of a tool call, `decision` is about a call in doubt,
    `timer` a time that is in the log (a retry, a rate limit), `child` the end of a child run.
    """

    place: Place
    kind: WaitKind
    until: int | None = None
    several: int = 1
    child: str = ""

    def is_over(self, journal: Journal, now: int, ended_children: Collection[str] = ()) -> bool:
        """Whether the branch can continue. `ended_children` names child runs that have ended."""
        if self.until is not None and now >= self.until:
            return True
        if self.kind == "child":
            return self.child in ended_children
        entry = journal.entries.get(self.place)
        if self.kind == "approval":
            return entry is not None and entry.approval is not None
        if self.kind == "decision":
            return entry is None or (entry.doubted is None and not entry.open_attempt)
        return self.kind == "request" and first_ends(journal, self.places, now) is not None

    @property
    def places(self) -> list[Place]:
        """The places of a wait for the first of several."""
        path, first = self.place
        return [(path, index) for index in range(first, first + self.several)]


def first_ends(journal: Journal, places: Sequence[Place], now: int) -> Sequence[e.WaitEnded] | None:
    """The ends of waits of which the first to come wins, if one has come; the others are lost.

    An event wins over a time, and of two events the one that is first in the log.
    """
    entries = [journal.entries[place] for place in places]
    came = []
    for n, (place, entry) in enumerate(zip(places, entries, strict=True)):
        assert entry.wait is not None
        end = _READY[entry.wait.wait](journal, place, entry)
        if end is not None:
            came.append(((0, end.source), n, end))
        elif entry.wait.until is not None and entry.wait.until <= now:
            came.append(((1, entry.wait.until), n, wait_ended(place, entry, "time")))
    if not came:
        return None
    _, winner, end = min(came, key=lambda x: x[:2])
    return [
        end if n == winner else wait_ended(place, entry, LOST)
        for n, (place, entry) in enumerate(zip(places, entries, strict=True))
    ]


def wait_ended(
    place: Place, entry: Entry, outcome: str, forks_above: tuple[int, ...] = ()
) -> e.WaitEnded:
    """The end of a wait that no event brought."""
    assert entry.wait is not None
    branch, index = place
    return e.WaitEnded(
        branch=branch, index=index, wait=entry.wait.wait, outcome=outcome, forks_above=forks_above
    )


def _never(_journal: Journal, _place: Place, _entry: Entry) -> e.WaitEnded | None:
    return None  # only time ends a timer


def _signal(journal: Journal, place: Place, entry: Entry) -> e.WaitEnded | None:
    """The oldest signal of this name (or of one of several) that no wait has consumed."""
    assert entry.wait is not None
    names = entry.wait.of or (entry.wait.name,)
    for mail in journal.signals:
        if mail.event.name in names:
            return e.WaitEnded(
                branch=place[0],
                index=place[1],
                wait="signal",
                outcome=mail.event.name,
                value=mail.event.value,
                source=mail.seq,
            )
    return None


def _approval(_journal: Journal, place: Place, entry: Entry) -> e.WaitEnded | None:
    decided = entry.approval
    if decided is None:
        return None
    return e.WaitEnded(
        branch=place[0],
        index=place[1],
        wait="approval",
        outcome="approved" if decided.approved else "rejected",
        value=Value(json=Raw(values.encode({"by": decided.by, "why": decided.why}))),
        source=entry.approval_seq,
    )


def _answer(_journal: Journal, place: Place, entry: Entry) -> e.WaitEnded | None:
    if entry.answer is None:
        return None
    return e.WaitEnded(
        branch=place[0],
        index=place[1],
        wait="answer",
        outcome="answered",
        value=entry.answer.value,
        source=entry.answer_seq,
    )


_READY: Final[dict[str, Callable[[Journal, Place, Entry], e.WaitEnded | None]]] = {
    "timer": _never,
    "signal": _signal,
    "approval": _approval,
    "answer": _answer,
}
