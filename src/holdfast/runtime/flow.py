"""The call flow, written once: a generator of effects.

    enter → name → match → gate → record intent → execute → commit receipt → fold

It yields what must be done (`StoreEffect`, `Invoke`, `Park`, …) and a driver does it, for a caller that blocks
or for one that awaits (`drivers.py`). So there are no sync and async twins, the protocol can be tested
without I/O, and every yield is a point where the process may die.

Reading order: `call` is the pipeline, the functions below it are its stages. Agents run through
`run_agent`, which is the same idea one floor up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.core import events as e
from holdfast.core import log
from holdfast.core.events import ErrorInfo, Usage
from holdfast.core.fold import fold
from holdfast.core.journal import Entry, is_main
from holdfast.core.log import Blob
from holdfast.core.policy import MICROSECONDS, microseconds
from holdfast.core.state import Call, RunState
from holdfast.core.values import canonical_flat, decode
from holdfast.core.waits import OpenWait
from holdfast.errors import (
    Abandon,
    Conflict,
    InvalidInput,
    KeyTaken,
    LogDamaged,
    NotDurable,
    NotStorable,
    Rejected,
    RunWaiting,
    StoreError,
    Suspend,
)
from holdfast.runtime import durations
from holdfast.runtime.branches import Branch, Inside
from holdfast.runtime.cancelled import cancel_child, record_cut
from holdfast.runtime.commit import commit, is_due, park, wait_until
from holdfast.runtime.declare import (
    CHECKED,
    CHILD,
    KEYED,
    ONCE,
    REPEATABLE,
    TRANSACTIONAL,
    CallSpec,
    secrets_in,
)
from holdfast.runtime.effects import (
    Asked,
    Begin,
    CutOff,
    Flow,
    HandOver,
    Invoke,
    LookAgain,
    Never,
    Replay,
)
from holdfast.runtime.gate import gate
from holdfast.runtime.limits import within_limits
from holdfast.runtime.recover import ask_check, doubt, settle_doubt
from holdfast.runtime.results import (
    encoded,
    error_info,
    failed_receipt,
    failure,
    kept_args,
    result_lost,
    secrets_of,
    spent_by_child,
)
from holdfast.runtime.session import Session, place_name
from holdfast.runtime.writer import Batch, Commit
from holdfast.store.artifacts import read_value
from holdfast.store.base import RESERVED, Store

# ── the pipeline ─────────────────────────────────────────────────────────────────────────────


def call(branch: Branch, spec: CallSpec, bound: dict[str, Any], *, undoes: int = 0) -> Flow:
    """One use of a step or tool inside a run."""
    return (yield from proceed(*ask(branch, spec, bound, undoes)))


def ask(
    branch: Branch, spec: CallSpec, bound: dict[str, Any], undoes: int = 0
) -> tuple[Asked, Entry | None]:
    """A call as it is asked for (its place, its canonical arguments), and what the log holds there."""
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
    asked = Asked(spec, branch, index, bound, args, own_key, undoes, branch.forked)
    return asked, _match(asked)


def _redacting(session: Session, spec: CallSpec, redact: frozenset[str]) -> CallSpec:
    """The spec with what the policy redacts too. Kept: to make one takes longer than the rest of a call."""
    kept = session.redacting.get(spec.name)
    if kept is None or kept[0] is not spec or kept[1] is not redact:
        made = dataclasses.replace(spec, redact=spec.redact | redact)
        kept = session.redacting[spec.name] = (spec, redact, made)
    found: CallSpec = kept[2]
    return found


def proceed(asked: Asked, entry: Entry | None) -> Flow:
    """Answer the call. What was parked looks again at what is recorded of it."""
    while True:
        try:
            return (yield from answer(asked, entry))
        except LookAgain:
            entry = asked.session.entry(*asked.place)


def answer(asked: Asked, entry: Entry | None) -> Flow:
    """Answer the call: from the log if it has an outcome there, else by making it.

    All of the flow for a caller that blocks: it unwinds instead of being parked, and never looks again.
    """
    if entry is not None and entry.final:
        return replay(asked, entry)
    return _make(asked, entry)


def replay(asked: Asked, entry: Entry) -> Flow:
    """The recorded outcome, when it is its turn."""
    if entry.settled_as("done"):
        yield from _refuse_misfit(asked, entry)
    if entry.is_cut_off and asked.session.lines is not None:
        if asked.spec.effect == CHILD and asked.session.only_replay is None:
            # The process may have died after it recorded this and before it cancelled the child.
            yield from cancel_child(asked, entry.step)
        try:
            yield Replay(asked.session, [asked.place], is_cut=True)
        finally:
            asked.session.show(entry.seq)
            asked.session.journal.forget(*asked.place)
    else:
        yield Replay(asked.session, [asked.place])
    return recorded(asked, entry)


def _make(asked: Asked, entry: Entry | None) -> Flow:
    """Make the call, or the rest of it. If the code stops waiting before an attempt, that is recorded."""
    try:
        session = asked.branch.session
        if not asked.undoes:
            if session.journal.entries:
                check_all_replayed(asked.branch, asked)
            lines = session.lines  # what was added aside comes before what is recorded
            if lines is not None and not lines.may_begin_at_once and not asked.branch.is_aside:
                yield from _begin(asked, entry)
            gate(session)
        if entry is not None and entry.open_attempt:
            settled = yield from settle_doubt(asked, entry)
            if settled is not None:
                return (yield from replay(asked, settled))
            entry = _match(asked)
        if asked.spec.params.constrained and not asked.undoes:
            yield from _check_args(asked, entry)
        approval = None
        gated = asked.spec.risk in session.lineage.policy.approve
        if gated or (entry is not None and entry.wait is not None):
            approval = yield from _approval(asked, entry, gated)
        return (yield from _attempts(asked, entry, approval))
    except CutOff as cut:  # while it waited: for a person, between two attempts, for its turn
        held = asked.session.entry(*asked.place)
        cut.began = held is not None and bool(held.attempts)
        yield from _give_up(asked, cut, held)


def _begin(asked: Asked, entry: Entry | None) -> Flow:
    """Wait until the call may begin. If the code gives it up before, that is recorded as for any other call."""
    try:
        yield Begin(asked.session, asked)
    except CutOff as cut:
        cut.began = entry is not None and entry.open_attempt
        if entry is not None and cut.began:  # in another process: it may have happened
            settled = yield from _unanswered(asked, entry.intent, entry.attempts, str(cut))
            if settled is not None:
                raise LookAgain from None
        yield from _give_up(asked, cut, entry)


def _give_up(asked: Asked, cut: CutOff, entry: Entry | None) -> Never:
    """Record that the code stopped waiting before an attempt: it ends the one that has no outcome, if any."""
    if entry is None:
        yield from record_cut(asked, cut, 1, 0)
        raise AssertionError("unreachable")
    has_outcome = any(failed.attempt == entry.attempts for failed in entry.failures)
    number = entry.attempts + 1 if has_outcome else max(1, entry.attempts)
    yield from record_cut(asked, cut, number, entry.step)
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


def check_all_replayed(branch: Branch, attempted: object) -> None:
    """Before anything new: what other branches did, the code must have asked for again.

    Only where no other branch can still be on its way: in the main one, when it is alone.
    """
    journal = branch.session.journal
    if not journal.entries:
        return
    branch, lines = branch.line, branch.session.lines
    if not branch.path and (lines is None or lines.is_alone):
        for (path, index), entry in journal.unasked():
            if not is_main(path):
                recorded = branch.session.shown(entry)
                raise branch.session.diverged(place_name(path, index), recorded, str(attempted))


def _match(asked: Asked) -> Entry | None:
    """What the log holds at this place; Diverged if it is something else."""
    branch = asked.branch
    session = branch.session
    left = None
    if session.journal.left:
        left = session.journal.done_before(branch.path, partial(_is_same, asked))
    if left is not None:
        branch.give_back(asked.index)
        asked.index = left[0]
        return left[1]
    entries = session.journal.entries
    held = entries.get((branch.path, asked.index)) if entries else None
    if not session.knows_all and (held is None or held.done is None):
        held = session.entry(branch.path, asked.index)
    if held is None:
        if branch.parent is not None and (branch.is_aside or not asked.index):
            check_added(branch, asked.spec.name, asked)
        return None
    if _is_same(asked, held):
        return held
    beside = session.journal.leave(branch.path, asked.index)
    if beside is not None:
        asked.index, branch.index = beside, beside + 1
        return _match(asked)
    if not session.journal.accepts(branch.path, asked.index):
        adds = not session.expects(asked.spec.name)
        raise session.diverged(asked.where, session.shown(held), str(asked), adds=adds)
    branch.give_back(asked.index)
    asked.branch = branch.aside(asked.index)
    asked.index, asked.forks = asked.branch.take(), 0
    return _match(asked)


def check_added(branch: Branch, name: str, attempted: object) -> None:
    """Before the first thing that is new in a branch: the branch itself must not be one that the code
    has added among what is recorded, unless a person has accepted new steps.

    Even then, code that leaves out, reorders or changes recorded calls does not only add to them: it
    may not ask for more of what it has yet to ask for.
    """
    session, line = branch.session, branch
    while line.parent is not None:
        path, index, journal = line.parent.path, line.started_at, session.journal
        if line.is_aside or not journal.has_started(path, index, line.number):
            adds = not session.expects(name)
            if not (adds and journal.accepts(path, index)):
                held = journal.entry(path, index)
                recorded = "no branch here" if held is None else session.shown(held)
                raise session.diverged(place_name(path, index), recorded, str(attempted), adds=adds)
        line = line.parent


def _is_same(asked: Asked, entry: Entry) -> bool:
    done = entry.done
    if done is not None and entry.wait is None and entry.name == asked.spec.name:
        kept = done.args
        if kept is not None and kept.json == Raw(asked.args):
            return True
    other = entry.is_wait or entry.iteration is not None
    if other or (entry.name and entry.name != asked.spec.name):
        return False
    recorded = entry.args_digest
    if not recorded or recorded == asked.digest:
        return True
    return asked.session.journal.is_inherited(entry) and _is_same_for_fork(asked, entry)


def _is_same_for_fork(asked: Asked, entry: Entry) -> bool:
    """Whether an inherited call differs from this one only in the run's id."""
    session = asked.session
    lineage, args = session.journal.lineage, entry.args
    if args is None:
        return entry.args_digest in lineage.possible_digests(asked.args)
    return lineage.is_same_value(decode(session.unwrap(args)), decode(asked.args))


