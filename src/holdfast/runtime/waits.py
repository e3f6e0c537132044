"""Waits: for a time, a signal, a person. Each is two events, and between them the run costs a row.

A wait has a place in its branch like a call. What ends it is found in the log: a signal that came
(even before the wait began), a decision, or time by the store's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from holdfast.core import events as e
from holdfast.core import values
from holdfast.core.events import Value
from holdfast.core.policy import MICROSECONDS
from holdfast.core.replay import Entry
from holdfast.errors import Suspend
from holdfast.runtime.commit import commit, gate
from holdfast.runtime.context import Branch
from holdfast.runtime.effects import Flow, Pause
from holdfast.runtime.flow import check_all_replayed
from holdfast.runtime.session import Session


@dataclass(frozen=True, slots=True)
class Request:
    """What the code waits for."""

    wait: str
    name: str = ""
    seconds_us: int | None = None
    show: Any = None
    options: tuple[str, ...] = ()
    of: tuple[str, ...] = ()
    says: str = ""
    how: str = ""


Ready = Callable[[Session, Branch, int, Entry], e.WaitEnded | None]


def wait(branch: Branch, request: Request) -> Flow:
    """Wait at this place; returns the recorded end of the wait."""
    session, index = branch.session, branch.take()
    entry = session.entry(branch.path, index)
    if entry is not None:
        recorded = entry.wait
        if (
            recorded is None
            or (recorded.wait, recorded.name) != (request.wait, request.name)
            or recorded.tool
        ):
            where = f"call {index + 1}" + (f" of branch {branch.path}" if branch.path else "")
            raise session.diverged(
                where, _recorded(entry), f"wait for {request.wait} {request.name!r}"
            )
    if entry is None or entry.ended is None:
        check_all_replayed(branch, f"wait for {request.wait} {request.name!r}")
        ended = yield from _come(branch, index, entry, request)
    else:
        ended = entry.ended
        session.show(entry.seq)
    session.journal.forget(branch.path, index)
    return ended


def _recorded(entry: Entry) -> str:
    if entry.wait is not None and not entry.wait.tool:
        return f"wait for {entry.wait.wait} {entry.wait.name!r}"
    return f"a call of {entry.name}"


def _come(branch: Branch, index: int, entry: Entry | None, request: Request) -> Flow:
    """Begin the wait if it has not begun, then look, wait near times here, and suspend for far ones."""
    session = branch.session
    gate(session)
    if entry is None or entry.wait is None:
        show, blobs = (
            (None, []) if request.show is None else session.wrap(values.encode(request.show))
        )
        until = None if request.seconds_us is None else session.store.now() + request.seconds_us
        began = e.WaitBegan(
            branch=branch.path, index=index, wait=request.wait, name=request.name, until=until,
            show=show, options=request.options, of=request.of,
        )  # fmt: skip
        yield from commit(session, [began], blobs=blobs, recheck=True)
        entry = session.entry(branch.path, index)
    assert entry is not None and entry.wait is not None
    while True:
        session.catch_up()
        gate(session)
        ended = _READY[request.wait](session, branch, index, entry)
        until = entry.wait.until
        left = None if until is None else until - session.store.now()
        if ended is None and left is not None and left <= 0:
            ended = e.WaitEnded(branch=branch.path, index=index, wait=request.wait, outcome="time")
        if ended is not None:
            yield from commit(session, [ended])
            return ended
        if left is None or left > session.patience_us:
            raise Suspend(request.says, request.how.format(id=repr(session.run_id)), wake_at=until)
        yield Pause(session, min(left, session.patience_us) / MICROSECONDS)
        session.check_lease()


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
    outcome = "approved" if entry.approval.approved else "rejected"
    return e.WaitEnded(
        branch=branch.path, index=index, wait="approval", outcome=outcome, source=entry.approval_seq
    )


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


def content(session: Session, value: Value | None) -> Any:
    """What came with the end of a wait."""
    return None if value is None else values.decode(session.unwrap(value))
