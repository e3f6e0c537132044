"""A worker: claim runs that are due and execute them, until it is stopped.

Plain agents run in threads, async ones as tasks of one event loop; `concurrency` is how many runs are
under way in all. What this worker may not run (an agent it does not know, a version it does not continue)
is left for others and reported once.

When it is stopped, it claims no more and releases its runs at their next boundary: the call in progress ends and
is recorded, and any worker may resume the run at once. A run that is still inside a call after `grace` seconds is
released too, as after a crash, but other workers need not wait for its lease to expire.

If the store fails for a moment, the worker retries; nothing is lost, because what is due is in the store. If this
process must not use the store any more, the worker ends, so that its supervisor can start another.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from holdfast.errors import (
    Conflict,
    HoldfastError,
    KeyTaken,
    LeaseLost,
    RunCancelled,
    RunFailed,
    RunWaiting,
    StoreBroken,
    StoreError,
)
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.declare.json_schema import register
from holdfast.runtime.exec.claims import ClaimedRun
from holdfast.runtime.exec.engine import Engine
from holdfast.runtime.exec.schedules import fire_due
from holdfast.runtime.log.clock import elapsed
from holdfast.store.base import ClaimFilter, RunRow

IDLE_SECONDS: Final = 30.0
"""How long one wait for something to do lasts at most; the store polls meanwhile."""
CROWDED_SECONDS: Final = (0.02, 0.5)
"""How long to wait, at first and at most, when what is due cannot be claimed (a limit is reached)."""
SCHEDULE_SECONDS: Final = 1.0
REPORT_UNKNOWN_SECONDS: Final = 30.0
FAILURE_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""How long to wait after the first, second … failure of the store in a row."""
STOPPING: Final = "this one is stopping"

_log: Final = logging.getLogger("holdfast.worker")


@dataclass(frozen=True, slots=True)
class Report:
    """Something that a worker reports.

    `status` is what became of a run: completed, failed, cancelled, waiting, released, or left (this
    worker may not resume it); or `unknown` for a kind of runs that it may not run at all.
    """

    status: str
    agent: str
    run_id: str = ""
    seconds: float = 0.0
    detail: str = ""