def recorded(asked: Asked, entry: Entry) -> Any:
    """The outcome that the log holds: returned or raised, nothing executed."""
    branch, done = asked.branch, entry.done
    session = branch.session
    if done is not None and done.buffered:
        # It was written later than it was given to the code.
        session.count_unshown(done, entry.seq)
    else:
        session.show(entry.seq)
    session.journal.forget(branch.path, asked.index)
    if done is not None:
        if done.unavailable:
            raise result_lost(asked, done.unavailable)
        durations.note(asked.spec.name, done.duration_us)
        result = done.result
        return asked.spec.result.decode(result.json if not result.blob else session.unwrap(result))
    resolved = entry.resolved
    if resolved is not None and resolved.how == "done":
        return asked.spec.result.decode(session.unwrap(resolved.result or e.NULL))
    error = resolved.error if resolved is not None and resolved.error else entry.failures[-1].error
    raise failure(asked.spec.name, error, entry.attempts, entry.step)


def _refuse_misfit(asked: Asked, entry: Entry) -> Flow:
    """A person may have given a result that the tool could never give: then the doubt stands again."""
    assert entry.resolved is not None
    try:
        asked.spec.result.decode(asked.session.unwrap(entry.resolved.result or e.NULL))
    except NotStorable as error:
        gate(asked.session)
        because = (
            f"the result that {entry.resolved.by or 'somebody'} gave does not fit: {error.reason}"
        )
        because += f" (at {error.path})"
        yield from doubt(asked, entry.step, entry.attempts, because)


