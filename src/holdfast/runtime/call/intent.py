"""Record the intent of a call: it is durable before the effect starts.

A caller's own key is claimed with it. If another run holds that key, the outcome of its call is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
)
from holdfast.runtime.call.commit import commit, park
from holdfast.runtime.call.effects import (
    Asked,
    Flow,
)
from holdfast.runtime.call.gate import gate
from holdfast.runtime.call.match import intent_of_this_run
from holdfast.runtime.call.recover import doubt
from holdfast.runtime.call.results import (
    failed_receipt,
    failure,
    kept_args,
    result_lost,
)
from holdfast.runtime.declare.specs import (
    CHILD,
)
from holdfast.store.artifacts import read_value
from holdfast.store.base import Store
from holdfast.waiting import WaitingFor
from holdfast.words.waiting import suspended


@dataclass(slots=True)
class Elsewhere:
    """The call was made by another run under the same key: this is its result."""

    value: Any


def record_intent(asked: Asked, number: int, step: int, approval: int | None) -> Flow:
    """The intent is durable before the effect starts."""
    spec, session = asked.spec, asked.branch.session
    # After a long sleep of the machine: an intent without an attempt would be a call in doubt.
    session.check_lease()
    entry = session.entry(asked.branch.path, asked.index)
    step = step or session.next_step()
    digest = asked.digest
    key = asked.own_key or f"{session.run_id}:{step}:{spec.name}:{digest}"
    before = None if entry is None else intent_of_this_run(session, entry)
    if before is not None and before.key != key:
        raise session.diverged(
            asked.place,
            f"{asked} under the key {before.key!r}",
            f"{asked} under the key {key!r}",
        )
    value, blobs = session.wrap(asked.args)
    until = None
    if spec.key_ttl is not None:
        first = entry.first_intent_at if entry is not None and before is not None else 0
        until = (first or session.store.now()) + microseconds(spec.key_ttl, "key_ttl")
        if entry is not None and entry.failures and first and session.store.now() >= until:
            yield from doubt(asked, step, number - 1, "the receiver may have forgotten its key")
    intent = e.CallStarted(
        branch=asked.branch.path,
        index=asked.index,
        forks=asked.forks,
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
        undoable=spec.undo is not None or spec.effect == CHILD,
        undoes=asked.undoes,
        child=f"{session.run_id}~{step}" if spec.effect == CHILD else "",
    )
    claims = "" if before is not None else asked.own_key
    try:
        yield from commit(
            session,
            [intent],
            blobs=blobs,
            recheck=None if asked.undoes else gate,
            claims_key=claims,
        )
    except KeyTaken as taken:
        result = yield from _from_other_run(asked, taken, step)
        return Elsewhere(result)
    return intent


def _from_other_run(asked: Asked, taken: KeyTaken, step: int) -> Flow:
    """Another run holds this key: the outcome of its call is ours too."""
    session, spec = asked.session, asked.spec
    try:
        found = _holder(session.store, taken)
        raw = (
            b""
            if found.result is None
            else read_value(session.store, taken.run_id, found.result, seq=found.last_seq)
        )
    except LogDamaged as damage:
        raise session.stop(Abandon(damage)) from None
    if found.name != spec.name or found.digest != asked.digest:
        raise InvalidInput(
            f"{spec.name}: idempotency key {taken.key!r} was used by run {taken.run_id!r} for "
            f"{found.name} with other arguments; a key identifies one action"
        )
    if found.status == "failed" and found.error is not None:
        yield from _failed_elsewhere(asked, found.error, step)
    if found.status != "done" or found.result is None:
        at = session.store.now() + 5 * MICROSECONDS
        waiting = WaitingFor("key", spec.name, until=at, run_id=taken.run_id, reason=taken.key)
        signal = suspended(session.run_id, waiting, wake_at=at)
        yield from park(session, OpenWait(asked.place, "timer", at), signal)
        raise AssertionError("unreachable")
    value, blobs = session.wrap(raw)
    args, digest = kept_args(asked)
    receipt = e.CallSucceeded(
        branch=asked.branch.path,
        index=asked.index,
        forks=asked.forks,
        step=step,
        name=spec.name,
        result=value,
        digest=digest,
        args=args,
        unavailable=found.unavailable,
    )
    yield from commit(session, [receipt], blobs=blobs, is_outcome=True)
    if found.unavailable:
        raise result_lost(asked, found.unavailable, step)
    return spec.result.decode(raw)


def _holder(store: Store, taken: KeyTaken) -> Call:
    """The call of another run that holds a caller's own key, read from a log that is checked first."""
    origin = log.origin(taken.run_id)
    other = fold(RunState(), list(log.verify(taken.run_id, origin, store.read(taken.run_id))))
    for call in other.calls:
        if call.first_seq <= taken.seq <= call.last_seq and call.key == taken.key:
            return call
    raise LogDamaged(taken.run_id, taken.seq, f"no call there holds the key {taken.key!r}")


def _failed_elsewhere(asked: Asked, error: ErrorInfo, step: int) -> Flow:
    yield from commit(asked.session, [failed_receipt(asked, error, step)], is_outcome=True)
    raise failure(asked.spec.name, error, 1, step)
