"""What the processes of a batch do: execute runs, call them and be cancelled, serve people, settle, check.

Every function here is the whole life of a forked process. Which faults meet it is decided by `batch.py`; only a
kill at the n-th boundary is its own doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from fuzz.interpret import AgentSet, input_of
from fuzz.people import People, root_of, rows_of
from fuzz.programs import Program, family
from fuzz.world import World, stand_still
from holdfast import (
    AsyncHoldfast,
    Holdfast,
    HoldfastError,
    Options,
    StoreError,
    StoreUnavailable,
    views,
)
from holdfast.runtime.log.branches import CURRENT, Branch
from holdfast.runtime.log.lease import LeaseKeeper
from holdfast.store.base import TERMINAL_STATUSES, RunRow, Store
from holdfast.store.opening import open_store
from support.waiting import eventually

LEASE_SECONDS = 0.6
PATIENCE_SECONDS = 0.05
STUCK_SECONDS = 4.0
"""With no run of the batch moving for so long, those that wait for nothing are stuck."""
HUNG_SECONDS = 25.0
"""The same if one executes or is due: a busy machine may take its time."""
SETTLE_SECONDS = 300.0
NEVER_QUARANTINE = 10**6
TOGETHER = ("run_suspended", "run_completed")
"""Commits that a process with a `tick` makes at the same time."""
INSERT = {
    "sqlite": "INSERT INTO fuzz_written VALUES (?, ?)",
    "postgres": "INSERT INTO fuzz_written VALUES (%s, %s)",
}


@dataclass(frozen=True)
class Stage:
    """What every process of a batch knows."""

    seed: int
    store: str
    url: str
    folder: Path
    programs: dict[str, Program]
    """By the id of the run that was started with each."""
    features: frozenset[str]
    since: int
    """The store's time at which the batch began, less a second."""
    late: frozenset[str] = frozenset()
    """Runs that are started when there is peace."""

    @property
    def prefix(self) -> str:
        return f"f{self.seed}-"

    @cached_property
    def world(self) -> World:
        return World(self.folder)

    @cached_property
    def cast(self) -> AgentSet:
        """Declared once, in the process that forks the others."""
        return AgentSet(list(self.programs.values()), self.world, INSERT[self.store])

    def dice(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}:{name}")


class Plan(NamedTuple):
    """How one process lives, and what kills it."""

    number: int
    role: str
    kill_at: int = 0
    """Kill yourself at this boundary; 0: not by yourself."""
    interferes: bool = False
    """Let something come from outside right before some commits, so that they are refused."""
    kill_after_conflict: bool = False
    """Kill yourself when the first append that was refused has been sent again."""
    concurrency: int = 4
    patience: float = PATIENCE_SECONDS
    """See `Harm`."""
    tick: float = 0.0
    """Let suspensions and ends of runs be committed together, each so many seconds; 0: as they come."""
    stalls: bool = False
    """Let the whole process stand still now and then, for less than a lease."""
    pulse: memoryview | None = None
    """Eight bytes of shared memory: how many boundaries it has met."""


def options_of(plan: Plan, boundary: _Boundary | None = None) -> Options:
    """How a process executes, and where it kills itself."""
    boundary = boundary or _Boundary(plan)
    return Options(
        lease_seconds=LEASE_SECONDS,
        patience_seconds=plan.patience,
        quarantine_after=NEVER_QUARANTINE,
        boundary=boundary.meet,
    )


