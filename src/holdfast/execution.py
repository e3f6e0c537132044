"""Run or resume: execute a run here until it ends, or until it cannot continue here.

`continue_run` and `await_result` are written once, as generators of what to do next (`Block`, `Execute`, `AwaitEvent`).
`perform` does that in this thread, `perform_async` on an event loop. The rest is what happens before: which run is meant, and whether it may be resumed.
`app` and `aio` give it to users.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct

from holdfast import control, views
from holdfast.core.policy import Limits
from holdfast.errors import HoldfastError, InvalidInput, LeaseLost, RunBusy, RunFailed, RunWaiting
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.exec.engine import Engine, Taken
from holdfast.runtime.exec.resumable import check as check_resumable
from holdfast.runtime.exec.tree import Tree
from holdfast.store.base import TERMINAL_STATUSES, RunRow, Store
from holdfast.words.advice import store_option

WAIT_SECONDS: Final = 5.0
"""How long one wait for a run lasts at most; then it is looked at again. (It cannot end without an event.)"""


class Block(Struct, frozen=True):
    """Call this, which may block. A run that it has claimed is released if the caller is cancelled meanwhile."""

    fn: Callable[[], Any]


class Execute(Struct, frozen=True):
    """Execute this run."""

    taken: Taken


class AwaitEvent(Struct, frozen=True):
    """Wait until the run's log has an event after this one, or until the time is over."""

    run_id: str
    after: int
    seconds: float


Step = Block | Execute | AwaitEvent
Steps = Generator[Step, Any, Any]


def new_id(spec: AgentSpec) -> str:
    """The id of a run that was not given one."""
    return f"{spec.name}-{uuid.uuid4().hex[:12]}"


def start_by_name(store: Store, agent: str, args: tuple[Any, ...], input: Mapping[str, Any], *,
                  id: str | None, priority: int, limits: Limits) -> RunRow:  # fmt: skip
    """Create a run of an agent that a worker has registered."""
    if args:
        raise InvalidInput(f"to start agent {agent!r} by name, give its input by name too")
    return control.start(store, agent, input, id=id, priority=priority, limits=limits)


# ── before ───────────────────────────────────────────────────────────────────────────────────


def find(engine: Engine, run_id: str) -> tuple[RunRow, AgentSpec]:
    """The run and its agent, which this process must know."""
    row = views.row_of(engine.store, run_id)
    return row, engine.agent_of(row)


def reopen(engine: Engine, run_id: str, *, by: str, why: str, override: Sequence[str],
           accept_new_steps: bool, limits: Limits) -> tuple[RunRow, AgentSpec | None]:  # fmt: skip
    """Make a run resumable if it may be resumed; else NotResumable. The agent of a completed one need not be known."""
    row = views.row_of(engine.store, run_id)
    if row.status == "completed" and not accept_new_steps:
        return row, engine.agents.get(row.agent)
    spec = engine.agent_of(row)
    check_resumable(engine.store, row, spec, override, reopens=True)
    if limits:
        control.set_limits(engine.store, run_id, limits, by=by, why=why)
    if accept_new_steps:
        control.accept_new_steps(engine.store, run_id, by=by, why=why)
    control.reopen(engine.store, run_id, by=by, why=why)
    return views.row_of(engine.store, run_id), spec


def restart(engine: Engine, run_id: str, *, by: str, why: str) -> tuple[RunRow, AgentSpec]:
    """Make a run start again from the first line of its code, with its state."""
    _, spec = find(engine, run_id)
    control.rerun(engine.store, run_id, by=by, why=why)
    return views.row_of(engine.store, run_id), spec


# ── until it ends ────────────────────────────────────────────────────────────────────────────


def continue_run(
    engine: Engine, made: Taken | RunRow, spec: AgentSpec | None, *, wait: bool, check: bool = False
) -> Steps:
    """Execute a run to its end; its result, or the error it ended with. With `wait`, also what it is waiting for below it.

    With `check`, a run that existed before is refused if it may not be resumed.
    """
    tree = Tree(engine, made.id if isinstance(made, RunRow) else made.row.id)
    if check and isinstance(made, RunRow) and spec is not None:
        yield Block(partial(check_resumable, engine.store, made, spec))
    while True:
        try:
            if isinstance(made, RunRow):
                if made.status in TERMINAL_STATUSES:
                    return (yield Block(partial(engine.result_of, made, spec)))
                assert spec is not None  # only of a run that has ended it may be unknown
                made = yield Block(partial(engine.take, made, spec))
            assert isinstance(made, Taken)
            result = yield Execute(made)
        except (RunWaiting, LeaseLost):  # another worker may have claimed it
            if not wait:
                raise
        except HoldfastError:
            if wait:
                yield from _execute_rest(tree)
            raise
        else:
            if wait:
                yield from _execute_rest(tree)
            return result
        made = yield from _execute_below(tree)