# ── approval ─────────────────────────────────────────────────────────────────────────────────────


def _approval(asked: Asked, entry: Entry | None, gated: bool) -> Flow:
    """For a risk that needs a person: the seq of an approval of exactly these arguments.

    It counts once (the intent that names it is committed in the same transaction), for these very
    bytes, and not after it has expired.

    A request that is recorded counts even if the code no longer asks (it is not `gated`): a rejection is
    an outcome, an approval is used, and without a decision the call is not made.
    """
    spec, session = asked.spec, asked.session
    policy = session.lineage.policy
    if asked.undoes or (entry is not None and _intent_of_this_run(session, entry) is not None):
        return None
    if entry is None or entry.wait is None or _asks_again(session, entry):
        if entry is not None and not gated:
            if _was_rejected(entry):
                raise _gate_removed(asked, "rejected")
            return None
        until = None
        if policy.approval_ttl is not None:
            until = session.store.now() + microseconds(policy.approval_ttl, "approval_ttl")
        value, blobs = session.wrap(asked.args)
        request = e.WaitBegan(
            branch=asked.branch.path,
            index=asked.index,
            forks=asked.forks,
            wait="approval",
            name=spec.name,
            digest=asked.digest,
            until=until,
            show=value,
            tool=spec.name,
            tool_version=spec.version,
        )
        yield from commit(session, [request], blobs=blobs, recheck=gate)
        entry = session.entry(asked.branch.path, asked.index)
    assert entry is not None and entry.wait is not None
    if entry.approval is None:
        session.catch_up()
    decided = entry.approval.digest if entry.approval is not None else asked.digest
    shown = (entry.wait.digest, decided, entry.wait.tool_version)
    if shown != (asked.digest, asked.digest, spec.version):
        raise session.diverged(
            asked.where,
            f"approval of {entry.name}, digest {entry.wait.digest}, version {entry.wait.tool_version!r}",
            f"{asked}, digest {asked.digest}, version {spec.version!r}",
        )
    decision, until = entry.approval, entry.wait.until
    if decision is not None and not decision.approved:
        who = decision.by or "a person"
        yield from _reject(asked, f"{who} said no" + (f": {decision.why}" if decision.why else ""))
    if until is not None and session.store.now() >= until:
        yield from _reject(asked, "the approval was not given and used in time")
    if decision is not None:
        return entry.approval_seq
    if not gated:
        raise _gate_removed(asked, "not decided")
    signal = Suspend(
        f"approval of {spec.name}",
        f"hf.approve({session.run_id!r}) or hf.reject({session.run_id!r})",
        wake_at=until,
    )
    yield from park(session, OpenWait(asked.place, "approval", until), signal)
    return None