class _Boundary:
    """Counts the boundaries of this process, and ends it at one of them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.interfere: Callable[[str], None] | None = None
        self.seen = 0
        self.sent: dict[tuple[int, int], int] = {}
        """How often each line of execution has sent what it is about to commit."""

    def meet(self, where: str) -> None:
        plan = self.plan
        self.seen += 1
        if plan.pulse is not None:
            plan.pulse[:] = self.seen.to_bytes(8, "little")
        if self.interfere is not None and where.startswith("before commit"):
            self.interfere(where)
        if plan.tick and where.startswith("before commit") and where.endswith(TOGETHER):
            threading.Event().wait(plan.tick - time.time() % plan.tick)
        if self.seen == plan.kill_at or (
            plan.kill_after_conflict and self._follows_conflict(where)
        ):
            os.kill(os.getpid(), signal.SIGKILL)

    def _follows_conflict(self, where: str) -> bool:
        """Whether something was committed only when it was sent again, as the log had grown meanwhile."""
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        line = (threading.get_ident(), id(task))
        if where.startswith("before commit"):
            self.sent[line] = self.sent.get(line, 0) + 1
        elif where.startswith("after commit"):
            return self.sent.pop(line, 0) > 1
        return False


def prepare(stage: Stage) -> None:
    """Make the store and the table of transactional tools, and start all runs but the late ones."""
    with Holdfast(stage.url, agents=stage.cast.all) as hf:
        _make_table(stage)
        start(stage, hf, [run_id for run_id in stage.programs if run_id not in stage.late])


def start(stage: Stage, hf: Holdfast, which: Iterable[str]) -> None:
    for run_id in which:
        program = stage.programs[run_id]
        hf.start(stage.cast.agents[program["name"]], id=run_id, **input_of(program, run_id))


def _make_table(stage: Stage) -> None:
    sql = "CREATE TABLE IF NOT EXISTS fuzz_written (place TEXT, n BIGINT)"
    if stage.store == "sqlite":
        import apsw  # as the store: two copies of SQLite in one process break each other's locks

        with contextlib.closing(apsw.Connection(stage.url)) as db:
            db.set_busy_timeout(10_000)
            db.execute(sql)
    else:
        import psycopg

        with psycopg.connect(stage.url) as connection:
            connection.execute(sql)


def written(stage: Stage) -> list[tuple[str, int]]:
    """What transactional tools have left behind."""
    sql = "SELECT place, n FROM fuzz_written"
    if stage.store == "sqlite":
        import apsw

        with contextlib.closing(apsw.Connection(stage.url)) as db:
            db.set_busy_timeout(10_000)
            return [(str(at), int(n)) for at, n in db.execute(sql)]
    import psycopg

    with psycopg.connect(stage.url) as connection:
        return [(str(at), int(n)) for at, n in connection.execute(sql)]


# ── executing ────────────────────────────────────────────────────────────────────────────────


def work(stage: Stage, plan: Plan) -> None:
    """A worker. SIGTERM makes it stop in good order."""
    boundary = _Boundary(plan)
    logging.getLogger("holdfast.lease").addHandler(_LeftLeases(stage.world))
    with Holdfast(stage.url, agents=stage.cast.all, options=options_of(plan, boundary)) as hf:
        if plan.interferes:
            people = _patching(stage, hf.store, plan)
            boundary.interfere = partial(_interfere, stage, people, hf.engine.claims.worker)
        if plan.stalls:
            dice = stage.dice(f"stalls {plan.number}")
            threading.Thread(target=_stall, args=(dice,), daemon=True).start()
        worker = hf.worker(concurrency=plan.concurrency, grace=0.3)
        stop = threading.Thread(target=worker.stop, daemon=True)
        signal.signal(signal.SIGTERM, lambda *_: None if stop.ident else stop.start())
        worker.run()


def _stall(dice: random.Random) -> None:
    """Timers that end while the process stands still end together, as on a machine that is too busy."""
    while True:
        threading.Event().wait(dice.uniform(0.05, 0.3))
        stand_still(dice.uniform(0.05, 0.2))


def take_over(after: float, stage: Stage, plan: Plan) -> None:
    """A worker that comes later."""
    threading.Event().wait(after)
    work(stage, plan)


def freeze(after: float, worker: int, guest: int, world: World) -> None:
    """Freeze a worker for longer than its leases. Meanwhile another one executes its runs, until it is killed."""
    threading.Event().wait(after)
    os.kill(worker, signal.SIGSTOP)
    threading.Event().wait(2.0 * LEASE_SECONDS)
    os.kill(guest, signal.SIGKILL)
    world.record_freeze("over")
    os.kill(worker, signal.SIGCONT)


def _patching(stage: Stage, store: Store, plan: Plan) -> People:
    dice = stage.dice(f"interfere {plan.number}")
    return People(store, stage.world, stage.programs, dice, f"w{plan.number}", may_reject=False)


def _interfere(stage: Stage, people: People, worker: str, where: str) -> None:
    """Patch or pause the run that is about to commit, so that its append is refused; or let what it is waiting for
    come right before it is suspended."""
    with contextlib.suppress(StoreError):
        if where.endswith("run_suspended") and people.dice.random() < 0.5:
            _meet(stage, people, worker)
        here = CURRENT.get()
        run_id = here.session.run_id if isinstance(here, Branch) else ""
        plan = stage.programs[run_id]["people"] if run_id in stage.programs else {}
        if plan.get("storm") and people.dice.random() < 0.15:
            people.patch(run_id)
        if plan.get("halt") and people.dice.random() < 0.05:
            people.pause(run_id)


def _meet(stage: Stage, people: People, worker: str) -> None:
    """Decide what is asked by the runs that this process executes, and by those below them. (Which of them is about to
    be suspended is not known: its code may have been left.)"""
    if not any(program["people"].get("meet") for program in stage.programs.values()):
        return
    rows = rows_of(people.store, stage.since, stage.prefix)
    ours = {root_of(row.id) for row in rows if row.owner == worker and row.status == "running"}
    for row in rows:
        if root_of(row.id) in ours and stage.programs[root_of(row.id)]["people"].get("meet"):
            people.serve(row, 0.7)


EXPECTED = (HoldfastError, asyncio.CancelledError)


def call(stage: Stage, plan: Plan) -> None:
    """A server that calls AsyncHoldfast.run for its clients, who disconnect. Then it looks for leases that it
    still holds although no run executes. Before that, it is ended by Ctrl-C a few times, and started again."""
    dice = stage.dice(f"call {plan.number}")
    logging.getLogger("holdfast.lease").addHandler(_LeftLeases(stage.world))

    def opened() -> AsyncHoldfast:
        return AsyncHoldfast(stage.url, agents=stage.cast.all, options=options_of(plan))

    def some() -> list[str]:
        known = sorted(stage.programs.keys() - stage.late)
        return dice.sample(known, min(4, len(known)))

    async def serve_until_interrupted() -> None:
        async with opened() as hf:
            asyncio.get_running_loop().call_later(dice.uniform(0.02, 0.2), _interrupt)
            await asyncio.gather(*(_run(hf, stage, x) for x in some()), return_exceptions=True)
            await asyncio.get_running_loop().create_future()  # until it is interrupted

    async def serve() -> None:
        async with opened() as hf:
            disconnects = _Disconnects(hf.sync.store, dice)
            for _ in range(2):
                clients = [
                    _client(hf, stage, disconnects, x, dice.uniform(0, 0.04)) for x in some()
                ]
                for result in await asyncio.gather(*clients, return_exceptions=True):
                    if isinstance(result, BaseException) and not isinstance(result, EXPECTED):
                        stage.world.report("unexpected error", "", f"AsyncHoldfast.run: {result!r}")
            await asyncio.to_thread(_find_leaks, stage, hf.sync)

    for _ in range(3):
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve_until_interrupted())
        stage.world.record_life(what="loop ended by Ctrl-C")
    asyncio.run(serve())


def _interrupt() -> None:
    """What Ctrl-C does for the second time: the event loop ends, and `asyncio.run` cancels all its tasks, in any order."""
    raise KeyboardInterrupt


def _run(hf: AsyncHoldfast, stage: Stage, run_id: str) -> Coroutine[Any, Any, Any]:
    program = stage.programs[run_id]
    return hf.run(stage.cast.agents[program["name"]], id=run_id, **input_of(program, run_id))


async def _client(
    hf: AsyncHoldfast, stage: Stage, disconnects: _Disconnects, run_id: str, seconds: float
) -> Any:
    task = asyncio.ensure_future(_run(hf, stage, run_id))
    disconnects.clients[run_id] = task
    await asyncio.wait((task,), timeout=seconds)
    task.cancel()
    return await task


class _Disconnects:
    """Cancels some clients while their run is claimed or its log is read: too short a time to be met by chance."""

    def __init__(self, store: Store, dice: random.Random) -> None:
        self.clients: dict[str, asyncio.Task[Any]] = {}
        """By their run."""
        self._loop, self._dice = asyncio.get_running_loop(), dice
        for name in ("claim", "read"):
            setattr(store, name, partial(self._call, getattr(store, name)))

    def _call(self, method: Callable[..., Any], run_id: str, *args: Any, **kwargs: Any) -> Any:
        client = self.clients.get(run_id)
        if client is not None and self._dice.random() < 0.3:
            self._loop.call_soon_threadsafe(client.cancel)
            threading.Event().wait(0.001)  # for the event loop, if this is another thread
        return method(run_id, *args, **kwargs)


class _LeftLeases(logging.Handler):
    """Reports each lease that had to be released because nothing executed its run any more."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if record.funcName == LeaseKeeper._drop_ownerless.__name__:
            run_id = str(record.args[0]) if isinstance(record.args, tuple) else ""
            self._world.report("lease left", run_id, record.getMessage())


