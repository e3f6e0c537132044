"""Make events durable, and wait for a time in the log.

Every event of a live run is written through `commit`. If others have written meanwhile, what came is
read first, and before an effect the gate (`gate.py`) is asked again, so that nothing begins after a
cancellation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final

from holdfast.core import events as e
from holdfast.core.events import Event
from holdfast.core.log import Blob
from holdfast.core.policy import MICROSECONDS
from holdfast.errors import (
    Abandon,
    Conflict,
    HoldfastError,
    KeyTaken,
    LeaseLost,
    LogRegressed,
    Signal,
    Suspend,
)
from holdfast.runtime.effects import Asked, Effect, Flow, Pause, Refused, StoreEffect
from holdfast.runtime.session import Pending, Session
from holdfast.store.base import RowChange

HELD_MAX: Final = 1000
"""No more events than this are buffered, whatever the strategy."""


def is_due(session: Session, *, iteration: bool = False, changed: bool = False) -> bool:
    """Whether what is buffered is to be committed now, by the run's checkpoint strategy.

    A change of stage (or phase: `changed`) is a trigger under every strategy, the end of an iteration
    under all but the coarsest, and every receipt under the finest.
    """
    checkpoint = session.setting.checkpoint
    if checkpoint.at_step or (iteration and checkpoint.at_iteration) or changed:
        return True
    return session.held >= HELD_MAX or bool(session.pending(e.StageEntered))


def commit(
    session: Session,
    events: Sequence[Event],
    *,
    change: RowChange | None = None,
    blobs: Sequence[Blob] = (),
    recheck: Callable[[Session], None] | None = None,
    claims_key: str = "",
    urgent: bool = False,
    evidence: Asked | None = None,
) -> Flow:
    """Make events durable, with everything noted before them. Returns when they are.

    If the log has grown from outside, what came is read first, and `recheck` is asked: before an effect
    it is the gate, so that nothing begins after a cancellation.
    """
    label = events[-1].kind if events else "notes"
    build = partial(
        session.build,
        events,
        change=change,
        blobs=blobs,
        claims_key=claims_key,
        urgent=urgent,
        receipt=evidence is not None,
    )
    try:
        session.committed((yield StoreEffect(session, build, label)))
    except Refused as first:
        refused = first
    else:
        return
    yield from commit_again(refused, label, recheck, evidence)


def commit_again(
    refused: Refused,
    label: str,
    recheck: Callable[[Session], None] | None = None,
    evidence: Asked | None = None,
) -> Flow:
    """The same for events whose first append was refused."""
    session = refused.pending.session
    while True:
        build = yield from _refused(refused, recheck, evidence)
        try:
            pending = yield StoreEffect(session, build, label)
        except Refused as once_more:
            refused = once_more
            continue
        session.committed(pending)
        return


def _refused(
    refused: Refused, recheck: Callable[[Session], None] | None, evidence: Asked | None
) -> Generator[Effect, Any, Callable[[], Pending]]:
    """What to send instead, or what to raise."""
    pending, error = refused.pending, refused.error
    session = pending.session
    match error:
        case Conflict():
            session.learn(pending, error)
            if recheck is not None:
                try:
                    recheck(session)
                except Signal:
                    session.withdraw(pending)
                    raise
            return lambda: session.again(pending)
        case KeyTaken():
            session.withdraw(pending)
            raise error
        case LeaseLost() | LogRegressed() if evidence is not None:
            yield from _leave_evidence(evidence, pending.events[-1])
    raise session.stop(Abandon(error)) from error


def _leave_evidence(asked: Asked, receipt: Event) -> Flow:
    """We lost the run while the call was under way; what we know may help whoever decides."""
    session = asked.session
    if not asked.spec.has_intent or not isinstance(receipt, e.CallSucceeded | e.CallFailed):
        return
    done = isinstance(receipt, e.CallSucceeded)
    key = asked.own_key or f"{session.run_id}:{receipt.step}:{asked.spec.name}:{asked.digest}"
    said = e.CallEvidence(
        step=receipt.step,
        name=receipt.name,
        key=key,
        digest=asked.digest,
        worker=session.worker,
        epoch=session.epoch,
        outcome="done" if done else "failed",
        result=receipt.result
        if isinstance(receipt, e.CallSucceeded) and not receipt.result.blob
        else None,
        error=receipt.error if isinstance(receipt, e.CallFailed) else None,
    )
    for _ in range(5):
        try:
            yield StoreEffect(session, lambda: session.outside(said), said.kind)
        except Refused as refused:
            if isinstance(refused.error, Conflict):
                continue
        except HoldfastError:
            return
        return


def wait_until(session: Session, at: int, what: str) -> Flow:
    """Wait for a time in the log: here if it is near, otherwise out of memory."""
    while True:
        left = at - session.store.now()
        if left <= 0:
            return
        if left > session.patience_us:
            raise Suspend(what, "it goes on by itself when a worker is running", wake_at=at)
        yield Pause(session, left / MICROSECONDS)
        session.check_lease()
