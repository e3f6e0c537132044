"""Perform what a flow asks for: once for callers that block, once for callers that await.

These two functions are the only place where the runtime touches the store's appends, the user's
functions and the clock. Before and after each, a test that watches is told (`session.boundary`), and may kill
the process.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from holdfast.errors import NotDurable, StoreError, StoreUnavailable
from holdfast.runtime.call.operations import (
    BatchRefused,
    Begin,
    Flow,
    HandOver,
    Invoke,
    Operation,
    Park,
    Read,
    Replay,
    Sleep,
    TaskCancelled,
    TimeUp,
    Write,
)
from holdfast.runtime.log.branches import CURRENT, Inside, current_branch
from holdfast.runtime.log.session import Session
from holdfast.runtime.log.writer import Batch, BatchState

if TYPE_CHECKING:
    import asyncio

    from holdfast.runtime.lines.line import Line
    from holdfast.runtime.lines.lines import Lines

T = TypeVar("T")
ANSWER_SECONDS: Final = 0.002


def drive(flow: Flow[T]) -> T:
    """Run a flow to its end on this thread."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            effect = flow.send(answer) if error is None else flow.throw(error)
        except StopIteration as stop:
            value: T = stop.value
            return value
        answer = error = None
        try:
            match effect:
                case Write():
                    answer = persist(effect)
                case Invoke():
                    answer = invoke(effect)
                case _:
                    answer = _perform(effect)
        except BaseException as raised:  # noqa: BLE001 - the flow decides what it means
            error = raised


async def drive_async(flow: Flow[T]) -> T:
    """Run a flow to its end on this event loop.

    A cancellation during a commit reaches the flow before its next effect: so a tool whose
    intent was on its way does not start. An outcome that is being recorded is not undone by it: the code
    gets it, and is cancelled at its next await.
    """
    answer: Any = None
    error: BaseException | None = None
    cancelled: list[asyncio.CancelledError] = []
    cut: TaskCancelled | None = None
    while True:
        try:
            effect = flow.send(answer) if error is None else flow.throw(error)
        except StopIteration as stop:
            if cancelled or cut is not None:
                _deliver_later(cancelled)
            value: T = stop.value
            return value
        except BaseException as raised:  # the code gets it; a cancellation follows it
            if cancelled or (cut is not None and raised is not cut.cancelled):
                _deliver_later(cancelled, raising=True)
            raise
        if isinstance(error, TaskCancelled):
            cut = error
        answer = error = None
        try:
            match effect:
                case Write():
                    answer = await persist_async(effect, cancelled)
                case HandOver():
                    await _hand_over(effect)
                case Read():
                    answer = await _read_async(effect, cancelled)
                case _ if cancelled and not _is_held(effect):
                    raise _cut_or_cancelled(effect.session, cancelled.pop())
                case _:
                    answer = await _perform_async(effect, cancelled)
        except BaseException as raised:  # noqa: BLE001 - the flow decides what it means
            error = raised


def _is_held(effect: Operation) -> bool:
    """Whether a cancellation does not end this: a recorded outcome is still given to the code, and a call in
    doubt holds its line until a person has decided."""
    return isinstance(effect, Replay) or (
        isinstance(effect, Park) and effect.wait.kind == "decision"
    )


def _deliver_later(cancelled: list[asyncio.CancelledError], *, raising: bool = False) -> None:
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


# ── blocking ─────────────────────────────────────────────────────────────────────────────────


def _perform(effect: HandOver | Read | Park | Sleep | Begin | Replay) -> Any:
    if isinstance(effect, Read):
        return effect.read()
    if isinstance(effect, HandOver):
        if effect.seq is not None:
            effect.session.view.show(effect.seq)
    elif isinstance(effect, Park):
        session, place = effect.session, effect.wait.place
        session.waits[place], session.suspensions[place] = effect.wait, effect.signal
        raise effect.signal
    elif isinstance(effect, Sleep):
        effect.session.sleep(effect.seconds)
    return None  # a thread hands over what it has, and starts what it likes


def persist(effect: Write) -> Batch:
    """Commit a batch and wait until it is durable; BatchRefused if it was not written."""
    session, writer = effect.session, effect.session.writer
    if session.boundary is not None:
        session.boundary(f"before commit {effect.label}")
    batch = writer.commit(effect.commit, session.store.submit)
    while batch.state is not BatchState.COMMITTED and batch.state is not BatchState.FAILED:
        if batch.state is not BatchState.SENT:
            resent = threading.Event()
            if writer.on_resend(batch, resent.set):
                while not resent.wait(_answered_here(session)):
                    pass
            continue
        try:
            batch.ticket.wait()
        except StoreError as error:
            writer.refused(batch, error)
        except BaseException:  # an interrupt: the outcome is unknown
            writer.refused(batch, StoreUnavailable("interrupted; the outcome was not seen"))
            raise
        else:
            writer.accepted(batch)
    if batch.error is not None:
        raise BatchRefused(batch, batch.error) from batch.error
    if session.boundary is not None:
        session.boundary(f"after commit {effect.label}")
    return batch


