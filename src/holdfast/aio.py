"""`AsyncHoldfast`: the methods of `Holdfast`, awaited. For code on an event loop, such as a web server.

`async def` agents execute on the caller's loop; plain agents, and all store access, in threads. Nothing
here blocks the loop, and a cancelled caller leaves no lease behind. Each method that does not execute an agent is the
method of `Holdfast` in a thread: what it does is written there.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from holdfast import bundle, control, execution, views
from holdfast.app import Handle, Holdfast, specs_of
from holdfast.bulk import BulkReport, BulkVerb
from holdfast.check import CheckedRun
from holdfast.core.events import Event
from holdfast.core.log import Record
from holdfast.core.policy import Budget, Limits
from holdfast.core.state import RunState
from holdfast.doctor import Diagnosis
from holdfast.dry_fork import DryStep
from holdfast.event_stream import WAIT_SECONDS, EventReader
from holdfast.gc import GcResult
from holdfast.runtime.declare.agent_spec import AnyAgent, BoundAgent
from holdfast.runtime.exec.actions import perform_async
from holdfast.runtime.exec.dry_run import ReplayResult
from holdfast.runtime.exec.engine import Engine, Options
from holdfast.runtime.exec.threads import in_thread, uninterrupted, until_done
from holdfast.runtime.exec.worker import Report, Worker
from holdfast.store.base import RunRow, Schedule, Store
from holdfast.store.items import Item

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class AsyncHandle(Generic[R_co]):
    """A run that was started: await its result when you need it."""

    def __init__(self, app: AsyncHoldfast, run_id: str) -> None:
        self._app = app
        self.id = run_id

    def __repr__(self) -> str:
        return f"<run {self.id!r}>"

    async def status(self) -> str:
        """pending, running, waiting, completed, failed …"""
        return await self._app._read(_status, self.id)

    async def state(self) -> RunState:
        """The state now."""
        return await self._app.get(self.id)

    async def result(self, *, timeout: float | None = None) -> R_co:
        """Wait until the run has ended; its result, or the error it ended with."""
        found: R_co = await self._app.result(self.id, timeout=timeout)
        return found

    async def events(self, *, after: int = -1) -> list[tuple[Record, Event]]:
        """The run's log: each record with its event."""
        return await self._app.events(self.id, after=after)

    def stream(self, *, after: int = -1) -> AsyncGenerator[tuple[Record, Event], None]:
        """The run's events, old and new, until it has ended: `async for record, event in handle.stream()`."""
        return self._app.stream(self.id, after=after)

    async def signal(
        self, name: str, value: Any = None, *, signal_id: str = "", by: str = "", why: str = ""
    ) -> None:
        """Send the run a signal; see `Holdfast.signal`."""
        await self._app.signal(self.id, name, value, signal_id=signal_id, by=by, why=why)

    async def cancel(self, *, by: str = "", why: str = "") -> None:
        """End the run and its child runs, each at its next call."""
        await self._app.cancel(self.id, by=by, why=why)