def _gate_removed(asked: Asked, status: str) -> BaseException:
    """The log has a request for approval of this call that gives no right to make it, and the code no
    longer asks."""
    recorded = f"a request for approval of {asked}, which was {status}"
    return asked.session.diverged(asked.where, recorded, f"{asked} without approval")


def _was_rejected(entry: Entry) -> bool:
    return bool(entry.failures) and entry.failures[-1].error.type == Rejected.__name__


def _asks_again(session: Session, entry: Entry) -> bool:
    """Whether the recorded request is over: the run failed since and was resumed, or the request is that of
    the run that this one was forked from."""
    if session.journal.lineage.is_inherited(entry.wait_seq):
        return True
    return entry.granted and entry.wait_seq < entry.granted_seq


def _intent_of_this_run(session: Session, entry: Entry) -> e.CallStarted | None:
    """The recorded intent, unless a fork inherited it: that one's key and approval are another run's."""
    if session.journal.lineage.is_inherited(entry.intent_seq):
        return None
    return entry.intent


def _reject(asked: Asked, why: str) -> Flow:
    yield from _refuse(asked, ErrorInfo("Rejected", why, effect="none"))


def _check_args(asked: Asked, entry: Entry | None) -> Flow:
    """Before approval and intent: arguments that the annotations forbid fail the call, which was not made."""
    if entry is None or entry.intent is None:
        wrong = asked.spec.wrong_argument(asked.bound)
        if wrong:
            yield from _refuse(asked, ErrorInfo("InvalidInput", wrong, effect="none"))


