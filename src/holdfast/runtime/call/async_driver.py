"""Perform what a flow asks for, for a caller that awaits. `driver.py` does it for one that blocks, and says more.

A module of its own, because only async agents need it and `asyncio`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import CallFailed, StoreError
from holdfast.runtime.call.driver import await_call, perform
from holdfast.runtime.call.flow import answer
from holdfast.runtime.call.operations import (
    BatchRefused,
    Begin,
    Flow,
    HandOver,
    Invoke,
    LookAgain,
    Operation,
    Park,
    Read,
    Replay,
    Sleep,
    TaskCancelled,
    Write,
)
from holdfast.runtime.call.request import CallRequest
from holdfast.runtime.lines.line import counter
from holdfast.runtime.log.branches import CURRENT, Branch, Inside, current_branch
from holdfast.runtime.log.session import Session
from holdfast.runtime.log.writer import COMMITTED, FAILED, SENT, Batch

if TYPE_CHECKING:
    from holdfast.runtime.lines.line import Line
    from holdfast.runtime.lines.lines import Lines

T = TypeVar("T")
Cancelled = list[asyncio.CancelledError]
"""Cancellations that came while something could not be interrupted."""


async def drive_async_here(branch: Branch, flow: Flow[T]) -> T:
    """Run a flow of this branch, which takes its next place when it starts, to its end on this event loop."""
    lines = _lines(branch.session)
    if lines is None:
        return await drive_async(flow)
    try:
        line = lines.enter_call(branch.path, branch.index)
    except BaseException:  # whatever it is: the flow will not run now
        flow.close()
        raise
    try:
        return await drive_async(flow)
    except CallFailed:
        branch.call_failed = True
        raise
    finally:
        if line is not None:
            line.leave_call()


async def drive_async(
    flow: Flow[T],
    request: CallRequest | None = None,
    cancelled: Cancelled | None = None,
    handled: BaseException | None = None,
) -> T:
    """Run a flow to its end on this event loop. A call that was parked looks again at what is recorded of it.

    A cancellation during a commit reaches the flow before its next effect: so a tool whose
    intent was on its way does not start. An outcome that is being recorded is not undone by it: the code
    gets it, and is cancelled at its next await.

    A call that was begun without a flow gives the cancellations that came meanwhile, and the error of its body that
    the flow handles.
    """
    result: Any = None
    error: BaseException | None = None
    cancelled = [] if cancelled is None else cancelled
    cut: TaskCancelled | None = None
    while True:
        try:
            effect = flow.send(result) if error is None else flow.throw(error)
        except StopIteration as stop:
            if cancelled or cut is not None:
                deliver_later(cancelled)
            value: T = stop.value
            return value
        except LookAgain:
            if request is None:
                raise
            cut = handled if isinstance(handled, TaskCancelled) else cut
            flow = answer(request, request.session.log.entry(*request.place))
            result = error = handled = None
            continue
        except BaseException as raised:  # the code gets it; a cancellation follows it
            if cancelled or (cut is not None and raised is not cut.cancelled):
                deliver_later(cancelled, raising=True)
            raise
        if handled is not None:
            cut = handled if isinstance(handled, TaskCancelled) else cut
        result = error = handled = None
        try:
            if isinstance(effect, Write):
                await persist(effect, cancelled)
            elif cancelled and not _is_held(effect):
                raise _cut_or_cancelled(effect.session, cancelled.pop())
            elif isinstance(effect, Invoke):
                result = await invoke(effect, cancelled)
            elif isinstance(effect, HandOver):
                await _hand_over(effect)
            elif isinstance(effect, Read):
                result = await _read(effect, cancelled)
            else:
                result = await _perform(effect)
        except BaseException as raised:  # noqa: BLE001 - the flow decides what it means
            error = handled = raised


# ── cancellations ────────────────────────────────────────────────────────────────────────────


def _is_held(effect: Operation) -> bool:
    """Whether a cancellation does not end this: a recorded outcome is still given to the code, and a call in
    doubt holds its line until a person has decided."""
    return isinstance(effect, HandOver | Read | Replay) or (
        isinstance(effect, Park) and effect.wait.kind == "decision"
    )


def deliver_later(cancelled: Cancelled, *, raising: bool = False) -> None:
    """The flow has ended, and its task was cancelled meanwhile: the code hears of it at its next await."""
    line = _current_line()
    if line is not None:
        line.cancel_due = True
    elif not raising and cancelled:
        raise cancelled.pop()


def _cut_or_cancelled(session: Session, cancelled: asyncio.CancelledError) -> BaseException:
    """In a branch, its own code stopped waiting, unless the whole run ends here; otherwise the executor of the run did."""
    if session.is_ending or _current_line() is None:
        return cancelled
    return TaskCancelled(cancelled, began=False)


def _current_line() -> Line | None:
    branch = current_branch()
    lines = None if branch is None else branch.session.lines
    return None if lines is None else lines.current


def _classify(session: Session, cancelled: asyncio.CancelledError) -> BaseException:
    """What a cancellation in the middle of a call means. What is not called by the code of this run (its undo, or what
    ends it) can be cancelled only from outside: by who executes the run, or by a parent that executes it in its call."""
    branch = current_branch()
    if session.is_ending or branch is None or branch.session is not session:
        return cancelled
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        return RuntimeError("CancelledError was raised, but the call was not cancelled")
    return TaskCancelled(cancelled, began=True)


# ── operations ───────────────────────────────────────────────────────────────────────────────


async def _perform(effect: Sleep | Park | Begin | Replay) -> Any:
    session = effect.session
    lines = _lines(session)
    if isinstance(effect, Replay):
        if lines is not None:
            await lines.turns.take_recorded(effect.places, effect.is_cut, effect.given_up)
        return None
    try:
        if isinstance(effect, Begin):
            if lines is not None:
                await lines.turns.begin(effect.attempted)
        elif isinstance(effect, Park):
            if lines is None or lines.current is None:
                # Not in the code of the agent, which has ended.
                return perform(effect)
            await lines.parking.park(effect.wait, effect.signal)
        else:
            await _pause(session, effect.seconds)
    except asyncio.CancelledError as cut:
        raise _classify(session, cut) from None
    return None


def _lines(session: Session) -> Lines | None:
    """The lines of the run, if this is the loop that they are on."""
    lines = session.lines
    return lines if lines is not None and lines.loop is asyncio.get_running_loop() else None


async def _pause(session: Session, seconds: float) -> None:
    if session.sleep is time.sleep:
        await asyncio.sleep(seconds)
    else:  # a test's, which may block
        await asyncio.to_thread(session.sleep, seconds)


async def _read(effect: Read, cancelled: Cancelled) -> Any:
    """By the time its caller hears of a cancellation, nothing is being read any more."""
    # Not a task: the tasks of an agent are branches of its run.
    threads = effect.session.config.threads
    work = asyncio.get_running_loop().run_in_executor(threads, effect.read)
    while not work.done():
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError as cut:
            if effect.session.is_ending:
                work.add_done_callback(lambda read: read.cancelled() or read.exception())
                raise
            cancelled.append(cut)
    return work.result()


async def _hand_over(effect: HandOver) -> None:
    session = effect.session
    if effect.turn is not None:
        await effect.turn.turns.take(effect.turn)
    if effect.seq is not None:
        session.view.show(effect.seq)


class _Uncancelled(asyncio.Future[None]):
    """A task that is cancelled while it awaits this gets the cancellation when the future is done."""

    def cancel(self, msg: Any = None) -> bool:  # noqa: ARG002
        return False


async def persist(effect: Write, cancelled: Cancelled) -> None:
    """See `driver.persist`. By the time its caller hears of a cancellation, the batch is resolved."""
    session = effect.session
    writer, boundary = session.writer, session.boundary
    if boundary is not None:
        boundary(f"before commit {effect.label}")
    lines = session.lines  # `_lines` written out: it is done for every step
    if lines is not None and lines.loop is not asyncio.get_running_loop():
        lines = None
    # The suspension itself is written by no line: it does not wait.
    while lines is not None and lines.is_leaving and lines.current is not None:
        try:
            await lines.supervisor.stay()
            break  # not again: the suspension itself is written while the run is leaving
        except asyncio.CancelledError as cut:
            if session.is_ending:
                raise
            cancelled.append(cut)
    turn = None if lines is None else lines.turns.outcome
    writer.commit(effect.batch, turn)
    await settled(session, effect.batch, cancelled)
    if boundary is not None:
        boundary(f"after commit {effect.label}")


async def settled(session: Session, batch: Batch, cancelled: Cancelled) -> None:
    """Wait until a batch is durable; BatchRefused if it was not written."""
    writer = session.writer
    while True:
        if batch.state is SENT:
            ticket = (
                batch.ticket
            )  # read after the state: another thread may have just sent it again
            try:
                await ticket
            except StoreError:
                pass
            except asyncio.CancelledError as cut:
                cancelled.append(cut)
            if ticket is not batch.ticket:
                continue  # it was answered by another thread, and sent again
            if ticket.error is None:
                writer.accepted(batch)
                break
            writer.refused(batch, ticket.error)
        elif batch.state is COMMITTED or batch.state is FAILED:
            break
        else:
            resent = _Uncancelled(loop=asyncio.get_running_loop())
            if writer.on_resend(batch, partial(_set_soon, resent)):
                try:
                    await resent
                except asyncio.CancelledError as cut:
                    cancelled.append(cut)
    if cancelled and session.is_ending:
        raise cancelled.pop()
    if batch.error is not None:
        raise BatchRefused(batch, batch.error) from batch.error


def _set_soon(future: asyncio.Future[None]) -> None:
    def done() -> None:
        if not future.done():
            future.set_result(None)

    future.get_loop().call_soon_threadsafe(done)


# ── calls ────────────────────────────────────────────────────────────────────────────────────


async def invoke(effect: Invoke, cancelled: Cancelled) -> Any:
    """See `driver.invoke`."""
    if isinstance(effect.where, Inside):
        return await invoke_call(effect, cancelled, counter(asyncio.current_task()))
    session = effect.session
    if session.stand_in is not None:
        effect = session.stand_in(effect)
    boundary = session.boundary
    if boundary is not None:
        boundary(f"before {effect.fn.__name__}")
    result = await await_call(effect)  # the agent's own code
    if boundary is not None:
        boundary(f"after {effect.fn.__name__}")
    return result


async def invoke_call(
    effect: Invoke, cancelled: Cancelled, cancellations: Callable[[], int]
) -> Any:
    """Call the body of a step or tool, in a task that was cancelled so many times.

    A function that returns or fails although it was cancelled has swallowed that. Its outcome is recorded, and the
    code is cancelled at its next await: so it is on replay, where nothing shows what the function did.
    """
    session = effect.session
    boundary = session.boundary
    if session.stand_in is not None:
        effect = session.stand_in(effect)
    if boundary is not None:
        boundary(f"before {effect.fn.__name__}")
    before, is_swallowed = cancellations(), True
    try:
        if effect.is_async and effect.timeout is None:  # `await_call`, which most calls need not
            token = CURRENT.set(effect.where)
            try:
                result = await effect.fn(*effect.args, **effect.kwargs)
            finally:
                CURRENT.reset(token)
        else:
            result = await await_call(effect)
    except asyncio.CancelledError as cut:
        is_swallowed = False
        raise _classify(session, cut) from None
    finally:
        if is_swallowed and cancellations() > before:
            cancelled.append(asyncio.CancelledError())
    if boundary is not None:
        boundary(f"after {effect.fn.__name__}")
    return result
