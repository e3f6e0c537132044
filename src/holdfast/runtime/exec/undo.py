"""Compensation: undo what a run did, newest first, each undo a durable call of its own.

A call in doubt is resolved first, by the check of its tool or by a person, never guessed. What was undone is in the log, so a crash in the
middle continues with the next one.
"""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from msgspec.structs import replace

from holdfast.core import events as e
from holdfast.core.branch_path import UNDO
from holdfast.core.effect import Effect
from holdfast.core.fold import fold
from holdfast.core.log import Record
from holdfast.core.state import UNSETTLED, Call, RunState
from holdfast.core.values import Codec, decode
from holdfast.core.waits import OpenWait
from holdfast.errors import Abandon, NoSuchRun, NotFound
from holdfast.runtime.call.flow import call
from holdfast.runtime.call.match import intent_of_this_run
from holdfast.runtime.call.operations import Flow, Invoke, LookAgain, Read
from holdfast.runtime.call.recover import ask_check
from holdfast.runtime.call.request import CallRequest
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.declare.call_spec import CallSpec
from holdfast.runtime.declare.params import Params
from holdfast.runtime.declare.specs import spec_of
from holdfast.runtime.log.branches import Branch, Inside
from holdfast.runtime.log.session import Session
from holdfast.store.base import TERMINAL_STATUSES, RowChange, RunRow, Store
from holdfast.store.outside import RunUpdate, update_run
from holdfast.store.pages import everything
from holdfast.waiting import WaitingFor
from holdfast.words.waiting import suspended


def compensate(session: Session, because: e.UndoStarted | None = None) -> Flow[None]:
    """Undo every finished call that says how, in reverse order. `because` is recorded with the first of them."""
    session.log.read_all()
    known = yield from _without_doubt(session)
    branch = Branch(session, UNDO)
    done = [c for c in known.calls if c.undoable and _did_something(c) and c.branch != UNDO]
    done = [c for c in done if c.index >= 0 or not c.undone]  # a negative index: before a rerun
    if done and because is not None:
        session.announce(because)
    yield from _register_calls(session, {c.name for c in done if not c.child})
    for finished in sorted(done, key=lambda c: c.step, reverse=True):
        spec, args = _undo_call(session, finished)
        yield from call(branch, spec, args, undoes=finished.step)


def _without_doubt(session: Session) -> Flow[RunState]:
    """The run's state when no call is in doubt: a tool's own check is asked first, then a person."""
    asked = False
    while True:
        records: list[Record] = yield Read(session, partial(session.store.read, session.run_id))
        known = fold(RunState(), records)
        unsettled = [c for c in known.calls if c.status in UNSETTLED and c.branch != UNDO]
        doubtful = [c for c in unsettled if c.may_be_in_doubt]
        if not doubtful:
            return known
        if asked:
            _wait_for_decision(session, doubtful[0])
        for each in doubtful:
            yield from _ask_check(session, each)
        asked = True


def _ask_check(session: Session, doubtful: Call) -> Flow[None]:
    """Ask the check of the tool whether this call happened, if it has one."""
    entry = session.log.entry(doubtful.branch, doubtful.index)
    intent = None if entry is None else intent_of_this_run(session, entry)
    spec = session.specs.get(doubtful.name)
    if intent is None or spec is None or spec.effect != Effect.CHECKED:
        return
    if spec.version == intent.tool_version:
        args = session.unwrap(intent.args)
        branch = Branch(session, doubtful.branch)
        bound = spec.decode_args(args)
        request = CallRequest(branch, doubtful.index, intent.forks, 1, spec, bound, args)
        with contextlib.suppress(LookAgain):  # a person has decided: the state is read again
            yield from ask_check(request, intent)


def _wait_for_decision(session: Session, doubtful: Call) -> NoReturn:
    at = (doubtful.branch, doubtful.index)
    session.waits.clear()
    session.waits[at] = OpenWait(at, "decision")
    waiting = WaitingFor("decision", doubtful.name, request_id=doubtful.id, step=doubtful.step)
    raise suspended(session.run_id, waiting)


