"""Record the intent of a call: it is durable before the effect starts.

A caller's own key is claimed with it. If another run holds that key, the outcome of its call is used.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import Struct

from holdfast.core import events as e
from holdfast.core import log
from holdfast.core.events import ErrorInfo
from holdfast.core.fold import fold
from holdfast.core.policy import MICROSECONDS, microseconds
from holdfast.core.state import Call, RunState
from holdfast.core.waits import OpenWait
from holdfast.errors import (
    Abandon,
    InvalidInput,
    KeyTaken,
    LogDamaged,
    Woken,
)
from holdfast.runtime.call.commit import commit, park
from holdfast.runtime.call.gate import gate
from holdfast.runtime.call.match import intent_of_this_run
from holdfast.runtime.call.operations import Flow, LookAgain
from holdfast.runtime.call.receipt import (
    failed_receipt,
    failure,
    kept_args,
    result_lost,
)
from holdfast.runtime.call.recover import doubt
from holdfast.runtime.call.request import CallRequest
from holdfast.runtime.log.session import Session
from holdfast.store.artifacts import read_value
from holdfast.store.base import Store
from holdfast.waiting import WaitingFor
from holdfast.words.waiting import suspended


class ResultOfOtherRun(Struct):
    """The call was made by another run under the same key: this is its result."""

    value: Any


def record_intent(
    request: CallRequest, number: int, step: int, approval: int | None
) -> Flow[e.CallStarted | ResultOfOtherRun]:
    """The intent is durable before the effect starts."""
    spec, session = request.spec, request.branch.session
    # After a long sleep of the machine: an intent without an attempt would be a call in doubt.
    session.check_lease()
    entry = session.log.entry(request.branch.path, request.index)
    step = step or session.next_step()
    digest = request.digest
    key = request.own_key or f"{session.run_id}:{step}:{spec.name}:{digest}"
    before = None if entry is None else intent_of_this_run(session, entry)
    if before is not None and before.key != key:
        raise session.diverged(
            request.place,
            f"{request} under the key {before.key!r}",
            f"{request} under the key {key!r}",
        )
    value, blobs = log.wrap(request.args)
    until = None
    if spec.key_ttl is not None:
        first = entry.first_intent_at if entry is not None and before is not None else 0
        until = (first or session.store.now()) + microseconds(spec.key_ttl, "key_ttl")
        if entry is not None and entry.failures and first and session.store.now() >= until:
            because = "the receiver may have forgotten its key"
            yield from doubt(request, step, number - 1, because, known=entry.resolved)
    intent = e.CallStarted(
        branch=request.branch.path,
        index=request.index,
        forks=request.forks,
        step=step,
        name=spec.name,
        effect=spec.effect,
        key=key,
        digest=digest,
        args=value,
        attempt=number,
        tool_version=spec.version,
        risk=spec.risk,
        key_until=until,
        approval=approval,
        undoable=spec.undo is not None or spec.is_child,
        undoes=request.undoes,
        child=f"{session.run_id}~{step}" if spec.is_child else "",
    )
    claims = "" if before is not None else request.own_key
    try:
        yield from commit(
            session,
            [intent],
            blobs=blobs,
            condition=partial(_may_start, request),
            claims_key=claims,
        )
    except Woken:
        raise LookAgain from None
    except KeyTaken as key_taken:
        result = yield from _from_other_run(request, key_taken, step)
        return ResultOfOtherRun(result)
    return intent


def _may_start(request: CallRequest, session: Session) -> None:
    """Asked when the intent is sealed: the gate, and whether a person has decided meanwhile what became of the call."""
    if not request.undoes:
        gate(session, counts=True)
    entry = session.log.entry(*request.place)
    if entry is not None and entry.final:
        raise Woken(session.run_id)


def _from_other_run(request: CallRequest, key_taken: KeyTaken, step: int) -> Flow[Any]:
    """Another run holds this key: the outcome of its call is ours too."""
    session, spec = request.session, request.spec
    try:
        other_call = _holder(session.store, key_taken)
        raw = (
            b""
            if other_call.result is None
            else read_value(
                session.store, key_taken.run_id, other_call.result, seq=other_call.last_seq
            )
        )
    except LogDamaged as damage:
        raise session.stop(Abandon(damage)) from None
    if other_call.name != spec.name or other_call.digest != request.digest:
        raise InvalidInput(
            f"{spec.name}: idempotency key {key_taken.key!r} was used by run {key_taken.run_id!r} for "
            f"{other_call.name} with other arguments; a key identifies one action"
        )
    if other_call.status == "failed" and other_call.error is not None:
        yield from _failed_elsewhere(request, other_call.error, step)
    if other_call.status != "done" or other_call.result is None:
        at = session.store.now() + 5 * MICROSECONDS
        waiting = WaitingFor(
            "key", spec.name, until=at, run_id=key_taken.run_id, reason=key_taken.key
        )
        signal = suspended(session.run_id, waiting, wake_at=at)
        yield from park(session, OpenWait(request.place, "timer", at), signal)
        raise AssertionError("unreachable")
    value, blobs = log.wrap(raw)
    args, digest = kept_args(request)
    receipt = e.CallSucceeded(
        branch=request.branch.path,
        index=request.index,
        forks=request.forks,
        step=step,
        name=spec.name,
        result=value,
        digest=digest,
        args=args,
        unavailable=other_call.unavailable,
    )
    yield from commit(session, [receipt], blobs=blobs, is_outcome=True)
    if other_call.unavailable:
        raise result_lost(request, other_call.unavailable, step)
    return spec.result.decode(raw)


def _holder(store: Store, key_taken: KeyTaken) -> Call:
    """The call of another run that holds a caller's own key, read from a log that is checked first."""
    origin = log.origin(key_taken.run_id)
    other = fold(
        RunState(), list(log.verify(key_taken.run_id, origin, store.read(key_taken.run_id)))
    )
    for call in other.calls:
        if call.first_seq <= key_taken.seq <= call.last_seq and call.key == key_taken.key:
            return call
    raise LogDamaged(
        key_taken.run_id, key_taken.seq, f"no call there holds the key {key_taken.key!r}"
    )


def _failed_elsewhere(request: CallRequest, error: ErrorInfo, step: int) -> Flow[None]:
    yield from commit(request.session, [failed_receipt(request, error, step)], is_outcome=True)
    raise failure(request.spec.name, error, 1, step)