class Worker:
    """Executes due runs of some agents; by default of all that its engine knows."""

    def __init__(
        self,
        engine: Engine,
        *,
        agents: Iterable[AgentSpec] | None = None,
        concurrency: int = 1,
        grace: float = 10.0,
        report: Callable[[Report], None] | None = None,
    ) -> None:
        self._engine = engine
        self._agents = None if agents is None else {spec.name: spec for spec in agents}
        self._concurrency = concurrency
        self.grace = grace
        self._report = report
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where async agents execute: on this event loop, which another thread runs, or on a loop of the worker's own."""
        self._executor = _Executor(self._execute, self._execute_async)
        """Where runs execute."""
        self._busy: dict[str, RunRow] = {}
        self._stopping = False
        self._changed = threading.Condition()
        self._failures = 0
        self._failed_at = 0.0
        self._fire_at = self._report_unknown_at = self._release_at = 0.0
        self._idle = False
        """Nothing was due a moment ago."""
        self._crowded = CROWDED_SECONDS[0]
        self._unknown: set[tuple[str, str]] = set()
        self._registered: list[AgentSpec] = []
        self.claimed = 0

    @property
    def under_way(self) -> int:
        """How many runs it is executing."""
        return len(self._busy)

    def stop(self) -> None:
        """Claim no more, and release what is in progress. May be called from any thread."""
        with self._changed:
            self._stopping = True
            under_way = list(self._busy)
            self._changed.notify_all()
        self._engine.sessions.stop(under_way, STOPPING)
        self._engine.store.nudge()

    def run(self, *, once: bool = False) -> int:
        """Work until stopped; with `once`, until nothing is due. How many runs were claimed."""
        self._executor = _Executor(self._execute, self._execute_async, self.loop)
        try:
            while not self._stopping:
                try:
                    if not self._iterate(once=once):
                        break
                except StoreBroken:
                    raise
                except StoreError as error:
                    self._pause_after(error)
        finally:
            self._drain()
            self._stopping = False
        return self.claimed

    # ── one iteration ────────────────────────────────────────────────────────────────────

    def _iterate(self, *, once: bool) -> bool:
        """Claim as many runs as there are free slots, or wait; False if there is nothing to wait for."""
        self._recover()
        self._release_dead()
        self._register()
        fired = self._fire_schedules()
        busy = len(self._busy)  # before the claim: what ends after it may leave something due
        room = self._concurrency - busy
        if room <= 0:  # schedules are still due, and other workers may have free slots
            until_fire = self._fire_at - elapsed()
            self._wait_here(until_fire, lambda: len(self._busy) < self._concurrency)
            return True
        filters = self._claim_filters()
        if self._idle and not fired and not once:
            self._report_unknown(filters)
            self._wait_for_more(filters)
            return True
        self._idle = False
        runs = self._engine.claims.claim_due(
            self._known(), filters, limit=room, exclude=list(self._busy)
        )
        if runs:
            self._crowded = CROWDED_SECONDS[0]
            self._begin(runs)
            return True
        self._failures = 0
        self._report_unknown(filters)
        if once:
            self._wait_here(SCHEDULE_SECONDS, lambda: len(self._busy) < max(busy, 1))
            return busy > 0
        self._wait_for_more(filters)
        return True

    def _register(self) -> None:
        """Register the agents that it has not registered yet: then runs of them can be started by name."""
        known = list(self._known().values())
        if len(known) != len(self._registered) or any(
            a is not b for a, b in zip(known, self._registered, strict=True)
        ):
            register(self._engine.store, known)
            self._registered = known

    def _wait_for_more(self, filters: list[ClaimFilter]) -> None:
        # No wake-up comes when another worker claims a run, or when it dies: look within half a lease.
        timeout = min(IDLE_SECONDS, self._engine.options.lease_seconds / 2)
        due = self._engine.store.wait_due(
            filters, timeout=timeout, stop_when=lambda: self._stopping
        )
        self._idle = not due
        self._fire_at = 0.0 if due else elapsed() + timeout
        if due and not self._stopping:
            # If it cannot be claimed, a limit is reached or another worker was faster: do not insist.
            busy = len(self._busy)
            pause = self._crowded * random.uniform(0.5, 1.0)  # noqa: S311 (only to spread)
            if self._crowded > CROWDED_SECONDS[0]:
                self._wait_here(pause, lambda: len(self._busy) < busy)
            self._crowded = min(self._crowded * 2, CROWDED_SECONDS[1])
        else:
            self._crowded = CROWDED_SECONDS[0]

    def _wait_here(self, seconds: float, predicate: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or predicate(), timeout=seconds)

    def _known(self) -> dict[str, AgentSpec]:
        return self._engine.agents if self._agents is None else self._agents

    def _claim_filters(self) -> list[ClaimFilter]:
        return [
            ClaimFilter(spec.name, version, spec.max_running)
            for spec in list(self._known().values())
            for version in dict.fromkeys((spec.version, *spec.continues))
        ]

    def _fire_schedules(self) -> int:
        """Start the runs that schedules have due; how many."""
        if elapsed() < self._fire_at:
            return 0
        self._fire_at = elapsed() + SCHEDULE_SECONDS
        return fire_due(self._engine, self._known())

    def _release_dead(self) -> None:
        """Do not wait for the leases of workers that have died on this machine."""
        if elapsed() >= self._release_at:
            self._release_at = elapsed() + self._engine.options.lease_seconds / 3
            self._engine.claims.release_dead()

    def _report_unknown(self, filters: list[ClaimFilter]) -> None:
        """Report, once for each kind, what is due and not for us."""
        if elapsed() < self._report_unknown_at:
            return
        self._report_unknown_at = elapsed() + REPORT_UNKNOWN_SECONDS
        ours = {(one.agent, one.code_version) for one in filters}
        store = self._engine.store
        for kind in store.kinds():
            agent_version = (kind.agent, kind.code_version)
            if agent_version in ours or agent_version in self._unknown or kind.due_at > store.now():
                continue
            self._unknown.add(agent_version)
            known = {one.code_version for one in filters if one.agent == kind.agent}
            detail = f"this worker does not have agent {kind.agent!r}"
            if known:
                has = ", ".join(repr(version) for version in sorted(known))
                detail = (
                    f"they were started with version {kind.code_version!r}, this worker runs {has}; "
                    f"to continue them: @agent(continues=({kind.code_version!r},)), or for one run "
                    "hf.resume(id, override=['version'])"
                )
            self._send(Report("unknown", kind.agent, detail=detail))

    # ── executing ────────────────────────────────────────────────────────────────────────

    def _begin(self, runs: list[ClaimedRun]) -> None:
        with self._changed:
            self._busy.update({run.row.id: run.row for run in runs})
        self.claimed += len(runs)
        for run in runs:
            self._executor.submit(run)

    def _execute(self, claimed: ClaimedRun) -> None:
        began, outcome = elapsed(), None
        try:
            self._engine.execute(claimed)
        except BaseException as error:  # noqa: BLE001 - a run that calls sys.exit() does not end its worker
            outcome = error
        self._ended(claimed.row, outcome, elapsed() - began)

    async def _execute_async(self, claimed: ClaimedRun) -> None:
        began, outcome = elapsed(), None
        try:
            await self._engine.execute_async(claimed)
        except BaseException as error:  # noqa: BLE001
            outcome = error
        self._ended(claimed.row, outcome, elapsed() - began)

    def _ended(self, row: RunRow, outcome: BaseException | None, seconds: float) -> None:
        if row.id not in self._busy:
            return  # it was released meanwhile, and that was reported
        status = _status(outcome, stopping=self._stopping)
        detail = "" if outcome is None else _in_one_line(outcome)
        self._send(Report(status, row.agent, row.id, seconds, detail))  # before `run` may return
        with self._changed:
            self._busy.pop(row.id, None)
            if _is_the_stores_fault(outcome):
                self._failed_at = elapsed()
            else:
                self._failures = 0
            self._changed.notify_all()

    def _send(self, report: Report) -> None:
        if self._report is None:
            return
        try:
            self._report(report)
        except Exception:  # noqa: BLE001 - an observer must not stop the work
            _log.exception("a worker's report failed")

    # ── failures and the end ─────────────────────────────────────────────────────────────

    def _recover(self) -> None:
        """After a run that the store failed, wait a little: it may not have recovered yet."""
        if self._failed_at:
            self._failed_at, seconds = 0.0, self._next_pause()
            self._wait_here(seconds, lambda: False)

    def _next_pause(self) -> float:
        seconds = FAILURE_SECONDS[min(self._failures, len(FAILURE_SECONDS) - 1)]
        self._failures += 1
        return seconds * random.uniform(0.8, 1.2)  # noqa: S311 (only to spread)

    def _pause_after(self, error: StoreError) -> None:
        seconds = self._next_pause()
        _log.warning("the store failed, retrying in %.2g s: %s", seconds, error)
        self._wait_here(seconds, lambda: False)

    def _drain(self) -> None:
        """Release everything: at its next boundary, or when the grace period is over."""
        with self._changed:
            self._stopping = True
        try:
            began = time.monotonic()
            while self._busy and (left := began + self.grace - time.monotonic()) > 0:
                self._engine.sessions.stop(list(self._busy), STOPPING)
                with self._changed:  # again and again: one that was just claimed has no session yet
                    self._changed.wait_for(lambda: not self._busy, timeout=min(left, 0.1))
        finally:
            self._release_now()
            self._executor.close()

    def _release_now(self) -> None:
        with self._changed:
            left = dict(self._busy)
            self._busy.clear()
        if not left:
            return
        self._engine.sessions.stop(left, STOPPING)
        self._engine.sessions.release_now(list(left.values()))
        for row in left.values():
            detail = "it was inside a call when the grace period ended"
            self._send(Report("released", row.agent, row.id, detail=detail))


