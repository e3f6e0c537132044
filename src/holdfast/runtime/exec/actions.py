"""What a process does with whole runs, written once for threads and event loops.

A generator yields what to do next: call something that blocks, create or execute a run, wait for an event.
`perform` does it in this thread, `perform_async` on an event loop. `hf.run(…)`, child runs and their undo are such
generators (`execution.py`, `children.py`).

Not here: the operations of a single call (`call/operations.py`, `call/driver.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from holdfast.runtime.exec.claims import ClaimedRun, Claims, PendingRun
from holdfast.runtime.exec.threads import Threads, uninterrupted
from holdfast.runtime.log.log_watcher import LogWatcher
from holdfast.store.base import Store

T = TypeVar("T")


class Block(Struct, frozen=True):
    """Call this, which may block. A run that it has claimed is released if the caller is cancelled meanwhile."""

    fn: Callable[[], Any]


class Create(Struct, frozen=True):
    """Wait until this run has been created."""

    run: PendingRun


class Execute(Struct, frozen=True):
    """Execute this run."""

    run: ClaimedRun


class AwaitEvent(Struct, frozen=True):
    """Wait until the run's log has an event after this one, or until the time is over."""

    run_id: str
    after: int
    seconds: float


Action = Block | Create | Execute | AwaitEvent
Actions = Generator[Action, Any, Any]


class Performer(Protocol):
    """What performs them: `Engine`."""

    store: Store
    claims: Claims
    threads: Threads
    logs: LogWatcher

    def execute(self, claimed: ClaimedRun) -> Any: ...
    async def execute_async(self, claimed: ClaimedRun) -> Any: ...


def perform(engine: Performer, actions: Actions) -> Any:
    """Do this in this thread; its result."""
    result: Any = None
    error: BaseException | None = None
    try:
        while True:
            action = actions.send(result) if error is None else actions.throw(error)
            result = error = None
            try:
                result = _do(engine, action)
            except BaseException as raised:  # noqa: BLE001 (the generator decides)
                error = raised
    except StopIteration as end:
        return end.value
    finally:
        del error  # which holds this frame


def _do(engine: Performer, action: Action) -> Any:
    match action:
        case Block(fn):
            return fn()
        case Create(pending):
            return pending.wait()
        case Execute(claimed):
            return engine.execute(claimed)
        case AwaitEvent(run_id, after, seconds):
            return engine.store.wait(run_id, after=after, timeout=seconds)


async def perform_async(engine: Performer, actions: Actions) -> Any:
    """Do this on this event loop; what blocks, in a thread."""
    result: Any = None
    error: BaseException | None = None
    try:
        while True:
            action = actions.send(result) if error is None else actions.throw(error)
            result = error = None
            try:
                result = await _do_async(engine, action)
            except BaseException as raised:  # noqa: BLE001 (the generator decides)
                error = raised
    except StopIteration as end:
        return end.value
    finally:
        del error


async def _do_async(engine: Performer, action: Action) -> Any:
    match action:
        case Block(fn):
            return await uninterrupted(fn, engine.claims.release, threads=engine.threads)
        case Create(pending):
            return await pending
        case Execute(claimed):
            return await engine.execute_async(claimed)
        case AwaitEvent(run_id, after, seconds):
            return await engine.logs.wait(run_id, after=after, timeout=seconds)
