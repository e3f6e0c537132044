"""A call without a receipt: its process died, its response was lost, or the code stopped waiting for it.

Whether it happened is unknown, and what the tool declared decides: its check is called, its key allows another attempt,
or the run is suspended until a person decides. Nothing here guesses. Which errors leave the outcome unknown is
`core/lost_response.py`.

A call that the agent's code stopped waiting for (`asyncio.timeout`, a failed alternative, a lost race) is recorded as
cancelled, so that a replay cancels it at the same place (`lines.py`). For waits see `waits.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Final

from holdfast.core import events as e
from holdfast.core.effect import Effect
from holdfast.core.entry import Entry, Place, request_id
from holdfast.core.events import ErrorInfo
from holdfast.core.log import Blob
from holdfast.core.lost_response import may_have_happened, was_not_sent
from holdfast.core.waits import OpenWait
from holdfast.errors import StoreError, Woken
from holdfast.runtime.call.commit import commit, commit_outcome, park
from holdfast.runtime.call.operations import Flow, Invoke, LookAgain, Never, TaskCancelled
from holdfast.runtime.call.receipt import encoded, error_info, failed_receipt, secrets_of
from holdfast.runtime.call.request import CallRequest
from holdfast.runtime.declare.call_spec import Done
from holdfast.runtime.log.branches import Inside
from holdfast.runtime.log.session import Session
from holdfast.store.base import Store
from holdfast.store.cancel import cancel_tree
from holdfast.waiting import WaitingFor
from holdfast.words.waiting import suspended

# ── an intent and no receipt, after a crash ──────────────────────────────────────────────────


LIVES_MAX: Final = 5
"""A keyed call that was started this often without an answer may be what kills its workers."""


def settle_doubt(request: CallRequest, entry: Entry) -> Flow[Entry | None]:
    """An intent without a receipt: what the tool declared decides. None: it may be tried again."""
    spec, session = request.spec, request.session
    intent = entry.intent
    assert intent is not None
    if spec.effect.is_in_child or intent.effect == Effect.TRANSACTIONAL == spec.effect:
        return None  # a child run resumes by itself; a transaction without its receipt left nothing
    if intent.tool_version != spec.version:
        yield from doubt(
            request, intent.step, intent.attempt, "the tool's version has changed since"
        )
    if spec.effect == Effect.REPEATABLE:
        return None
    if spec.effect == Effect.KEYED:
        begun = intent.attempt - (
            entry.failures[-1].attempt if entry.failures else entry.attempts_before
        )
        if begun >= LIVES_MAX:
            yield from doubt(
                request,
                intent.step,
                intent.attempt,
                f"it was started {begun} times and never returned",
            )
        if intent.key_until is None or session.store.now() < intent.key_until:
            return None
        yield from doubt(
            request, intent.step, intent.attempt, "the receiver may have forgotten its key"
        )
    if spec.effect == Effect.CHECKED:
        return (yield from ask_check(request, intent))
    return (yield from ask_policy(request, intent, "its outcome was not recorded"))


def ask_check(request: CallRequest, intent: e.CallStarted) -> Flow[Entry | None]:
    """Ask the tool's own look-up whether the call happened."""
    spec, session = request.spec, request.session
    assert spec.check is not None
    try:
        answer: object = yield Invoke(
            session,
            spec.check,
            {},
            Inside(spec.name, Effect.REPEATABLE, session.run_id),
            inspect.iscoroutinefunction(spec.check),
            spec.timeout,
            args=(intent.key,),
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, the doubt stays
        info = error_info(error, secrets_of(request))
        yield from doubt(
            request, intent.step, intent.attempt, f"its check failed: {info.type}: {info.message}"
        )
    except TaskCancelled:
        because = "the agent's code stopped waiting before its check returned"
        yield from doubt(request, intent.step, intent.attempt, because)
    if answer is None:
        settled = e.CallResolved(
            branch=request.branch.path,
            index=request.index,
            step=intent.step,
            name=spec.name,
            how="retry",
            by="check",
            why="the check reports that it did not happen",
        )
        yield from _record(request, settled)
        return None
    _, value, blobs, unavailable = encoded(
        request, answer.result if isinstance(answer, Done) else answer
    )
    settled = e.CallResolved(
        branch=request.branch.path,
        index=request.index,
        step=intent.step,
        name=spec.name,
        how="done",
        result=value,
        by="check",
        why=unavailable or "the check reports that it happened",
    )
    yield from _record(request, settled, blobs=blobs, is_outcome=True)
    return session.log.entry(request.branch.path, request.index)


def ask_policy(
    request: CallRequest, intent: e.CallStarted, because: str, raised: ErrorInfo | None = None
) -> Flow[Entry | None]:
    """Settle it as `on_doubt` says: as failed, or (None) by another attempt; else wait for a person.

    A keyed call has had its attempts by then: only a failure resolves it.
    """
    spec, session = request.spec, request.session
    how = spec.on_doubt(intent.key) if callable(spec.on_doubt) else spec.on_doubt
    if how == "fail" or (how == "retry" and spec.effect != Effect.KEYED):
        error = (
            ErrorInfo("InDoubt", "it may or may not have happened, and was given up")
            if how == "fail"
            else None
        )
        settled = e.CallResolved(
            branch=request.branch.path,
            index=request.index,
            step=intent.step,
            name=spec.name,
            how="retry" if how == "retry" else "failed",
            error=error,
            by="policy",
            why=f"on_doubt={how!r}",
        )
        yield from _record(request, settled, is_outcome=how == "fail")
        return session.log.entry(request.branch.path, request.index) if how == "fail" else None
    yield from doubt(request, intent.step, intent.attempt, because, raised)
    return None


def _record(
    request: CallRequest,
    event: e.CallDoubted | e.CallResolved,
    known: e.CallResolved | None = None,
    *,
    blobs: Sequence[Blob] = (),
    is_outcome: bool = False,
) -> Flow[None]:
    """Record a doubt, or how it is settled, unless a person has decided meanwhile: then the call looks again."""
    condition = partial(_refuse_if_resolved, request.place, known)
    try:
        yield from commit(
            request.session, [event], blobs=blobs, condition=condition, is_outcome=is_outcome
        )
    except Woken:
        raise LookAgain from None


def _refuse_if_resolved(place: Place, known: e.CallResolved | None, session: Session) -> None:
    """A decision that came meanwhile holds: the doubt is resolved."""
    entry = session.log.entry(*place)
    if entry is not None and entry.resolved is not known:
        raise Woken(session.run_id)


def doubt(
    request: CallRequest,
    step: int,
    attempt: int,
    because: str,
    raised: ErrorInfo | None = None,
    *,
    known: e.CallResolved | None = None,
) -> Never:
    """Record that the outcome is unknown, and wait for a person. Does not return.

    `known` is what a person has decided before, if that is why it is unknown.
    """
    session, name = request.session, request.spec.name
    entry = session.log.entry(request.branch.path, request.index)
    if entry is not None and entry.doubted is not None:
        because = entry.doubted.because
    else:
        doubt = e.CallDoubted(
            branch=request.branch.path,
            index=request.index,
            step=step,
            name=name,
            attempt=attempt,
            because=because,
            error=raised,
        )
        yield from _record(request, doubt, known)
    waiting = WaitingFor(
        "decision", name, request_id=request_id(request.place), step=step, reason=because
    )
    signal = suspended(session.run_id, waiting)
    yield from park(session, OpenWait(request.place, "decision"), signal)
    raise AssertionError("unreachable")


# ── while the run executes: a timeout, a lost response ───────────────────────────────────────


def given_up(
    request: CallRequest, intent: e.CallStarted | None, number: int, because: str
) -> Flow[Entry | None]:
    """The code stopped waiting for it. Returns how it is settled; None: as a failure."""
    spec = request.spec
    if intent is None or spec.effect not in (Effect.ONCE, Effect.CHECKED):
        return None
    if spec.effect == Effect.CHECKED:
        settled = yield from ask_check(request, intent)
        if settled is not None or spec.is_async:
            return settled
        because += ", and may still be under way"  # a thread cannot be stopped
    yield from doubt(request, intent.step, number, because)
    return None


def is_unknown(request: CallRequest, error: Exception) -> bool:
    """Whether a call that raised this may have happened. A call that can be repeated freely is never asked."""
    spec = request.spec
    if not spec.effect.may_be_in_doubt or isinstance(error, StoreError):
        return False
    return _is_timeout(request, error) or may_have_happened(error, spec.unsure_on)


def _is_timeout(request: CallRequest, error: Exception) -> bool:
    return isinstance(error, TimeoutError) and request.spec.timeout is not None


def lost_response(
    request: CallRequest, intent: e.CallStarted | None, error: Exception, number: int, tries: int
) -> Flow[Entry | None]:
    """An attempt raised an error. If its outcome, or that of an earlier one, is unknown: how it is settled. None:
    as a failure, after which `retry=` decides."""
    spec = request.spec
    unknown = is_unknown(request, error)
    if intent is None or not spec.effect.may_be_in_doubt:
        return None
    if not (
        unknown
        or (spec.effect == Effect.KEYED and was_not_sent(error) and _was_unknown(request, number))
    ):
        return None  # an answer of the receiver to this key holds for earlier attempts, too
    info = error_info(error, secrets_of(request))
    if _is_timeout(request, error):
        because = f"it did not answer within {spec.timeout:g} s"
    elif not unknown:
        because = f"the outcome of an earlier attempt is unknown, and the last one failed: {info.type}: {info.message}"
    else:
        because = f"its outcome is unknown: {info.type}: {info.message}"
    if spec.effect == Effect.CHECKED:
        settled = yield from ask_check(request, intent)
        if settled is not None or spec.is_async or not _is_timeout(request, error):
            return settled
        yield from doubt(
            request, intent.step, number, f"{because}, and may still be under way", info
        )
    if spec.effect == Effect.KEYED:
        if spec.retry.wants(error, tries):
            return None  # called again with its key
        because += "; resuming the run calls it again with its key"
    return (yield from ask_policy(request, intent, because, info))


def _was_unknown(request: CallRequest, number: int) -> bool:
    """Whether the outcome of an earlier attempt is unknown: its process died, or its response was lost."""
    entry = request.session.log.entry(*request.place)
    if entry is None:
        return False
    known = {failed.attempt for failed in entry.failures if failed.error.effect != "unknown"}
    return any(n not in known for n in range(entry.settled_attempts + 1, number))


# ── the code stopped waiting ─────────────────────────────────────────────────────────────────


def record_cancelled(
    request: CallRequest, cut: TaskCancelled, number: int, step: int, started_at: int | None = None
) -> Never:
    """Record it, and raise the cancellation. A child run that is no longer awaited is cancelled too."""
    spec, session = request.spec, request.session
    error = ErrorInfo("Cancelled", str(cut), effect="" if cut.began and spec.has_intent else "none")
    receipt = failed_receipt(
        request,
        error,
        step or session.next_step(),
        has_intent=spec.has_intent and step > 0,
        attempt=number,
        cut=True,
        forks_above=forks_above(session),
        duration_us=0 if started_at is None else session.store.now() - started_at,
    )
    if spec.is_child:
        cancel = cancel_child(request, receipt.step)
        yield from commit_outcome(request, receipt, first=cancel)
    else:
        urgent = spec.has_intent
        yield from commit(session, [receipt], urgent=urgent, evidence=request, is_outcome=True)
    raise cut.cancelled


def forks_above(session: Session) -> tuple[int, ...]:
    """How many branches those above the current one had started when its code stopped waiting."""
    line = None if session.lines is None else session.lines.current
    return () if line is None else line.forks_above


def cancel_child(request: CallRequest, step: int) -> Flow[BaseException | None]:
    """Cancel the child run of this call, unless it has ended; repeating it does no harm. Returns the cancellation of
    the caller that came meanwhile, if any: the child is cancelled in spite of it."""
    session, spec = request.session, request.spec
    child = {"store": session.store, "run_id": f"{session.run_id}~{step}"}
    inside = Inside(spec.name, spec.effect, session.run_id)
    given_up: BaseException | None = None
    while True:
        try:
            yield Invoke(session, ask_to_cancel, child, inside, False)
        except TaskCancelled as cut:
            given_up = cut.cancelled
        else:
            return given_up


def ask_to_cancel(store: Store, run_id: str) -> None:
    """Let a child run, and what is below it, end at its next call, in any process."""
    cancel_tree(store, run_id, e.CancelRequested(why="its parent stopped waiting for it"))