def _find_leaks(stage: Stage, hf: Holdfast) -> None:
    """Nothing executes in this process now: within two lease times it must own no run."""
    end = time.monotonic() + 2.5 * LEASE_SECONDS

    def ours() -> list[str]:
        rows = rows_of(hf.store, stage.since, stage.prefix)
        now = hf.store.now()
        return [row.id for row in rows if row.owner == hf.engine.claims.worker and row.is_live(now)]

    held = ours()
    while held and time.monotonic() < end:
        threading.Event().wait(0.05)
        held = ours()
    for run_id in held:
        stage.world.report(
            "lease leaked", run_id, "its caller was cancelled, and the lease is still renewed"
        )


# ── people ───────────────────────────────────────────────────────────────────────────────────


def serve_people(stage: Stage, plan: Plan) -> None:
    """People who are quick, and interfere."""
    dice = stage.dice(f"people {plan.number}")
    done: dict[str, Any] = {}
    may_reject = "rejections" in stage.features
    with contextlib.closing(open_store(stage.url)) as store:
        people = People(
            store,
            stage.world,
            stage.programs,
            dice,
            f"p{plan.number}",
            may_reject=may_reject,
            may_conflict="conflicts" in stage.features,
        )
        over = False
        while not over:
            with contextlib.suppress(StoreError):
                over = not _round(stage, store, people, dice, done)
            threading.Event().wait(dice.uniform(0.002, 0.03))


