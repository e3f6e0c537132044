"""The call flow, written once: a generator of effects.

    enter → match → gate → approval → intent → attempt → results → commit

It yields what must be done (`Write`, `Invoke`, `Park`, …) and a driver does it, for a caller that blocks
or for one that awaits (`drivers.py`). So there are no sync and async twins, the protocol can be tested
without I/O, and every yield is a point where the process may die.

Reading order: `call` is the pipeline, and its stages are the modules of these names, with `recover.py` for a call in doubt.
Agents run through `execute.py`, which is the same idea one layer up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from holdfast.core.effect import Effect
from holdfast.core.entry import Entry
from holdfast.core.values import canonical_flat
from holdfast.errors import (
    InvalidInput,
    NotDurable,
)
from holdfast.runtime.call.approval import ask_approval, check_args
from holdfast.runtime.call.attempt import make_attempts
from holdfast.runtime.call.gate import gate, gate_again
from holdfast.runtime.call.match import check_all_replayed, find, replay
from holdfast.runtime.call.operations import (
    Begin,
    CallRequest,
    Flow,
    LookAgain,
    Never,
    TaskCancelled,
)
from holdfast.runtime.call.recover import given_up, record_cancelled, settle_doubt
from holdfast.runtime.declare.call_spec import CallSpec
from holdfast.runtime.declare.secrets import secrets_in
from holdfast.runtime.log.branches import Branch, Inside
from holdfast.runtime.log.session import Session
from holdfast.store.base import RESERVED

# ── the pipeline ─────────────────────────────────────────────────────────────────────────────


def call(branch: Branch, spec: CallSpec, bound: dict[str, Any], *, undoes: int = 0) -> Flow[Any]:
    """One use of a step or tool inside a run."""
    return (yield from proceed(*ask(branch, spec, bound, undoes)))


def ask(
    branch: Branch, spec: CallSpec, bound: dict[str, Any], undoes: int = 0
) -> tuple[CallRequest, Entry | None]:
    """A call as it is asked for (its place, its canonical arguments), and what the log contains there."""
    session = branch.session
    if redact := session.lineage.policy.redact:
        spec = _redacting(session, spec, redact)
    own_key = ""
    args = canonical_flat(bound) if spec.is_flat else None
    if args is None:
        args = spec.encode_args(bound)  # fails before any effect
        if spec.params.hidden:
            own_key = _own_key(spec, bound)
        if spec.redact:
            secret = [bound.get(name) for name in spec.redact]
            session.secrets.update(secrets_in(secret, declared=True))
    session.specs[spec.name] = spec
    index = branch.take()
    request = CallRequest(branch, index, branch.forked, 1, spec, bound, args, own_key, undoes)
    return request, find(request).entry


def _redacting(session: Session, spec: CallSpec, redact: frozenset[str]) -> CallSpec:
    """The spec with what the policy redacts too. Kept: to make one takes longer than the rest of a call."""
    kept = session.redacting.get(spec.name)
    if kept is None or kept[0] is not spec or kept[1] is not redact:
        made = replace(spec, redact=spec.redact | redact)
        kept = session.redacting[spec.name] = (spec, redact, made)
    found: CallSpec = kept[2]
    return found


def proceed(request: CallRequest, entry: Entry | None) -> Flow[Any]:
    """Answer the call. What was parked looks again at what is recorded of it."""
    while True:
        try:
            return (yield from answer(request, entry))
        except LookAgain:
            entry = request.session.log.entry(*request.place)


def answer(request: CallRequest, entry: Entry | None) -> Flow[Any]:
    """Answer the call: from the log if it has an outcome there, else by making it.

    All of the flow for a caller that blocks: it unwinds instead of being parked, and never looks again.
    """
    if entry is not None and entry.final:
        return replay(request, entry)
    return _make(request, entry)


def _make(request: CallRequest, entry: Entry | None) -> Flow[Any]:
    """Make the call, or the rest of it. If the code stops waiting before an attempt, that is recorded."""
    try:
        session = request.branch.session
        if not request.undoes:
            if session.journal.entries:
                check_all_replayed(request.branch, request)
            lines = session.lines  # what is inserted comes before what is recorded
            if (
                lines is not None
                and not lines.may_begin_at_once
                and not request.branch.is_insertion
            ):
                yield from _begin(request, entry)
            gate(session)
        if entry is not None and entry.open_attempt:
            settled = yield from settle_doubt(request, entry)
            if settled is not None:
                return (yield from replay(request, settled))
            entry = find(request).entry
            gate_again(request)
        if request.spec.params.constrained and not request.undoes:
            yield from check_args(request, entry)
        approved, approval = request, None
        gated = request.spec.risk in session.lineage.policy.approve
        if gated or (entry is not None and entry.wait is not None):
            approved, approval = yield from ask_approval(request, entry, gated)
            gate_again(request)
        return (yield from make_attempts(approved, entry, approval))
    except (
        TaskCancelled
    ) as cut:  # while it waited: for a person, between two attempts, for its turn
        held = request.session.log.entry(*request.place)
        cut.began = held is not None and bool(held.attempts)
        yield from _give_up(request, cut, held)


def _begin(request: CallRequest, entry: Entry | None) -> Flow[None]:
    """Wait until the call may start. If the code gives it up before, that is recorded as for any other call."""
    try:
        yield Begin(request.session, request)
    except TaskCancelled as cut:
        # An earlier attempt may have happened.
        cut.began = entry is not None and bool(entry.attempts)
        if entry is not None and entry.open_attempt:  # in another process
            settled = yield from given_up(request, entry.intent, entry.attempts, str(cut))
            if settled is not None:
                raise LookAgain from None
        yield from _give_up(request, cut, entry)


def _give_up(request: CallRequest, cut: TaskCancelled, entry: Entry | None) -> Never:
    """Record that the code stopped waiting before an attempt: it ends the one that has no outcome, if any."""
    if entry is None:
        yield from record_cancelled(request, cut, 1, 0)
        raise AssertionError("unreachable")
    has_outcome = any(failed.attempt == entry.attempts for failed in entry.failures)
    number = entry.attempts + 1 if has_outcome else max(1, entry.attempts)
    yield from record_cancelled(request, cut, number, entry.step)
    raise AssertionError("unreachable")


def _own_key(spec: CallSpec, bound: Mapping[str, Any]) -> str:
    """The key that the caller brings along, if the call has one."""
    key = bound.get("idempotency_key") or "" if "idempotency_key" in spec.params.hidden else ""
    if (
        not isinstance(key, str)
        or len(key) > 500
        or (key and (not key.strip() or key.startswith(RESERVED)))
    ):
        raise InvalidInput(
            f"{spec.name}: idempotency_key must be text of up to 500 characters, not {key!r}"
        )
    return key


# ── calls inside calls ───────────────────────────────────────────────────────────────────────


def nested(inside: Inside, spec: CallSpec) -> None:
    """A call inside the body of another: harmless if it only reads, refused if it could act unseen."""
    if spec.effect != Effect.REPEATABLE:
        raise NotDurable(
            f"{spec.name} is a tool and was called inside {inside.name}, where it would not be recorded; "
            f"call it from the agent"
        )
