"""Perform what a flow asks for, for a caller that blocks. `async_driver.py` does it for one that awaits.

These two are the only places where the runtime touches the store's appends, the user's functions and the clock.
Before and after each, a test that watches is notified (`session.boundary`), and may kill the process.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from holdfast.errors import NotDurable, StoreError, StoreUnavailable
from holdfast.runtime.call.operations import (
    BatchRefused,
    Begin,
    Flow,
    HandOver,
    Invoke,
    Park,
    Read,
    Replay,
    Sleep,
    TimeUp,
    Write,
)
from holdfast.runtime.log.branches import CURRENT
from holdfast.runtime.log.session import Session
from holdfast.runtime.log.writer import COMMITTED, FAILED, SENT, Batch

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
                    persist(effect)
                case Invoke():
                    answer = invoke(effect)
                case _:
                    answer = perform(effect)
        except BaseException as raised:  # noqa: BLE001 - the flow decides what it means
            error = raised


def perform(effect: HandOver | Read | Park | Sleep | Begin | Replay) -> Any:
    """What is neither a commit nor a call."""
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


def persist(effect: Write) -> None:
    """Commit a batch and wait until it is durable; BatchRefused if it was not written."""
    session, writer = effect.session, effect.session.writer
    if session.boundary is not None:
        session.boundary(f"before commit {effect.label}")
    batch = effect.batch
    writer.commit(batch)
    while batch.state is not COMMITTED and batch.state is not FAILED:
        if batch.state is not SENT:
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


def invoke(effect: Invoke) -> Any:
    """Call a function of the user's, or what a test has put in its place."""
    session = effect.session
    if session.stand_in is not None:
        effect = session.stand_in(effect)
    if session.boundary is not None:
        session.boundary(f"before {effect.fn.__name__}")
    result = invoke_here(effect)
    if session.boundary is not None:
        session.boundary(f"after {effect.fn.__name__}")
    return result


def invoke_here(effect: Invoke) -> Any:
    """Call it on this thread, in its context and within its time."""
    if effect.is_async:
        import asyncio

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(await_call(effect))
        raise NotDurable(
            f"{effect.fn.__name__} is async and was called from code that does not await it"
        )
    if effect.timeout is not None:
        return _within(effect.timeout, effect)
    return _call(effect)


async def await_call(effect: Invoke) -> Any:
    """Call a function of the user's, in a thread if it blocks."""
    if not effect.is_async:
        import asyncio

        return await asyncio.to_thread(invoke_here, effect)
    token = CURRENT.set(effect.where)
    try:
        call = effect.fn(*effect.args, **effect.kwargs)
        if effect.timeout is None:
            return await call
        import asyncio

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