def _round(
    stage: Stage, store: Store, people: People, dice: random.Random, finished: dict[str, Any]
) -> int:
    """Serve some; how many there are that have not ended."""
    known = rows_of(store, stage.since, stage.prefix)
    again = [r.id for r in known if people.resume_failed(r)]
    people.cancel_working(known)
    rows = [r for r in known if r.status not in TERMINAL_STATUSES or r.id in again]
    dice.shuffle(rows)
    for row in rows:
        age = (store.now() - row.created_at) / 1e6
        people.trouble(row, age, finished)
        root = stage.programs[root_of(row.id)]
        if root["people"].get("burst"):  # all of a tree at once, or nothing
            tree = [r for r in rows if root_of(r.id) == root_of(row.id)]
            if len(tree) > 1 or dice.random() < 0.1:
                for one in tree:
                    people.serve(one)
        elif dice.random() < 0.5 and not people.hesitates(row):
            people.serve(row, 0.7)
    return len(rows)


def patch_much(stage: Stage, plan: Plan) -> None:
    """A person who keeps patching runs with branches while they execute: conflicts."""
    dice = stage.dice(f"storm {plan.number}")
    wanted = {
        run_id for run_id, program in stage.programs.items() if program["people"].get("storm")
    }
    with contextlib.closing(open_store(stage.url)) as store:
        people = People(
            store, stage.world, stage.programs, dice, f"s{plan.number}", may_reject=False
        )
        while wanted:
            with contextlib.suppress(StoreError):
                rows = [
                    row for row in rows_of(store, stage.since, stage.prefix) if row.id in wanted
                ]
                for row in rows:
                    if row.status == "running":
                        for _ in range(dice.randint(1, 8)):
                            people.patch(row.id)
            threading.Event().wait(0.002)


