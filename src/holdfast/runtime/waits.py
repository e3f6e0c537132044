"""Waits: for a time, a signal, a person. Each is two events, and between them the run costs a row.

A wait has a place in its branch like a call. What ends it is found in the log: a signal that came
(even before the wait began), a decision, or time by the store's clock.

Not here: what may be asked for, and what the code gets for it (`requests.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Raw

from holdfast.core import events as e
from holdfast.core import values
from holdfast.core.events import Value
from holdfast.core.policy import MICROSECONDS
from holdfast.core.replay import Entry
from holdfast.errors import Suspend
from holdfast.runtime.commit import commit, gate
from holdfast.runtime.context import Branch
from holdfast.runtime.effects import CutOff, Flow, Leave, Pause, place
from holdfast.runtime.flow import check_added, check_all_replayed
from holdfast.runtime.requests import Request
from holdfast.runtime.session import Session

Ready = Callable[[Session, Branch, int, Entry], e.WaitEnded | None]

LOST: Final = "lost"
"""The outcome of a wait beside which another one ended first."""

CUT: Final = "cut"
"""The outcome of a wait that the agent's own code gave up: see `cutoff.py`, of calls."""


def wait_first(branch: Branch, requests: Sequence[Request]) -> Flow:
    """Wait for the first of several; returns its number and its end. The others end with it, as lost.
    None if the code gave it up when it was here before: it gets no answer now either.

    Each has a place of its own, so that people decide about it as about any other request. All begin
    in one commit and all end in one, so the log never holds half of a choice.
    """
    session = branch.session
    first = branch.take(len(requests))
    places = range(first, branch.index)
    entries = [session.entry(branch.path, index) for index in places]
    said = f"wait for {_said(requests)}"
    if (wrong := _mismatch(session, entries, requests)) is not None:
        beside = session.journal.leave(branch.path, first)
        if beside is not None:
            branch.index = beside
        elif session.journal.accepts(branch.path, first):
            branch.give_back(first)
            branch = branch.aside(first)
        else:
            where, adds = place(branch.path, places[wrong]), not session.expects(requests[0].name)
            raise session.diverged(where, _recorded(entries[wrong]), said, adds=adds)
        return (yield from wait_first(branch, requests))
    if entries[0] is None and branch.parent is not None and (branch.is_aside or not first):
        check_added(branch, requests[0].name, said)
    ends = [entry.ended for entry in entries if entry is not None and entry.ended is not None]
    if len(ends) < len(requests):
        check_all_replayed(branch, said)
        ends = yield from _come(branch, places, requests, begun=all(entries))
    else:
        session.show(max(entry.seq for entry in entries if entry is not None))
    for index in places:
        session.journal.forget(branch.path, index)
    if ends[0].is_over(CUT):
        if branch.together is None:
            given_up = f"wait for {_said(requests)}, which async code had given up"
            raise session.diverged(place(branch.path, first), given_up, said)
        return None
    return next((n, ended) for n, ended in enumerate(ends) if not ended.is_over(LOST))


def _mismatch(
    session: Session, entries: Sequence[Entry | None], requests: Sequence[Request]
) -> int | None:
    """The first place at which the log holds something else; also half a choice is something else."""
    states = {None if entry is None else entry.ended is not None for entry in entries}
    for n, (entry, request) in enumerate(zip(entries, requests, strict=True)):
        if entry is not None and not session.journal.is_wait_for(entry, request.wait, request.name):
            return n
        if entry is None and len(states) > 1:
            return n
    return None


def _said(requests: Sequence[Request]) -> str:
    return " or ".join(f"{request.wait} {request.name!r}" for request in requests)


def _recorded(entry: Entry | None) -> str:
    if entry is None:
        return "nothing"
    if entry.wait is not None and not entry.wait.tool:
        return f"wait for {entry.wait.wait} {entry.wait.name!r}"
    return f"a call of {entry.name}"


def _come(
    branch: Branch, places: Sequence[int], requests: Sequence[Request], *, begun: bool
) -> Flow:
    """Begin the wait if it has not begun, then look, wait near times here, and suspend for far ones."""
    session = branch.session
    gate(session)
    if not begun:
        yield from _begin(branch, places, requests)
    entries = [_entry(branch, index) for index in places]
    while True:
        session.catch_up()
        gate(session)
        if (ends := _first_of(branch, places, entries)) is not None:
            yield from commit(session, ends)
            return ends
        until = min((until for x in entries if (until := _until(x)) is not None), default=None)
        left = None if until is None else until - session.store.now()
        try:
            if left is None or left > session.patience_us:
                yield Leave(branch, _suspended(session, requests, until))
            else:
                yield Pause(session, max(0, left) / MICROSECONDS)
        except CutOff as cut:
            yield from _give_up(branch, places, entries)
            raise cut.cancelled from None
        session.check_lease()


