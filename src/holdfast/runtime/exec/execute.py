"""Run an agent's code against its log, and resolve the run however the code ends.

The same idea as the call flow, one layer up: a generator of effects. The code may return, fail, wait,
be stopped (deadline, budget, cancellation) or lose the right to continue; each is one event and one new
status, committed together with the end of the lease. `result_of` reads it back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.core.branch_path import BranchPath
from holdfast.core.effect import Effect
from holdfast.core.entry import Entry, Place
from holdfast.core.events import ErrorInfo, Event
from holdfast.core.log import Blob, root_of
from holdfast.errors import (
    Abandon,
    CallFailed,
    Diverged,
    HoldfastError,
    NotFound,
    NotStorable,
    RunFailed,
    RunWaiting,
    Stop,
    StoreError,
    Suspend,
    Unwind,
)
from holdfast.runtime.call.commit import commit
from holdfast.runtime.call.gate import cancellation, gate, is_overdue
from holdfast.runtime.call.operations import Flow, Invoke
from holdfast.runtime.call.receipt import error_info
from holdfast.runtime.call.suspend import suspend
from holdfast.runtime.call.task_factory import run_with_tasks
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.log.branches import Branch, Inside
from holdfast.runtime.log.session import Session, recorded_text
from holdfast.store.artifacts import read_value
from holdfast.store.base import TERMINAL_STATUSES, RowChange, RunRow, Store
from holdfast.store.cancel import REASONS
from holdfast.store.pages import end_of
from holdfast.waiting import WaitingFor
from holdfast.words.outcomes import cancelled_error, outcome_error
from holdfast.words.waiting import how_to_continue, phrase, waiting_for_code


def execute(session: Session, spec: AgentSpec, run: Any, root: Branch) -> Flow[Any]:
    """Run the agent until it ends or must wait. Returns its result, or raises what became of it."""
    created = session.journal.life.created
    assert created is not None
    try:
        kwargs = spec.decode_input(session.unwrap(created.input))
        raw = yield from run_body(session, spec, run, root, kwargs)
        if session.stop_signal is not None:
            raise session.stop_signal
        if root.waiting is not None:
            raise root.waiting  # the code caught it and continued
        _check_all_asked(session)
        gate_end(session)
        return (yield from _completed(session, spec, raw))
    except BaseException as error:
        signal: BaseException | None = find_signal(error)
        if signal is None and not isinstance(error, Exception):
            raise  # Ctrl-C and the like: the run stays as it is, and the lease is released
        if isinstance(signal, Suspend) and not isinstance(session.stop_signal, Suspend | None):
            signal = session.stop_signal  # one branch has to wait, but the run as a whole cannot
        if signal is None:
            signal = session.stop_signal or root.waiting
        if signal is None and session.journal.life.undo is not None:
            signal = Stop("undone", "it is undone")
        if signal is None and session.journal.life.cancel is not None:
            signal = cancellation(session)  # what failed may be a child, cancelled with this run
        yield from _ended_otherwise(session, spec, signal if signal is not None else error)
        raise AssertionError("unreachable") from error


def run_body(
    session: Session, spec: AgentSpec, run: Any, root: Branch, kwargs: dict[str, Any]
) -> Flow[Any]:
    """The agent's code itself; its result."""
    if spec.body is not None:
        return (yield from spec.body(session, spec, run, root, kwargs))
    return (yield Invoke(session, body_of(spec, root), kwargs, root, spec.is_async, args=(run,)))


def body_of(spec: AgentSpec, root: Branch) -> Callable[..., Any]:
    """The agent's function, to be called with the run and its input by name."""
    fn = spec.params.by_name(spec.fn)
    return run_with_tasks(fn, root) if spec.is_async else fn


def find_signal(error: BaseException) -> Unwind | None:
    """The signal inside an exception, which a task group may have wrapped."""
    if isinstance(error, Unwind):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((s for s in map(find_signal, error.exceptions) if s is not None), None)
    return None


def _check_all_asked(session: Session) -> None:
    """The code has ended: everything in the log must have been asked for."""
    if not session.log.knows_all:
        session.log.read_all()
    _check_asked(session, session.journal.unasked(), "the end of the agent")


