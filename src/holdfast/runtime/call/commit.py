"""Make events durable, and wait: every event of a live run is written through `commit`.

If others have written meanwhile, what came is read first, and before an effect the gate is asked again, so
that nothing starts after a cancellation (`writer.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from holdfast.core import events as e
from holdfast.core.entry import Place
from holdfast.core.events import Event
from holdfast.core.log import Blob
from holdfast.core.policy import MICROSECONDS
from holdfast.core.waits import OpenWait
from holdfast.errors import (
    Abandon,
    HoldfastError,
    KeyTaken,
    LeaseLost,
    LogRegressed,
    Suspend,
    Unwind,
    Woken,
)
from holdfast.runtime.call.operations import (
    BatchRefused,
    Flow,
    HandOver,
    Invoke,
    LookAgain,
    Never,
    Park,
    Read,
    Sleep,
    Write,
)
from holdfast.runtime.call.request import CallRequest
from holdfast.runtime.log.branches import Inside
from holdfast.runtime.log.session import Session
from holdfast.runtime.log.writer import Batch
from holdfast.store.base import RowChange
from holdfast.store.outside import RunUpdate, update_run
from holdfast.waiting import WaitingFor
from holdfast.words.waiting import suspended

HELD_MAX: Final = 1000
"""No more events than this are buffered, whatever the strategy."""


def is_due(session: Session, *, iteration: bool = False, changed: bool = False) -> bool:
    """Whether what is buffered is to be committed now, by the run's checkpoint strategy.

    A change of stage (or phase: `changed`) is a trigger under every strategy, the end of an iteration
    under all but the coarsest, and every receipt under the finest.
    """
    checkpoint = session.config.checkpoint
    if checkpoint.at_step or (iteration and checkpoint.at_iteration) or changed:
        return True
    return len(session.writer.noted) >= HELD_MAX or bool(session.view.pending(e.StageEntered))


def commit(
    session: Session,
    events: Sequence[Event],
    *,
    change: RowChange | None = None,
    blobs: Sequence[Blob] = (),
    condition: Callable[[Session], None] | None = None,
    claims_key: str = "",
    urgent: bool = False,
    evidence: CallRequest | None = None,
    is_outcome: bool = False,
    at: int = 0,
) -> Flow[int]:
    """Make events durable, with everything noted before them. Returns the seq of the last one when they are; of
    an outcome, when it is the next to be handed to the code.

    `condition` is asked when they are sealed, and again if the log has grown from outside and what came was read:
    before an effect it is the gate, so that nothing starts after a cancellation. Their time is `at`, or else when they
    are sealed.
    """
    if session.only_replay is not None:  # nothing is ever written by a mere replay
        raise session.end_of_replay()
    batch = Batch(
        events,
        change,
        blobs,
        claims_key,
        urgent,
        is_receipt=evidence is not None,
        is_outcome=is_outcome,
        condition=condition,
        at=at,
    )
    try:
        yield Write(session, batch, events[-1].kind if events else "notes")
    except BatchRefused as refused:
        error = refused.error
    else:
        turn = batch.turn
        if is_outcome and turn is not None and not turn.turns.take_now(turn):
            yield HandOver(session, batch.seq, turn)
        elif is_outcome or session.lines is None:
            session.view.show(batch.seq)
        return batch.seq
    yield from refuse(session, error, events, evidence)
    raise AssertionError("unreachable")


def commit_outcome(request: CallRequest, receipt: Event, *, first: Flow[object]) -> Flow[None]:
    """Make an outcome durable, do something else, then hand the outcome to the code: nothing that is recorded
    later is handed over before it."""
    session = request.session
    if session.only_replay is not None:
        raise session.end_of_replay()
    batch = Batch([receipt], urgent=True, is_receipt=True, is_outcome=True)
    try:
        yield Write(session, batch, receipt.kind)
    except BatchRefused as refused:
        yield from refuse(session, refused.error, [receipt], request)
        return
    yield from first
    yield HandOver(session, batch.seq, batch.turn)


def refuse(
    session: Session, error: BaseException, events: Sequence[Event], evidence: CallRequest | None
) -> Never:
    """Events could not be written: tell the caller, or stop the run."""
    if isinstance(error, LeaseLost | LogRegressed) and evidence is not None:
        yield from _leave_evidence(evidence, events[-1])
    if isinstance(error, Unwind | KeyTaken | Woken):
        raise error
    if not isinstance(error, HoldfastError):
        raise error
    raise session.stop(Abandon(error)) from error


def _leave_evidence(request: CallRequest, receipt: Event) -> Flow[None]:
    """We lost the run while the call was in progress; what we know may help the person who decides."""
    session = request.session
    if not request.spec.has_intent or not isinstance(receipt, e.CallSucceeded | e.CallFailure):
        return
    done = isinstance(receipt, e.CallSucceeded)
    key = request.own_key or f"{session.run_id}:{receipt.step}:{request.spec.name}:{request.digest}"
    said = e.CallEvidence(
        step=receipt.step,
        name=receipt.name,
        key=key,
        digest=request.digest,
        worker=session.worker,
        epoch=session.epoch,
        outcome="done" if done else "failed",
        result=receipt.result
        if isinstance(receipt, e.CallSucceeded) and not receipt.result.blob
        else None,
        error=receipt.error if isinstance(receipt, e.CallFailure) else None,
    )
    inside = Inside(request.spec.name, request.spec.effect, session.run_id)
    what = {
        "store": session.store,
        "run_id": session.run_id,
        "decide": lambda *_: RunUpdate([said]),
    }
    with contextlib.suppress(HoldfastError):
        yield Invoke(session, update_run, what, inside, False)


def catch_up(session: Session) -> Flow[None]:
    """See what came from outside, if nothing of ours is on its way."""
    yield Read(session, session.catch_up)


def wait_until(session: Session, place: Place, at: int, what: WaitingFor) -> Flow[None]:
    """Wait for a time in the log: here if it is near, otherwise out of memory."""
    while True:
        left = at - session.store.now()
        if left <= 0:
            return
        if left > session.patience_us:
            signal = suspended(session.run_id, replace(what, until=at), wake_at=at)
            yield from park(session, OpenWait(place, "timer", at), signal)
        yield Sleep(session, left / MICROSECONDS)
        session.check_lease()


def park(session: Session, wait: OpenWait, signal: Suspend) -> Never:
    """Wait for something that the log will bring; then the call looks again at what is recorded of it."""
    yield Park(session, wait, signal)
    raise LookAgain