def _begin(branch: Branch, places: Sequence[int], requests: Sequence[Request]) -> Flow:
    session, now = branch.session, branch.session.store.now()
    begins, all_blobs = [], []
    for index, x in zip(places, requests, strict=True):
        show, blobs = (None, []) if x.show is None else session.wrap(values.encode(x.show))
        all_blobs += blobs
        begins.append(
            e.WaitBegan(
                branch=branch.path, index=index, wait=x.wait, name=x.name, show=show,
                until=None if x.seconds_us is None else now + x.seconds_us,
                options=x.options, of=x.of, forks=branch.forked if index == places[0] else 0,
            )
        )  # fmt: skip
    yield from commit(session, begins, blobs=all_blobs, recheck=gate)


def _suspended(session: Session, requests: Sequence[Request], until: int | None) -> Suspend:
    says = " or ".join(request.says for request in requests)
    how = ", or ".join(dict.fromkeys(r.how for r in requests if r.how))
    return Suspend(says, how.format(id=repr(session.run_id)), wake_at=until)


def _give_up(branch: Branch, places: Sequence[int], entries: Sequence[Entry]) -> Flow:
    """Nobody waits here any longer: a person who has yet to decide is no longer asked, and a signal that
    comes is for the next wait."""
    ends = [
        e.WaitEnded(branch=branch.path, index=index, wait=entry.wait.wait, outcome=CUT)
        for index, entry in zip(places, entries, strict=True)
        if entry.wait is not None
    ]
    yield from commit(branch.session, ends)
    for index in places:
        branch.session.journal.forget(branch.path, index)


def _entry(branch: Branch, index: int) -> Entry:
    entry = branch.session.entry(branch.path, index)
    assert entry is not None and entry.wait is not None
    return entry


def _until(entry: Entry) -> int | None:
    assert entry.wait is not None
    return entry.wait.until


def _first_of(
    branch: Branch, places: Sequence[int], entries: Sequence[Entry]
) -> list[e.WaitEnded] | None:
    """The ends of all, if one has come: what stands first in the log wins, and anything over time."""
    session = branch.session
    came = []
    for n, (index, entry) in enumerate(zip(places, entries, strict=True)):
        assert entry.wait is not None
        ended = _READY[entry.wait.wait](session, branch, index, entry)
        if ended is not None:
            came.append(((0, ended.source), n, ended))
            continue
        until = entry.wait.until
        if until is not None and until <= session.store.now():
            kind = entry.wait.wait
            over = e.WaitEnded(branch=branch.path, index=index, wait=kind, outcome="time")
            came.append(((1, until), n, over))
    if not came:
        return None
    _, winner, ended = min(came, key=lambda x: x[:2])
    return [
        ended
        if n == winner
        else e.WaitEnded(branch=branch.path, index=index, wait=entry.wait.wait, outcome=LOST)
        for n, (index, entry) in enumerate(zip(places, entries, strict=True))
        if entry.wait is not None
    ]


def _no_end(*_: object) -> e.WaitEnded | None:
    return None  # only time ends a timer


def _signal(session: Session, branch: Branch, index: int, entry: Entry) -> e.WaitEnded | None:
    """The oldest signal of this name (or of one of several) that nobody has taken."""
    assert entry.wait is not None
    wanted = entry.wait.of or (entry.wait.name,)
    for mail in session.journal.mail:
        if mail.event.name in wanted:
            return e.WaitEnded(
                branch=branch.path, index=index, wait="signal", outcome=mail.event.name,
                value=mail.event.value, source=mail.seq,
            )  # fmt: skip
    return None


def _approval(_: Session, branch: Branch, index: int, entry: Entry) -> e.WaitEnded | None:
    if entry.approval is None:
        return None
    decided = entry.approval
    said = Value(json=Raw(values.encode({"by": decided.by, "why": decided.why})))
    return e.WaitEnded(
        branch=branch.path, index=index, wait="approval", value=said, source=entry.approval_seq,
        outcome="approved" if decided.approved else "rejected",
    )  # fmt: skip


def _answer(_: Session, branch: Branch, index: int, entry: Entry) -> e.WaitEnded | None:
    if entry.answer is None:
        return None
    return e.WaitEnded(
        branch=branch.path, index=index, wait="answer", outcome="answered",
        value=entry.answer.value, source=entry.answer_seq,
    )  # fmt: skip


_READY: Final[dict[str, Ready]] = {
    "timer": _no_end,
    "signal": _signal,
    "approval": _approval,
    "answer": _answer,
}