def _check_main_asked(session: Session, error: Exception) -> None:
    """The code has failed: if it had come further before, it is not the same code (or not the same
    surroundings), and its failure is not the run's. Other branches may have been cancelled by it."""
    session.log.read_all()
    unasked = [(at, entry) for at, entry in session.journal.unasked() if BranchPath(at[0]).is_main]
    _check_asked(session, unasked, f"the agent fails with {type(error).__qualname__}")


def _check_asked(session: Session, unasked: list[tuple[Place, Entry]], attempted: str) -> None:
    if unasked:
        (branch, index), entry = unasked[0]
        recorded = recorded_text(entry, session.unwrap)
        raise session.diverged((branch, index), recorded, attempted)


def gate_end(session: Session) -> None:
    """A run that was cancelled while its last step ran, or whose deadline has passed, is not completed.

    Asked before its end is written, and again if that is refused because the log has grown meanwhile:
    so nothing has to be read to know that no other process wrote.
    """
    life = session.journal.life
    if life.may_stop_calls and (life.cancel is not None or life.is_undone or is_overdue(session)):
        gate(session)


def _completed(session: Session, spec: AgentSpec, raw: Any) -> Flow[Any]:
    try:
        data = spec.result.encode(raw)
        result = spec.result.decode(data)
    except NotStorable as error:
        raise error.of(f"the result of agent {spec.name}") from None
    value, blobs = log.wrap(data)
    yield from _settle(
        session, e.RunCompleted(result=value), "completed", blobs=blobs, condition=gate_end
    )
    return result


def _settle(
    session: Session,
    event: Event,
    status: str,
    *,
    blobs: Sequence[Blob] = (),
    condition: Callable[[Session], None] | None = None,
) -> Flow[None]:
    """The event, the new status and the end of the lease, in one transaction."""
    created = session.journal.life.created
    parent = created.parent if created is not None else ""
    wakes = (parent,) if parent and status in TERMINAL_STATUSES else ()
    change = RowChange(status, wakes=wakes)
    yield from commit(session, [event], change=change, blobs=blobs, condition=condition)
    session.settled = True


def _ended_otherwise(session: Session, spec: AgentSpec, error: BaseException) -> Flow[None]:
    """Settle a run whose code did not return. The run may be lost while that is recorded."""
    try:
        yield from _undone_or_waiting(session, spec, error)
    except Abandon as abandon:
        try:
            yield from _abandoned(session, abandon.cause)
        except Abandon as lost:
            raise lost.cause from None


def _undone_or_waiting(session: Session, spec: AgentSpec, error: BaseException) -> Flow[None]:
    """Undoing what the run did may have to wait, or fail."""
    try:
        yield from _unwound(session, spec, error)
    except Suspend as doubt:
        yield from _suspended(session, doubt)
    except CallFailed as undo:
        yield from _settle_failure(session, undo)


def _unwound(session: Session, spec: AgentSpec, error: BaseException) -> Flow[None]:
    match error:
        case Suspend():
            yield from _suspended(session, error)
        case Stop():
            yield from _stopped(session, spec, error)
        case Abandon(cause=cause):
            yield from _abandoned(session, cause)
        case Exception():
            yield from _failed(session, spec, error)


def _suspended(session: Session, signal: Suspend) -> Flow[None]:
    """The run waits; an async one has been suspended before its code was unwound."""
    session.stop_signal = None
    if not session.settled:
        yield from suspend(session, signal)
    raise RunWaiting(session.run_id, signal.waiting_for, signal.how, waits=signal.waits)


def _stopped(session: Session, spec: AgentSpec, signal: Stop) -> Flow[None]:
    session.stop_signal, session.ending = None, True
    journal = session.journal
    if signal.reason in ("cancelled", *REASONS):
        yield from _end_children(session, signal)
    if spec.on_failure == "undo" or journal.life.is_undone:
        yield from _undo(session, spec, signal)
    if signal.reason == "cancelled" or journal.life.undo is not None:
        request = journal.life.undo or journal.life.cancel
        by, why = (request.by, request.why) if request else ("", "")
        if journal.life.undo is not None:
            why = "undone" + (f": {why}" if why else "")
        yield from _settle(session, e.RunCancellation(by=by, why=why), "cancelled")
        raise cancelled_error(session.run_id, by, why)
    info = ErrorInfo(type=signal.reason, message=signal.message)
    yield from _settle(session, e.RunFailure(error=info, reason=signal.reason), "failed")
    parent = "" if journal.life.created is None else journal.life.created.parent
    root = root_of(session.run_id, parent)
    raise outcome_error(session.run_id, signal.reason, signal.reason, signal.message, root)