def _refuse(asked: Asked, error: ErrorInfo) -> Flow:
    """Record that the call was not made and why, and raise it."""
    session = asked.session
    step = session.next_step()
    yield from commit(session, [failed_receipt(asked, error, step)], is_outcome=True)
    raise failure(asked.spec.name, error, 1, step)


# ── attempts ─────────────────────────────────────────────────────────────────────────────────


def _attempts(asked: Asked, entry: Entry | None, approval: int | None) -> Flow:
    """Try until it succeeds or the policy says enough; every attempt and wait is in the log."""
    if entry is None and asked.spec.retry.attempts == 1 and not asked.spec.is_limited:
        return _attempt(asked, 1, 0, approval, 1)
    return _all_attempts(asked, entry, approval)


def _all_attempts(asked: Asked, entry: Entry | None, approval: int | None) -> Flow:
    number = entry.attempts + 1 if entry else 1
    tries = number - (entry.attempts_before if entry else 0)
    step = entry.step if entry else 0
    if entry is not None and entry.failures and entry.failures[-1].retry_at is not None:
        yield from wait_until(
            asked.session,
            asked.place,
            entry.failures[-1].retry_at,
            f"the next attempt of {asked.spec.name}",
        )
    outcome = yield from _limited(asked, number, step, approval, tries)
    if isinstance(outcome, e.CallFailed):
        return (yield from _tried(asked, outcome, number, tries))
    return outcome


def _tried(asked: Asked, outcome: Any, number: int, tries: int) -> Flow:
    """What came of an attempt, and of those that follow it if it failed and others are due."""
    while isinstance(outcome, e.CallFailed):
        assert outcome.retry_at is not None  # a final failure has been raised
        yield from wait_until(
            asked.session, asked.place, outcome.retry_at, f"the next attempt of {asked.spec.name}"
        )
        number += 1
        tries += 1
        if not asked.undoes:
            gate(asked.session)
        outcome = yield from _limited(asked, number, outcome.step, None, tries)
    return outcome


def _limited(asked: Asked, number: int, step: int, approval: int | None, tries: int) -> Flow:
    """An attempt, when there is room for it."""
    if not asked.spec.is_limited:
        return _attempt(asked, number, step, approval, tries)
    return within_limits(asked, number, partial(_attempt, asked, number, step, approval, tries))


def _wait_for_child(asked: Asked, child: RunWaiting) -> Never:
    """The child run is suspended, or another worker executes it: its end wakes this run."""
    waiting_for = f"child run {child.run_id}, which waits for {child.waiting_for}"
    wait = OpenWait(asked.place, "child", child=child.run_id)
    yield from park(asked.session, wait, Suspend(waiting_for, child.how))
    raise AssertionError("unreachable")


def _attempt(asked: Asked, number: int, step: int, approval: int | None, tries: int) -> Flow:
    """One attempt: intent, effect, receipt. Returns the result, or a failure that is to be retried."""
    spec, session = asked.spec, asked.branch.session
    intent: e.CallStarted | None = None
    if spec.has_intent:
        taken = yield from _record_intent(asked, number, step, approval)
        if not isinstance(taken, e.CallStarted):
            return taken.value
        intent = taken
        step = intent.step
    started = session.store.now()
    session.check_lease()
    try:
        if spec.effect == TRANSACTIONAL:
            return (yield from _transact(asked, number, step, started))
        raw = yield Invoke(
            session,
            spec.body,
            _filled(asked, intent) if intent or spec.params.hidden else asked.bound,
            Inside(spec.name, spec.effect, session.run_id),
            spec.is_async,
            spec.timeout,
        )
    except RunWaiting as child:
        yield from _wait_for_child(asked, child)
    except Exception as error:  # noqa: BLE001 - the tool's own failure, whatever it is
        if isinstance(error, TimeoutError) and spec.timeout is not None:
            because = f"it did not answer within {spec.timeout:g} s"
            settled = yield from _unanswered(asked, intent, number, because)
            if settled is not None:
                return (yield from replay(asked, settled))
        return (yield from _failed(asked, error, number, step, started, tries))
    except CutOff as cut:
        cut.began = cut.began or _may_have_happened(asked, number)
        if cut.began:
            settled = yield from _unanswered(asked, intent, number, str(cut))
            if settled is not None:
                return (yield from replay(asked, settled))
        yield from record_cut(asked, cut, number, step, started)
    result, receipt, blobs = receipt_of(asked, raw, number, step, started)
    yield from _record_receipt(asked, receipt, blobs)
    if receipt.unavailable:
        raise result_lost(asked, receipt.unavailable)
    return result


