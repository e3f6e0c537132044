"""Run an agent's code against its log without executing or writing anything.

For `hf.replay` and `holdfast check`: does this code still agree with what the run has done?
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from holdfast.core.branch_path import BranchPath
from holdfast.core.entry import Entry, Place
from holdfast.errors import Abandon, Diverged, HoldfastError
from holdfast.runtime.api.run import AsyncRun, Run
from holdfast.runtime.call.driver import drive
from holdfast.runtime.call.operations import Flow
from holdfast.runtime.call.task_factory import BranchingTasks
from holdfast.runtime.exec.execute import find_signal, run_body
from holdfast.runtime.log.branches import Branch
from holdfast.runtime.log.lineage import govern
from holdfast.runtime.log.session import RunConfig, Session, place_name, recorded_text
from holdfast.store.base import RunRow, Store

if TYPE_CHECKING:
    from holdfast.runtime.declare.agent_spec import AgentSpec
    from holdfast.runtime.declare.call_spec import CallSpec


class ReplayResult(Struct, frozen=True):
    """How far the code agrees with the log."""

    run_id: str
    steps: int
    reached_end: bool
    diverged: Diverged | None = None
    result: Any = None
    failed: str = ""
    """What the code raised, if it did: after all that is recorded, so perhaps as it did then."""


class EndOfLog(HoldfastError):
    """The code has come to the end of what is recorded; from here on it would execute."""


def replay(store: Store, row: RunRow, spec: AgentSpec) -> ReplayResult:
    """Run the code of a run up to the end of its log."""
    return _replayed(_session(store, row, spec), spec)


def calls_by_replay(store: Store, row: RunRow, spec: AgentSpec) -> dict[str, CallSpec]:
    """The steps and tools that the code of a run has called, by name."""
    session = _session(store, row, spec)
    _replayed(session, spec)
    return session.specs


def _session(store: Store, row: RunRow, spec: AgentSpec) -> Session:
    session = Session(
        store,
        row,
        worker="replay",
        config=RunConfig(
            stages=spec.stages, model=spec.state, run_child=_no_child, undo_of_child=_no_child
        ),
    )
    session.journal.keep_past = True
    session.only_replay = EndOfLog(f"run {row.id!r}: the log ends here")
    session.log.load()
    govern(session, spec)
    session.log.read_all()
    return session


def _replayed(session: Session, spec: AgentSpec) -> ReplayResult:
    root = Branch(session)
    flow = _replay(session, spec, root)
    if spec.is_async:
        import asyncio

        from holdfast.runtime.call.async_driver import drive_async

        async def awaited() -> ReplayResult:
            with BranchingTasks(root):
                result: ReplayResult = await drive_async(flow)
                return result

        return asyncio.run(awaited())
    done: ReplayResult = drive(flow)
    return done


def _no_child(*_: object) -> Any:
    raise EndOfLog("a child run is not replayed with its parent")


def _replay(session: Session, spec: AgentSpec, root: Branch) -> Flow[Any]:
    created = session.journal.life.created
    assert created is not None
    run = AsyncRun(session, root) if spec.is_async else Run(session, root)
    steps = session.steps
    try:
        kwargs = spec.decode_input(session.unwrap(created.input))
        raw = yield from run_body(session, spec, run, root, kwargs)
    except BaseException as error:
        signal: BaseException | None = find_signal(error)
        if signal is None and not isinstance(error, Exception):
            raise
        if signal is not None or session.stop_signal is not None:
            return _stopped(session, steps, signal or session.stop_signal)
        failed = f"{type(error).__qualname__}: {error}"
        unasked = [
            (at, entry) for at, entry in session.journal.unasked() if BranchPath(at[0]).is_main
        ]
        if unasked:  # it had come further before: the failure is the new code's
            return ReplayResult(
                session.run_id,
                steps,
                False,
                _early(session, unasked[0], f"the agent fails with {failed}"),
            )
        return ReplayResult(session.run_id, steps, True, failed=failed)
    if session.stop_signal is not None:  # the code caught it and continued
        return _stopped(session, steps, session.stop_signal)
    unasked = session.journal.unasked()
    if unasked:
        return ReplayResult(
            session.run_id, steps, False, _early(session, unasked[0], "the end of the agent")
        )
    return ReplayResult(session.run_id, steps, True, None, raw)


def _stopped(session: Session, steps: int, signal: BaseException | None) -> ReplayResult:
    """It came to the end of what can be replayed, or the code asks for something else."""
    diverged = signal.cause if isinstance(signal, Abandon) else None
    found = diverged if isinstance(diverged, Diverged) else None
    return ReplayResult(session.run_id, steps, False, found)


def _early(session: Session, unasked: tuple[Place, Entry], attempted: str) -> Diverged:
    """The code ends before all that is recorded has been asked for."""
    (branch, index), entry = unasked
    recorded = recorded_text(entry, session.unwrap)
    return Diverged(
        session.run_id, place_name(branch, index), recorded, attempted, place=(branch, index)
    )
