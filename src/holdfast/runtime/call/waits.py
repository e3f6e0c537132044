"""Waits: for a time, a signal, a person. Each is two events, and between them the run costs a row.

A wait has a place in its branch like a call. What ends it is found in the log: a signal that came
(even before the wait started), a decision, or time by the store's clock.

Not here: what may be asked for, and what the code gets for it (`requests.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core import events as e
from holdfast.core import values
from holdfast.core.entry import Entry, Place, request_id
from holdfast.core.policy import MICROSECONDS
from holdfast.core.waits import CUT, LOST, OpenWait, wait_ended
from holdfast.errors import Suspend
from holdfast.runtime.call.cancelled import forks_above
from holdfast.runtime.call.commit import commit
from holdfast.runtime.call.gate import gate
from holdfast.runtime.call.match import check_added, check_all_replayed
from holdfast.runtime.call.operations import Begin, CutOff, Flow, Park, Pause, Replay
from holdfast.runtime.call.requests import Request
from holdfast.runtime.log.branches import Branch
from holdfast.runtime.log.session import Session
from holdfast.waiting import WaitingFor
from holdfast.words.waiting import suspended


def wait_first(branch: Branch, requests: Sequence[Request]) -> Flow[tuple[int, e.WaitEnded]]:
    """Wait for the first of several; returns its number and its end. The others end with it, as lost.

    Each has its own place, so that people decide about it as about any other request. All start
    in one commit and all end in one, so the log never holds half of a choice.
    """
    session = branch.session
    first = branch.take(len(requests))
    places = [(branch.path, index) for index in range(first, branch.index)]
    entries = [session.log.entry(*at) for at in places]
    attempted = f"wait for {_said(requests)}"
    if (wrong := _mismatch(session, entries, requests)) is not None:
        beside = session.journal.leave(branch.path, first)
        if beside is not None:
            branch.index = beside
        elif session.journal.accepts(branch.path, first):
            branch.give_back(first)
            branch = branch.aside(first)
        else:
            where, adds = places[wrong], not session.log.expects(requests[0].name)
            raise session.diverged(where, _recorded(entries[wrong]), attempted, adds=adds)
        return (yield from wait_first(branch, requests))
    if entries[0] is None and branch.parent is not None and (branch.is_aside or not first):
        check_added(branch, requests[0].name, attempted)
    ends: Sequence[e.WaitEnded] = [
        entry.ended for entry in entries if entry is not None and entry.ended is not None
    ]
    if len(ends) < len(requests):
        check_all_replayed(branch, attempted)
        if not branch.is_aside:
            yield from _may_begin(session, places, entries, attempted)
        ends = yield from _come(branch, places, requests, begun=all(entries))
    else:
        yield from _replay(session, places, ends, attempted)
        session.view.show(max(entry.seq for entry in entries if entry is not None))
    for at in places:
        session.journal.forget(*at)
    return next((n, ended) for n, ended in enumerate(ends) if not ended.is_over(LOST))


def _may_begin(
    session: Session, places: Sequence[Place], entries: Sequence[Entry | None], attempted: str
) -> Flow[None]:
    """Wait until the wait may start. If the code gives it up before, one that had started is over."""
    try:
        yield Begin(session, attempted)
    except CutOff as cut:
        begun = [entry for entry in entries if entry is not None]
        if begun:
            yield from _give_up(session, places, begun)
        raise cut.cancelled from None


def _replay(
    session: Session, places: Sequence[Place], ends: Sequence[e.WaitEnded], attempted: str
) -> Flow[None]:
    """Wait until these recorded ends are next. If the code had given the wait up, until it does so again."""
    if not ends[0].is_over(CUT):
        yield Replay(session, places)
        return
    if session.lines is None:
        given_up = f"{attempted}, which async code had given up"
        raise session.diverged(places[0], given_up, attempted)
    try:
        yield Replay(session, places, is_cut=True)
    finally:
        session.view.show(
            max(x.seq for at in places if (x := session.journal.entry(*at)) is not None)
        )
        for at in places:
            session.journal.forget(*at)


def _mismatch(
    session: Session, entries: Sequence[Entry | None], requests: Sequence[Request]
) -> int | None:
    """The first place at which the log contains something else; also half a choice is something else."""
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
    branch: Branch, places: Sequence[Place], requests: Sequence[Request], *, begun: bool
) -> Flow[Sequence[e.WaitEnded]]:
    """Start the wait if it has not started, then look, wait near times here, and suspend for far ones."""
    session = branch.session
    gate(session)
    if not begun:
        yield from _begin(branch, places, requests)
    entries = [_entry(session, at) for at in places]
    until = min((until for x in entries if (until := _until(x)) is not None), default=None)
    while True:
        session.catch_up()
        gate(session)
        ends = session.end_waits(places)
        if ends is not None:
            yield from commit(session, ends, is_outcome=True)
            return ends
        left = None if until is None else until - session.store.now()
        try:
            if left is None or left > session.patience_us:
                wait = OpenWait(places[0], "request", until, len(places))
                yield Park(session, wait, _suspended(session, places, requests, until))
            else:
                yield Pause(session, max(0, left) / MICROSECONDS)
        except CutOff as cut:
            yield from _give_up(session, places, entries)
            raise cut.cancelled from None
        session.check_lease()


def _begin(branch: Branch, places: Sequence[Place], requests: Sequence[Request]) -> Flow[None]:
    session, now = branch.session, branch.session.store.now()
    begins, all_blobs = [], []
    for at, x in zip(places, requests, strict=True):
        show, blobs = (None, []) if x.show is None else session.wrap(values.encode(x.show))
        all_blobs += blobs
        begins.append(
            e.WaitBegan(
                branch=at[0],
                index=at[1],
                wait=x.wait,
                name=x.name,
                show=show,
                until=None if x.seconds_us is None else now + x.seconds_us,
                options=x.options,
                of=x.of,
                forks=branch.forked if at == places[0] else 0,
            )
        )
    yield from commit(session, begins, blobs=all_blobs, recheck=gate)


def _suspended(
    session: Session, places: Sequence[Place], requests: Sequence[Request], until: int | None
) -> Suspend:
    waits = [
        WaitingFor(
            x.wait,
            x.name,
            until=_until(_entry(session, at)),
            request_id=request_id(at),
            names=x.of,
            options=x.options,
        )
        for at, x in zip(places, requests, strict=True)
    ]
    return suspended(session.run_id, *waits, wake_at=until)


def _give_up(session: Session, places: Sequence[Place], entries: Sequence[Entry]) -> Flow[None]:
    """The wait has ended: a person who has yet to decide is no longer asked, and a signal that
    comes is for the next wait."""
    above = forks_above(session)
    ends = [wait_ended(at, entry, CUT, above) for at, entry in zip(places, entries, strict=True)]
    yield from commit(session, ends, is_outcome=True)
    for at in places:
        session.journal.forget(*at)


def _entry(session: Session, at: Place) -> Entry:
    entry = session.log.entry(*at)
    assert entry is not None and entry.wait is not None
    return entry


def _until(entry: Entry) -> int | None:
    assert entry.wait is not None
    return entry.wait.until
