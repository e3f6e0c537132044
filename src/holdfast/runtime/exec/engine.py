"""Start, claim and execute runs in this process.

The engine turns a run's row into a live session, runs the agent's code in it, and gives the lease
back however that ends. It does not decide what the code may do (`flow`), nor who works when
(`worker`); it is what both a plain `hf.run` and a worker use.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.core.events import ChildUsage
from holdfast.core.fold import fold
from holdfast.core.log import Head, Record
from holdfast.core.policy import NO_LIMITS, Limits, microseconds
from holdfast.core.state import RunState
from holdfast.errors import (
    Abandon,
    HoldfastError,
    InvalidInput,
    LogDamaged,
    NotDurable,
    NotFound,
    NotResumable,
    RunCancelled,
    RunWaiting,
    Signal,
    StoreError,
)
from holdfast.runtime.api.run import AsyncRun, Run
from holdfast.runtime.call import checkpoints
from holdfast.runtime.call.commit import commit
from holdfast.runtime.call.drivers import drive, drive_async
from holdfast.runtime.call.suspend import ends
from holdfast.runtime.call.task_factory import branching_tasks
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.declare.call_spec import CallSpec
from holdfast.runtime.exec.dry_run import calls_by_replay
from holdfast.runtime.exec.execute import cancelled_error, execute, outcome_error
from holdfast.runtime.exec.resumable import check, check_claimed
from holdfast.runtime.exec.threads import Threads, in_thread
from holdfast.runtime.exec.undo import ask_to_undo
from holdfast.runtime.exec.uninterrupted import uninterrupted
from holdfast.runtime.exec.watcher import Lookout
from holdfast.runtime.log import lineage
from holdfast.runtime.log.branches import Branch
from holdfast.runtime.log.clock import elapsed
from holdfast.runtime.log.lease import LeaseKeeper, Owner
from holdfast.runtime.log.lineage import LiveRun
from holdfast.runtime.log.log_watcher import LogWatcher
from holdfast.runtime.log.session import Session, Setting
from holdfast.store import cancel
from holdfast.store.artifacts import read_value
from holdfast.store.base import (
    TERMINAL_STATUSES,
    Append,
    Creation,
    Filter,
    NewRun,
    RowChange,
    RunRow,
    Store,
    Wanted,
)
from holdfast.store.brief import read_brief
from holdfast.store.process import has_died_here, is_held, worker_name
from holdfast.store.tail import newest_first
from holdfast.waiting import WaitingFor
from holdfast.words.waiting import run_busy, run_waiting, waiting_for_override

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

LONG_LOG: Final = 10_000
"""The process that executes a run whose log has so many events leaves a snapshot of it for people who look at it."""
SNAPSHOT_EVERY: Final = 50_000
"""And another one each time the log has grown by so many while the run executes."""
CALLER_GONE: Final = "the caller of this one was cancelled"


class Options(Struct):
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


class Taken(Struct):
    """A run that this process may execute now."""

    row: RunRow
    spec: AgentSpec
    asked_at: float
    head: Head | None = None
    records: Sequence[Record] | None = None
    unchecked: bool = False
    """It was taken because it was due, without a look whether it may be resumed."""
    above: Session | None = None
    """The run in whose call it is to be executed."""
    unwanted: threading.Event | None = None
    """Set when the caller that wanted it executed has gone."""


class Engine:
    """Executes runs of one store in this process."""

    def __init__(self, store: Store, options: Options | None = None) -> None:
        self.store = store
        self.options = options or Options()
        self._worker = (0, "")
        self.leases = LeaseKeeper(store, self.options.lease_seconds, self._snapshot_long_logs)
        self._snapshot_at: dict[str, int] = {}
        """By run: how long its log is to be when the next snapshot is left while it executes."""
        self._closing = False
        self.lookout = Lookout(store, self.options.lease_seconds)
        self.agents: dict[str, AgentSpec] = {}
        self.threads = Threads()
        """For what async callers have to wait for."""
        self.logs = LogWatcher(store, self.threads)
        self._lending = threading.Lock()

    @property
    def worker(self) -> str:
        """A name that no other process has had: pods and hosts reuse theirs, and a fork inherits ours."""
        if self._worker[0] != os.getpid():
            self._worker = (os.getpid(), worker_name())
        return self._worker[1]

    def close(self) -> None:
        self._closing = True
        self.lookout.close()
        self.leases.close()
        self.threads.shutdown()

    async def uninterrupted(
        self, fn: Callable[[], T], dispose: Callable[[T], Any] | None = None
    ) -> T:
        """Call `fn` in a thread, to its end also if the caller is cancelled; see `uninterrupted.py`."""
        return await uninterrupted(fn, dispose, threads=self.threads)

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
        above: Session | None = None, claim: bool = True, priority: int = 0, limits: Limits = NO_LIMITS,
    ) -> Taken | RunRow:  # fmt: skip
        """Create the run, claimed by us if it is new and `claim`; else its row as it is. With `above` it is
        a child of that run."""
        asked_at = elapsed()
        new, head = self._creation(spec, run_id, kwargs, args, above, claim, priority, limits)
        row, fresh = self.store.create(new).wait().made
        return (
            Taken(row, spec, asked_at, head, new.records, above=above) if fresh and claim else row
        )

    async def create_async(
        self, spec: AgentSpec, run_id: str, kwargs: Mapping[str, Any], *, args: tuple[Any, ...] = (),
        above: Session | None = None, claim: bool = True, priority: int = 0, limits: Limits = NO_LIMITS,
    ) -> Taken | RunRow:  # fmt: skip
        """The same on this event loop."""
        import asyncio

        asked_at = elapsed()
        new, head = self._creation(spec, run_id, kwargs, args, above, claim, priority, limits)
        try:
            row, fresh = (await self.store.create(new)).made
        except asyncio.CancelledError:  # by now it has been created, or not
            if new.row is not None and new.is_new and claim:
                unwanted = Taken(new.row, spec, asked_at)
                await self.uninterrupted(partial(self.put_back, unwanted))
            raise
        return (
            Taken(row, spec, asked_at, head, new.records, above=above) if fresh and claim else row
        )

    def _creation(
        self, spec: AgentSpec, run_id: str, kwargs: Mapping[str, Any], args: tuple[Any, ...],
        above: Session | None, claim: bool, priority: int, given: Limits,
    ) -> tuple[Creation, Head]:  # fmt: skip
        log.check_run_id(run_id)
        self.learn(spec)
        data, digest = spec.encode_input(args, kwargs)
        value, blob = log.wrap(data)
        now = self.store.now()
        limits, inherited = lineage.at_creation(spec, now, above, given)
        parent = "" if above is None else above.run_id
        created = e.RunCreated(
            run_id=run_id, agent=spec.name, input=value, code_version=spec.version, deadline_at=limits.deadline_at,
            budget=dict(limits.budget), stages=spec.stages, parent=parent, loop=spec.body is not None, policy=inherited,
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

    def take(self, row: RunRow, spec: AgentSpec, within: Wanted | None = None) -> Taken:
        """Claim a run that is not at its end, or say why that is impossible. With `within`, only if there is
        room for it."""
        if row.status == "paused":
            raise run_waiting(row.id, WaitingFor("resume"))
        if row.status == "quarantined":
            raise run_waiting(row.id, *self._why_quarantined(row))
        asked_at = elapsed()
        claim = partial(
            self.store.claim,
            row.id,
            worker=self.worker,
            lease_us=self.leases.lease_us,
            within=within,
        )
        claimed = claim()
        now = self.store.get(row.id) if claimed is None else None
        if now is not None and self._release_if_dead(now):
            claimed = claim()
        if claimed is None:
            if within is not None and now is not None and not now.is_live(self.store.now()):
                room = WaitingFor("room", spec.name, limit=spec.max_running or 0)
                raise run_waiting(row.id, room)
            owner = now.owner if now else "another worker"
            raise run_busy(row.id, owner, f"hf.result({row.id!r}) waits for its end")
        return Taken(claimed, spec, asked_at)

    def _release_if_dead(self, row: RunRow) -> bool:
        """End the lease of a process that has died on this machine. By its epoch: if another process claimed the
        run meanwhile, nothing happens."""
        if not row.is_live(self.store.now()) or not has_died_here(row.owner):
            return False
        return self.store.release(row.id, row.epoch, died=True)

    def release_dead(self, *, limit: int = 1000) -> None:
        """End the leases of processes that have died on this machine, among the newest runs."""
        rows = self.store.runs(Filter(status="running"), limit=limit)
        dead = {owner for owner in {row.owner for row in rows} if has_died_here(owner)}
        for row in rows:
            if row.owner in dead:
                self._release_if_dead(row)

    def take_within_limits(self, row: RunRow, spec: AgentSpec) -> Taken | None:
        """Claim a run as a worker would: if there is room for it. None if that is impossible."""
        within = Wanted(spec.name, spec.version, spec.max_running)
        with contextlib.suppress(RunWaiting):
            return replace(self.take(row, spec, within), unchecked=True)
        return None

    def put_back(self, taken: object) -> None:
        """Release a run that was claimed and is not executed after all; anything else is left alone."""
        if isinstance(taken, Taken):
            with contextlib.suppress(StoreError):  # then the lease ends by itself
                self.store.release(taken.row.id, taken.row.epoch)

    # ── executing ────────────────────────────────────────────────────────────────────────

    def _open(self, taken: Taken, owner: Owner) -> tuple[Session, Branch]:
        spec, row = taken.spec, taken.row
        setting = Setting(
            stages=spec.stages,
            model=spec.state,
            checkpoint=spec.checkpoint,
            run_child=self._run_child,
            agents=self.agents,
            calls_of=self._calls_of,
            undo_of_child=self._undo_of_child,
            end_children=self._end_children,
        )
        session = Session(
            self.store,
            row,
            worker=self.worker,
            setting=setting,
            boundary=self.options.boundary,
            stand_in=self.options.stand_in,
            sleep=self.options.sleep,
            patience_us=microseconds(self.options.patience_seconds, "patience_seconds"),
        )
        self.leases.hold(session, taken.asked_at, owner)
        try:
            if taken.head is not None and taken.records is not None:
                session.log.begin(taken.head, taken.records)
                lineage.govern(session, spec, taken.above)
            else:
                self._load(session, spec)
                lineage.govern(session, spec, taken.above)
                self._set_aside_poison(session, row)
                if taken.unchecked:
                    self._set_aside_not_resumable(session, row, spec)
                session.announce(e.RunClaimed(worker=self.worker, code_version=spec.version))
            if row.parent:
                self._heed_cancellation(session, row.parent)
        except BaseException:  # also an interrupt: a run that does not execute has no lease
            self._close(session)
            raise
        return session, Branch(session)

    def _heed_cancellation(self, session: Session, parent: str) -> None:
        """A child whose parent is cancelled begins no call. It is looked for after the child was created or
        claimed: a cancellation that comes later finds the child. One that a person has restarted goes on."""
        if session.journal.life.cancel is not None or session.journal.life.is_undone:
            return
        if session.lineage.parent is None:
            asked = cancel.cancelled_above(self.store, parent)
        else:
            asked = self._cancelled_here(session)
        if asked is not None and self.store.last_restart(session.run_id) < 0:
            cancel.request(self.store, session.run_id, asked)
            session.catch_up()

    def _cancelled_here(self, session: Session) -> e.CancelRequested | None:
        """The cancellation of a run above this one that executes here. Its session may not know of it yet."""
        above = list(session.lineage.ancestors())
        ends = self.store.heads([run.run_id for run in above])
        for run in above:
            if run.journal.life.cancel is None and ends.get(run.run_id, -1) > run.read_to:
                new = self.store.read(run.run_id, after=run.read_to)
                found = cancel.requested(run.run_id, new[::-1])
            else:
                found = run.journal.life.cancel
            if found is not None:
                return found
        return None

    def _load(self, session: Session, spec: AgentSpec) -> None:
        """Read the log. A run whose log does not verify is set aside; others are not held up."""
        try:
            is_loop = spec.body is not None
            session.log.load(checkpoints.restore(self.store, session.run_id) if is_loop else None)
        except LogDamaged as damage:
            self._set_aside_damaged(session, damage)
            raise

    def _set_aside_damaged(self, session: Session, damage: LogDamaged) -> None:
        change = RowChange("quarantined", None, str(damage))
        with contextlib.suppress(StoreError):
            last = self.store.head(session.run_id)
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
            f"it was claimed {row.claims} times without progress; it may kill its workers, or block them for "
            "longer than a lease"
        )
        raise self._set_aside(session, WaitingFor("quarantine", reason=reason))

    def _set_aside_not_resumable(self, session: Session, row: RunRow, spec: AgentSpec) -> None:
        """A run that is too old is not gone on with by itself, and not claimed again and again either."""
        try:
            check_claimed(self.store, row, spec, ends(session))
        except NotResumable as refused:
            waiting = waiting_for_override(refused)
            raise self._set_aside(session, waiting) from None

    def _why_quarantined(self, row: RunRow) -> Sequence[WaitingFor]:
        """What is recorded; the log of one that was quarantined because of its log has nothing of it."""
        with contextlib.suppress(LogDamaged):
            state = read_brief(self.store, row.id)
            if state.status == "quarantined":
                return state.waiting
        return (WaitingFor("quarantine", reason=row.waiting_for),)

    def _set_aside(self, session: Session, waiting: WaitingFor) -> RunWaiting:
        change = RowChange("quarantined", None, waiting.reason)
        event = e.RunQuarantined(reason=waiting.reason, waits=(waiting,))
        drive(commit(session, [event], change=change))
        session.settled = True
        return run_waiting(session.run_id, waiting)

    def _close(self, session: Session, *, died: bool = False) -> None:
        """Give the lease back, unless the run's last event has ended it."""
        lineage.leave(session)
        self.leases.drop(session)
        self._snapshot_at.pop(session.run_id, None)
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
            import asyncio

            try:
                asyncio.get_running_loop()
            except RuntimeError:
                return asyncio.run(self.execute_async(taken))
            raise NotDurable("an async agent inside a running event loop needs AsyncHoldfast")
        if taken.unwanted is not None and taken.unwanted.is_set():
            self.put_back(taken)
            raise run_waiting(taken.row.id, WaitingFor("worker", reason=CALLER_GONE))
        session, root = self._open(taken, threading.current_thread())
        if taken.unwanted is not None and taken.unwanted.is_set():
            self.give_back([taken.row.id], CALLER_GONE)
        died = False
        try:
            return drive(execute(session, taken.spec, Run(session, root), root))
        except BaseException as error:
            died = _wants_the_process_to_end(error)
            raise
        finally:
            self._close(session, died=died)
            if session.log.head.seq >= LONG_LOG:
                self._leave_snapshot(session)

    async def execute_async(self, taken: Taken) -> Any:
        """The same on this event loop."""
        import asyncio

        if not taken.spec.is_async:
            return await self._execute_in_thread(taken)
        # A run that was just created has nothing to be read, and one that has ended no lease to give
        # back: then no thread is needed (each hop costs as much as a step).
        owner = asyncio.current_task()
        assert owner is not None
        if taken.head is not None and taken.above is None:
            session, root = self._open(taken, owner)
        else:
            session, root = await self._opened(taken, owner)
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
                await self.uninterrupted(partial(self._close, session, died=died))
            if session.log.head.seq >= LONG_LOG:
                await self.uninterrupted(partial(self._leave_snapshot, session))

    def _snapshot_long_logs(self, sessions: Sequence[Session]) -> None:
        """Now and then while runs execute, so that a person who looks at one reads only what follows."""
        for session in sessions:
            length = session.log.head.seq
            if session.log.knows_all and length >= self._snapshot_at.get(session.run_id, LONG_LOG):
                self._snapshot_at[session.run_id] = length + SNAPSHOT_EVERY
                self.threads.submit(self._leave_snapshot, session)

    def _leave_snapshot(self, session: Session) -> None:
        """For people who look at the run: then they read only what follows."""
        with contextlib.suppress(HoldfastError):
            read_brief(self.store, session.run_id, through=self._until_closed)

    def _until_closed(self, records: Iterable[Record]) -> Iterator[Record]:
        """A reader in another thread must not hold up the end of the process."""
        for record in records:
            if self._closing:
                return
            yield record

    async def _opened(self, taken: Taken, owner: Owner) -> tuple[Session, Branch]:
        """Open the run in a thread. If the caller is cancelled meanwhile, it is closed again."""
        open_ = partial(self._open, taken, owner)
        return await self.uninterrupted(open_, lambda opened: self._close(opened[0]))

    async def _execute_in_thread(self, taken: Taken) -> Any:
        """Execute a plain agent. Its code cannot be interrupted: if the caller is cancelled, the run is given
        back at its next boundary, and its thread is not waited for."""
        import asyncio

        taken.unwanted = threading.Event()
        work = in_thread(self.threads, partial(self.execute, taken))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(_look_at)
            taken.unwanted.set()
            self.give_back([taken.row.id], CALLER_GONE)
            raise

    # ── giving back ──────────────────────────────────────────────────────────────────────

    def give_back(self, run_ids: Iterable[str], why: str) -> None:
        """Let these runs (and their children) end here at their next boundary: what is under way is
        recorded, nothing new begins, and any worker may go on at once."""
        for session in self._sessions(run_ids):
            left = run_waiting(session.run_id, WaitingFor("worker", reason=why))
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
        last = -1
        for record in newest_first(self.store, row.id):
            last = max(last, record.seq)
            event = log.read_event(row.id, record)
            match event:
                case e.RunCompleted():
                    data = read_value(self.store, row.id, event.result, seq=record.seq)
                    return spec.result.decode(data) if spec else values.decode(data)
                case e.RunFailed():
                    root, error = log.root_of(row.id, row.parent), event.error
                    raise outcome_error(row.id, event.reason, error.type, error.message, root)
                case e.RunCancelled():
                    raise cancelled_error(row.id, event.by, event.why)
                case _:
                    continue
        if row.status in TERMINAL_STATUSES:
            raise LogDamaged(row.id, last + 1, "it is missing")
        raise InvalidInput(f"run {row.id!r} has not ended")

    # ── children ─────────────────────────────────────────────────────────────────────────

    def _child_taken(
        self,
        spec: AgentSpec,
        child_id: str,
        above: Session,
        kwargs: Mapping[str, Any],
        within: Wanted | None,
    ) -> Taken | RunRow:
        args, by_name = spec.params.split(kwargs)
        made = self.create(spec, child_id, by_name, args=args, above=above, claim=within is None)
        return made if isinstance(made, Taken) else self._taken_up(made, spec, above, within)

    def _taken_up(
        self, row: RunRow, spec: AgentSpec, above: Session, within: Wanted | None
    ) -> Taken | RunRow:
        """A child that may not be resumed holds its parent until a person has overridden that."""
        if row.status in TERMINAL_STATUSES:
            return row
        try:
            check(self.store, row, spec)
        except NotResumable as refused:
            waiting = waiting_for_override(refused)
            raise run_waiting(row.id, waiting) from None
        return replace(self.take(row, spec, within), above=above)

    def _run_child(
        self, spec: AgentSpec, child_id: str, above: Session, kwargs: Mapping[str, Any]
    ) -> Any:
        """The child's result; for an async agent, something to await."""
        how = self._child_async if spec.is_async else self._child
        return how(spec, child_id, above, kwargs)

    def _child(
        self, spec: AgentSpec, child_id: str, above: Session, kwargs: Mapping[str, Any]
    ) -> Any:
        with self._seat(spec, child_id, above) as within:
            taken = self._child_taken(spec, child_id, above, kwargs, within)
            if isinstance(taken, Taken):
                return self.execute(taken)
        return self._result_of_child(taken, spec, above)

    async def _child_async(
        self, spec: AgentSpec, child_id: str, above: Session, kwargs: Mapping[str, Any]
    ) -> Any:
        args, by_name = spec.params.split(kwargs)
        with self._seat(spec, child_id, above) as within:
            claim = within is None
            taken = await self.create_async(
                spec, child_id, by_name, args=args, above=above, claim=claim
            )
            if not isinstance(taken, Taken):
                claim_it = partial(self._taken_up, taken, spec, above, within)
                taken = await self.uninterrupted(claim_it, self.put_back)
            if isinstance(taken, Taken):
                return await self.execute_async(taken)
        return await in_thread(self.threads, partial(self._result_of_child, taken, spec, above))

    @contextlib.contextmanager
    def _seat(self, spec: AgentSpec, child_id: str, above: Session) -> Iterator[Wanted | None]:
        """The room that a child of a limited agent (`max_running`) has while it executes in its parent's call.

        It needs a seat of its own. But the nearest run above it of the same agent, which waits for it, lends
        its seat to one child at a time: so an agent that calls itself gets on with `max_running=1`. A child
        that finds no room is left to workers, and its parent is suspended, which frees the parent's seat.
        """
        if spec.max_running is None:
            yield None
            return
        lender: LiveRun | None = None
        with self._lending:
            same = (run for run in lineage.upwards(above) if run.lineage.agent == spec.name)
            nearest = next(same, None)
            if nearest is not None and not nearest.lineage.seat_lent_to:
                lender = nearest
                lender.lineage.seat_lent_to = child_id
            held = [run.lineage for run in self.leases.sessions()]
            lent = sum(x.agent == spec.name and bool(x.seat_lent_to) for x in held)
        try:
            yield Wanted(spec.name, spec.version, spec.max_running + lent)
        finally:
            if lender is not None:
                lender.lineage.seat_lent_to = ""

    def _result_of_child(self, row: RunRow, spec: AgentSpec, above: Session) -> Any:
        """The outcome of a child that has ended, here or elsewhere; what it used up counts from now on."""
        ended = fold(RunState(), self.store.read(row.id))
        above.lineage.spent[row.id] = ChildUsage(ended.steps + ended.child_steps, ended.usage)
        return self.result_of(row, spec)

    def _end_children(self, run_id: str, asked: e.CancelRequested) -> None:
        """Cancel the open children of a run that must end. Those that no worker executes end here and now,
        if their agents are known; others at their next call."""
        cancel.cancel_children(self.store, run_id, asked)
        for row in cancel.open_children(self.store, run_id):
            spec = self.agents.get(row.agent)
            if spec is not None and not is_held(row, self.store.now()):
                with contextlib.suppress(HoldfastError):  # else a worker ends it
                    self.execute(self.take(row, spec))

    def _calls_of(self, run_id: str) -> dict[str, CallSpec]:
        row = self.store.get(run_id)
        return {} if row is None else calls_by_replay(self.store, row, self.agent_of(row))

    def _undo_of_child(self, agent: str) -> Callable[..., Any]:
        """What undoes a child run of this agent: here if this process knows the agent, else by a worker."""
        spec = self.agents.get(agent)
        if spec is None or not spec.is_async:

            def undo(child_id: str, idempotency_key: str = "") -> None:  # noqa: ARG001
                taken = self._taken_to_undo(spec, child_id)
                if taken is not None:
                    with contextlib.suppress(RunCancelled):  # so ends a run that was undone
                        self.execute(taken)

            return undo

        async def undo_async(child_id: str, idempotency_key: str = "") -> None:  # noqa: ARG001
            take = partial(self._taken_to_undo, spec, child_id)
            taken = await self.uninterrupted(take, self.put_back)
            if taken is not None:
                with contextlib.suppress(RunCancelled):
                    await self.execute_async(taken)

        return undo_async

    def _taken_to_undo(self, spec: AgentSpec | None, child_id: str) -> Taken | None:
        row = ask_to_undo(self.store, child_id)
        if row is None:
            return None
        if spec is None:
            how = f"start one with {row.agent} in its files"
            raise run_waiting(child_id, WaitingFor("worker", row.agent, how=how))
        return self.take(row, spec)


def _look_at(work: asyncio.Future[Any]) -> None:
    """How it ended is in the log: nobody is left here to be told."""
    if not work.cancelled():
        work.exception()


def _wants_the_process_to_end(error: BaseException) -> bool:
    """Whether the run's code asks for the end of its worker, which a person or a loop did not."""
    import asyncio

    ours = (Exception, Signal, KeyboardInterrupt, asyncio.CancelledError)
    return not isinstance(error, ours)


__all__ = ["Engine", "HoldfastError", "Options", "Taken"]