class AsyncWorker:
    """Executes due runs. `await worker` works until it is stopped or cancelled; `async with worker` while the block
    runs.

    Stopped or cancelled, it releases its runs at their next call, or after `grace` seconds, and only then ends.
    """

    def __init__(
        self, app: AsyncHoldfast, make: Callable[[Holdfast], Worker], *, own_loop: bool
    ) -> None:
        self._app, self._make, self._own_loop = app, make, own_loop
        self._worker: Worker | None = None
        self._work: asyncio.Future[int] | None = None
        self._task: asyncio.Task[int] | None = None
        self._stopped = False

    def __await__(self) -> Generator[Any, Any, int]:
        return self.run().__await__()

    async def __aenter__(self) -> AsyncWorker:
        self._task = asyncio.create_task(self.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self.stop()
        await self._task

    @property
    def under_way(self) -> int:
        """How many runs it is executing."""
        return 0 if self._worker is None else self._worker.under_way

    def stop(self) -> None:
        """Claim no more runs, and release those under way. Returns at once; may be called from any thread."""
        self._stopped = True
        if self._worker is not None:
            self._worker.stop()

    async def run(self, *, once: bool = False) -> int:
        """Work until stopped; with `once`, until nothing is due. How many runs were claimed."""
        app = await self._app._opened()
        self._worker = worker = self._make(app)
        if self._stopped:
            return 0
        worker.loop = None if self._own_loop else asyncio.get_running_loop()
        self._work = work = in_thread(app.engine.threads, partial(worker.run, once=once))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            worker.stop()
            await until_done(work)
            raise

    async def wait_stopped(self) -> None:
        """Wait until it has released its runs, after `stop`."""
        if self._work is not None:
            await asyncio.wait([self._work])


class AsyncHoldfast:
    """Durable runs, kept in one store, for code on an event loop.

        async with AsyncHoldfast() as hf:
            await hf.run(recap, id="recap-sam", recipient_email="sam@example.com", raw_notes="…")

    The methods are those of `Holdfast`, awaited. The store is opened by `async with`, or else by the first call.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | Store | None = None,
        *,
        agents: Iterable[Callable[..., Any]] = (),
        options: Options | None = None,
    ) -> None:
        agents = list(agents) if specs_of(agents) else ()
        self._open = partial(Holdfast, url, agents=agents, options=options)
        self._sync: Holdfast | None = None
        self._mutex = threading.Lock()
        self._workers: weakref.WeakSet[AsyncWorker] = weakref.WeakSet()
        if not (url is None or isinstance(url, str | os.PathLike)):
            self._sync = self._open()  # on a store that is open

    @property
    def sync(self) -> Holdfast:
        """The `Holdfast` whose methods these are, for code in other threads. If the store is not open yet, this opens
        it, which takes a moment: use `async with`."""
        with self._mutex:
            if self._sync is None:
                self._sync = self._open()
            return self._sync

    async def __aenter__(self) -> AsyncHoldfast:
        await self._opened()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop workers and wait for them, stop keeping leases and close the store."""
        for worker in list(self._workers):
            worker.stop()
            await worker.wait_stopped()
        if self._sync is not None:
            await uninterrupted(self._sync.close)

    async def _opened(self) -> Holdfast:
        return await uninterrupted(lambda: self.sync) if self._sync is None else self._sync

    async def _read(
        self, method: Callable[Concatenate[Holdfast, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a method that only reads, in a thread. A caller that is cancelled does not wait for its end."""
        app = await self._opened()
        return await in_thread(app.engine.threads, partial(method, app, *args, **kwargs))

    async def _write(
        self, method: Callable[Concatenate[Holdfast, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a method in a thread. A caller that is cancelled gets the cancellation when the call has ended."""
        app = await self._opened()
        return await app.engine.uninterrupted(partial(method, app, *args, **kwargs))

    async def _engine(self) -> Engine:
        return (await self._opened()).engine

    # ── running ──────────────────────────────────────────────────────────────────────────

    @overload
    async def run(
        self,
        agent: BoundAgent[R],
        /,
        *,
        id: str | None = None,
        wait: bool = False,
        deadline: float | None = None,
        budget: Budget | None = None,
    ) -> R: ...
    @overload
    async def run(self, agent: AnyAgent[P, R], /, *args: P.args, **input: P.kwargs) -> R: ...
    @overload
    async def run(
        self,
        agent: AnyAgent[..., R],
        /,
        *args: Any,
        id: str | None,
        wait: bool = False,
        deadline: float | None = None,
        budget: Budget | None = None,
        **input: Any,
    ) -> R: ...
    @overload
    async def run(
        self,
        agent: AnyAgent[..., R],
        /,
        *args: Any,
        id: str | None = None,
        wait: bool,
        deadline: float | None = None,
        budget: Budget | None = None,
        **input: Any,
    ) -> R: ...
    @overload
    async def run(
        self,
        agent: AnyAgent[..., R],
        /,
        *args: Any,
        deadline: float | None,
        budget: Budget | None = None,
        **input: Any,
    ) -> R: ...
    @overload
    async def run(
        self,
        agent: AnyAgent[..., R],
        /,
        *args: Any,
        deadline: float | None = None,
        budget: Budget | None,
        **input: Any,
    ) -> R: ...
    async def run(  # type: ignore[misc] # as for `Holdfast.run`
        self,
        agent: AnyAgent[..., Any] | BoundAgent[Any],
        /,
        *args: Any,
        id: str | None = None,
        wait: bool = False,
        deadline: float | None = None,
        budget: Budget | None = None,
        **input: Any,
    ) -> Any:
        """Run or resume; see `Holdfast.run`. If the caller is cancelled, the run is released: any worker can resume it."""
        engine, limits = await self._engine(), Limits(deadline, budget)
        actions = execution.run(engine, agent, args, input, id=id, wait=wait, limits=limits)
        return await perform_async(engine, actions)

    @overload
    async def start(
        self,
        agent: BoundAgent[R],
        /,
        *,
        id: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        budget: Budget | None = None,
    ) -> AsyncHandle[R]: ...
    @overload
    async def start(
        self,
        agent: str,
        /,
        *,
        id: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        budget: Budget | None = None,
        **input: Any,
    ) -> AsyncHandle[Any]: ...
    @overload
    async def start(
        self, agent: AnyAgent[P, R], /, *args: P.args, **input: P.kwargs
    ) -> AsyncHandle[R]: ...
    @overload
    async def start(
        self,
        agent: AnyAgent[..., R],
        /,
        *args: Any,
        id: str | None,
        priority: int = 0,
        deadline: float | None = None,
        budget: Budget | None = None,
        **input: Any,
    ) -> AsyncHandle[R]: ...
    @overload
    async def start(
        self,
        agent: AnyAgent[..., R],
        /,
        *args: Any,
        id: str | None = None,
        priority: int,
        deadline: float | None = None,
        budget: Budget | None = None,
        **input: Any,
    ) -> AsyncHandle[R]: ...
    @overload
    async def start(
        self,
        agent: AnyAgent[..., R],
        /,
        *args: Any,
        deadline: float | None,
        budget: Budget | None = None,
        **input: Any,
    ) -> AsyncHandle[R]: ...
    @overload
    async def start(
        self,
        agent: AnyAgent[..., R],
        /,
        *args: Any,
        deadline: float | None = None,
        budget: Budget | None,
        **input: Any,
    ) -> AsyncHandle[R]: ...
    async def start(  # type: ignore[misc] # as for `Holdfast.run`
        self,
        agent: AnyAgent[..., Any] | BoundAgent[Any] | str,
        /,
        *args: Any,
        id: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        budget: Budget | None = None,
        **input: Any,
    ) -> AsyncHandle[Any]:
        """Create the run and leave the work to workers. Returns at once; see `Holdfast.start`."""
        engine, limits = await self._engine(), Limits(deadline, budget)
        actions = execution.start(
            engine, agent, args, input, id=id, priority=priority, limits=limits
        )
        return AsyncHandle(self, await perform_async(engine, actions))

    async def handle(self, run_id: str) -> AsyncHandle[Any]:
        """A handle on a run that exists."""
        return self._handle(await self._read(Holdfast.handle, run_id))

    def _handle(self, handle: Handle[R]) -> AsyncHandle[R]:
        return AsyncHandle(self, handle.id)

    async def resume(
        self,
        run_id: str,
        *,
        wait: bool = False,
        by: str = "",
        why: str = "",
        override: Sequence[str] = (),
        accept_new_steps: bool = False,
        deadline: float | None = None,
        budget: Budget | None = None,
    ) -> Any:
        """Resume a run; see `Holdfast.resume`."""
        engine = await self._engine()
        actions = execution.resume(
            engine,
            run_id,
            wait=wait,
            by=by,
            why=why,
            override=override,
            accept_new_steps=accept_new_steps,
            limits=Limits(deadline, budget),
        )
        return await perform_async(engine, actions)

    async def rerun(self, run_id: str, *, wait: bool = False, by: str = "", why: str = "") -> Any:
        """Run the code from its first line again; see `Holdfast.rerun`."""
        engine = await self._engine()
        actions = execution.rerun(engine, run_id, wait=wait, by=by, why=why)
        return await perform_async(engine, actions)

    async def drive(self, run_id: str) -> Any:
        """Execute a run if it can continue and no worker executes it; see `Holdfast.drive`."""
        engine = await self._engine()
        return await perform_async(engine, execution.drive(engine, run_id))

    async def result(self, run_id: str, *, timeout: float | None = None) -> Any:
        """Wait until the run has ended; its result, or the error it ended with."""
        engine = await self._engine()
        return await perform_async(engine, execution.await_result(engine, run_id, timeout))

    def worker(
        self,
        *,
        agents: Iterable[Callable[..., Any]] | None = None,
        concurrency: int = 1,
        grace: float = 10.0,
        report: Callable[[Report], None] | None = None,
        own_loop: bool = False,
    ) -> AsyncWorker:
        """A worker for these agents, or for all that this object knows: `await hf.worker()`, or `async with
        hf.worker():`.

        Async agents execute on the caller's event loop, plain ones in threads. With `own_loop`, async agents get an
        event loop in a thread of the worker, so that code of theirs that blocks does not delay the caller. `report` is
        called in any of these threads. See `Holdfast.worker` for the rest.
        """
        given = None if agents is None else list(agents)
        make = partial(
            Holdfast.worker, agents=given, concurrency=concurrency, grace=grace, report=report
        )
        made = AsyncWorker(self, make, own_loop=own_loop)
        self._workers.add(made)
        return made

    async def register(self, *agents: Callable[..., Any]) -> None:
        """Let runs of these agents be started by name; see `Holdfast.register`."""
        await self._write(Holdfast.register, *agents)

    async def agents(self) -> list[views.AgentInfo]:
        """The agents of this store: those that workers have registered, and those that have runs."""
        return await self._read(Holdfast.agents)

    # ── schedules ────────────────────────────────────────────────────────────────────────

    async def schedule(
        self,
        agent: Callable[..., Any],
        /,
        *,
        cron: str,
        tz: str = "UTC",
        input: Mapping[str, Any] | None = None,
        id: str | None = None,
        priority: int = 0,
        catch_up: Literal["latest", "all", "none"] = "latest",
    ) -> Schedule:
        """Have workers start a run at each time that `cron` names; see `Holdfast.schedule`."""
        return await self._write(
            Holdfast.schedule,
            agent,
            cron=cron,
            tz=tz,
            input=input,
            id=id,
            priority=priority,
            catch_up=catch_up,
        )

    async def schedules(self) -> list[Schedule]:
        """All schedules, by id."""
        return await self._read(Holdfast.schedules)

    async def unschedule(self, schedule_id: str) -> None:
        """Delete a schedule. Runs that it has started are not touched."""
        await self._write(Holdfast.unschedule, schedule_id)

    # ── looking ──────────────────────────────────────────────────────────────────────────

    async def get(self, run_id: str, *, brief: bool = False) -> RunState:
        """The state now; with `brief` without most calls that are over, see `Holdfast.get`."""
        return await self._read(Holdfast.get, run_id, brief=brief)

    async def at(
        self, run_id: str, step: int, when: Literal["before", "after"] = "after"
    ) -> RunState:
        """The state before or after a step: what the agent knew then. Step 0 is the beginning."""
        return await self._read(Holdfast.at, run_id, step, when)

    async def diff(self, run_id: str, step_a: int, step_b: int) -> list[views.Change]:
        """What changed in the state between the ends of two steps. Step 0 is the beginning."""
        return await self._read(Holdfast.diff, run_id, step_a, step_b)

    async def events(
        self, run_id: str, *, after: int = -1, limit: int | None = None, last: int | None = None
    ) -> list[tuple[Record, Event]]:
        """The run's log after a seq, at most `limit` events; or its `last` events. Each record with its event."""
        return await self._read(Holdfast.events, run_id, after=after, limit=limit, last=last)

    async def timeline(
        self, run_id: str, *, after: int = -1, limit: int | None = None, last: int | None = None
    ) -> list[views.Moment]:
        """The run's events as sentences. The parameters are those of `events`."""
        return await self._read(Holdfast.timeline, run_id, after=after, limit=limit, last=last)

    async def record(
        self, agent: str, /, *, id: str, by: str = "", why: str = "", **input: Any
    ) -> AsyncHandle[Any]:
        """Create a run that another program executes; see `Holdfast.record`."""
        made = await self._write(Holdfast.record, agent, id=id, by=by, why=why, **input)
        return AsyncHandle(self, made.id)

    async def finish(self, run_id: str, result: Any = None) -> None:
        """End a run that another program executes. A run that has already ended is not changed."""
        await self._write(Holdfast.finish, run_id, result)

    async def put_item(
        self, run_id: str, collection: str, key: str, value: Any, *, by: str = ""
    ) -> bool:
        """Store a value (JSON or bytes) in a run, under a key; see `Holdfast.put_item`."""
        return await self._write(Holdfast.put_item, run_id, collection, key, value, by=by)

    async def item(self, run_id: str, collection: str, key: str) -> Item | None:
        """The item that is stored under a key, or None. The cost does not depend on the length of the run's log."""
        return await self._read(Holdfast.item, run_id, collection, key)

    async def items(
        self,
        run_id: str,
        collection: str = "",
        *,
        prefix: str = "",
        after: int = -1,
        limit: int | None = None,
    ) -> list[Item]:
        """The items of a collection, the last one that was put first; see `Holdfast.items`."""
        return await self._read(
            Holdfast.items, run_id, collection, prefix=prefix, after=after, limit=limit
        )

    async def delete_item(self, run_id: str, collection: str, key: str, *, by: str = "") -> bool:
        """Delete the item that is stored under a key. Returns whether there was one. Earlier values stay in the run's
        log."""
        return await self._write(Holdfast.delete_item, run_id, collection, key, by=by)

    async def delete(self, run_id: str) -> None:
        """Delete a run that has ended: its log, its items and its values. Its id is free again."""
        await self._write(Holdfast.delete, run_id)

    async def stream(
        self, run_id: str, *, after: int = -1
    ) -> AsyncGenerator[tuple[Record, Event], None]:
        """The run's events, old and new, until it has ended: `async for record, event in hf.stream(id)`."""
        engine = (await self._opened()).engine
        reader = EventReader(engine.store, run_id, after=after)
        while not reader.ended:
            found = await in_thread(engine.threads, reader.read)
            for one in found:
                yield one
            if not found and not reader.ended:
                await engine.logs.wait(run_id, after=reader.seq, timeout=WAIT_SECONDS)

    async def artifact(self, run_id: str, name: str) -> bytes:
        """The bytes of an artifact, by its name (the newest of that name) or its id."""
        return await self._read(Holdfast.artifact, run_id, name)

    async def value(self, run_id: str, value: Any) -> Any:
        """The full value of something in a run's state: a value that was too large for its event is fetched."""
        return await self._read(Holdfast.value, run_id, value)

    async def runs(
        self,
        *,
        status: str = "",
        agent: str = "",
        parent: str = "",
        limit: int = 50,
        cursor: int | None = None,
    ) -> list[RunRow]:
        """Runs, newest first. The last row's `cursor` is where the next page begins."""
        return await self._read(
            Holdfast.runs, status=status, agent=agent, parent=parent, limit=limit, cursor=cursor
        )

    async def search(
        self, query: str, *, limit: int = 50, cursor: int | None = None
    ) -> views.SearchResult:
        """Runs that match a search such as `status:failed agent:recap error:timeout since:24h`, newest first. If a
        search stopped early (`stopped`), continue it with `cursor=found.next`."""
        return await self._read(Holdfast.search, query, limit=limit, cursor=cursor)

    async def verify(self, run_id: str) -> views.Verification:
        """Check the run's whole log against its hash chain, and every value stored outside it."""
        return await self._read(Holdfast.verify, run_id)

    async def replay(self, run_id: str) -> ReplayResult:
        """Run the code against the log, without executing any tool or writing anything."""
        return await self._read(Holdfast.replay, run_id)

    # ── the store ────────────────────────────────────────────────────────────────────────

    async def bulk(
        self,
        verb: BulkVerb,
        query: str = "",
        *,
        runs: Sequence[str] = (),
        newest: int | None = None,
        dry_run: bool = False,
        by: str = "",
        why: str = "",
    ) -> BulkReport:
        """Cancel or resume the runs that match a search, or these runs. With `dry_run`, only report what would be done;
        pass `newest` of that report to exclude runs that were created since. At most 1,000 runs at once."""
        return await self._write(
            Holdfast.bulk, verb, query, runs=runs, newest=newest, dry_run=dry_run, by=by, why=why
        )

    async def gc(
        self,
        *,
        older_than: float | None = None,
        keep: int | None = None,
        snapshots: int | None = None,
        snapshot_age: float | None = None,
        dry_run: bool = False,
    ) -> GcResult:
        """Delete runs that ended long ago, and snapshots; see `Holdfast.gc`."""
        return await self._write(
            Holdfast.gc,
            older_than=older_than,
            keep=keep,
            snapshots=snapshots,
            snapshot_age=snapshot_age,
            dry_run=dry_run,
        )

    async def export(self, run_id: str) -> list[str]:
        """A run as lines of JSON: its log, chained as it is, and its artifacts."""
        return await self._read(Holdfast.export, run_id)

    async def import_run(self, lines: Iterable[str]) -> bundle.ImportResult:
        """Import a run that `export` wrote; one that had not ended is paused."""
        return await self._write(Holdfast.import_run, lines)

    async def doctor(self) -> Diagnosis:
        """Examine the store: weak settings, damaged runs, and runs that no worker claims."""
        return await self._read(Holdfast.doctor)

    async def check(self, *agents: Callable[..., Any], failed: bool = False) -> list[CheckedRun]:
        """Would unfinished runs agree with the code of these agents? Nothing is executed or written."""
        return await self._read(Holdfast.check, *agents, failed=failed)

    # ── deciding ─────────────────────────────────────────────────────────────────────────

    async def approve(
        self,
        run_id: str,
        request: str = "",
        *,
        args: Mapping[str, Any] | None = None,
        by: str = "",
        why: str = "",
        digest: str = "",
    ) -> None:
        """Approve what the run asks for; see `Holdfast.approve`."""
        await self._write(
            Holdfast.approve, run_id, request, args=args, by=by, why=why, digest=digest
        )

    async def reject(
        self, run_id: str, request: str = "", *, by: str = "", why: str = "", digest: str = ""
    ) -> None:
        """Reject what the run asks for."""
        await self._write(Holdfast.reject, run_id, request, by=by, why=why, digest=digest)

    async def answer(
        self, run_id: str, value: Any, request: str = "", *, by: str = "", why: str = ""
    ) -> None:
        """Answer a question of the run."""
        await self._write(Holdfast.answer, run_id, value, request, by=by, why=why)

    async def signal(
        self,
        run_id: str,
        name: str,
        value: Any = None,
        *,
        signal_id: str = "",
        by: str = "",
        why: str = "",
    ) -> None:
        """Send a signal; see `Holdfast.signal`."""
        await self._write(Holdfast.signal, run_id, name, value, signal_id=signal_id, by=by, why=why)

    async def resolve(
        self,
        run_id: str,
        call: int | str | None = None,
        *,
        done: Any = ...,
        failed: str | None = None,
        retry: bool = False,
        by: str = "",
        why: str = "",
    ) -> None:
        """Settle a call in doubt; see `Holdfast.resolve`."""
        await self._write(
            Holdfast.resolve, run_id, call, done=done, failed=failed, retry=retry, by=by, why=why
        )

    async def patch(
        self,
        run_id: str,
        changes: control.Patch,
        *,
        delete: Sequence[str] = (),
        expected: int | None = None,
        key: str = "",
        by: str = "",
        why: str = "",
    ) -> bool:
        """Change what the run knows from outside; see `Holdfast.patch`."""
        return await self._write(
            Holdfast.patch,
            run_id,
            changes,
            delete=delete,
            expected=expected,
            key=key,
            by=by,
            why=why,
        )

    async def pause(self, run_id: str, *, by: str = "", why: str = "") -> None:
        """Stop the run at its next call, until it is resumed."""
        await self._write(Holdfast.pause, run_id, by=by, why=why)

    async def cancel(self, run_id: str, *, by: str = "", why: str = "") -> None:
        """End the run and its child runs, each at its next call."""
        await self._write(Holdfast.cancel, run_id, by=by, why=why)

    async def undo(self, run_id: str, *, by: str = "", why: str = "") -> None:
        """Undo what the run did, newest first (the next worker or hf.resume does it)."""
        await self._write(Holdfast.undo, run_id, by=by, why=why)

    @overload
    async def fork(
        self,
        run_id: str,
        step: int,
        *,
        id: str | None = None,
        state: Mapping[str, Any] | None = None,
        by: str = "",
        why: str = "",
    ) -> AsyncHandle[Any]: ...
    @overload
    async def fork(
        self,
        run_id: str,
        step: int,
        *,
        state: Mapping[str, Any] | None = None,
        mocks: Mapping[str, Any],
    ) -> DryStep: ...
    async def fork(
        self,
        run_id: str,
        step: int,
        *,
        id: str | None = None,
        state: Mapping[str, Any] | None = None,
        by: str = "",
        why: str = "",
        mocks: Mapping[str, Any] | None = None,
    ) -> AsyncHandle[Any] | DryStep:
        """A new run that begins with this one's first steps, or one step executed again; see `Holdfast.fork`."""
        if mocks is not None:
            return await self._read(Holdfast.fork, run_id, step, state=state, mocks=mocks)
        made = await self._write(Holdfast.fork, run_id, step, id=id, state=state, by=by, why=why)
        return self._handle(made)


def _status(app: Holdfast, run_id: str) -> str:
    return Handle[Any](app, run_id).status
