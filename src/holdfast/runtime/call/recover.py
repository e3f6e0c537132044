"""A call with an intent and no receipt: find out, repeat, or wait for a person.

What the tool declared decides. Nothing here guesses: without a declaration that makes it safe, the run
is suspended, and the call is shown as in doubt.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Final

from holdfast.core import events as e
from holdfast.core.effect import Effect
from holdfast.core.entry import Entry, Place, request_id
from holdfast.core.events import ErrorInfo
from holdfast.core.waits import OpenWait
from holdfast.errors import Woken
from holdfast.runtime.call.commit import commit, park
from holdfast.runtime.call.operations import (
    CallRequest,
    Flow,
    Invoke,
    LookAgain,
    Never,
    TaskCancelled,
)
from holdfast.runtime.call.results import encoded, error_info, secrets_of
from holdfast.runtime.declare.call_spec import Done
from holdfast.runtime.log.branches import Inside
from holdfast.runtime.log.session import Session
from holdfast.waiting import WaitingFor
from holdfast.words.waiting import suspended

LIVES_MAX: Final = 5
"""A keyed call that was started this often without an answer may be what kills its workers."""


def settle_doubt(request: CallRequest, entry: Entry) -> Flow[Entry | None]:
    """An intent without a receipt: what the tool declared decides. None: it may be tried again."""
    spec, session = request.spec, request.session
    intent = entry.intent
    assert intent is not None
    if spec.effect == Effect.CHILD or intent.effect == Effect.TRANSACTIONAL == spec.effect:
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
        yield from commit(session, [settled])
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
    yield from commit(session, [settled], blobs=blobs, is_outcome=True)
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
        yield from commit(session, [settled], is_outcome=how == "fail")
        return session.log.entry(request.branch.path, request.index) if how == "fail" else None
    yield from doubt(request, intent.step, intent.attempt, because, raised)
    return None


def _refuse_if_resolved(place: Place, session: Session) -> None:
    """A decision that came meanwhile holds: the doubt is resolved."""
    entry = session.log.entry(*place)
    if entry is not None and entry.resolved is not None:
        raise Woken(session.run_id)


def doubt(
    request: CallRequest, step: int, attempt: int, because: str, raised: ErrorInfo | None = None
) -> Never:
    """Record that the outcome is unknown, and wait for a person. Does not return."""
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
        try:
            yield from commit(session, [doubt], recheck=partial(_refuse_if_resolved, request.place))
        except Woken:
            raise LookAgain from None
    waiting = WaitingFor(
        "decision", name, request_id=request_id(request.place), step=step, reason=because
    )
    signal = suspended(session.run_id, waiting)
    yield from park(session, OpenWait(request.place, "decision"), signal)
    raise AssertionError("unreachable")
