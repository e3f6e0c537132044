"""`Holdfast`: one object to run agents, to decide about runs and to look at them.

It owns a store and an engine and nothing else; two of them in one process do not interact. The methods are
thin: executing is `execution`, deciding is `control`, looking is `views`. The same for code on an event loop is `aio`.
"""

from __future__ import annotations

import os
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, overload

from holdfast import control, execution, views
from holdfast.core.events import Event
from holdfast.core.log import Record
from holdfast.core.policy import Budget, Limits, microseconds
from holdfast.core.state import RunState
from holdfast.errors import InvalidInput, NotFound
from holdfast.runtime.declare.agent_spec import AgentSpec, AnyAgent, BoundAgent
from holdfast.runtime.declare.specs import agent_spec
from holdfast.runtime.exec.actions import perform
from holdfast.runtime.exec.engine import Engine, Options
from holdfast.store.base import RunRow, Schedule, Store
from holdfast.store.checks import check_whole
from holdfast.store.opening import open_store

if TYPE_CHECKING:  # imported where they are used: most processes only run agents
    from holdfast.bulk import BulkReport, BulkVerb
    from holdfast.bundle import ImportResult
    from holdfast.check import CheckedRun
    from holdfast.doctor import Diagnosis
    from holdfast.dry_fork import DryStep
    from holdfast.gc import GcResult
    from holdfast.runtime.exec.dry_run import ReplayResult
    from holdfast.runtime.exec.worker import Report, Worker
    from holdfast.store.items import Item

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Handle(Generic[R_co]):
    """A handle on a run, for example to wait for its result. `Handle[str]` is a run whose result is a str."""

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

    def result(self, *, timeout: float | None = None) -> R_co:
        """Wait until the run has ended; its result, or the error it ended with."""
        found: R_co = self._app.result(self.id, timeout=timeout)
        return found

    def events(self, *, after: int = -1) -> list[tuple[Record, Event]]:
        """The run's log: each record with its event."""
        return self._app.events(self.id, after=after)

    def stream(self, *, after: int = -1) -> Iterator[tuple[Record, Event]]:
        """The run's events, old and new, until it has ended."""
        return self._app.stream(self.id, after=after)

    def signal(
        self, name: str, value: Any = None, *, signal_id: str = "", by: str = "", why: str = ""
    ) -> None:
        """Send the run a signal; see `Holdfast.signal`."""
        self._app.signal(self.id, name, value, signal_id=signal_id, by=by, why=why)

    def cancel(self, *, by: str = "", why: str = "") -> None:
        """End the run and its child runs, each at its next call."""
        self._app.cancel(self.id, by=by, why=why)


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
        specs = specs_of(agents)
        self.store: Store = open_store(url) if named else url  # type: ignore[arg-type, assignment]
        self.engine = Engine(self.store, options)
        self._workers: weakref.WeakSet[Worker] = weakref.WeakSet()
        for spec in specs:
            self.engine.claims.register(spec)

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

    # Without options of their own, `run` and `start` check the agent's parameters (P). A ParamSpec has no place for
    # options, so with options the input is not checked, unless it is bound to the agent: hf.run(agent.bind(…), id=…).

    @overload
    def run(
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
    def run(self, agent: AnyAgent[P, R], /, *args: P.args, **input: P.kwargs) -> R: ...
    @overload
    def run(
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
    def run(
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
    def run(
        self,
        agent: AnyAgent[..., R],
        /,
        *args: Any,
        deadline: float | None,
        budget: Budget | None = None,
        **input: Any,
    ) -> R: ...
    @overload
    def run(
        self,
        agent: AnyAgent[..., R],
        /,
        *args: Any,
        deadline: float | None = None,
        budget: Budget | None,
        **input: Any,
    ) -> R: ...
    def run(  # type: ignore[misc] # mypy: an agent may have a parameter `id`. But @agent refuses it
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
        """Run or resume. New id: start. Unfinished: resume. Completed: the recorded result, nothing is executed.
        Failed: RunFailed. The same id with another input: InputConflict.

        RunWaiting is raised when the run cannot continue here and now. With `wait` this blocks instead, and executes
        child runs that the run is waiting for as soon as they are due.

        `deadline` (seconds) and `budget` are limits of a new run, instead of those that its agent declares. They do not
        change an existing run; `resume` does.
        """
        limits = Limits(deadline, budget)
        actions = execution.run(self.engine, agent, args, input, id=id, wait=wait, limits=limits)
        return perform(self.engine, actions)

    @overload
    def start(
        self,
        agent: BoundAgent[R],
        /,
        *,
        id: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        budget: Budget | None = None,
    ) -> Handle[R]: ...
    @overload
    def start(
        self,
        agent: str,
        /,
        *,
        id: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        budget: Budget | None = None,
        **input: Any,
    ) -> Handle[Any]: ...
    @overload
    def start(self, agent: AnyAgent[P, R], /, *args: P.args, **input: P.kwargs) -> Handle[R]: ...
    @overload
    def start(
        self,
        agent: AnyAgent[..., R],
        /,
        *args: Any,
        id: str | None,
        priority: int = 0,
        deadline: float | None = None,
        budget: Budget | None = None,
        **input: Any,
    ) -> Handle[R]: ...
    @overload
    def start(
        self,
        agent: AnyAgent[..., R],
        /,
        *args: Any,
        id: str | None = None,
        priority: int,
        deadline: float | None = None,
        budget: Budget | None = None,
        **input: Any,
    ) -> Handle[R]: ...
    @overload
    def start(
        self,
        agent: AnyAgent[..., R],
        /,
        *args: Any,
        deadline: float | None,
        budget: Budget | None = None,
        **input: Any,
    ) -> Handle[R]: ...
    @overload
    def start(
        self,
        agent: AnyAgent[..., R],
        /,
        *args: Any,
        deadline: float | None = None,
        budget: Budget | None,
        **input: Any,
    ) -> Handle[R]: ...
    def start(  # type: ignore[misc] # as for `run`
        self,
        agent: AnyAgent[..., Any] | BoundAgent[Any] | str,
        /,
        *args: Any,
        id: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        budget: Budget | None = None,
        **input: Any,
    ) -> Handle[Any]:
        """Create the run and leave the work to workers. Returns at once. Limits are as for `run`.

        The agent can be passed by name if a worker has registered it; then its code is not needed here."""
        limits = Limits(deadline, budget)
        actions = execution.start(
            self.engine, agent, args, input, id=id, priority=priority, limits=limits
        )
        return Handle(self, perform(self.engine, actions))

    def handle(self, run_id: str) -> Handle[Any]:
        """A handle on a run that exists."""
        views.row_of(self.store, run_id)
        return Handle(self, run_id)

    def resume(
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
        """Resume a run: a failed one from its failed step, a paused one, or one that is waiting.

        `deadline` (seconds from now) and `budget` (those limits that are set; what was used still counts) raise its
        limits, and those of its open child runs. A run that failed because of a limit can only continue with a higher
        one.

        With `accept_new_steps`, calls that the code has added between recorded ones are made instead of refused with
        Diverged. A call that was renamed counts as added.

        A run that is too old (`Checkpoint.max_age`) or was started with another version of its agent is refused with
        NotResumable, unless `override` names that check: "age", "version".

        For a completed run this returns the recorded result, even if its agent is not known here.
        """
        actions = execution.resume(
            self.engine,
            run_id,
            wait=wait,
            by=by,
            why=why,
            override=override,
            accept_new_steps=accept_new_steps,
            limits=Limits(deadline, budget),
        )
        return perform(self.engine, actions)

    def rerun(self, run_id: str, *, wait: bool = False, by: str = "", why: str = "") -> Any:
        """Run the code again from its first line and keep the state, so that guards in the code still work."""
        return perform(self.engine, execution.rerun(self.engine, run_id, wait=wait, by=by, why=why))

    def drive(self, run_id: str) -> Any:
        """Execute a run if it can continue and no other process executes it: for engines that deliver work at least
        once. A second delivery is harmless. The same runs can be continued as with `resume`."""
        return perform(self.engine, execution.drive(self.engine, run_id))

    def result(self, run_id: str, *, timeout: float | None = None) -> Any:
        """Wait until the run has ended; its result, or the error it ended with."""
        return perform(self.engine, execution.await_result(self.engine, run_id, timeout))

    def worker(
        self,
        *,
        agents: Iterable[Callable[..., Any]] | None = None,
        concurrency: int = 1,
        grace: float = 10.0,
        report: Callable[[Report], None] | None = None,
    ) -> Worker:
        """A worker for these agents, or for all that are registered with this object; `worker.run()` starts it.

        When it is stopped, it releases its runs at their next boundary. A run that is inside a call for longer
        than `grace` seconds is released too. `report` is called with the outcome of each run.
        """
        specs = None if agents is None else specs_of(agents)
        for spec in specs or ():
            self.engine.claims.register(spec)
        from holdfast.runtime.exec.worker import Worker

        made = Worker(
            self.engine, agents=specs, concurrency=concurrency, grace=grace, report=report
        )
        self._workers.add(made)
        return made

    def register(self, *agents: Callable[..., Any]) -> None:
        """Let runs of these agents (or of all that this object knows) be started by name. A worker registers its
        own agents when it starts."""
        from holdfast.runtime.declare.json_schema import register

        specs = specs_of(agents)
        for spec in specs:
            self.engine.claims.register(spec)
        register(self.store, specs or self.engine.agents.values())

    def agents(self) -> list[views.AgentInfo]:
        """The agents of this store: those that workers have registered, and those that have runs."""
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

        There is one run for each time, regardless of the number of workers. After a period without workers, a
        run is started for the latest time that was missed, for all of them, or for none. The same
        schedule again changes nothing; another one of the same id (by default the agent's name) replaces it.
        """
        spec = agent_spec(agent)
        self.engine.claims.register(spec)
        from holdfast.runtime.exec.schedules import define

        return define(
            self.store,
            spec,
            cron,
            zone=tz,
            input=input or {},
            priority=priority,
            catch_up=catch_up,
            schedule_id=id if id is not None else spec.name,
        )

    def schedules(self) -> list[Schedule]:
        """All schedules, by id."""
        return self.store.schedules.all()

    def unschedule(self, schedule_id: str) -> None:
        """Delete a schedule. Runs that it has started are not changed."""
        if not self.store.schedules.delete(schedule_id):
            raise NotFound(f"no schedule {schedule_id!r}; hf.schedules() lists them")

    # ── looking ──────────────────────────────────────────────────────────────────────────

    def get(self, run_id: str, *, brief: bool = False) -> RunState:
        """The current state. This reads the whole log.

        With `brief`, the state contains the calls that are not over, the last 100 that succeeded, and the last 100 that
        failed, were retried or were in doubt; `left_out` counts the others. This reads only the end of a long log.
        """
        return views.brief(self.store, run_id) if brief else views.get(self.store, run_id)

    def at(self, run_id: str, step: int, when: Literal["before", "after"] = "after") -> RunState:
        """The state before or after a step: what the agent knew then. Step 0 is the beginning."""
        return views.at(self.store, run_id, step, when)

    def diff(self, run_id: str, step_a: int, step_b: int) -> list[views.Change]:
        """What changed in the state between the ends of two steps. Step 0 is the beginning."""
        return views.diff(self.store, run_id, step_a, step_b)

    def events(
        self, run_id: str, *, after: int = -1, limit: int | None = None, last: int | None = None
    ) -> list[tuple[Record, Event]]:
        """The run's log after a seq, at most `limit` events; or its `last` events. Each record with its event."""
        return list(views.events(self.store, run_id, after=after, limit=limit, last=last))

    def timeline(
        self, run_id: str, *, after: int = -1, limit: int | None = None, last: int | None = None
    ) -> list[views.Moment]:
        """The run's events as sentences. The parameters are those of `events`."""
        return list(views.timeline(self.store, run_id, after=after, limit=limit, last=last))

    def stream(self, run_id: str, *, after: int = -1) -> Iterator[tuple[Record, Event]]:
        """The run's events, old and new, until it has ended. Blocks while there are none."""
        views.row_of(self.store, run_id)
        from holdfast.event_stream import stream

        return stream(self.store, run_id, after=after)

    def artifact(self, run_id: str, name: str) -> bytes:
        """The bytes of an artifact, by its name (the newest of that name) or its id."""
        return views.artifact(self.store, run_id, name)

    def value(self, run_id: str, value: Any) -> Any:
        """The full value of something in a run's state: a value that was too large for its event is fetched."""
        return views.value(self.store, run_id, value)

    def runs(
        self,
        *,
        status: str = "",
        agent: str = "",
        parent: str = "",
        limit: int = 50,
        cursor: int | None = None,
    ) -> list[RunRow]:
        """Runs, newest first, filtered by any status that is shown (including `interrupted`). Pass the `cursor` of the
        last row to get the next page."""
        return views.runs(
            self.store, status=status, agent=agent, parent=parent, limit=limit, cursor=cursor
        ).runs

    def search(
        self, query: str, *, limit: int = 50, cursor: int | None = None
    ) -> views.SearchResult:
        """Runs that match a search such as `status:failed agent:recap error:timeout since:24h`, newest first. If a
        search stopped early (`stopped`), continue it with `cursor=found.next`."""
        return views.search(self.store, query, limit=limit, cursor=cursor)

    def verify(self, run_id: str) -> views.Verification:
        """Check the run's whole log against its hash chain, and every value stored outside it."""
        return views.verify(self.store, run_id)

    def replay(self, run_id: str) -> ReplayResult:
        """Run the code against the log, without executing any tool or writing anything."""
        row = views.row_of(self.store, run_id)
        from holdfast.runtime.exec.dry_run import replay

        return replay(self.store, row, self.engine.claims.agent_of(row))

    # ── integrations ─────────────────────────────────────────────────────────────────────

    def record(
        self, agent: str, /, *, id: str, by: str = "", why: str = "", **input: Any
    ) -> Handle[Any]:
        """Create a run that another program executes (`agent` is its name): no worker claims it. The same id is the
        same run; with another input, InputConflict. The program stores items in it and ends it with `finish`."""
        row = control.record(self.store, agent, input, id=id, by=by, why=why)
        return Handle(self, row.id)

    def finish(self, run_id: str, result: Any = None) -> None:
        """End a run that another program executes. A run that has already ended is not changed."""
        control.finish(self.store, run_id, result)

    def put_item(self, run_id: str, collection: str, key: str, value: Any, *, by: str = "") -> bool:
        """Store a value (JSON or bytes) in a run, under a key. Returns whether anything was recorded.

        It is durable when this returns. The same value under the same key is not recorded again; another value is the
        key's next version. A run that has ended accepts no more items.
        """
        return control.put_item(self.store, run_id, collection, key, value, by=by)

    def item(self, run_id: str, collection: str, key: str) -> Item | None:
        """The item that is stored under a key, or None. The cost does not depend on the length of the run's log."""
        return views.item(self.store, run_id, collection, key)

    def items(
        self,
        run_id: str,
        collection: str = "",
        *,
        prefix: str = "",
        after: int = -1,
        limit: int | None = None,
    ) -> list[Item]:
        """The items of a collection (or of all) whose keys start with `prefix`, newest first. With `after`, only those
        that were stored after the event with this seq. Deleted items are left out."""
        return list(
            views.items(self.store, run_id, collection, prefix=prefix, after=after, limit=limit)
        )

    def delete_item(self, run_id: str, collection: str, key: str, *, by: str = "") -> bool:
        """Delete the item that is stored under a key. Returns whether there was one. Earlier values stay in the run's
        log."""
        return control.delete_item(self.store, run_id, collection, key, by=by)

    def delete(self, run_id: str) -> None:
        """Delete a run that has ended: its log, its items and its values. Its id is free again."""
        control.delete(self.store, run_id)

    # ── the store ────────────────────────────────────────────────────────────────────────

    def bulk(
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
        from holdfast.bulk import bulk

        return bulk(
            self.store, verb, query, runs=runs, newest=newest, dry_run=dry_run, by=by, why=why
        )

    def gc(
        self,
        *,
        older_than: float | None = None,
        keep: int | None = None,
        snapshots: int | None = None,
        snapshot_age: float | None = None,
        dry_run: bool = False,
    ) -> GcResult:
        """Delete runs that ended more than `older_than` seconds ago, except the newest `keep`. Of each run's snapshots,
        delete all except the newest `snapshots`, and those older than `snapshot_age` seconds."""
        from holdfast.gc import gc

        return gc(
            self.store,
            older_than_us=None if older_than is None else microseconds(older_than, "older_than"),
            keep=None if keep is None else check_whole("keep", keep, least=0),
            snapshots=None if snapshots is None else check_whole("snapshots", snapshots, least=1),
            snapshot_age_us=None
            if snapshot_age is None
            else microseconds(snapshot_age, "snapshot_age"),
            dry_run=dry_run,
        )

    def export(self, run_id: str) -> list[str]:
        """A run as lines of JSON: its log, chained as it is, and its artifacts. (`bundle.export` reads page by page.)"""
        from holdfast import bundle

        return list(bundle.export(self.store, run_id))

    def import_run(self, lines: Iterable[str]) -> ImportResult:
        """Import a run that `export` wrote, here or elsewhere. It is validated first. A run that had not ended is
        paused."""
        from holdfast import bundle

        return bundle.import_run(self.store, bundle.read(lines))

    def doctor(self) -> Diagnosis:
        """Examine the store: weak settings, damaged runs, and runs that no worker claims."""
        from holdfast.doctor import examine

        return examine(self.store)

    def check(self, *agents: Callable[..., Any], failed: bool = False) -> list[CheckedRun]:
        """Check whether unfinished runs agree with the code of these agents (default: all that this object knows).
        Nothing is executed or written."""
        specs = {spec.name: spec for spec in specs_of(agents)} or self.engine.agents
        from holdfast.check import check

        return check(self.store, specs, failed=failed)

    # ── deciding ─────────────────────────────────────────────────────────────────────────

    def approve(
        self,
        run_id: str,
        request: str = "",
        *,
        args: Mapping[str, Any] | None = None,
        by: str = "",
        why: str = "",
        digest: str = "",
    ) -> None:
        """Approve a request of the run. With `args`, the tool is called with these arguments instead of those shown."""
        control.approve(self.store, run_id, request, args=args, by=by, why=why, digest=digest)

    def reject(
        self, run_id: str, request: str = "", *, by: str = "", why: str = "", digest: str = ""
    ) -> None:
        """Reject a request of the run."""
        control.reject(self.store, run_id, request, by=by, why=why, digest=digest)

    def answer(
        self, run_id: str, value: Any, request: str = "", *, by: str = "", why: str = ""
    ) -> None:
        """Answer a question of the run."""
        control.answer(self.store, run_id, value, request, by=by, why=why)

    def signal(
        self,
        run_id: str,
        name: str,
        value: Any = None,
        *,
        signal_id: str = "",
        by: str = "",
        why: str = "",
    ) -> None:
        """Send a signal. It is kept if the run is not waiting for it yet; the same `signal_id` counts once."""
        control.signal(self.store, run_id, name, value, signal_id=signal_id, by=by, why=why)

    def resolve(
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
        """Settle a call in doubt: it happened (`done=result`), it did not (`failed=why`), or try again."""
        control.resolve(
            self.store, run_id, call, done=done, failed=failed, retry=retry, by=by, why=why
        )

    def patch(
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
        """Change a run's state from outside: new values of `run.state` by key, a `StatePatch`, or a
        JSON Patch (RFC 6902). The agent sees it when its next call returns, a loop when its iteration ends.

        With `expected`, the `seq` of the state that you have read, the patch is refused with `Conflict` if the run
        has changed since. A `key` makes a retry harmless: the same patch under the same key is recorded once, and
        False is returned for the second one.
        """
        return control.patch(
            self.store, run_id, changes, delete=delete, expected=expected, key=key, by=by, why=why
        )

    def pause(self, run_id: str, *, by: str = "", why: str = "") -> None:
        """Stop the run at its next call, until it is resumed."""
        control.pause(self.store, run_id, by=by, why=why)

    def cancel(self, run_id: str, *, by: str = "", why: str = "") -> None:
        """End the run and its child runs, each at its next call."""
        control.cancel(self.store, run_id, by=by, why=why)
        self.engine.cancel_watcher.notice_cancel_of_tree(run_id)

    def undo(self, run_id: str, *, by: str = "", why: str = "") -> None:
        """Undo what the run did, newest first. The next worker, or `hf.resume`, does it."""
        control.undo(self.store, run_id, by=by, why=why)

    @overload
    def fork(
        self,
        run_id: str,
        step: int,
        *,
        id: str | None = None,
        state: Mapping[str, Any] | None = None,
        by: str = "",
        why: str = "",
    ) -> Handle[Any]: ...
    @overload
    def fork(
        self,
        run_id: str,
        step: int,
        *,
        state: Mapping[str, Any] | None = None,
        mocks: Mapping[str, Any],
    ) -> DryStep: ...
    def fork(
        self,
        run_id: str,
        step: int,
        *,
        id: str | None = None,
        state: Mapping[str, Any] | None = None,
        by: str = "",
        why: str = "",
        mocks: Mapping[str, Any] | None = None,
    ) -> Handle[Any] | DryStep:
        """A new run that begins with this one's first steps, and continues on its own from there.

        With `mocks` the fork is dry: `step` is executed again in isolation, with tools mocked, and what it did is
        returned. No run is created and no tool is executed; a tool without a mock is refused with NotMocked.
        """
        if mocks is not None:
            if id is not None:
                raise InvalidInput("a fork with mocks creates no run, so it takes no id")
            row = views.row_of(self.store, run_id)
            self.engine.claims.agent_of(row)
            from holdfast.dry_fork import dry_fork

            return dry_fork(self.store, row, self.engine.agents, step, mocks, state or {})
        new_id = id if id is not None else f"{run_id}~fork-{uuid.uuid4().hex[:8]}"
        control.fork(self.store, run_id, step, new_id, state or {}, by=by, why=why)
        return Handle(self, new_id)


def specs_of(agents: object) -> list[AgentSpec]:
    """What the agents of a list declare; InvalidInput for anything else."""
    if isinstance(agents, str) or not isinstance(agents, Iterable):
        raise InvalidInput(
            f"agents takes a list of agents, for example agents=[main], not {agents!r}"
        )
    return [agent_spec(fn) for fn in agents]
