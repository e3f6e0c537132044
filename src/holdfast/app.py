"""`Holdfast` and `AsyncHoldfast`: one object, one door to running, deciding and looking.

It owns a store and an engine and nothing else; two of them in one process do not meet. The methods are
thin: executing is `runtime`, deciding is `control`, looking is `views`.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, ParamSpec, TypeVar, overload

from holdfast import control, views
from holdfast.core.events import Event
from holdfast.core.log import Record
from holdfast.core.state import RunState
from holdfast.errors import HoldfastError, InvalidInput, LeaseLost, NotFound, RunBusy, RunWaiting
from holdfast.runtime.declare import AgentSpec, agent_spec
from holdfast.runtime.dry_run import Replayed, replay
from holdfast.runtime.engine import Engine, Options, Taken
from holdfast.runtime.registration import register
from holdfast.runtime.resumable import check as check_resumable
from holdfast.runtime.schedules import define as define_schedule
from holdfast.runtime.tree import Tree
from holdfast.runtime.uninterrupted import uninterrupted
from holdfast.runtime.worker import Report, Worker
from holdfast.store.base import (
    STATUSES,
    TERMINAL_STATUSES,
    Filter,
    RunRow,
    Schedule,
    Store,
)
from holdfast.store.checks import check_whole
from holdfast.store.opening import open_store

P = ParamSpec("P")
R = TypeVar("R")


class Handle:
    """A run that was started: ask for its result when you need it."""

    def __init__(self, app: Holdfast, run_id: str) -> None:
        self._app = app
        self.id = run_id

    def __repr__(self) -> str:
        return f"<run {self.id!r}: {self.status}>"

    @property
    def status(self) -> str:
        """pending, running, waiting, completed, failed …"""
        return views.row_of(self._app.store, self.id).status

    def state(self) -> RunState:
        """The state now."""
        return self._app.get(self.id)

    def result(self, *, timeout: float | None = None) -> Any:
        """Wait until the run has ended; its result, or the error it ended with."""
        return self._app.result(self.id, timeout=timeout)


class Holdfast:
    """Durable runs, kept in one store.

        with Holdfast() as hf:
            hf.run(recap, id="recap-sam", recipient_email="sam@example.com", raw_notes="…")

    Without a URL the store is HOLDFAST_URL, or `.holdfast/holdfast.db` in this folder.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | Store | None = None,
        *,
        agents: Iterable[Callable[..., Any]] = (),
        options: Options | None = None,
    ) -> None:
        named = url is None or isinstance(url, str | os.PathLike)
        if not named and not hasattr(url, "open_append"):
            raise InvalidInput(f"a Holdfast is opened on a path, a URL or a store, not {url!r}")
        specs = _specs(agents)
        self.store: Store = open_store(url) if named else url  # type: ignore[arg-type, assignment]
        self.engine = Engine(self.store, options)
        self._workers: weakref.WeakSet[Worker] = weakref.WeakSet()
        for spec in specs:
            self.engine.learn(spec)

    def __enter__(self) -> Holdfast:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop workers, stop keeping leases and close the store. Runs that were executing can be resumed
        anywhere."""
        for worker in list(self._workers):
            worker.stop()
        self.engine.close()
        self.store.close()

    # ── running ──────────────────────────────────────────────────────────────────────────

    @overload
    def run(self, agent: Callable[P, Coroutine[Any, Any, R]], /, *args: Any, id: str | None = None,
            wait: bool = False, **input: Any) -> R: ...  # fmt: skip
    @overload
    def run(self, agent: Callable[P, R], /, *args: Any, id: str | None = None, wait: bool = False,
            **input: Any) -> R: ...  # fmt: skip
    def run(self, agent: Callable[..., Any], /, *args: Any, id: str | None = None, wait: bool = False,
            **input: Any) -> Any:  # fmt: skip
        """Run or resume. New id: start. Unfinished: resume. Completed: the recorded result, nothing
        executed. Failed: RunFailed. The same id with another input: InputConflict.

        RunWaiting is raised when the run cannot continue here and now. With `wait` this blocks instead, and
        executes child runs that the run is waiting for as soon as they are due.
        """
        spec = agent_spec(agent)
        run_id = id if id is not None else _new_id(spec)
        made = self.engine.create(spec, run_id, input, args=args)
        if isinstance(made, RunRow):
            check_resumable(self.store, made, spec)
        return self._go_on(made, spec, wait=wait)

    def _go_on(self, made: Taken | RunRow, spec: AgentSpec, *, wait: bool) -> Any:
        run_id = made.id if isinstance(made, RunRow) else made.row.id
        tree = Tree(self.engine, run_id)
        while True:
            try:
                if isinstance(made, RunRow):
                    if made.status in TERMINAL_STATUSES:
                        return self.engine.result_of(made, spec)
                    made = self.engine.take(made, spec)
                result = self.engine.execute(made)
            except (RunWaiting, LeaseLost):  # another worker may have claimed it
                if not wait:
                    raise
            except HoldfastError:
                if wait:
                    self._execute_rest(tree)
                raise
            else:
                if wait:
                    self._execute_rest(tree)
                return result
            made = self._drive(tree)

    def _execute_rest(self, tree: Tree) -> None:
        """The run has ended: execute what is due below it."""
        while (found := tree.rest()) is not None:
            try:
                self.engine.execute(found)
            except HoldfastError as error:
                tree.ended(error)

    def _drive(self, tree: Tree) -> RunRow:
        """Execute what is due below a run, until the run itself can go on or has ended; its row."""
        while True:
            found = tree.next()
            if isinstance(found, RunRow):
                return found
            if found is not None:
                try:
                    self.engine.execute(found)
                except HoldfastError as error:
                    tree.ended(error)

    def start(self, agent: Callable[..., Any] | str, /, *args: Any, id: str | None = None, priority: int = 0,
              **input: Any) -> Handle:  # fmt: skip
        """Create the run and leave the work to workers. Returns at once.

        The agent may be given by its name, if a worker has registered it: then its code is not needed here."""
        if isinstance(agent, str):
            if args:
                raise InvalidInput(f"to start agent {agent!r} by name, give its input by name too")
            return Handle(
                self, control.start(self.store, agent, input, id=id, priority=priority).id
            )
        spec = agent_spec(agent)
        run_id = id if id is not None else _new_id(spec)
        self.engine.create(spec, run_id, input, args=args, claim=False, priority=priority)
        return Handle(self, run_id)

    def handle(self, run_id: str) -> Handle:
        """A handle on a run that exists."""
        views.row_of(self.store, run_id)
        return Handle(self, run_id)

    def resume(self, run_id: str, *, wait: bool = False, by: str = "", why: str = "",
               override: Sequence[str] = (), accept_new_steps: bool = False) -> Any:  # fmt: skip
        """Go on with a run: a failed one from its failed step, a paused one, one that waits.

        With `accept_new_steps`, calls that the code has added among what the run has done are made, and
        not refused with Diverged. A call that was renamed counts as added.

        A run that is too old (`Checkpoint.max_age`) or was begun with another version of its agent is
        refused with NotResumable, unless `override` names that check: "age", "version".
        """
        row = views.row_of(self.store, run_id)
        spec = self.engine.agent_of(row)
        check_resumable(self.store, row, spec, override, reopens=True)
        if accept_new_steps:
            control.accept_new_steps(self.store, run_id, by=by, why=why)
        control.reopen(self.store, run_id, by=by, why=why)
        return self._go_on(views.row_of(self.store, run_id), spec, wait=wait)

    def rerun(self, run_id: str, *, wait: bool = False, by: str = "", why: str = "") -> Any:
        """Run the code from its first line again, with the state kept: guards still hold."""
        spec = self.engine.agent_of(views.row_of(self.store, run_id))
        control.rerun(self.store, run_id, by=by, why=why)
        return self._go_on(views.row_of(self.store, run_id), spec, wait=wait)

    def drive(self, run_id: str) -> Any:
        """Execute a run if it can go on and nobody else does: for engines that deliver work at least
        once. A second delivery is harmless. What may be resumed is as for `resume`."""
        row = views.row_of(self.store, run_id)
        spec = self.engine.agent_of(row)
        check_resumable(self.store, row, spec)
        return self._go_on(row, spec, wait=False)

    def result(self, run_id: str, *, timeout: float | None = None) -> Any:
        """Wait until somebody has brought the run to its end; its result, or the error it ended with."""
        end = None if timeout is None else time.monotonic() + _seconds("timeout", timeout)
        while True:
            row = views.row_of(self.store, run_id)
            if row.status in TERMINAL_STATUSES:
                return self.engine.result_of(row, self.engine.agents.get(row.agent))
            left = 1.0 if end is None else min(1.0, end - time.monotonic())
            if left <= 0:
                raise RunBusy(run_id, row.waiting_for or "a worker", "ask again later")
            self.store.wait(run_id, after=self.store.heads([run_id])[run_id], timeout=left)

    def worker(
        self,
        *,
        agents: Iterable[Callable[..., Any]] | None = None,
        concurrency: int = 1,
        grace: float = 10.0,
        report: Callable[[Report], None] | None = None,
    ) -> Worker:
        """A worker for these agents, or for all that this object knows; `worker.run()` begins.

        Told to stop, it gives its runs back at their next boundary, and what is inside a call for longer
        than `grace` seconds too. `report` is called with what becomes of each run.
        """
        specs = None if agents is None else _specs(agents)
        for spec in specs or ():
            self.engine.learn(spec)
        made = Worker(
            self.engine, agents=specs, concurrency=concurrency, grace=grace, report=report
        )
        self._workers.add(made)
        return made

    def register(self, *agents: Callable[..., Any]) -> None:
        """Let runs of these agents (or of all that this object knows) be started by name. A worker registers its
        own agents when it starts."""
        specs = _specs(agents)
        for spec in specs:
            self.engine.learn(spec)
        register(self.store, specs or self.engine.agents.values())

    def agents(self) -> list[views.AgentInfo]:
        """The agents that the store knows: those that workers have registered, and those that have runs."""
        return views.agents(self.store)

    # ── schedules ────────────────────────────────────────────────────────────────────────

    def schedule(
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
        """Have workers start a run at each time that `cron` names in the time zone `tz`.

        There is one run for each time, whatever the number of workers. After a time without workers, a
        run is started for the latest time that was missed, for all of them, or for none. The same
        schedule again changes nothing; another one of the same id (by default the agent's name) replaces it.
        """
        spec = agent_spec(agent)
        self.engine.learn(spec)
        return define_schedule(
            self.store, spec, cron, zone=tz, input=input or {}, priority=priority, catch_up=catch_up,
            schedule_id=id if id is not None else spec.name,
        )  # fmt: skip

    def schedules(self) -> list[Schedule]:
        """All schedules, by id."""
        return self.store.schedules.all()

    def unschedule(self, schedule_id: str) -> None:
        """Forget a schedule. Runs that it has started are not touched."""
        if not self.store.schedules.delete(schedule_id):
            raise NotFound(f"there is no schedule {schedule_id!r}; `holdfast schedules` lists them")

    # ── looking ──────────────────────────────────────────────────────────────────────────

    def get(self, run_id: str) -> RunState:
        """The state now."""
        return views.get(self.store, run_id)

    def at(self, run_id: str, step: int, when: Literal["before", "after"] = "after") -> RunState:
        """The state before or after a step: what the agent knew then."""
        return views.at(self.store, run_id, step, when)

    def diff(self, run_id: str, step_a: int, step_b: int) -> list[views.Change]:
        """What changed in what the agent knew between the ends of two steps."""
        return views.diff(self.store, run_id, step_a, step_b)

    def events(self, run_id: str, *, after: int = -1) -> list[tuple[Record, Event]]:
        """The run's log: each record with its event."""
        return list(views.events(self.store, run_id, after=after))

    def artifact(self, run_id: str, name: str) -> bytes:
        """The bytes of an artifact, by its name (the newest of that name) or its id."""
        return views.artifact(self.store, run_id, name)

    def value(self, run_id: str, value: Any) -> Any:
        """Something found in a run's state, whole: what was too big for its event is fetched."""
        return views.value(self.store, run_id, value)

    def runs(self, *, status: str = "", agent: str = "", parent: str = "", limit: int = 50,
             cursor: int | None = None) -> list[RunRow]:  # fmt: skip
        """Runs, newest first. The last row's `cursor` is where the next page begins."""
        if status and status not in STATUSES:
            raise InvalidInput(f"there is no status {status!r}; there are {', '.join(STATUSES)}")
        check_whole("limit", limit, least=0)
        if cursor is not None:
            check_whole("cursor", cursor)
        return self.store.runs(
            Filter(status=status, agent=agent, parent=parent), limit=limit, cursor=cursor
        )

    def verify(self, run_id: str) -> views.Verdict:
        """Check the run's whole log against its hash chain, and every value stored outside it."""
        return views.verify(self.store, run_id)

    def replay(self, run_id: str) -> Replayed:
        """Run the code against the log, without executing any tool or writing anything."""
        row = views.row_of(self.store, run_id)
        return replay(self.store, row, self.engine.agent_of(row))

    # ── deciding ─────────────────────────────────────────────────────────────────────────

    def approve(
        self, run_id: str, request: str = "", *, by: str = "", why: str = "", digest: str = ""
    ) -> None:
        """Say yes to what the run asks for."""
        control.approve(self.store, run_id, request, by=by, why=why, digest=digest)

    def reject(
        self, run_id: str, request: str = "", *, by: str = "", why: str = "", digest: str = ""
    ) -> None:
        """Say no to what the run asks for."""
        control.reject(self.store, run_id, request, by=by, why=why, digest=digest)

    def answer(
        self, run_id: str, value: Any, request: str = "", *, by: str = "", why: str = ""
    ) -> None:
        """Answer the question that the run asks."""
        control.answer(self.store, run_id, value, request, by=by, why=why)

    def signal(self, run_id: str, name: str, value: Any = None, *, signal_id: str = "", by: str = "",
               why: str = "") -> None:  # fmt: skip
        """Send a signal. It is kept if nobody waits for it yet; the same `signal_id` counts once."""
        control.signal(self.store, run_id, name, value, signal_id=signal_id, by=by, why=why)

    def resolve(self, run_id: str, call: int | str | None = None, *, done: Any = ..., failed: str | None = None,
                retry: bool = False, by: str = "", why: str = "") -> None:  # fmt: skip
        """Settle a call in doubt: it happened (`done=result`), it did not (`failed=why`), or try again."""
        control.resolve(
            self.store, run_id, call, done=done, failed=failed, retry=retry, by=by, why=why
        )

    def patch(self, run_id: str, changes: control.Patch, *, delete: Sequence[str] = (), by: str = "",
              why: str = "") -> None:  # fmt: skip
        """Change what the run knows from outside: new values of `run.state` by key, a `StatePatch`, or a
        JSON Patch (RFC 6902). The agent sees it when its next call returns, a loop when its iteration ends."""
        control.patch(self.store, run_id, changes, delete=delete, by=by, why=why)

    def pause(self, run_id: str, *, by: str = "", why: str = "") -> None:
        """Stop the run at its next call, until somebody resumes it."""
        control.pause(self.store, run_id, by=by, why=why)

    def cancel(self, run_id: str, *, by: str = "", why: str = "") -> None:
        """End the run and its child runs, each at its next call."""
        control.cancel(self.store, run_id, by=by, why=why)
        self.engine.lookout.notice_cancel_of_tree(run_id)

    def undo(self, run_id: str, *, by: str = "", why: str = "") -> None:
        """Take back what the run did, newest first (the next worker or hf.resume does it)."""
        control.undo(self.store, run_id, by=by, why=why)

    def fork(self, run_id: str, step: int, *, id: str | None = None, state: Mapping[str, Any] | None = None,
             by: str = "", why: str = "") -> Handle:  # fmt: skip
        """A new run that begins with this one's first steps, and goes its own way from there."""
        new_id = id if id is not None else f"{run_id}~fork-{uuid.uuid4().hex[:8]}"
        control.fork(self.store, run_id, step, new_id, state or {}, by=by, why=why)
        return Handle(self, new_id)


def _specs(agents: object) -> list[AgentSpec]:
    if isinstance(agents, str) or not isinstance(agents, Iterable):
        raise InvalidInput(f"agents takes a list of agents, as agents=[main], not {agents!r}")
    return [agent_spec(fn) for fn in agents]


def _seconds(what: str, given: object) -> float:
    if isinstance(given, int | float) and not isinstance(given, bool) and given == given:
        return float(given)
    raise InvalidInput(f"{what} must be a number of seconds, not {given!r}")


def _new_id(spec: AgentSpec) -> str:
    return f"{spec.name}-{uuid.uuid4().hex[:12]}"


class AsyncHoldfast:
    """The same for code on an event loop: the same methods, awaited.

    Agents that are `async def` run on the caller's loop; everything else happens in threads, so the
    loop is never blocked. (`__getattr__` finds the methods of `Holdfast`; `run` and the others that
    execute agents are written out.)
    """

    def __init__(self, url: str | os.PathLike[str] | Store | None = None, *,
                 agents: Iterable[Callable[..., Any]] = (), options: Options | None = None) -> None:  # fmt: skip
        self.sync = Holdfast(url, agents=agents, options=options)

    async def __aenter__(self) -> AsyncHoldfast:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.sync, name)
        if name.startswith("_") or not callable(method):
            raise AttributeError(name)

        async def in_thread(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(partial(method, *args, **kwargs))

        return in_thread

    @overload
    async def run(self, agent: Callable[P, Coroutine[Any, Any, R]], /, *args: Any, id: str | None = None,
                  wait: bool = False, **input: Any) -> R: ...  # fmt: skip
    @overload
    async def run(self, agent: Callable[P, R], /, *args: Any, id: str | None = None, wait: bool = False,
                  **input: Any) -> R: ...  # fmt: skip
    async def run(self, agent: Callable[..., Any], /, *args: Any, id: str | None = None, wait: bool = False,
                  **input: Any) -> Any:  # fmt: skip
        """Run or resume; see `Holdfast.run`."""
        spec = agent_spec(agent)
        run_id = id if id is not None else _new_id(spec)
        made = await self.sync.engine.create_async(spec, run_id, input, args=args)
        if isinstance(made, RunRow):
            check_resumable(self.sync.store, made, spec)
        return await self._go_on(made, spec, wait=wait)

    async def resume(self, run_id: str, *, wait: bool = False, by: str = "", why: str = "",
                     override: Sequence[str] = (), accept_new_steps: bool = False) -> Any:  # fmt: skip
        """Go on with a run; see `Holdfast.resume`."""
        row = await asyncio.to_thread(views.row_of, self.sync.store, run_id)
        spec = self.sync.engine.agent_of(row)
        check_resumable(self.sync.store, row, spec, override, reopens=True)
        if accept_new_steps:
            accept = partial(control.accept_new_steps, self.sync.store, run_id, by=by, why=why)
            await asyncio.to_thread(accept)
        return await self._reopened(control.reopen, run_id, wait=wait, by=by, why=why)

    async def rerun(self, run_id: str, *, wait: bool = False, by: str = "", why: str = "") -> Any:
        """Run the code from its first line again; see `Holdfast.rerun`."""
        return await self._reopened(control.rerun, run_id, wait=wait, by=by, why=why)

    async def _reopened(
        self, how: Callable[..., None], run_id: str, *, wait: bool, by: str, why: str
    ) -> Any:
        row = await asyncio.to_thread(views.row_of, self.sync.store, run_id)
        spec = self.sync.engine.agent_of(row)
        await asyncio.to_thread(partial(how, self.sync.store, run_id, by=by, why=why))
        return await self._go_on(
            await asyncio.to_thread(views.row_of, self.sync.store, run_id), spec, wait=wait
        )

    async def _go_on(self, made: Taken | RunRow, spec: AgentSpec, *, wait: bool) -> Any:
        engine = self.sync.engine
        tree = Tree(engine, made.id if isinstance(made, RunRow) else made.row.id)
        while True:
            try:
                if isinstance(made, RunRow):
                    if made.status in TERMINAL_STATUSES:
                        return await asyncio.to_thread(engine.result_of, made, spec)
                    made = await uninterrupted(partial(engine.take, made, spec), engine.put_back)
                result = await engine.execute_async(made)
            except (RunWaiting, LeaseLost):  # another worker may have claimed it
                if not wait:
                    raise
            except HoldfastError:
                if wait:
                    await self._execute_rest(tree)
                raise
            else:
                if wait:
                    await self._execute_rest(tree)
                return result
            made = await self._drive(tree)

    async def _execute_rest(self, tree: Tree) -> None:
        """See `Holdfast._execute_rest`."""
        engine = self.sync.engine
        while (found := await uninterrupted(tree.rest, engine.put_back)) is not None:
            try:
                await engine.execute_async(found)
            except HoldfastError as error:
                tree.ended(error)

    async def _drive(self, tree: Tree) -> RunRow:
        """See `Holdfast._drive`."""
        engine = self.sync.engine
        while True:
            found = await uninterrupted(tree.next, engine.put_back)
            if isinstance(found, RunRow):
                return found
            if found is not None:
                try:
                    await engine.execute_async(found)
                except HoldfastError as error:
                    tree.ended(error)

    async def close(self) -> None:
        """Stop keeping leases and close the store."""
        await asyncio.to_thread(self.sync.close)