def _is_the_stores_fault(outcome: BaseException | None) -> bool:
    """Whether a run ended here because its store failed; not, if another worker claimed it."""
    return isinstance(outcome, StoreError) and not isinstance(
        outcome, LeaseLost | Conflict | KeyTaken
    )


def _status(outcome: BaseException | None, *, stopping: bool) -> str:
    match outcome:
        case None:
            return "completed"
        case RunCancelled():
            return "cancelled"
        case RunFailed():
            return "failed"
        case asyncio.CancelledError() if stopping:  # the event loop of an async worker is closing
            return "released"
        case RunWaiting(waits=waits):
            is_released = stopping and any(x.kind == "worker" for x in waits)
            return "released" if is_released else "waiting"
        case _:
            return "left"


def _in_one_line(outcome: BaseException) -> str:
    match outcome:
        case RunWaiting(waiting_for=waiting_for):
            return waiting_for
        case RunCancelled(message=message):
            return message.removeprefix("cancelled ")
        case RunFailed(error_type=kind, message=message):
            return f"{kind}: {message}"
        case HoldfastError():
            return str(outcome)
        case _:
            return f"its code raised {type(outcome).__name__}"


class _Executor:
    """Where runs execute: daemon threads for plain agents, one event loop for async ones.

    Daemons, because a call that never returns must not keep a process alive that is to end. The event loop is the
    one that is given, which belongs to the caller, or one in a thread of its own.
    """

    def __init__(
        self,
        work: Callable[[ClaimedRun], None],
        work_async: Callable[[ClaimedRun], Coroutine[Any, Any, None]],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._work, self._work_async = work, work_async
        self._todo: queue.SimpleQueue[ClaimedRun | None] = queue.SimpleQueue()
        self._threads = 0
        self._free = 0
        self._mutex = threading.Lock()
        self._given_loop = loop
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[Future[None]] = set()

    def submit(self, claimed: ClaimedRun) -> None:
        if claimed.spec.is_async:
            task = asyncio.run_coroutine_threadsafe(self._work_async(claimed), self._running_loop())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        with self._mutex:
            needed = self._free == 0
            if needed:
                self._threads += 1
            else:
                self._free -= 1
        self._todo.put(claimed)
        if needed:
            name = f"holdfast-worker-{self._threads}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        while (claimed := self._todo.get()) is not None:
            self._work(claimed)
            with self._mutex:
                self._free += 1

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._given_loop is not None:
            return self._given_loop
        if self._own_loop is None:
            self._own_loop = asyncio.new_event_loop()
            threading.Thread(
                target=_run_loop, args=(self._own_loop,), name="holdfast-worker-loop", daemon=True
            ).start()
        return self._own_loop

    def close(self) -> None:
        for _ in range(self._threads):
            self._todo.put(None)
        if self._own_loop is not None:
            self._own_loop.call_soon_threadsafe(self._own_loop.stop)
        else:
            for task in list(self._tasks):
                task.cancel()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        if not asyncio.all_tasks(loop):
            loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
