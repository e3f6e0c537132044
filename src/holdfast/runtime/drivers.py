"""Perform what a flow asks for: once for callers that block, once for callers that await.

These two functions are the only place where the runtime touches the store's appends, the user's
functions and the clock. Before and after each, `session.point` marks a boundary where a test may
kill the process.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.errors import NotDurable, StoreError
from holdfast.runtime.context import CURRENT, Branch, Inside
from holdfast.runtime.effects import (
    CutOff,
    Effect,
    Flow,
    Invoke,
    Leave,
    Pause,
    Refused,
    StoreEffect,
)
from holdfast.runtime.session import Pending, Session


def drive(flow: Flow) -> Any:
    """Run a flow to its end on this thread."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            effect = flow.send(answer) if error is None else flow.throw(error)
        except StopIteration as stop:
            return stop.value
        answer = error = None
        try:
            answer = _perform(effect)
        except BaseException as raised:  # noqa: BLE001 - the flow decides what it means
            error = raised


async def drive_async(flow: Flow) -> Any:
    """Run a flow to its end on this event loop.

    A cancellation that comes during a commit is told to the flow before the next thing that is no
    commit: so a tool whose intent was on its way does not begin, and a receipt stands.
    """
    answer: Any = None
    error: BaseException | None = None
    cancelled: list[asyncio.CancelledError] = []
    while True:
        try:
            effect = flow.send(answer) if error is None else flow.throw(error)
        except StopIteration as stop:
            return stop.value
        answer = error = None
        try:
            if isinstance(effect, StoreEffect):
                answer = await persist_async(effect.session, effect.build, effect.label, cancelled)
            elif cancelled:
                raise CutOff(cancelled.pop(), began=False)
            else:
                answer = await _perform_async(effect)
        except BaseException as raised:  # noqa: BLE001 - the flow decides what it means
            error = raised


# ── blocking ─────────────────────────────────────────────────────────────────────────────────


def _perform(effect: Effect) -> Any:
    if isinstance(effect, StoreEffect):
        return persist(effect.session, effect.build, effect.label)
    if isinstance(effect, Invoke):
        return invoke(effect)
    if isinstance(effect, Leave):
        raise effect.signal
    effect.session.sleep(effect.seconds)
    return None


def persist(session: Session, build: Callable[[], Pending], label: str) -> Pending:
    """Build an append and make it durable; Refused if it was not written."""
    watched = session.is_watched
    if watched:
        session.point(f"before commit {label}")
    pending, wait = session.submitted(build, session.store.submit)
    try:
        wait()
    except StoreError as error:
        raise Refused(pending, error) from error
    if watched:
        session.point(f"after commit {label}")
    return pending


def invoke(effect: Invoke) -> Any:
    """Call a function of the user's, or what a test has put in its place."""
    session = effect.session
    if not session.is_watched:
        return _invoke(effect)
    effect = session.stood_in(effect)
    session.point(f"before {effect.fn.__name__}")
    result = _invoke(effect)
    session.point(f"after {effect.fn.__name__}")
    return result


def _invoke(effect: Invoke) -> Any:
    if effect.is_async:
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
        session = effect.session
        with session.store.open_append(session.run_id, session.epoch) as opened:
            raw = effect.fn(**{**effect.kwargs, "tx": opened.tx})
            session.point(f"inside {effect.fn.__name__}")
            result, pending = effect.finish(raw)
            opened.commit(pending.work)
        return result, pending
    finally:
        CURRENT.reset(token)


def _within(seconds: float, effect: Invoke) -> Any:
    """Call in a thread and stop waiting after a time. The thread cannot be stopped: what it does
    after that is why such a call is in doubt, unless it is declared safe to repeat."""
    answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
    context = contextvars.copy_context()
    turn = threading.Lock()  # either the time is up, or a transaction commits: not both
    finish = effect.finish

    def in_time(raw: Any) -> tuple[Any, Pending]:
        assert finish is not None
        if not turn.acquire(blocking=False):
            raise TimeoutError("its time was up before it could commit")
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
            raise TimeoutError(f"no answer within {seconds:g} s") from None
        ok, answer = answers.get()  # it is committing now
    if ok:
        return answer
    raise answer


# ── awaiting ─────────────────────────────────────────────────────────────────────────────────


async def _perform_async(effect: Invoke | Pause | Leave) -> Any:
    if isinstance(effect, Invoke) and not isinstance(effect.where, Inside):
        return await invoke_async(effect)  # the agent's own code
    try:
        if isinstance(effect, Invoke):
            return await invoke_async(effect)
        if isinstance(effect, Leave):
            await _others_are_idle(effect.branch)
            raise effect.signal
        await _pause(effect.session, effect.seconds)
    except asyncio.CancelledError as cancelled:
        raise told(effect.session, cancelled) from None
    return None


async def _others_are_idle(branch: Branch) -> None:
    """Until then the agent's code may still give up what this branch waits for."""
    together = branch.together
    if together is not None and together.loop is asyncio.get_running_loop():
        with together.aside():
            await together.idle()


async def _pause(session: Session, seconds: float) -> None:
    if session.sleep is time.sleep:
        await asyncio.sleep(seconds)
    else:  # a test's, which may block
        await asyncio.to_thread(session.sleep, seconds)


def told(session: Session, cancelled: asyncio.CancelledError) -> BaseException:
    """What a cancellation in the middle of a call means."""
    if session.is_ending:
        return cancelled
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        return RuntimeError("CancelledError came out of it, though nobody had cancelled the call")
    return CutOff(cancelled, began=True)


async def persist_async(
    session: Session,
    build: Callable[[], Pending],
    label: str,
    cancelled: list[asyncio.CancelledError] | None = None,
) -> Pending:
    """See `persist`. By the time it is told that it was cancelled, the append has come to its end."""
    watched = session.is_watched
    if watched:
        session.point(f"before commit {label}")
    pending, durable = session.submitted(build, session.store.append_async)
    try:
        await durable
    except StoreError as error:
        raise Refused(pending, error) from error
    except asyncio.CancelledError as cut:
        cut_while_committing(pending, durable, cut, cancelled)
    if watched:
        session.point(f"after commit {label}")
    return pending


def cut_while_committing(
    pending: Pending,
    durable: asyncio.Future[None],
    cut: asyncio.CancelledError,
    cancelled: list[asyncio.CancelledError] | None = None,
) -> None:
    """Somebody has cancelled a task that awaited an append, which has come to its end all the same."""
    refused, session = durable.exception(), pending.session
    if session.is_ending:
        if refused is None:
            session.committed(pending)
        raise cut
    if cancelled is not None:
        cancelled.append(cut)
    if isinstance(refused, StoreError):
        raise Refused(pending, refused) from refused


async def invoke_async(effect: Invoke) -> Any:
    """See `invoke`."""
    session = effect.session
    if not session.is_watched:
        return await _invoke_async(effect)
    effect = session.stood_in(effect)
    session.point(f"before {effect.fn.__name__}")
    result = await _invoke_async(effect)
    session.point(f"after {effect.fn.__name__}")
    return result


async def _invoke_async(effect: Invoke) -> Any:
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
                raise TimeoutError(f"no answer within {effect.timeout:g} s") from None
            raise
    finally:
        CURRENT.reset(token)