def invoke(effect: Invoke) -> Any:
    """Call a function of the user's, or what a test has put in its place."""
    session = effect.session
    if session.stand_in is not None:
        effect = session.stand_in(effect)
    if session.boundary is not None:
        session.boundary(f"before {effect.fn.__name__}")
    result = _invoke(effect)
    if session.boundary is not None:
        session.boundary(f"after {effect.fn.__name__}")
    return result


def _invoke(effect: Invoke) -> Any:
    if effect.is_async:
        import asyncio

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(_invoke_async(effect))
        raise NotDurable(
            f"{effect.fn.__name__} is async and was called from code that does not await it"
        )
    if effect.timeout is not None:
        return _within(effect.timeout, effect)
    return _call(effect)


def _call(effect: Invoke) -> Any:
    token = CURRENT.set(effect.where)
    try:
        if effect.finish is None:
            return effect.fn(*effect.args, **effect.kwargs)
        return _transact(effect, effect.finish)
    finally:
        CURRENT.reset(token)


def _transact(effect: Invoke, finish: Callable[[Any], tuple[Any, Batch]]) -> tuple[Any, Batch]:
    """Call a tool inside a transaction, which commits with its receipt."""
    session = effect.session
    batch: Batch | None = None
    while not session.writer.wait_until_in_order(_answered_here(session)):
        pass
    try:
        with session.store.open_append(session.run_id, session.epoch) as opened:
            raw = effect.fn(**{**effect.kwargs, "tx": opened.tx})
            if session.boundary is not None:
                session.boundary(f"inside {effect.fn.__name__}")
            result, batch = finish(raw)
            assert batch.work is not None
            opened.commit(batch.work)
    except BaseException as error:
        if batch is not None:
            session.writer.refused(batch, error)
        raise
    session.writer.accepted(batch)
    return result, batch


def _answered_here(session: Session) -> float | None:
    """A plain call that an async agent makes without a thread keeps the event loop waiting, so that the run's
    other tasks cannot take the answers to their batches: take them here. How long to wait before doing so again."""
    lines, writer = session.lines, session.writer
    if lines is None or lines.thread != threading.get_ident():
        return None
    for batch in writer.sent():
        ticket = batch.ticket
        if not ticket.settled:
            ticket.push()
        elif ticket.error is None:
            writer.accepted(batch)
        else:
            writer.refused(batch, ticket.error)
    return ANSWER_SECONDS


def _within(seconds: float, effect: Invoke) -> Any:
    """Call in a thread and stop waiting after a time. The thread cannot be stopped: what it does
    after that is why such a call is in doubt, unless it is declared safe to repeat."""
    import queue

    answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
    context = contextvars.copy_context()
    turn = threading.Lock()  # either the time is up, or a transaction commits: not both
    finish = effect.finish

    def in_time(raw: Any) -> tuple[Any, Batch]:
        assert finish is not None
        if not turn.acquire(blocking=False):
            raise TimeoutError("it timed out before it could commit")
        return finish(raw)

    if finish is not None:
        effect = msgspec.structs.replace(effect, finish=in_time)

    def work() -> None:
        try:
            answers.put((True, context.run(_call, effect)))
        except BaseException as error:  # noqa: BLE001 - carried to the caller's thread
            answers.put((False, error))

    threading.Thread(target=work, name=f"holdfast-{effect.fn.__name__}", daemon=True).start()
    try:
        ok, answer = answers.get(timeout=seconds)
    except queue.Empty:
        if turn.acquire(blocking=False):
            raise TimeUp(f"no answer within {seconds:g} s") from None
        ok, answer = answers.get()  # it is committing now
    if ok:
        return answer
    raise answer


# ── awaiting ─────────────────────────────────────────────────────────────────────────────────


async def _perform_async(
    effect: Invoke | Sleep | Park | Begin | Replay, cancelled: list[asyncio.CancelledError]
) -> Any:
    import asyncio

    if isinstance(effect, Invoke) and not isinstance(effect.where, Inside):
        return await invoke_async(effect)  # the agent's own code
    session = effect.session
    lines = _lines(session)
    if isinstance(effect, Replay):
        if lines is not None:
            await lines.turns.take_recorded(effect.places, effect.is_cut, effect.given_up)
        return None
    try:
        if isinstance(effect, Invoke):
            return await _invoke_to_its_end(effect, cancelled)
        if isinstance(effect, Begin):
            if lines is not None:
                await lines.turns.begin(effect.attempted)
        elif isinstance(effect, Park):
            if (
                lines is None or lines.current is None
            ):  # not in the code of the agent, which has ended
                return _perform(effect)
            await lines.parking.park(effect.wait, effect.signal)
        else:
            await _pause(session, effect.seconds)
    except asyncio.CancelledError as cut:
        raise classify_cancellation(session, cut) from None
    return None


