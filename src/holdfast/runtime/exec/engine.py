"""Execute runs in this process: what both a plain `hf.run` and a worker use.

The engine runs the agent's code in a live session, and releases the run however that ends. It puts together the
parts that do the rest: `claims.py` (create and claim), `sessions.py` (open and close), `children.py`.

Not here: what the code may do (`call/flow.py`), and who executes what when (`worker.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct

from holdfast.core.policy import microseconds
from holdfast.errors import InvalidInput, NotDurable, Unwind
from holdfast.runtime.api.run import AsyncRun, Run
from holdfast.runtime.call.driver import drive
from holdfast.runtime.call.task_factory import BranchingTasks
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.exec.children import Children
from holdfast.runtime.exec.claims import ClaimedRun, Claims
from holdfast.runtime.exec.execute import execute
from holdfast.runtime.exec.sessions import ReaderSnapshots, Sessions
from holdfast.runtime.exec.threads import Threads, in_thread, uninterrupted
from holdfast.runtime.exec.watcher import CancelWatcher
from holdfast.runtime.log.branches import Branch
from holdfast.runtime.log.lease import LeaseKeeper, Owner
from holdfast.runtime.log.log_watcher import LogWatcher
from holdfast.runtime.log.session import RunConfig, Session
from holdfast.store.base import Store
from holdfast.waiting import WaitingFor
from holdfast.words.waiting import run_waiting

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

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
    """A run that is claimed this often without progress has killed its workers."""

    def __post_init__(self) -> None:
        if microseconds(self.lease_seconds, "lease_seconds") == 0:
            raise InvalidInput("lease_seconds must be more than 0")
        microseconds(self.patience_seconds, "patience_seconds")
        limit: object = self.quarantine_after
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise InvalidInput(f"quarantine_after must be a number from 1 on, not {limit!r}")
        for name in ("sleep", "boundary", "stand_in"):
            given = getattr(self, name)
            if not (callable(given) or (given is None and name != "sleep")):
                raise InvalidInput(f"{name} must be a function, not {given!r}")


class Engine:
    """Executes runs of one store in this process."""

    def __init__(self, store: Store, options: Options | None = None) -> None:
        self.store = store
        self.options = options or Options()
        self.threads = Threads()
        """For what async callers have to wait for."""
        self.snapshots = ReaderSnapshots(store, self.threads)
        self.leases = LeaseKeeper(store, self.options.lease_seconds, self.snapshots.save_due)
        self.claims = Claims(store, self.leases.lease_us, self.threads)
        self.agents = self.claims.agents
        self._configs: dict[str, tuple[AgentSpec, RunConfig]] = {}
        self.sessions = Sessions(store, self.leases, self.snapshots, self.options.quarantine_after)
        self.children = Children(self, self.leases)
        self.cancel_watcher = CancelWatcher(store, self.options.lease_seconds)
        self.logs = LogWatcher(store, self.threads)

    def close(self) -> None:
        self.snapshots.close()
        self.cancel_watcher.close()
        self.leases.close()
        self.threads.shutdown()

    async def uninterrupted(
        self, fn: Callable[[], T], dispose: Callable[[T], Any] | None = None
    ) -> T:
        """Call `fn` in a thread, to its end also if the caller is cancelled; see `threads.uninterrupted`."""
        return await uninterrupted(fn, dispose, threads=self.threads)

    def execute(self, claimed: ClaimedRun) -> Any:
        """Run the agent's code here and now, blocking. Its result, or the exception for how it ended."""
        if claimed.spec.is_async:
            import asyncio

            try:
                asyncio.get_running_loop()
            except RuntimeError:
                return asyncio.run(self.execute_async(claimed))
            raise NotDurable("an async agent inside a running event loop needs AsyncHoldfast")
        if claimed.unwanted is not None and claimed.unwanted.is_set():
            self.claims.release(claimed)
            raise run_waiting(claimed.row.id, WaitingFor("worker", reason=CALLER_GONE))
        session, root = self._open(claimed, threading.current_thread())
        if claimed.unwanted is not None and claimed.unwanted.is_set():
            self.sessions.stop([claimed.row.id], CALLER_GONE)
        died = False
        try:
            return drive(execute(session, claimed.spec, Run(session, root), root))
        except BaseException as error:
            died = _wants_the_process_to_end(error)
            raise
        finally:
            self.sessions.close(session, died=died)
            if self.snapshots.is_due_at_end(session):
                self.snapshots.save(session)

    async def execute_async(self, claimed: ClaimedRun) -> Any:
        """The same on this event loop."""
        import asyncio

        from holdfast.runtime.call.async_driver import drive_async

        if not claimed.spec.is_async:
            return await self._execute_in_thread(claimed)
        # A run that was just created has nothing to be read, and one that has ended no lease to release:
        # then no thread is needed (each hop costs as much as a step).
        owner = asyncio.current_task()
        assert owner is not None
        if claimed.head is not None and claimed.parent is None:
            session, root = self._open(claimed, owner)
        else:
            session, root = await self._open_in_thread(claimed, owner)
        self.cancel_watcher.add(root)
        died = False
        try:
            with BranchingTasks(root):
                run = AsyncRun(session, root)
                return await drive_async(execute(session, claimed.spec, run, root))
        except BaseException as error:
            died = _wants_the_process_to_end(error)
            raise
        finally:
            self.cancel_watcher.remove(root)
            if session.settled and session.stop_signal is None:
                self.sessions.close(session)
            else:
                await self.uninterrupted(partial(self.sessions.close, session, died=died))
            if self.snapshots.is_due_at_end(session):
                await self.uninterrupted(partial(self.snapshots.save, session))

    async def _open_in_thread(self, claimed: ClaimedRun, owner: Owner) -> tuple[Session, Branch]:
        """Open the run in a thread. If the caller is cancelled meanwhile, it is closed again."""
        open_ = partial(self._open, claimed, owner)
        return await self.uninterrupted(open_, lambda opened: self.sessions.close(opened[0]))

    async def _execute_in_thread(self, claimed: ClaimedRun) -> Any:
        """Execute a plain agent. Its code cannot be interrupted: if the caller is cancelled, the run is released
        at its next boundary, and its thread is not waited for."""
        import asyncio

        claimed.unwanted = threading.Event()
        work = in_thread(self.threads, partial(self.execute, claimed))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(_read_exception)
            claimed.unwanted.set()
            self.sessions.stop([claimed.row.id], CALLER_GONE)
            raise

    def _config(self, spec: AgentSpec) -> RunConfig:
        return RunConfig(
            stages=spec.stages,
            model=spec.state,
            checkpoint=spec.checkpoint,
            commits_receipts=spec.checkpoint.at_step,
            run_child=self.children.run,
            agents=self.agents,
            calls_of=self.children.calls_of,
            undo_of_child=self.children.undo_of,
            end_children=self.children.end,
            threads=self.threads,
        )

    def _open(self, claimed: ClaimedRun, owner: Owner) -> tuple[Session, Branch]:
        spec, options = claimed.spec, self.options
        made = self._configs.get(spec.name)
        if made is None or made[0] is not spec:
            made = self._configs[spec.name] = spec, self._config(spec)
        session = Session(
            self.store,
            claimed.row,
            worker=claimed.row.owner,
            config=made[1],
            boundary=options.boundary,
            stand_in=options.stand_in,
            sleep=options.sleep,
            patience_us=microseconds(options.patience_seconds, "patience_seconds"),
        )
        self.sessions.open(session, claimed, owner)
        return session, Branch(session)


def _read_exception(work: asyncio.Future[Any]) -> None:
    """How it ended is in the log, and no caller is left here."""
    if not work.cancelled():
        work.exception()


def _wants_the_process_to_end(error: BaseException) -> bool:
    """Whether the run's code asks for the end of its worker, which a person or a loop did not."""
    import asyncio

    ours = (Exception, Unwind, KeyboardInterrupt, asyncio.CancelledError)
    return not isinstance(error, ours)


__all__ = ["Engine", "Options"]