# ── the end of a batch ───────────────────────────────────────────────────────────────────────


def drive(stage: Stage, plan: Plan) -> None:
    """Without any worker: one blocking call of hf.run for each run."""
    with Holdfast(stage.url, agents=stage.cast.all, options=options_of(plan)) as hf:

        def bring_to_its_end(run_id: str, program: Program) -> None:
            agent = stage.cast.agents[program["name"]]
            try:
                while _is_away(
                    lambda: hf.run(agent, id=run_id, wait=True, **input_of(program, run_id))
                ):
                    threading.Event().wait(0.05)
            except HoldfastError:
                pass  # failed, cancelled, diverged: found in the log
            except BaseException as error:
                stage.world.report("unexpected error", run_id, f"hf.run(wait=True): {error!r}")
            while execute_rest(run_id) or program["people"].get("again"):
                threading.Event().wait(0.05)

        def execute_rest(root_id: str) -> bool:
            """A run that had ended before executes nothing. What is still open below it is a worker's to claim, and so
            is a failed run that people have resumed. Whether there was any."""
            rows = rows_of(hf.store, stage.since, root_id)
            tree = [row for row in rows if root_of(row.id) == root_id]
            left = [row for row in tree if row.status not in TERMINAL_STATUSES]
            now = hf.store.now()
            for row in left:
                if row.due_at is not None and row.due_at <= now:  # else it is waiting for people
                    with contextlib.suppress(HoldfastError):
                        hf.drive(row.id)
            return bool(left)

        for run_id, program in stage.programs.items():
            target = threading.Thread(target=bring_to_its_end, args=(run_id, program), daemon=True)
            target.start()
        threading.Event().wait()


def _is_away(use: Callable[[], Any]) -> bool:
    """Whether the store was not reached: a machine that is busy enough makes a server seem down. A caller tries again."""
    try:
        use()
    except StoreUnavailable:
        return True
    return False


def settle(stage: Stage, plan: Plan) -> None:
    """People who answer everything, until every run has ended or nothing changes."""
    dice = stage.dice("settle")
    with Holdfast(stage.url, agents=stage.cast.all) as hf:
        if plan.role == "work":  # else those who drive them start them
            start(stage, hf, sorted(stage.late))
        people = People(hf.store, stage.world, stage.programs, dice, "settle", may_reject=False)
        watch = _Watch(stage, hf.store, people, plan.role)
        try:
            eventually(watch.is_over, "the end of a batch", seconds=SETTLE_SECONDS, pause=0.01)
        except AssertionError:
            watch.report_stuck(f"not over after {SETTLE_SECONDS:g} s")


