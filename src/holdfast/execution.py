"""Run, resume, restart or await a run: what `app` and `aio` give to users.

Written once, as generators of what to do next: `perform` does it in this thread, `perform_async` on an event loop
(`runtime/exec/actions.py`).
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from holdfast import control, views
from holdfast.core.policy import Limits
from holdfast.errors import HoldfastError, InvalidInput, LeaseLost, RunBusy, RunFailed, RunWaiting
from holdfast.runtime.declare.agent_spec import AgentSpec, AnyAgent, BoundAgent
from holdfast.runtime.declare.specs import run_request
from holdfast.runtime.exec.actions import Action, Actions, AwaitEvent, Block, Create, Execute
from holdfast.runtime.exec.claims import ClaimedRun, PendingRun
from holdfast.runtime.exec.engine import Engine
from holdfast.runtime.exec.execute import result_of
from holdfast.runtime.exec.resumable import check as check_resumable
from holdfast.runtime.exec.tree import Tree
from holdfast.store.base import TERMINAL_STATUSES, RunRow, Store

WAIT_SECONDS: Final = 5.0
"""How long one wait for a run lasts at most; then it is looked at again. (It cannot end without an event.)"""


def run(
    engine: Engine,
    agent: AnyAgent[..., Any] | BoundAgent[Any],
    args: tuple[Any, ...],
    input: Mapping[str, Any],
    *,
    id: str | None,
    wait: bool,
    limits: Limits,
) -> Actions:
    """Create the run, or resume it if it exists; its result."""
    new, spec = _new_run(engine, agent, args, input, id=id, limits=limits)
    made: ClaimedRun | RunRow = yield Create(new)
    del new  # nothing of its creation is needed while it executes
    return (yield from _continue_run(engine, made, spec, wait=wait, check=True))


def start(
    engine: Engine,
    agent: AnyAgent[..., Any] | BoundAgent[Any] | str,
    args: tuple[Any, ...],
    input: Mapping[str, Any],
    *,
    id: str | None,
    priority: int,
    limits: Limits,
) -> Actions:
    """Create the run for workers; its id. An agent is named by a string if a worker has registered it."""
    if not isinstance(agent, str):
        options: dict[str, Any] = {"id": id, "priority": priority, "limits": limits}
        new, _ = _new_run(engine, agent, args, input, claim=False, **options)
        made: RunRow = yield Create(new)  # no worker has claimed it yet
        return made.id
    if args:
        raise InvalidInput(f"to start agent {agent!r} by name, give its input by name too")
    by_name = partial(control.start, engine.store, agent, input)
    row: RunRow = yield Block(partial(by_name, id=id, priority=priority, limits=limits))
    return row.id


def resume(
    engine: Engine,
    run_id: str,
    *,
    wait: bool,
    by: str,
    why: str,
    override: Sequence[str],
    accept_new_steps: bool,
    limits: Limits,
) -> Actions:
    """Reopen the run if it may be resumed, and execute it; its result."""

    def reopen() -> tuple[RunRow, AgentSpec | None]:
        row = views.row_of(engine.store, run_id)
        if row.status == "completed" and not accept_new_steps:
            return row, engine.agents.get(row.agent)  # which need not be known
        spec = engine.claims.agent_of(row)
        check_resumable(engine.store, row, spec, override, reopens=True)
        if limits:
            control.set_limits(engine.store, run_id, limits, by=by, why=why)
        if accept_new_steps:
            control.accept_new_steps(engine.store, run_id, by=by, why=why)
        control.reopen(engine.store, run_id, by=by, why=why)
        return views.row_of(engine.store, run_id), spec

    reopened: tuple[RunRow, AgentSpec | None] = yield Block(reopen)
    row, spec = reopened
    return (yield from _continue_run(engine, row, spec, wait=wait))


def rerun(engine: Engine, run_id: str, *, wait: bool, by: str, why: str) -> Actions:
    """Restart the run at the first line of its code, with its state; its result."""

    def restart() -> tuple[RunRow, AgentSpec]:
        _, spec = _find(engine, run_id)
        control.rerun(engine.store, run_id, by=by, why=why)
        return views.row_of(engine.store, run_id), spec

    restarted: tuple[RunRow, AgentSpec] = yield Block(restart)
    row, spec = restarted
    return (yield from _continue_run(engine, row, spec, wait=wait))


def drive(engine: Engine, run_id: str) -> Actions:
    """Execute the run if it can continue and no worker executes it; its result."""
    found: tuple[RunRow, AgentSpec] = yield Block(partial(_find, engine, run_id))
    row, spec = found
    return (yield from _continue_run(engine, row, spec, wait=False, check=True))


def _new_run(
    engine: Engine,
    agent: AnyAgent[..., Any] | BoundAgent[Any],
    args: tuple[Any, ...],
    input: Mapping[str, Any],
    *,
    id: str | None,
    **options: Any,
) -> tuple[PendingRun, AgentSpec]:
    spec, args, given = run_request(agent, args, input)
    run_id = control.new_run_id(spec.name) if id is None else id
    return engine.claims.create(spec, run_id, given, args=args, **options), spec


def _find(engine: Engine, run_id: str) -> tuple[RunRow, AgentSpec]:
    """The run and its agent, which this process must know."""
    row = views.row_of(engine.store, run_id)
    return row, engine.claims.agent_of(row)


# ── until it ends ────────────────────────────────────────────────────────────────────────────


def _continue_run(
    engine: Engine,
    claimed: ClaimedRun | RunRow,
    spec: AgentSpec | None,
    *,
    wait: bool,
    check: bool = False,
) -> Actions:
    """Execute a run to its end; its result, or the error it ended with. With `wait`, also what it is waiting for below it.

    With `check`, a run that existed before is refused if it may not be resumed.
    """
    tree = Tree(engine, claimed.id if isinstance(claimed, RunRow) else claimed.row.id)
    if check and isinstance(claimed, RunRow) and spec is not None:
        yield Block(partial(check_resumable, engine.store, claimed, spec))
    while True:
        try:
            if isinstance(claimed, RunRow):
                if claimed.status in TERMINAL_STATUSES:
                    return (yield Block(partial(result_of, engine.store, claimed, spec)))
                assert spec is not None  # only of a run that has ended it may be unknown
                made: ClaimedRun = yield Block(partial(engine.claims.claim, claimed, spec))
                claimed = made
            assert isinstance(claimed, ClaimedRun)
            result: object = yield Execute(claimed)
        except LeaseLost:  # another worker may have claimed it
            if not wait:
                raise
        except RunWaiting:
            if not wait:
                due: RunRow | None = yield Block(tree.due_root)
                if due is None:
                    raise
                claimed = due  # what it was waiting for came while its code was unwound
                continue
        except HoldfastError as error:
            _name_store(engine, error)
            if wait:
                yield from _execute_rest(tree)
            raise
        else:
            if wait:
                yield from _execute_rest(tree)
            return result
        claimed = yield from _execute_below(tree)


def await_result(engine: Engine, run_id: str, timeout: float | None) -> Actions:
    """Wait until the run has ended, in whatever process it executes; its result, or the error it ended with."""
    end = None if timeout is None else time.monotonic() + _seconds(timeout)
    while True:
        found: tuple[int, RunRow] = yield Block(partial(_head_and_row, engine.store, run_id))
        head, row = found
        if row.status in TERMINAL_STATUSES:
            try:
                return (
                    yield Block(partial(result_of, engine.store, row, engine.agents.get(row.agent)))
                )
            except RunFailed as failed:
                _name_store(engine, failed)
                raise
        left = WAIT_SECONDS if end is None else min(WAIT_SECONDS, end - time.monotonic())
        if left <= 0:
            raise RunBusy(
                run_id, row.waiting_for or "a worker", f"call hf.result({run_id!r}) again later"
            )
        yield AwaitEvent(run_id, head, left)


def _head_and_row(store: Store, run_id: str) -> tuple[int, RunRow]:
    """Where the run's log ends, and its row. The row is read last: if the run ends in between, it says so."""
    row = views.row_of(store, run_id)
    if row.status in TERMINAL_STATUSES:
        return -1, row
    head = store.head(run_id)
    return head, views.row_of(store, run_id)


def _seconds(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and value == value:
        return float(value)
    raise InvalidInput(f"timeout must be a number of seconds, not {value!r}")


def _execute_rest(tree: Tree) -> Actions:
    """The run has ended: execute what is due below it."""
    while True:
        found: ClaimedRun | None = yield Block(tree.rest)
        if found is None:
            return
        yield from _execute_descendant(tree, found)


def _execute_below(tree: Tree) -> Generator[Action, Any, RunRow]:
    """Execute what is due below a run, until the run itself can continue or has ended; its row."""
    while True:
        found: ClaimedRun | RunRow | None = yield Block(tree.next)
        if isinstance(found, RunRow):
            return found
        if found is not None:
            yield from _execute_descendant(tree, found)


def _execute_descendant(tree: Tree, claimed: ClaimedRun) -> Actions:
    try:
        yield Execute(claimed)
    except HoldfastError as error:
        tree.ended(error)


def _name_store(engine: Engine, error: HoldfastError) -> None:
    """The commands in the message of a failure are for the store that the run is in."""
    if isinstance(error, RunFailed):
        from holdfast.words.advice import store_option  # here, as most runs do not fail

        error.in_store(store_option(engine.store.url))
