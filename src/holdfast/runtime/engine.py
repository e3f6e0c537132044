"""Start, claim and execute runs in this process.

The engine turns a run's row into a live session, runs the agent's code in it, and gives the lease
back however that ends. It does not decide what the code may do (`flow`), nor who works when
(`worker`); it is what both a plain `hf.run` and a worker use.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.core.log import Head, Record
from holdfast.core.policy import microseconds
from holdfast.errors import (
    Abandon,
    HoldfastError,
    InvalidInput,
    LogDamaged,
    NotDurable,
    NotFound,
    NotResumable,
    RunBusy,
    RunCancelled,
    RunWaiting,
    Signal,
    StoreError,
)
from holdfast.runtime import checkpoints
from holdfast.runtime.clock import elapsed
from holdfast.runtime.commit import commit
from holdfast.runtime.context import Branch
from holdfast.runtime.declare import AgentSpec
from holdfast.runtime.drivers import drive, drive_async
from holdfast.runtime.execute import cancelled_error, execute, outcome_error
from holdfast.runtime.lease import LeaseKeeper
from holdfast.runtime.lookout import Lookout
from holdfast.runtime.resumable import check, check_claimed
from holdfast.runtime.run import AsyncRun, Run
from holdfast.runtime.session import Session, Setting
from holdfast.runtime.suspend import ends
from holdfast.runtime.tasks import branching_tasks
from holdfast.runtime.undo import ask_to_undo
from holdfast.store.base import (
    TERMINAL_STATUSES,
    Append,
    Creation,
    NewRun,
    RowChange,
    RunRow,
    Store,
)
from holdfast.store.ending import newest_first


@dataclass(slots=True)
class Options:
    """How this process executes runs."""

    lease_seconds: float = 30.0
    patience_seconds: float = 5.0
    sleep: Callable[[float], None] = time.sleep
    boundary: Callable[[str], None] | None = None
    """Called before and after every commit and effect: where tests kill the process."""
    stand_in: Callable[[Any], Any] | None = None
    """Given an `Invoke` before it is executed, what to execute instead: how tests mock a tool."""
    quarantine_after: int = 5
    """A run that is claimed this often without getting on has killed its workers."""


@dataclass(slots=True)
class Taken:
    """A run that this process may execute now."""

    row: RunRow
    spec: AgentSpec
    asked_at: float
    head: Head | None = None
    records: Sequence[Record] | None = None
    unchecked: bool = False
    """It was taken because it was due, without a look whether it may be resumed."""


class Engine:
    """Executes runs of one store in this process."""

    def __init__(self, store: Store, options: Options | None = None) -> None:
        self.store = store
        self.options = options or Options()
        self._worker = (0, "")
        self.leases = LeaseKeeper(store, self.options.lease_seconds)
        self.lookout = Lookout(store, self.options.lease_seconds)
        self.agents: dict[str, AgentSpec] = {}

    @property
    def worker(self) -> str:
        """A name that no other process has had: pods and hosts reuse theirs, and a fork inherits ours."""
        if self._worker[0] != os.getpid():
            name = f"{os.uname().nodename[:40]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
            self._worker = (os.getpid(), name)
        return self._worker[1]

    def close(self) -> None:
        self.lookout.close()
        self.leases.close()

    # ── starting and claiming ────────────────────────────────────────────────────────────

    def learn(self, spec: AgentSpec) -> None:
        """Remember an agent, so that its runs can be resumed by their id alone."""
        self.agents[spec.name] = spec

    def agent_of(self, row: RunRow) -> AgentSpec:
        spec = self.agents.get(row.agent)
        if spec is None:
            raise NotFound(
                f"run {row.id!r} is of agent {row.agent!r}, which this process does not know; "
                f"give it with Holdfast(agents=[…]), or call hf.run({row.agent}, id={row.id!r}, …)"
            )
        return spec

    def create(
        self, spec: AgentSpec, run_id: str, kwargs: Mapping[str, Any], *, args: tuple[Any, ...] = (),
        parent: str = "", claim: bool = True, priority: int = 0,
    ) -> Taken | RunRow:  # fmt: skip
        """Create the run, claimed by us if it is new and `claim`; else its row as it is."""
        asked_at = elapsed()
        new, head = self._creation(spec, run_id, kwargs, args, parent, claim, priority)
        row, fresh = self.store.create(
            new.run, new.records, blobs=new.blobs, worker=new.worker, lease_us=new.lease_us
        )
        return Taken(row, spec, asked_at, head, new.records) if fresh and claim else row

    async def create_async(
        self, spec: AgentSpec, run_id: str, kwargs: Mapping[str, Any], *, args: tuple[Any, ...] = (),
        parent: str = "",
    ) -> Taken | RunRow:  # fmt: skip
        """The same on this event loop, claimed."""
        asked_at = elapsed()
        new, head = self._creation(spec, run_id, kwargs, args, parent, claim=True, priority=0)
        row, fresh = await self.store.create_async(new)
        return Taken(row, spec, asked_at, head, new.records) if fresh else row

    def _creation(
        self, spec: AgentSpec, run_id: str, kwargs: Mapping[str, Any], args: tuple[Any, ...], parent: str,
        claim: bool, priority: int,
    ) -> tuple[Creation, Head]:  # fmt: skip
        log.check_run_id(run_id)
        self.learn(spec)
        data, digest = spec.encode_input(args, kwargs)
        value, blob = log.wrap(data)
        now = self.store.now()
        deadline = None if spec.deadline is None else now + microseconds(spec.deadline, "deadline")
        created = e.RunCreated(
            run_id=run_id, agent=spec.name, input=value, code_version=spec.version, deadline_at=deadline,
            budget=spec.budget.limits(), stages=spec.stages, parent=parent, loop=spec.body is not None,
        )  # fmt: skip
        head, records = log.seal(log.origin(run_id), [created], epoch=1 if claim else 0, time=now)
        new = Creation(
            NewRun(run_id, spec.name, digest, spec.version, parent, priority),
            records,
            blobs=() if blob is None else (blob,),
            worker=self.worker if claim else "",
            lease_us=self.leases.lease_us if claim else 0,
        )
        return new, head

    def take(self, row: RunRow, spec: AgentSpec) -> Taken:
        """Claim a run that is not at its end, or say why that is impossible."""
        if row.status == "paused":
            raise RunWaiting(row.id, "somebody to resume it", f"hf.resume({row.id!r})")
        if row.status == "quarantined":
            raise RunWaiting(row.id, f"a person: {row.waiting_for}", f"hf.resume({row.id!r})")
        asked_at = elapsed()
        claimed = self.store.claim(row.id, worker=self.worker, lease_us=self.leases.lease_us)
        if claimed is None:
            now = self.store.get(row.id)
            owner = now.owner if now else "another worker"
            raise RunBusy(
                row.id, f"{owner}, which is executing it", f"hf.run(…, id={row.id!r}, wait=True)"
            )
        return Taken(claimed, spec, asked_at)

    # ── executing ────────────────────────────────────────────────────────────────────────

    def _open(self, taken: Taken) -> tuple[Session, Branch]:
        spec, row = taken.spec, taken.row
        setting = Setting(
            approve=spec.approve, approval_ttl=spec.approval_ttl, stages=spec.stages, model=spec.state,
            run_child=self._run_child, undo_child=self._undo_child, checkpoint=spec.checkpoint,
        )  # fmt: skip
        session = Session(
            self.store, row, worker=self.worker, setting=setting,
            boundary=self.options.boundary, stand_in=self.options.stand_in, sleep=self.options.sleep, patience_us=microseconds(self.options.patience_seconds, "patience_seconds"),
        )  # fmt: skip
        self.leases.hold(session, taken.asked_at)
        try:
            if taken.head is not None and taken.records is not None:
                session.begin(taken.head, taken.records)
            else:
                self._load(session, spec)
                self._set_aside_poison(session, row)
                if taken.unchecked:
                    self._set_aside_not_resumable(session, row, spec)
                session.announce(e.RunClaimed(worker=self.worker, code_version=spec.version))
        except BaseException:  # also an interrupt: a run that does not execute has no lease
            self._close(session)
            raise
        return session, Branch(session)

    def _load(self, session: Session, spec: AgentSpec) -> None:
        """Read the log. A run whose log does not verify is set aside; others are not held up."""
        try:
            is_loop = spec.body is not None
            session.load(checkpoints.restore(self.store, session.run_id) if is_loop else None)
        except LogDamaged as damage:
            self._set_aside_damaged(session, damage)
            raise

    def _set_aside_damaged(self, session: Session, damage: LogDamaged) -> None:
        change = RowChange("quarantined", None, str(damage))
        with contextlib.suppress(StoreError):
            last = self.store.read(session.run_id)[-1].seq
            self.store.append(Append(session.run_id, last, (), session.epoch, change))
            session.settled = True

    def _set_aside_poison(self, session: Session, row: RunRow) -> None:
        """A run whose leases ended again and again without its getting on has killed its workers.

        Or has stopped them (a call into C that keeps the interpreter's lock): nobody can tell from outside,
        and it would go on to stop one after the other.
        """
        if row.claims <= self.options.quarantine_after:
            return
        reason = (
            f"it was taken up {row.claims} times and did not get on; it may kill its workers, or stop them for "
            "longer than a lease"
        )
        raise self._set_aside(session, reason, f"hf.resume({row.id!r})")

    def _set_aside_not_resumable(self, session: Session, row: RunRow, spec: AgentSpec) -> None:
        """A run that is too old is not gone on with by itself, and not claimed again and again either."""
        try:
            check_claimed(self.store, row, spec, ends(session))
        except NotResumable as refused:
            reason = f"{refused.reason}; to override: {refused.override}"
            raise self._set_aside(session, reason, refused.override) from None

    def _set_aside(self, session: Session, reason: str, how: str) -> RunWaiting:
        change = RowChange("quarantined", None, reason)
        drive(commit(session, [e.RunQuarantined(reason=reason)], change=change))
        session.settled = True
        return RunWaiting(session.run_id, f"a person: {reason}", how)

    def _close(self, session: Session, *, died: bool = False) -> None:
        """Give the lease back, unless the run's last event has ended it."""
        self.leases.drop(session)
        if isinstance(session.stopped, Abandon) and isinstance(session.stopped.cause, LogDamaged):
            self._set_aside_damaged(session, session.stopped.cause)
        if session.settled:
            return
        if session.has_news:
            with contextlib.suppress(HoldfastError, Signal):
                session.discard_notes()
                drive(commit(session, []))
        with contextlib.suppress(StoreError):  # then the lease ends by itself
            self.store.release(session.run_id, session.epoch, died=died)

    def execute(self, taken: Taken) -> Any:
        """Run the agent's code here and now, blocking. Its result, or what became of it."""
        if taken.spec.is_async:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                return asyncio.run(self.execute_async(taken))
            raise NotDurable("an async agent inside a running event loop needs AsyncHoldfast")
        session, root = self._open(taken)
        died = False
        try:
            return drive(execute(session, taken.spec, Run(session, root), root))
        except BaseException as error:
            died = _wants_the_process_to_end(error)
            raise
        finally:
            self._close(session, died=died)

    async def execute_async(self, taken: Taken) -> Any:
        """The same on this event loop."""
        if not taken.spec.is_async:
            return await asyncio.to_thread(self.execute, taken)
        # A run that was just created has nothing to be read, and one that has ended no lease to give
        # back: then no thread is needed (each hop costs as much as a step).
        if taken.head is not None:
            session, root = self._open(taken)
        else:
            session, root = await asyncio.to_thread(self._open, taken)
        self.lookout.add(root)
        died = False
        try:
            with branching_tasks(root):
                return await drive_async(
                    execute(session, taken.spec, AsyncRun(session, root), root)
                )
        except BaseException as error:
            died = _wants_the_process_to_end(error)
            raise
        finally:
            self.lookout.remove(root)
            if session.settled and session.stopped is None:
                self._close(session)
            else:
                await asyncio.shield(asyncio.to_thread(partial(self._close, session, died=died)))

    # ── giving back ──────────────────────────────────────────────────────────────────────

    def give_back(self, run_ids: Iterable[str], why: str) -> None:
        """Let these runs (and their children) end here at their next boundary: what is under way is
        recorded, nothing new begins, and any worker may go on at once."""
        for session in self._sessions(run_ids):
            left = RunWaiting(session.run_id, f"a worker: {why}", "it goes on by itself elsewhere")
            session.stop(Abandon(left))

    def let_go(self, rows: Sequence[RunRow]) -> None:
        """Give these runs back now, whatever they are doing: to others it is as if we had died, but
        without the wait for our lease to end."""
        held = {row.id: row.epoch for row in rows}
        for session in self._sessions(list(held)):
            held[session.run_id] = session.epoch
            self.leases.drop(session)
        for run_id, epoch in held.items():
            with contextlib.suppress(StoreError):
                self.store.release(run_id, epoch)

    def _sessions(self, run_ids: Iterable[str]) -> list[Session]:
        """The sessions of these runs, and of the child runs that execute inside them."""
        whose = tuple(run_ids)
        below = tuple(f"{run_id}~" for run_id in whose)
        return [
            s for s in self.leases.sessions() if s.run_id in whose or s.run_id.startswith(below)
        ]

    # ── the end ──────────────────────────────────────────────────────────────────────────

    def result_of(self, row: RunRow, spec: AgentSpec | None = None) -> Any:
        """The recorded result of a run that has ended, or the error that it ended with."""
        for record in newest_first(
            self.store, row.id
        ):  # how it ended stands there, however long it was
            event = log.read_event(row.id, record)
            match event:
                case e.RunCompleted():
                    raw = event.result
                    data = bytes(raw.json) if not raw.blob else self.store.blob(row.id, raw.blob)
                    if data is None:
                        raise NotFound(f"run {row.id!r}: its result is missing from the store")
                    return spec.result.decode(data) if spec else values.decode(data)
                case e.RunFailed():
                    raise outcome_error(row.id, event.reason, event.error.type, event.error.message)
                case e.RunCancelled():
                    raise cancelled_error(row.id, event.by, event.why)
                case _:
                    continue
        raise InvalidInput(f"run {row.id!r} has not ended")

    # ── children ─────────────────────────────────────────────────────────────────────────

    def _child_taken(
        self, spec: AgentSpec, child_id: str, parent: str, kwargs: Mapping[str, Any]
    ) -> Taken | RunRow:
        args, by_name = spec.params.split(kwargs)
        made = self.create(spec, child_id, by_name, args=args, parent=parent)
        return made if isinstance(made, Taken) else self._taken_up(made, spec)

    def _taken_up(self, row: RunRow, spec: AgentSpec) -> Taken | RunRow:
        """A child that may not be resumed holds its parent until a person has overridden that."""
        if row.status in TERMINAL_STATUSES:
            return row
        try:
            check(self.store, row, spec)
        except NotResumable as refused:
            reason = f"a person: {refused.reason}; to override: {refused.override}"
            raise RunWaiting(row.id, reason, refused.override) from None
        return self.take(row, spec)

    def _run_child(
        self, spec: AgentSpec, child_id: str, parent: str, kwargs: Mapping[str, Any]
    ) -> Any:
        """The child's result; for an async agent, something to await."""
        how = self._child_async if spec.is_async else self._child
        return how(spec, child_id, parent, kwargs)

    def _child(self, spec: AgentSpec, child_id: str, parent: str, kwargs: Mapping[str, Any]) -> Any:
        taken = self._child_taken(spec, child_id, parent, kwargs)
        return self.execute(taken) if isinstance(taken, Taken) else self.result_of(taken, spec)

    async def _child_async(
        self, spec: AgentSpec, child_id: str, parent: str, kwargs: Mapping[str, Any]
    ) -> Any:
        args, by_name = spec.params.split(kwargs)
        taken = await self.create_async(spec, child_id, by_name, args=args, parent=parent)
        if not isinstance(taken, Taken):
            taken = await asyncio.to_thread(self._taken_up, taken, spec)
        if isinstance(taken, Taken):
            return await self.execute_async(taken)
        return await asyncio.to_thread(self.result_of, taken, spec)

    def _undo_child(self, spec: AgentSpec, child_id: str) -> Any:
        """Take back what a child run did; for an async agent, something to await."""
        how = self._child_undone_async if spec.is_async else self._child_undone
        return how(spec, child_id)

    def _child_undone(self, spec: AgentSpec, child_id: str) -> None:
        taken = self._taken_to_undo(spec, child_id)
        if taken is not None:
            with contextlib.suppress(RunCancelled):  # so ends a run that was undone
                self.execute(taken)

    async def _child_undone_async(self, spec: AgentSpec, child_id: str) -> None:
        taken = await asyncio.to_thread(self._taken_to_undo, spec, child_id)
        if taken is not None:
            with contextlib.suppress(RunCancelled):
                await self.execute_async(taken)

    def _taken_to_undo(self, spec: AgentSpec, child_id: str) -> Taken | None:
        self.learn(spec)
        row = ask_to_undo(self.store, child_id)
        return None if row is None else self.take(row, spec)


def _wants_the_process_to_end(error: BaseException) -> bool:
    """Whether the run's code asks for the end of its worker, which a person or a loop did not."""
    ours = (Exception, Signal, KeyboardInterrupt, asyncio.CancelledError)
    return not isinstance(error, ours)


__all__ = ["Engine", "HoldfastError", "Options", "Taken"]
