"""Kill a run at every boundary, recover it in fresh processes, and ask the invariants.

A *schedule* is a list of boundary numbers: the first process is killed at the first number, the next
process at the second, and so on; then the run continues undisturbed. Whatever it waits for, the scenario
supplies. Each process is forked and killed with SIGKILL, so nothing of it survives but the store.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import Holdfast, HoldfastError, Options, RunWaiting, control, views
from holdfast.core.events import RunSuspended
from holdfast.core.state import Call
from holdfast.store.base import Store
from holdfast.store.sqlite import SQLiteStore
from support.invariants import Evidence, check_all, is_of
from support.ledger import Ledger

LEASE_SECONDS = 30.0


@dataclass
class Scenario:
    """An agent, its input, and what people do when it waits."""

    name: str
    agent: Callable[..., Any]
    input: dict[str, Any] = field(default_factory=dict)
    act: Callable[[Holdfast, str, Ledger], None] | None = None
    kinds: dict[str, str] = field(default_factory=dict)
    same_result: bool = True
    essence: Callable[[Any], Any] = lambda result: result
    """What of the result must be equal however often it crashed: not the times in it."""
    resumed: bool = False
    """Whether someone resumes the run when it has failed."""
    final: str = "completed"


class Clock:
    """Real time plus what the test has skipped."""

    def __init__(self) -> None:
        self.skipped_us = 0

    def __call__(self) -> int:
        import time

        return time.time_ns() // 1000 + self.skipped_us

    def skip(self, seconds: float) -> None:
        self.skipped_us += round(seconds * 1_000_000)


MakeStore = Callable[[Clock], Store]
Count = Callable[[str, object], None]
"""pytest's record_property; conftest.py adds the counts up."""


def on_sqlite(folder: Path) -> MakeStore:
    """Every life opens the same file."""

    def make_store(clock: Clock) -> SQLiteStore:
        return SQLiteStore(folder / "h.db", clock=clock)

    return make_store


def on_postgres(dsn: str) -> MakeStore:
    """Every life opens the same database, whose schema is made here, and not under the knife."""
    from holdfast.store.postgres import PostgresStore  # which takes a while to import

    def make_store(clock: Clock) -> PostgresStore:
        return PostgresStore(dsn, clock=clock)

    make_store(Clock()).close()
    return make_store


@dataclass
class LifeResult:
    """What one process did before it ended."""

    killed: bool
    points: int
    says: str
    result: Any = None