class _Watch:
    """Whether anything moves."""

    def __init__(self, stage: Stage, store: Store, people: People, role: str) -> None:
        self.stage, self.store, self.people, self.role = stage, store, people, role
        self.known: dict[str, Any] = {}
        self.moved_at = time.monotonic()
        self.hopeless: set[str] = set()
        self.late: set[str] = set()
        self.left: list[RunRow] = []

    def is_over(self) -> bool:
        rows = rows_of(self.store, self.stage.since, self.stage.prefix)
        heads = self.store.heads([row.id for row in rows])
        now = {row.id: (row.status, heads[row.id]) for row in rows}
        if now != self.known:
            self.known, self.moved_at = now, time.monotonic()
        again = [row.id for row in rows if self.people.resume_failed(row)]
        self.people.cancel_working(rows)
        self.left = [row for row in rows if row.status not in TERMINAL_STATUSES or row.id in again]
        for row in self.left:
            if row.id not in self.hopeless:
                self._look_at(row)
        started = len({root_of(row.id) for row in rows}) == len(self.stage.programs)
        waiting = [
            row for row in self.left if root_of(row.id) not in {root_of(x) for x in self.hopeless}
        ]
        moves = any(row.status in ("pending", "running") or row.due_at for row in waiting)
        patience = HUNG_SECONDS if moves else STUCK_SECONDS
        if waiting and time.monotonic() - self.moved_at > patience:
            self.report_stuck(f"nothing changed for {patience:g} s")
            return True
        return started and not waiting

    def _look_at(self, row: RunRow) -> None:
        if row.status == "quarantined":
            self._give_up(row, "quarantined")
        elif row.status == "waiting" and row.waiting_for.startswith("its code: it diverged"):
            self._give_up(row, "diverged")
        else:
            self._look_for_lost_time(row)
            if not self.people.hesitates(row):
                self.people.serve(row)

    def _look_for_lost_time(self, row: RunRow) -> None:
        """17: a run that waits is due when the first of its open waits is over."""
        if row.status != "waiting" or row.id in self.late:
            return
        state = views.folded(self.store, row.id)
        if row.waiting_for.startswith("a decision") and "in_doubt" not in {
            call.status for call in state.calls
        }:
            return  # it must end, and waits only for what may have happened
        if any(call.undoes for call in state.calls):
            return  # it is being undone: its code is no longer waiting for anything
        times = [wait.until for wait in state.waits if wait.until is not None and not wait.decided]
        if not times or (row.due_at is not None and row.due_at <= min(times)):
            return
        if self.store.get(row.id) == row:  # it was so all the time
            self.late.add(row.id)
            due = (
                "nothing"
                if row.due_at is None
                else f"it in {(row.due_at - min(times)) / 1e6:.2f} s"
            )
            text = f"it waits, {due} is due, and an open wait is over earlier; waiting for {row.waiting_for!r}"
            self.stage.world.report("wake time lost", row.id, text)

    def _give_up(self, row: RunRow, kind: str) -> None:
        self.hopeless.add(row.id)
        self.stage.world.report(kind, row.id, row.waiting_for)

    def report_stuck(self, why: str) -> None:
        given_up = {root_of(x) for x in self.hopeless}
        now = self.store.now()
        for row in self.left:
            if root_of(row.id) not in given_up:
                due = (
                    "nothing due"
                    if row.due_at is None
                    else f"due in {(row.due_at - now) / 1e6:.2f} s"
                )
                text = f"{self.role}: {why}; {row.status}, {due}, waiting for {row.waiting_for!r}, owner {row.owner!r}"
                self.stage.world.report("stuck", row.id, text)


def terminate_backends(stage: Stage, plan: Plan) -> None:
    """Ends connections of the batch's database, again and again."""
    import psycopg

    dice = stage.dice(f"backends {plan.number}")
    sql = (
        "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1) AS one"
    )
    while True:
        with contextlib.suppress(psycopg.Error), psycopg.connect(stage.url, autocommit=True) as db:
            while True:
                if db.execute(sql).fetchall():
                    stage.world.record_life(what="backend terminated")
                threading.Event().wait(dice.uniform(0.05, 0.3))


ROLES: dict[str, Callable[[Stage, Plan], None]] = {
    "work": work,
    "call": call,
    "people": serve_people,
    "storm": patch_much,
    "drive": drive,
    "settle": settle,
    "backends": terminate_backends,
}


def agents_of(programs: Sequence[Program]) -> list[str]:
    return [one["name"] for program in programs for one in family(program)]


def dumped(programs: dict[str, Program]) -> str:
    return json.dumps(programs, indent=1)