async def _invoke_to_its_end(effect: Invoke, cancelled: list[asyncio.CancelledError]) -> Any:
    """A function that returns or fails although it was cancelled has swallowed that. Its outcome is recorded, and the
    code is cancelled at its next await: so it is on replay, where nothing shows what the function did."""
    import asyncio

    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    is_swallowed = True
    try:
        return await invoke_async(effect)
    except asyncio.CancelledError:
        is_swallowed = False
        raise
    finally:
        if task is not None and is_swallowed and task.cancelling() > before:
            cancelled.append(asyncio.CancelledError())


def _lines(session: Session) -> Lines | None:
    """The lines of the run, if this is the loop that they are on."""
    import asyncio

    lines = session.lines
    return lines if lines is not None and lines.loop is asyncio.get_running_loop() else None


async def _read_async(effect: Read, cancelled: list[asyncio.CancelledError]) -> Any:
    """By the time its caller hears of a cancellation, nothing is being read any more."""
    import asyncio

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


async def _pause(session: Session, seconds: float) -> None:
    import asyncio

    if session.sleep is time.sleep:
        await asyncio.sleep(seconds)
    else:  # a test's, which may block
        await asyncio.to_thread(session.sleep, seconds)


def classify_cancellation(session: Session, cancelled: asyncio.CancelledError) -> BaseException:
    """What a cancellation in the middle of a call means."""
    import asyncio

    if session.is_ending:
        return cancelled
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        return RuntimeError("CancelledError was raised, but the call was not cancelled")
    return TaskCancelled(cancelled, began=True)


@cache
def _uncancelled() -> type[asyncio.Future[None]]:
    """A future. A task that is cancelled while it awaits one gets the cancellation when the future is done."""
    import asyncio

    class Uncancelled(asyncio.Future[None]):
        def cancel(self, msg: Any = None) -> bool:  # noqa: ARG002
            return False

    return Uncancelled


async def persist_async(effect: Write, cancelled: list[asyncio.CancelledError]) -> Batch:
    """See `persist`. By the time its caller hears of a cancellation, the batch is resolved."""
    import asyncio

    session, writer, store = effect.session, effect.session.writer, effect.session.store
    if session.boundary is not None:
        session.boundary(f"before commit {effect.label}")
    lines = _lines(session)
    # The suspension itself is written by no line: it does not wait.
    while lines is not None and lines.is_leaving and lines.current is not None:
        try:
            await lines.supervisor.stay()
            break  # not again: the suspension itself is written while the run is leaving
        except asyncio.CancelledError as cut:
            if session.is_ending:
                raise
            cancelled.append(cut)
    batch = writer.commit(
        effect.commit, store.submit, None if lines is None else lines.turns.outcome
    )
    while batch.state is not BatchState.COMMITTED and batch.state is not BatchState.FAILED:
        if batch.state is not BatchState.SENT:
            resent = _uncancelled()(loop=asyncio.get_running_loop())
            if writer.on_resend(batch, partial(_set_soon, resent)):
                try:
                    await resent
                except asyncio.CancelledError as cut:
                    cancelled.append(cut)
            continue
        ticket = batch.ticket  # read after the state: another thread may have just sent it again
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
        else:
            writer.refused(batch, ticket.error)
    if session.is_ending and cancelled:
        raise cancelled.pop()
    if batch.error is not None:
        raise BatchRefused(batch, batch.error) from batch.error
    if session.boundary is not None:
        session.boundary(f"after commit {effect.label}")
    return batch


def _set_soon(future: asyncio.Future[None]) -> None:
    def done() -> None:
        if not future.done():
            future.set_result(None)

    future.get_loop().call_soon_threadsafe(done)


async def invoke_async(effect: Invoke) -> Any:
    """See `invoke`."""
    session = effect.session
    if session.stand_in is not None:
        effect = session.stand_in(effect)
    if session.boundary is not None:
        session.boundary(f"before {effect.fn.__name__}")
    result = await _invoke_async(effect)
    if session.boundary is not None:
        session.boundary(f"after {effect.fn.__name__}")
    return result


async def _invoke_async(effect: Invoke) -> Any:
    import asyncio

    if not effect.is_async:
        return await asyncio.to_thread(_invoke, effect)
    token = CURRENT.set(effect.where)
    try:
        call = effect.fn(*effect.args, **effect.kwargs)
        if effect.timeout is None:
            return await call
        limit = asyncio.timeout(effect.timeout)
        try:
            async with limit:
                return await call
        except TimeoutError:
            if limit.expired():
                raise TimeUp(f"no answer within {effect.timeout:g} s") from None
            raise
    finally:
        CURRENT.reset(token)