def live(
    make_store: MakeStore, clock: Clock, run: Callable[[Holdfast], Any], kill_at: int | None
) -> LifeResult:
    """Run in a forked process, killed at its n-th boundary if it comes that far."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            gc.disable()  # it would copy every page that the parent shares with us
            os.close(read)
            code = _child(make_store, clock, run, kill_at, write)
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(pid, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    points = data.count(b"p")
    if killed:
        return LifeResult(True, points, "killed")
    says, result = pickle.loads(data[data.index(b"=") + 1 :])  # our own child's words
    if says == "broke":
        raise AssertionError(f"the process failed:\n{result}")
    return LifeResult(False, points, says, result)


def _child(
    make_store: MakeStore,
    clock: Clock,
    run: Callable[[Holdfast], Any],
    kill_at: int | None,
    write: int,
) -> int:
    seen = 0

    def boundary(_: str) -> None:
        nonlocal seen
        os.write(write, b"p")
        seen += 1
        if seen == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    options = Options(lease_seconds=LEASE_SECONDS, boundary=boundary, patience_seconds=1.0)
    answer: tuple[str, Any]
    try:
        with Holdfast(make_store(clock), options=options) as hf:
            try:
                answer = ("done", run(hf))
            except RunWaiting as waiting:
                answer = ("waiting", str(waiting))
            except HoldfastError as error:
                answer = (type(error).__name__, str(error))
    except BaseException:  # carried to the parent, which fails with it
        answer = ("broke", traceback.format_exc())
    os.write(write, b"=" + pickle.dumps(answer))
    return 0


def run_schedule(
    scenario: Scenario, make_store: MakeStore, ledger: Ledger, run_id: str, kills: list[int]
) -> tuple[LifeResult, list[int], Evidence]:
    """Bring the scenario to its end through these kills; the last life, all points, the evidence."""
    clock = Clock()
    points: list[int] = []
    earlier: list[list[bytes]] = []
    pending = list(kills)

    def run(hf: Holdfast) -> Any:
        return hf.run(scenario.agent, id=run_id, **scenario.input)

    for _ in range(40):
        kill_at = pending.pop(0) if pending else None
        life = live(make_store, clock, run, kill_at)
        points.append(life.points)
        store = make_store(clock)
        try:
            earlier.append([r.hash for r in store.read(run_id)])
            if life.killed:
                clock.skip(LEASE_SECONDS + 1)
                continue
            if life.says == "RunFailed" and scenario.resumed:
                control.reopen(store, run_id)
                continue
            if life.says != "waiting":
                return life, points, _evidence(scenario, make_store(clock), ledger, run_id, earlier)
            _supply(scenario, Holdfast(store), run_id, ledger, clock)
        finally:
            store.close()
    raise AssertionError(f"{scenario.name} {kills}: the run did not come to an end")


def _supply(scenario: Scenario, hf: Holdfast, run_id: str, ledger: Ledger, clock: Clock) -> None:
    """Give the run what it waits for: a decision about a doubt, time, or what the scenario says."""
    for waiting in [run_id, *(row.id for row in hf.runs(parent=run_id))]:
        state = hf.get(waiting)
        doubts = state.in_doubt
        if doubts:
            for call in doubts:
                found = [
                    x for x in ledger.effects(waiting) if is_of(x, call.name, call.key, call.args)
                ]
                happened = found[0]["result"] if found else None
                if happened is None:
                    hf.resolve(waiting, call.step, retry=True, by="test")
                else:
                    hf.resolve(waiting, call.step, done=happened, by="test")
            return
        last = [x for _, x in hf.events(waiting) if isinstance(x, RunSuspended)]
        if last and last[-1].wake_at is not None and state.waits and state.waits[0].wait == "timer":
            clock.skip(max(0, last[-1].wake_at - clock()) / 1_000_000 + 0.001)
            return
    if scenario.act is not None:
        scenario.act(hf, run_id, ledger)
    hf.engine.close()


def _evidence(
    scenario: Scenario, store: Store, ledger: Ledger, run_id: str, earlier: list[list[bytes]]
) -> Evidence:
    return Evidence(
        store, run_id, ledger.effects(run_id), earlier_logs=earlier, kinds=scenario.kinds
    )


def logical(evidence: Evidence) -> list[tuple[str, int, str, str, str]]:
    """The calls of a run without attempts and times: what must be equal however often it crashed."""
    return sorted(
        (c.branch, c.index, c.name, _stable(c, evidence.run_id), c.status)
        for c in evidence.state.calls
    )


def _stable(call: Call, run_id: str) -> str:
    """A call's arguments, without the run's own id."""
    return "" if call.args is None else repr(call.args).replace(run_id, "ID")


@dataclass
class Explored:
    """What an exploration found out."""

    schedules: int = 0
    points: int = 0


def explore(
    scenario: Scenario,
    make_store: MakeStore,
    ledger: Ledger,
    *,
    pairs: bool = False,
    first: int = 1,
    stride: int = 1,
) -> Explored:
    """Kill at every boundary (and at every pair); check every invariant each time.

    The runs' names are new each time, because the ledger remembers all of them.
    """
    found, prefix = Explored(), f"{scenario.name}-{uuid.uuid4().hex[:6]}"
    reference, points, evidence = run_schedule(scenario, make_store, ledger, f"{prefix}-ref", [])
    found.points = sum(points)
    wanted = logical(evidence)
    _judge(scenario, evidence, reference, None, wanted, [])
    lives = len(points)
    for life in range(lives):
        for k in range(first, points[life] + 1, stride):
            kills = [10**9] * life + [k]
            seconds: list[int | None] = [None]
            if pairs:
                seconds += list(range(1, points[life] + 2, stride))
            for j in seconds:
                schedule = kills if j is None else [*kills, j]
                run_id = f"{prefix}-" + "-".join(map(str, schedule)).replace(str(10**9), "x")
                last, _, evidence = run_schedule(scenario, make_store, ledger, run_id, schedule)
                _judge(scenario, evidence, last, reference, wanted, schedule, f"{prefix}-ref")
                evidence.store.close()
                found.schedules += 1
    return found


def kill(
    scenario: Scenario, make_store: MakeStore, ledger: Ledger, count: Count, **how: Any
) -> int:
    """Explore, and let the suite's summary count the schedules; how many there were."""
    found = explore(scenario, make_store, ledger, **how)
    count("kill schedules", found.schedules)
    return found.schedules


def _judge(
    scenario: Scenario,
    evidence: Evidence,
    last: LifeResult,
    reference: LifeResult | None,
    expected: Any,
    kills: list[int],
    reference_id: str = "",
) -> None:
    try:
        check_all(evidence)
        status = views.get(evidence.store, evidence.run_id).status
        assert status == scenario.final, f"{status} instead of {scenario.final}: {last}"
        if reference is not None and scenario.same_result:
            assert last.says == reference.says, f"{last} instead of {reference}"
            mine = str(scenario.essence(last.result)).replace(evidence.run_id, "ID")
            theirs = str(scenario.essence(reference.result)).replace(reference_id, "ID")
            assert mine == theirs, mine
            assert logical(evidence) == expected, (logical(evidence), expected)
    except AssertionError as broken:
        raise AssertionError(f"{scenario.name}, killed at {kills}: {broken}") from None
    for child in evidence.store.runs(limit=50, filter=_children(evidence.run_id)):
        effects = [x for x in evidence.effects if x["run"] == child.id]
        check_all(Evidence(evidence.store, child.id, effects, kinds=scenario.kinds))


def _children(run_id: str) -> Any:
    from holdfast.store.base import Filter

    return Filter(parent=run_id)