def _may_have_happened(asked: Asked, number: int) -> bool:
    """Whether an earlier attempt has no known outcome: it was begun by a process that died."""
    entry = asked.session.entry(*asked.place)
    return asked.spec.effect == KEYED and entry is not None and number - 1 > len(entry.failures)


def _unanswered(asked: Asked, intent: e.CallStarted | None, number: int, because: str) -> Flow:
    """Nobody waits for it any longer, and it may have happened. Returns how it is settled; None: as a
    failure."""
    spec = asked.spec
    if intent is None or spec.effect not in (ONCE, CHECKED):
        return None
    if spec.effect == CHECKED:
        settled = yield from ask_check(asked, intent)
        if settled is not None or spec.is_async:
            return settled
        because += ", and may still be under way"  # a thread cannot be stopped
    yield from doubt(asked, intent.step, number, because)
    return None


@dataclass(slots=True)
class _Elsewhere:
    """The call was made by another run under the same key: this is its result."""

    value: Any


def _record_intent(asked: Asked, number: int, step: int, approval: int | None) -> Flow:
    """The intent is durable before the effect begins."""
    spec, session = asked.spec, asked.branch.session
    entry = session.entry(asked.branch.path, asked.index)
    step = step or session.next_step()
    digest = asked.digest
    key = asked.own_key or f"{session.run_id}:{step}:{spec.name}:{digest}"
    before = None if entry is None else _intent_of_this_run(session, entry)
    if before is not None and before.key != key:
        raise session.diverged(
            asked.where,
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
        return _Elsewhere(result)
    return intent


def _from_other_run(asked: Asked, taken: KeyTaken, step: int) -> Flow:
    """Another run holds this key: what came of its call is ours too."""
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
            f"{found.name} with other arguments; a key stands for one action"
        )
    if found.status == "failed" and found.error is not None:
        yield from _failed_elsewhere(asked, found.error, step)
    if found.status != "done" or found.result is None:
        at = session.store.now() + 5 * MICROSECONDS
        signal = Suspend(
            f"run {taken.run_id} to finish {spec.name} under the key {taken.key!r}",
            f"see `holdfast show {taken.run_id}`, then hf.resume({session.run_id!r})",
            wake_at=at,
        )
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
        raise result_lost(asked, found.unavailable)
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


def _filled(asked: Asked, intent: e.CallStarted | None) -> dict[str, Any]:
    """The arguments with what the runtime fills in."""
    if asked.spec.effect == CHILD and intent is not None:
        return {"child_id": intent.child, "kwargs": asked.bound}
    if "idempotency_key" not in asked.spec.params.hidden:
        return asked.bound
    return {**asked.bound, "idempotency_key": intent.key if intent else asked.own_key}


def _transact(asked: Asked, number: int, step: int, started: int) -> Flow:
    """The tool's writes and its receipt commit in one transaction of the store's database."""
    spec, session = asked.spec, asked.session

    def finish(raw: Any) -> tuple[Any, Batch]:
        result, value, blobs, unavailable = encoded(asked, raw)
        if unavailable:  # nothing is committed yet, so it can still be refused
            raise NotStorable(unavailable, what=f"the result of {spec.name}")
        receipt = e.CallSucceeded(
            branch=asked.branch.path,
            index=asked.index,
            forks=asked.forks,
            step=step,
            name=spec.name,
            result=value,
            attempt=number,
            duration_us=session.store.now() - started,
        )
        work = Commit([receipt], blobs=blobs, urgent=True, is_outcome=True, rebuilds=False)
        return result, session.writer.commit(work, None)

    while True:
        try:
            result, batch = yield Invoke(
                session,
                spec.body,
                asked.bound,
                Inside(spec.name, spec.effect, session.run_id),
                False,
                spec.timeout,
                finish=finish,
            )
        except Conflict:  # the log grew from outside: the tool's writes were rolled back with it
            if not asked.undoes:
                gate(session)
        except StoreError as error:
            raise session.stop(Abandon(error)) from error
        else:
            yield HandOver(session, batch.seq, batch.turn)
            return result