def await_result(engine: Engine, run_id: str, timeout: float | None) -> Steps:
    """Wait until the run has ended, in whatever process it executes; its result, or the error it ended with."""
    end = None if timeout is None else time.monotonic() + _seconds("timeout", timeout)
    while True:
        head, row = yield Block(partial(_head_and_row, engine.store, run_id))
        if row.status in TERMINAL_STATUSES:
            return (yield Block(partial(engine.result_of, row, engine.agents.get(row.agent))))
        left = WAIT_SECONDS if end is None else min(WAIT_SECONDS, end - time.monotonic())
        if left <= 0:
            raise RunBusy(run_id, row.waiting_for or "a worker", "ask again later")
        yield AwaitEvent(run_id, head, left)


def _head_and_row(store: Store, run_id: str) -> tuple[int, RunRow]:
    """Where the run's log ends, and its row. The row is read last: if the run ends in between, it says so."""
    row = views.row_of(store, run_id)
    if row.status in TERMINAL_STATUSES:
        return -1, row
    head = store.head(run_id)
    return head, views.row_of(store, run_id)


def _seconds(what: str, given: object) -> float:
    if isinstance(given, int | float) and not isinstance(given, bool) and given == given:
        return float(given)
    raise InvalidInput(f"{what} must be a number of seconds, not {given!r}")


def _execute_rest(tree: Tree) -> Steps:
    """The run has ended: execute what is due below it."""
    while (found := (yield Block(tree.rest))) is not None:
        yield from _execute_descendant(tree, found)


def _execute_below(tree: Tree) -> Generator[Step, Any, RunRow]:
    """Execute what is due below a run, until the run itself can continue or has ended; its row."""
    while True:
        found = yield Block(tree.next)
        if isinstance(found, RunRow):
            return found
        if found is not None:
            yield from _execute_descendant(tree, found)


def _execute_descendant(tree: Tree, taken: Taken) -> Steps:
    try:
        yield Execute(taken)
    except HoldfastError as error:
        tree.ended(error)


# ── doing it ─────────────────────────────────────────────────────────────────────────────────


def perform(engine: Engine, steps: Steps) -> Any:
    """Do these steps in this thread; their result."""
    advance: Callable[[], Step] = partial(next, steps)
    try:
        while True:
            wanted = advance()
            try:
                advance = partial(steps.send, _do(engine, wanted))
            except BaseException as error:  # noqa: BLE001 (the steps decide)
                advance = partial(steps.throw, error)
    except StopIteration as end:
        return end.value
    except RunFailed as failed:
        failed.in_store(store_option(engine.store.url))
        raise
    finally:
        del advance  # it may hold the error, and the error this frame


def _do(engine: Engine, wanted: Step) -> Any:
    match wanted:
        case Block(fn):
            return fn()
        case Execute(taken):
            return engine.execute(taken)
        case AwaitEvent(run_id, after, seconds):
            return engine.store.wait(run_id, after=after, timeout=seconds)


async def perform_async(engine: Engine, steps: Steps) -> Any:
    """Do these steps on this event loop; what blocks, in a thread."""
    advance: Callable[[], Step] = partial(next, steps)
    try:
        while True:
            wanted = advance()
            try:
                advance = partial(steps.send, await _do_async(engine, wanted))
            except BaseException as error:  # noqa: BLE001 (the steps decide)
                advance = partial(steps.throw, error)
    except StopIteration as end:
        return end.value
    except RunFailed as failed:
        failed.in_store(store_option(engine.store.url))
        raise
    finally:
        del advance


async def _do_async(engine: Engine, wanted: Step) -> Any:
    match wanted:
        case Block(fn):
            return await engine.uninterrupted(fn, engine.put_back)
        case Execute(taken):
            return await engine.execute_async(taken)
        case AwaitEvent(run_id, after, seconds):
            return await engine.logs.wait(run_id, after=after, timeout=seconds)