def _undo(session: Session, spec: AgentSpec, signal: Stop | None = None) -> Flow[None]:
    """Undo what the run did, also calls that its code did not come to in this process."""
    from holdfast.runtime.exec.undo import (  # here, as few runs are undone
        compensate,
        register_names,
    )

    session.waits.clear()
    register_names(session, spec.fn)
    because = None
    if signal is not None and signal.reason in REASONS and not session.journal.life.is_undone:
        because = e.UndoStarted(signal.reason, signal.message)
    yield from compensate(session, because)


def _end_children(session: Session, signal: Stop) -> Flow[None]:
    """Before a run is cancelled, or fails by a limit, its open children end for the same reason."""
    end_children = session.config.end_children
    if end_children is None:
        return
    request = session.journal.life.cancel
    if request is None or signal.reason in REASONS:
        request = e.CancelRequested(why=signal.message, reason=signal.reason)
    inside = Inside("end_children", Effect.CHILD, session.run_id)
    args = (session.run_id, request)
    try:
        yield Invoke(session, end_children, {}, inside, False, args=args)
    except StoreError as error:
        raise Abandon(error) from error


def _abandoned(session: Session, cause: HoldfastError) -> Flow[None]:
    """We may not continue. What a person must see to is shown on the run; the rest is left to others."""
    if isinstance(cause, Diverged | NotFound):
        session.stop_signal = None
        waiting = WaitingFor("person", reason=str(cause))
        if isinstance(cause, Diverged):
            waiting = waiting_for_code(cause)
        waiting_for = phrase(waiting)
        change = RowChange("waiting", None, waiting_for, waiting_kinds=waiting.kind)
        how = how_to_continue(session.run_id, [waiting])
        event = e.RunSuspended(
            waiting_for=waiting_for, how=how, diverged=_both_sides(cause), waits=(waiting,)
        )
        session.discard_notes()
        yield from commit(session, [event], change=change)
        session.settled = True
    raise cause


def _both_sides(cause: HoldfastError) -> e.Divergence | None:
    if not isinstance(cause, Diverged):
        return None
    return e.Divergence(cause.where, cause.recorded, cause.attempted, cause.adds)


def _failed(session: Session, spec: AgentSpec, error: Exception) -> Flow[None]:
    session.check_alive()
    _check_main_asked(session, error)
    if spec.on_failure == "undo" or session.journal.life.is_undone:
        yield from _undo(session, spec)
    yield from _settle_failure(session, error)


def _settle_failure(session: Session, error: Exception) -> Flow[None]:
    step, *also = failed_steps(error) or [0]
    info = error_info(error, session.secrets)
    yield from _settle(session, e.RunFailure(error=info, step=step, also=tuple(also)), "failed")
    raise RunFailed(session.run_id, info.type, info.message) from error


def failed_steps(error: BaseException) -> list[int]:
    """The steps whose failure an exception tells of: its own, its cause's, or those of a group."""
    seen: list[BaseException] = []
    below: BaseException | None = error
    while below is not None and below not in seen:
        if isinstance(below, CallFailed):
            return [step for step in (below.step, *below.also) if step]
        if isinstance(below, BaseExceptionGroup):
            return [step for part in below.exceptions for step in failed_steps(part)]
        seen.append(below)
        below = below.__cause__ or (None if below.__suppress_context__ else below.__context__)
    return []


# ── the end of a run, read back ──────────────────────────────────────────────────────────────


def result_of(store: Store, row: RunRow, spec: AgentSpec | None = None) -> Any:
    """The recorded result of a run that has ended, or the error that it ended with."""
    record, event = end_of(store, row)
    match event:
        case e.RunCompleted():
            data = read_value(store, row.id, event.result, seq=record.seq)
            return spec.result.decode(data) if spec else values.decode(data)
        case e.RunFailure():
            root, error = log.root_of(row.id, row.parent), event.error
            raise outcome_error(row.id, event.reason, error.type, error.message, root)
        case e.RunCancellation():
            raise cancelled_error(row.id, event.by, event.why)
