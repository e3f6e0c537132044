"""Attempts: intent, effect, receipt, until the call succeeds or its retry policy ends. All of it is recorded."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeGuard

import msgspec

from holdfast.core import events as e
from holdfast.core.effect import Effect
from holdfast.core.entry import Entry
from holdfast.core.events import Usage
from holdfast.core.policy import MICROSECONDS, microseconds
from holdfast.core.waits import OpenWait
from holdfast.errors import (
    Abandon,
    Conflict,
    Diverged,
    NotStorable,
    RunWaiting,
    Stop,
    StoreError,
)
from holdfast.runtime.call.commit import commit, park, wait_until
from holdfast.runtime.call.gate import end_by_deadline, gate_again, within_limits
from holdfast.runtime.call.intent import record_intent
from holdfast.runtime.call.match import replay
from holdfast.runtime.call.operations import Flow, HandOver, Invoke, Never, TaskCancelled, TimeUp
from holdfast.runtime.call.receipt import (
    error_info,
    failed_receipt,
    failure,
    note_duration,
    receipt_of,
    record_receipt,
    result_lost,
    secrets_of,
)
from holdfast.runtime.call.recover import given_up, is_unknown, lost_response, record_cancelled
from holdfast.runtime.call.request import CallRequest
from holdfast.runtime.log.branches import Inside
from holdfast.runtime.log.writer import Batch
from holdfast.store.cancel import REASONS
from holdfast.waiting import WaitingFor
from holdfast.words.waiting import run_waiting, suspended, waiting_for_code


def make_attempts(request: CallRequest, entry: Entry | None, approval: int | None) -> Flow[Any]:
    """Try until it succeeds or the policy says enough; every attempt and wait is in the log."""
    if entry is None and request.spec.retry.attempts == 1 and not request.spec.is_limited:
        return _attempt(request, 1, 0, approval, 1)
    return _all_attempts(request, entry, approval)


def _all_attempts(request: CallRequest, entry: Entry | None, approval: int | None) -> Flow[Any]:
    number = entry.attempts + 1 if entry else 1
    tries = number - (entry.attempts_before if entry else 0)
    step = entry.step if entry else 0
    if entry is not None and entry.failures and entry.failures[-1].retry_at is not None:
        yield from wait_until(
            request.session,
            request.place,
            entry.failures[-1].retry_at,
            WaitingFor("retry", request.spec.name),
        )
        gate_again(request)
    outcome = yield from _limited(request, number, step, approval, tries)
    if isinstance(outcome, e.CallFailure):
        return (yield from _tried(request, outcome, number, tries))
    return outcome


def _tried(request: CallRequest, outcome: Any, number: int, tries: int) -> Flow[Any]:
    """What came of an attempt, and of those that follow it if it failed and others are due."""
    while isinstance(outcome, e.CallFailure):
        assert outcome.retry_at is not None  # a final failure has been raised
        yield from wait_until(
            request.session, request.place, outcome.retry_at, WaitingFor("retry", request.spec.name)
        )
        number += 1
        tries += 1
        gate_again(request)
        outcome = yield from _limited(request, number, outcome.step, None, tries)
    return outcome


def _limited(
    request: CallRequest, number: int, step: int, approval: int | None, tries: int
) -> Flow[Any]:
    """An attempt, once the limits of its tool allow it."""
    if not request.spec.is_limited:
        return _attempt(request, number, step, approval, tries)
    return within_limits(request, number, partial(_attempt, request, number, step, approval, tries))


def _wait_for_child(request: CallRequest, child: RunWaiting) -> Never:
    """The child run is suspended, or another worker executes it: its end wakes this run."""
    child_waits = child.waits or (WaitingFor("other", child.waiting_for),)
    waiting = WaitingFor(
        "child", request.spec.name, run_id=child.run_id, how=child.how, child=child_waits
    )
    wait = OpenWait(request.place, "child", child=child.run_id)
    yield from park(request.session, wait, suspended(request.session.run_id, waiting))
    raise AssertionError("unreachable")


def _attempt(
    request: CallRequest, number: int, step: int, approval: int | None, tries: int
) -> Flow[Any]:
    """One attempt: intent, effect, receipt. Returns the result, or a failure that is to be retried."""
    spec, session = request.spec, request.branch.session
    intent: e.CallStarted | None = None
    if spec.has_intent:
        recorded = yield from record_intent(request, number, step, approval)
        if not isinstance(recorded, e.CallStarted):
            return recorded.value
        intent = recorded
        step = intent.step
    started_at = session.store.now()
    session.check_lease()
    timeout, by_deadline = spec.timeout, False
    if session.journal.life.may_stop_calls:
        timeout, by_deadline = _time_limit(request)
    try:
        if spec.is_transactional:
            return (yield from _transact(request, number, step, started_at, timeout))
        raw: object = yield Invoke(
            session,
            spec.body,
            _filled(request, intent) if intent or spec.params.hidden else request.bound,
            Inside(spec.name, spec.effect, session.run_id),
            spec.is_async,
            timeout,
        )
    except (Exception, TaskCancelled) as error:  # noqa: BLE001 - the failure of the call, whatever it is
        if by_deadline and isinstance(error, TimeUp):
            raise end_by_deadline(session) from None
        attempt = BegunAttempt(number, step, started_at, tries, intent)
        return (yield from did_not_return(request, attempt, error))
    return (yield from returned(request, raw, number, step, started_at))


class BegunAttempt(msgspec.Struct, frozen=True, eq=False):
    """An attempt whose function was called."""

    number: int
    step: int
    started_at: int
    tries: int
    """How many attempts there were since the call was tried again by a person, with this one."""
    intent: e.CallStarted | None = None


def returned(
    request: CallRequest, raw: object, number: int, step: int, started_at: int
) -> Flow[Any]:
    """The function of an attempt has returned: record that, and give the result to the code."""
    result, receipt, blobs = receipt_of(request, raw, number, step, started_at)
    yield from record_receipt(request, receipt, blobs, started_at + receipt.duration_us)
    note_duration(request.spec.name, receipt.duration_us)
    if receipt.unavailable:
        raise result_lost(request, receipt.unavailable, receipt.step)
    return result


def hand_over(
    request: CallRequest, batch: Batch, receipt: e.CallSucceeded, result: Any
) -> Flow[Any]:
    """A result is recorded: give it to the code when it is the next."""
    yield HandOver(request.session, batch.seq, batch.turn)
    note_duration(request.spec.name, receipt.duration_us)
    return result


def did_not_return(request: CallRequest, attempt: BegunAttempt, error: BaseException) -> Flow[Any]:
    """The function of an attempt has raised an error, or the code has stopped waiting for it."""
    session, is_child, intent = request.session, request.spec.is_child, attempt.intent
    if isinstance(error, TaskCancelled):
        error.began = error.began or _may_have_happened(request, attempt.number)
        if error.began:
            settled = yield from given_up(request, intent, attempt.number, str(error))
            if settled is not None:
                return (yield from replay(request, settled))
        yield from record_cancelled(
            request, error, attempt.number, attempt.step, attempt.started_at
        )
    if isinstance(error, RunWaiting):
        yield from _wait_for_child(request, error)
    if is_child and isinstance(error, Diverged):
        code = waiting_for_code(error)
        yield from _wait_for_child(request, run_waiting(error.run_id, code))
    if is_child and _ended_by_limit(session.stop_signal):
        raise session.stop_signal from None  # not the child's failure: it continues when this run does
    assert isinstance(error, Exception)
    settled = yield from lost_response(request, intent, error, attempt.number, attempt.tries)
    if settled is not None:
        return (yield from replay(request, settled))
    return (yield from _failed(request, attempt, error))


def _may_have_happened(request: CallRequest, number: int) -> bool:
    """Whether an earlier attempt has no known outcome: it was begun by a process that died."""
    entry = request.session.log.entry(*request.place)
    return (
        request.spec.effect == Effect.KEYED
        and entry is not None
        and number - 1 > len(entry.failures)
    )


def _filled(request: CallRequest, intent: e.CallStarted | None) -> dict[str, Any]:
    """The arguments with what the runtime fills in."""
    if request.spec.is_child and intent is not None:
        return {"child_id": intent.child, "kwargs": request.bound}
    if "idempotency_key" not in request.spec.params.hidden:
        return request.bound
    return {**request.bound, "idempotency_key": intent.key if intent else request.own_key}


def _ended_by_limit(signal: BaseException | None) -> TypeGuard[Stop]:
    return isinstance(signal, Stop) and signal.reason in REASONS


def _time_limit(request: CallRequest) -> tuple[float | None, bool]:
    """How long a call may take, and whether that is the run's deadline.

    A blocking call is cut at the deadline as by `timeout=`: the run ends, and what became of the call is found out
    when it is resumed. Async calls are cut by the watcher, and a child run has a deadline of its own.
    """
    spec, created = request.spec, request.branch.session.journal.life.created
    at = None if created is None else created.deadline_at
    if at is None or spec.is_async or spec.is_child or request.undoes:
        return spec.timeout, False
    remaining = max(0, at - request.session.store.now()) / MICROSECONDS
    return (
        (spec.timeout, False)
        if spec.timeout is not None and spec.timeout < remaining
        else (remaining, True)
    )


def _transact(
    request: CallRequest, number: int, step: int, started_at: int, timeout: float | None
) -> Flow[Any]:
    """The tool's writes and its receipt commit in one transaction of the store's database."""
    spec, session = request.spec, request.session

    def finish(raw: Any) -> tuple[Any, Batch]:
        result, receipt, blobs = receipt_of(request, raw, number, step, started_at)
        if receipt.unavailable:  # nothing is committed yet, so it can still be refused
            raise NotStorable(receipt.unavailable, what=f"the result of {spec.name}")
        batch = Batch(
            [receipt],
            blobs=blobs,
            urgent=True,
            is_outcome=True,
            rebuilds=False,
            is_submitted=False,
        )
        return result, session.writer.commit(batch)

    while True:
        try:
            committed: tuple[Any, Batch] = yield Invoke(
                session,
                spec.body,
                request.bound,
                Inside(spec.name, spec.effect, session.run_id),
                False,
                timeout,
                finish=finish,
            )
        except Conflict:  # the log grew from outside: the tool's writes were rolled back with it
            gate_again(request)
        except StoreError as error:
            raise session.stop(Abandon(error)) from error
        else:
            result, batch = committed
            receipt = batch.events[0]
            assert isinstance(receipt, e.CallSucceeded)
            return (yield from hand_over(request, batch, receipt, result))


def _failed(request: CallRequest, attempt: BegunAttempt, error: Exception) -> Flow[e.CallFailure]:
    """Record the failure; return it if another attempt is due, raise it if not."""
    spec, session, tries = request.spec, request.session, attempt.tries
    if isinstance(error, StoreError):
        raise session.stop(Abandon(error)) from error
    now = session.store.now()
    info = error_info(error, secrets_of(request))
    if spec.effect != Effect.CHECKED and is_unknown(request, error):  # a check has been asked
        info = msgspec.structs.replace(info, effect="unknown")
    step = attempt.step or session.next_step()
    retry_at = None
    if spec.retry.wants(error, tries):
        wait_us = spec.retry.delay_us(tries, f"{session.run_id}:{step}")
        asked_us = microseconds(getattr(error, "retry_after", None) or 0, "retry_after")
        retry_at = now + max(wait_us, asked_us)
    usage = getattr(error, "usage", None)
    receipt = failed_receipt(
        request,
        info,
        step,
        has_intent=spec.has_intent,
        attempt=attempt.number,
        retry_at=retry_at,
        duration_us=now - attempt.started_at,
        usage=usage if isinstance(usage, Usage) else None,
    )
    final = retry_at is None
    yield from commit(
        session, [receipt], urgent=spec.has_intent, evidence=request, is_outcome=final
    )
    if not final:
        return receipt
    raise failure(spec.name, info, attempt.number, step) from error