def receipt_of(
    asked: Asked, raw: Any, number: int, step: int, started: int
) -> tuple[Any, e.CallSucceeded, Sequence[Blob]]:
    """The result as code sees it, and the receipt with what is kept beside it."""
    spec, session = asked.spec, asked.branch.session
    usage = getattr(raw, "usage", None)
    result, value, blobs, unavailable = encoded(asked, raw)
    has_intent, is_child = spec.has_intent, spec.effect == CHILD
    if unavailable and not has_intent:
        raise NotStorable(unavailable, what=f"the result of {spec.name}")
    args, digest = (None, "") if has_intent else kept_args(asked)
    duration_us = session.store.now() - started
    durations.note(spec.name, duration_us)
    receipt = e.CallSucceeded(
        branch=asked.branch.path,
        index=asked.index,
        forks=asked.forks,
        step=step or session.next_step(),
        name=spec.name,
        result=value,
        digest=digest,
        args=args,
        attempt=number,
        duration_us=duration_us,
        usage=usage if usage is not None and isinstance(usage, Usage) and not is_child else None,
        unavailable=unavailable,
        spent=spent_by_child(asked, step) if is_child else None,
    )
    return result, receipt, blobs


def _record_receipt(asked: Asked, receipt: e.CallSucceeded, blobs: Sequence[Blob]) -> Flow:
    """Make a receipt durable, now or (by the checkpoint strategy) with the next commit."""
    session, has_intent = asked.branch.session, asked.spec.has_intent
    if has_intent or session.setting.checkpoint.at_step or is_due(session):
        return commit(
            session, [receipt], blobs=blobs, urgent=has_intent, evidence=asked, is_outcome=True
        )
    return _hold_receipt(asked, receipt, blobs)


def _hold_receipt(asked: Asked, receipt: e.CallSucceeded, blobs: Sequence[Blob]) -> Flow:
    session = asked.branch.session
    turn = session.hold(msgspec.structs.replace(receipt, buffered=True), blobs)
    session.journal.forget(*asked.place)
    if turn is not None:
        yield HandOver(session, None, turn)


def _failed(
    asked: Asked, error: Exception, number: int, step: int, started: int, tries: int
) -> Flow:
    """Record the failure; return it if another attempt is due, raise it if not."""
    spec, session = asked.spec, asked.session
    if isinstance(error, StoreError):
        raise session.stop(Abandon(error)) from error
    now = session.store.now()
    info = error_info(error, secrets_of(asked))
    step = step or session.next_step()
    retry_at = None
    if spec.retry.wants(error, tries):
        wait_us = spec.retry.delay_us(tries, f"{session.run_id}:{step}")
        asked_us = microseconds(getattr(error, "retry_after", None) or 0, "retry_after")
        retry_at = now + max(wait_us, asked_us)
    usage = getattr(error, "usage", None)
    receipt = failed_receipt(
        asked,
        info,
        step,
        has_intent=spec.has_intent,
        attempt=number,
        retry_at=retry_at,
        duration_us=now - started,
        usage=usage if isinstance(usage, Usage) else None,
    )
    final = retry_at is None
    yield from commit(session, [receipt], urgent=spec.has_intent, evidence=asked, is_outcome=final)
    if not final:
        return receipt
    raise failure(spec.name, info, number, step) from error


# ── calls inside calls ───────────────────────────────────────────────────────────────────────


def nested(inside: Inside, spec: CallSpec) -> None:
    """A call inside the body of another: harmless if it only reads, refused if it could act unseen."""
    if spec.effect != REPEATABLE:
        raise NotDurable(
            f"{spec.name} is a tool and was called inside {inside.name}, where the log would not know "
            f"of it; call it from the agent"
        )