def _register_calls(session: Session, names: set[str]) -> Flow[None]:
    """Find out how to undo these calls. A loop does not come back to earlier iterations: only a replay of them
    shows what was called there."""
    calls_of = session.config.calls_of
    if names <= session.specs.keys() or calls_of is None:
        return
    inside = Inside("replay", Effect.REPEATABLE, session.run_id)
    called: dict[str, CallSpec] = yield Invoke(
        session, calls_of, {}, inside, False, args=(session.run_id,)
    )
    session.specs = {**called, **session.specs}


def ask_to_undo(store: Store, run_id: str) -> RunRow | None:
    """Ask a child run to undo what it did. Its row; None if there is nothing (more) to undo."""
    records: list[Record] = []
    needed = False

    def reads(store: Store, run_id: str) -> list[Record]:
        records[:] = everything(store, run_id)
        return records

    def decide(state: RunState, row: RunRow) -> RunUpdate:
        nonlocal needed
        ended = row.status in TERMINAL_STATUSES
        needed = not ended or any(c.undoable and not c.undone for c in state.calls)
        if not needed or (not ended and any(r.kind == e.UndoRequested.kind for r in records)):
            return RunUpdate()
        request = e.UndoRequested(why="its parent is undone")
        return RunUpdate([request], RowChange("pending", store.now()))

    with contextlib.suppress(NoSuchRun):
        update_run(store, run_id, decide, reads)
    return store.get(run_id) if needed else None


def _did_something(call: Call) -> bool:
    """Whether there may be something to undo. A child run may have done a lot before it failed."""
    return call.status == "done" or bool(call.child)


def _undo_call(session: Session, finished: Call) -> tuple[CallSpec, dict[str, Any]]:
    """The call that undoes another one, and its arguments."""
    if finished.child:
        undo_of_child = session.config.undo_of_child
        assert undo_of_child is not None
        undo = undo_of_child(finished.name)
        spec = _declared(finished.name, undo, risk="read", effect=Effect.UNDO_CHILD)
        return spec, {"child_id": finished.child}
    undone = session.specs.get(finished.name)
    if undone is None or undone.undo is None:
        raise Abandon(NotFound(f"the code of {finished.name} no longer declares undo"))
    return _undo_spec(undone), _arguments(session, undone, finished)


def _undo_spec(spec: CallSpec) -> CallSpec:
    undo = spec.undo
    assert undo is not None
    declared = spec_of(undo)
    if isinstance(declared, CallSpec):  # a tool that undoes another keeps what it declares
        return replace(declared, name=f"undo {spec.name}")
    return _declared(
        spec.name,
        undo,
        risk=spec.risk,
        timeout=spec.timeout,
        retry=spec.retry,
        redact=spec.redact,
        version=spec.version,
    )


def _declared(
    name: str, undo: Callable[..., Any], effect: Effect | None = None, **options: Any
) -> CallSpec:
    """A function that undoes a call, declared as a tool."""
    params = Params.from_function(undo)
    by_key = Effect.KEYED if "idempotency_key" in params.hidden else Effect.ONCE
    return CallSpec(
        name=f"undo {name}",
        fn=undo,
        params=params,
        effect=effect or by_key,
        is_async=inspect.iscoroutinefunction(undo),
        result=Codec(params.types.get("return", Any)),
        **options,
    )


def _arguments(session: Session, spec: CallSpec, finished: Call) -> dict[str, Any]:
    """An undo is given what it asks for by name: the call's arguments, and its result."""
    assert finished.args is not None
    known = spec.decode_args(session.unwrap(finished.args))
    if finished.result is not None:
        known["result"] = decode(session.unwrap(finished.result))
    parameters = Params.from_function(spec.undo).schema.parameters if spec.undo else ()
    return {p.name: known[p.name] for p in parameters if p.name in known}


def register_names(session: Session, fn: Callable[..., Any]) -> None:
    """Register the tools and agents that an agent's code can name: a call that it does not come to in this
    process can still be undone."""
    inner = inspect.unwrap(fn)
    names = dict(getattr(inner, "__globals__", {}))
    names.update(inspect.getclosurevars(inner).nonlocals if inspect.isfunction(inner) else {})
    seen = list(names.values())
    seen += [x for m in seen if isinstance(m, types.ModuleType) for x in vars(m).values()]
    for spec in (spec_of(x) for x in seen if callable(x)):
        if isinstance(spec, CallSpec):
            session.specs.setdefault(spec.name, spec)
        elif isinstance(spec, AgentSpec):
            session.config.agents.setdefault(spec.name, spec)
