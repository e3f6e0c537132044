"""Child runs of the runs that execute here: execute them inside their parents' calls, end and undo them.

Not here: the call in the parent's log (`call/flow.py`), the tree in memory (`log/lineage.py`), and child runs that
a waiting caller executes (`tree.py`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from holdfast.core import events as e
from holdfast.core.events import ChildUsage
from holdfast.core.fold import fold
from holdfast.core.state import RunState
from holdfast.errors import HoldfastError, NotResumable, RunCancelled
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.declare.call_spec import CallSpec
from holdfast.runtime.exec.actions import (
    Actions,
    Block,
    Create,
    Execute,
    Performer,
    perform,
    perform_async,
)
from holdfast.runtime.exec.claims import ClaimedRun
from holdfast.runtime.exec.execute import result_of
from holdfast.runtime.exec.resumable import check
from holdfast.runtime.log import lineage
from holdfast.runtime.log.lease import LeaseKeeper
from holdfast.runtime.log.lineage import LiveRun
from holdfast.runtime.log.session import Session
from holdfast.store import cancel
from holdfast.store.base import TERMINAL_STATUSES, ClaimFilter, RunRow
from holdfast.store.process import is_held
from holdfast.waiting import WaitingFor
from holdfast.words.waiting import run_waiting, waiting_for_override


class Children:
    """What a session needs of the process for its child runs."""

    def __init__(self, engine: Performer, leases: LeaseKeeper) -> None:
        self._engine, self._claims, self._store = engine, engine.claims, engine.store
        self._leases = leases
        self._lending = threading.Lock()

    def run(
        self, spec: AgentSpec, child_id: str, parent: Session, kwargs: Mapping[str, Any]
    ) -> Any:
        """The child's result; for an async agent, something to await."""
        actions = self._run(spec, child_id, parent, kwargs)
        return (perform_async if spec.is_async else perform)(self._engine, actions)

    def end(self, run_id: str, request: e.CancelRequested) -> None:
        """Cancel the open children of a run that must end. Those that no worker executes end here and now,
        if their agents are known; others at their next call."""
        cancel.cancel_children(self._store, run_id, request)
        for row in cancel.open_children(self._store, run_id):
            spec = self._claims.agents.get(row.agent)
            if spec is not None and not is_held(row, self._store.now()):
                with contextlib.suppress(HoldfastError):  # else a worker ends it
                    self._engine.execute(self._claims.claim(row, spec))

    def undo_of(self, agent: str) -> Callable[..., Any]:
        """What undoes a child run of this agent: here if this process knows the agent, else by a worker."""
        spec = self._claims.agents.get(agent)

        def undo(child_id: str) -> None:
            perform(self._engine, self._undo(spec, child_id))

        async def undo_async(child_id: str) -> None:
            await perform_async(self._engine, self._undo(spec, child_id))

        return undo_async if spec is not None and spec.is_async else undo

    def calls_of(self, run_id: str) -> dict[str, CallSpec]:
        """The steps and tools that the code of a run has called, by name."""
        row = self._store.get(run_id)
        if row is None:
            return {}
        from holdfast.runtime.exec.dry_run import calls_by_replay  # few runs are undone

        return calls_by_replay(self._store, row, self._claims.agent_of(row))

    def _run(
        self, spec: AgentSpec, child_id: str, parent: Session, kwargs: Mapping[str, Any]
    ) -> Actions:
        args, by_name = spec.params.split(kwargs)
        with self._seat(spec, child_id, parent) as quota:
            claim = quota is None
            created: ClaimedRun | RunRow = yield Create(
                self._claims.create(spec, child_id, by_name, args=args, parent=parent, claim=claim)
            )
            if isinstance(created, RunRow):
                claimed: ClaimedRun | RunRow = yield Block(
                    partial(self._claim, created, spec, parent, quota)
                )
                created = claimed
            if isinstance(created, ClaimedRun):
                return (yield Execute(created))
        return (yield Block(partial(self._result_of, created, spec, parent)))

    def _claim(
        self, row: RunRow, spec: AgentSpec, parent: Session, quota: ClaimFilter | None
    ) -> ClaimedRun | RunRow:
        """A child that may not be resumed holds its parent until a person has overridden that."""
        if row.status in TERMINAL_STATUSES:
            return row
        try:
            check(self._store, row, spec)
        except NotResumable as refused:
            waiting = waiting_for_override(refused)
            raise run_waiting(row.id, waiting) from None
        return replace(self._claims.claim(row, spec, quota), parent=parent)

    @contextlib.contextmanager
    def _seat(
        self, spec: AgentSpec, child_id: str, parent: Session
    ) -> Iterator[ClaimFilter | None]:
        """The quota under which a child of a limited agent (`max_running`) executes in its parent's call.

        It needs a seat of its own. But the nearest run above it of the same agent, which is waiting for it, lends
        its seat to one child at a time: so an agent that calls itself makes progress with `max_running=1`. A child
        that gets no seat is left to workers, and its parent is suspended, which frees the parent's seat.
        """
        if spec.max_running is None:
            yield None
            return
        lender: LiveRun | None = None
        with self._lending:
            same = (run for run in lineage.upwards(parent) if run.lineage.agent == spec.name)
            nearest = next(same, None)
            if nearest is not None and not nearest.lineage.seat_lent_to:
                lender = nearest
                lender.lineage.seat_lent_to = child_id
            lineages = [run.lineage for run in self._leases.sessions()]
            lent = sum(x.agent == spec.name and bool(x.seat_lent_to) for x in lineages)
        try:
            yield ClaimFilter(spec.name, spec.version, spec.max_running + lent)
        finally:
            if lender is not None:
                lender.lineage.seat_lent_to = ""

    def _result_of(self, row: RunRow, spec: AgentSpec, parent: Session) -> Any:
        """The outcome of a child that has ended, here or elsewhere; what it used up counts from now on."""
        state = fold(RunState(), self._store.read(row.id))
        parent.lineage.spent[row.id] = ChildUsage(state.steps + state.child_steps, state.usage)
        return result_of(self._store, row, spec)

    def _undo(self, spec: AgentSpec | None, child_id: str) -> Actions:
        claimed: ClaimedRun | None = yield Block(partial(self._claim_to_undo, spec, child_id))
        if claimed is not None:
            with contextlib.suppress(RunCancelled):  # so ends a run that was undone
                yield Execute(claimed)

    def _claim_to_undo(self, spec: AgentSpec | None, child_id: str) -> ClaimedRun | None:
        from holdfast.runtime.exec.undo import ask_to_undo  # here, as few runs are undone

        row = ask_to_undo(self._store, child_id)
        if row is None:
            return None
        if spec is None:
            how = f"start one with {row.agent} in its files"
            raise run_waiting(child_id, WaitingFor("worker", row.agent, how=how))
        return self._claims.claim(row, spec)
