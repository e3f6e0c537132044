"""Real worker processes that are killed, frozen and replaced, and the people who serve their runs.

A `Fleet` starts workers as a user would (`holdfast worker FILE`) and does harm to them. A `People`
answers what the runs ask for. `Chaos` brings many runs to their end with both, and then asks every
invariant about every run.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import Holdfast, HoldfastError, control
from holdfast.core.events import Event, RunClaimed
from holdfast.store.base import Filter, RunRow, Store
from support import chaos_agents
from support.invariants import Evidence, check_all, is_of
from support.ledger import Ledger
from support.waiting import eventually

AGENTS = Path(chaos_agents.__file__)
ENDED = ("completed", "failed", "cancelled")
TELL_SECONDS = 5.0
PACE_SECONDS = 0.05  # at which people look after the runs of a chaos: they are not the load


# ── workers ──────────────────────────────────────────────────────────────────────────────────


@dataclass
class Member:
    """One worker process, and when it is to be woken if it is frozen."""

    process: subprocess.Popen[bytes]
    log: Path
    frozen_until: float = 0.0

    @property
    def frozen(self) -> bool:
        return self.frozen_until > 0


class Fleet:
    """Worker processes on one store, started with the real command."""

    def __init__(
        self,
        url: str,
        ledger: Ledger,
        folder: Path,
        *,
        size: int,
        lease_seconds: float,
        concurrency: int = 2,
        dawdle_seconds: float = 0.0,
        environment: Callable[[int], dict[str, str]] | None = None,
    ) -> None:
        self._command = [
            sys.executable,
            "-m",
            "holdfast.cli",
            "worker",
            str(AGENTS),
            "--url",
            url,
            "--lease",
            str(lease_seconds),
            "--concurrency",
            str(concurrency),
        ]
        paths = [entry for entry in sys.path if entry]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(AGENTS.parent.parent), *paths]),
            chaos_agents.LEDGER: ledger.address,
            chaos_agents.DAWDLE: str(dawdle_seconds),
        }
        self._extra = environment or (lambda _: {})
        self._folder = folder
        self._size = size
        self._spawned = itertools.count()
        self.lease_seconds = lease_seconds
        self.members: list[Member] = []
        self.died: list[str] = []
        """Exit codes and all words of workers that ended without being told to."""

    def __enter__(self) -> Fleet:
        self.members = [self._spawn(place) for place in range(self._size)]
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.process.kill()
            member.process.wait()

    def log(self) -> str:
        """What the workers said last, for the message of a failing test."""
        return "\n".join(_last_words(member.log) for member in self.members)

    def _spawn(self, place: int) -> Member:
        path = self._folder / f"worker-{next(self._spawned)}.log"
        with path.open("ab") as log:
            process = subprocess.Popen(
                self._command,
                env={**self._environment, **self._extra(place)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return Member(process, path)

    def kill(self, place: int) -> None:
        """As the kernel does when memory runs out; a new worker takes the place."""
        self.members[place].process.kill()
        self.members[place].process.wait()
        self.members[place] = self._spawn(place)

    def freeze(self, place: int, seconds: float) -> None:
        """As a machine does that is moved, or that swaps: it will continue and know nothing of it."""
        self.members[place].process.send_signal(signal.SIGSTOP)
        self.members[place].frozen_until = time.monotonic() + seconds

    def look_after(self) -> None:
        """Wake those whose time has come; replace those that ended by themselves."""
        for place, member in enumerate(self.members):
            if member.frozen and time.monotonic() >= member.frozen_until:
                member.process.send_signal(signal.SIGCONT)
                member.frozen_until = 0.0
            code = member.process.poll()
            if code is not None:
                said = member.log.read_text("utf-8", errors="replace")
                self.died.append(f"{member.log.name} ended with exit code {code}, saying\n{said}")
                sys.stdout.write(f"nobody asked for it: {self.died[-1]}\n")
                self.members[place] = self._spawn(place)

    def place_of(self, pid: int) -> int:
        return next(i for i, m in enumerate(self.members) if m.process.pid == pid)

    def stop(self, seconds: float) -> list[int]:
        """Tell all to finish (SIGTERM); their exit codes. One that does not end in time is a fault."""
        end = time.monotonic() + seconds
        for member in self.members:
            member.process.send_signal(signal.SIGCONT)
            eventually(lambda m=member: listens(m.process.pid), "that a worker has started")
            member.process.send_signal(signal.SIGTERM)
        try:
            return [m.process.wait(max(0.1, end - time.monotonic())) for m in self.members]
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"a worker did not end within {seconds} s of SIGTERM:\n{self.log()}"
            ) from None


def _last_words(log: Path) -> str:
    return log.read_text("utf-8", errors="replace")[-1500:]


def listens(pid: int) -> bool:
    """Whether a process has said what SIGTERM means to it."""
    status = Path(f"/proc/{pid}/status").read_text("ascii", errors="replace")
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


# ── runs ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Task:
    """A kind of run: its agent, its input, what it asks of people, how it must end."""

    name: str
    agent: Callable[..., Any]
    input: dict[str, Any]
    final: str = "completed"
    result: Any = None
    check_result: bool = True


def tasks(sleep_seconds: float) -> tuple[Task, ...]:
    """One of each kind. What is slept longer than a worker's patience takes the run out of memory."""
    a = chaos_agents
    return (
        Task("chain", a.chained, {"name": "sam"}, result={"sent": ["send", "send"], "tries": 1}),
        Task("careful", a.careful, {"amount": 5}, result=["notes of a", "pay", "notes of b"]),
        Task(
            "threads",
            a.threads,
            {"names": ["a", "b"]},
            result=[["notes of a", "send"], ["notes of b", "send"], "notes of after"],
        ),
        Task(
            "tasks",
            a.tasks,
            {"names": ["a", "b"]},
            result=[["notes of a", "send_async"], ["notes of b", "send_async"], "notes of after"],
        ),
        Task("retrying", a.retrying, {"name": "sam"}, result="flaky"),
        Task("gated", a.gated, {"name": "sam"}, result="send"),
        Task(
            "sleeper",
            a.sleeper,
            {"name": "sam", "seconds": sleep_seconds},
            result=[{"n": 3}, "send"],
        ),
        Task(
            "child", a.outer, {"name": "sam"}, result=[["notes of sam", "send"], "notes of outer"]
        ),
        Task("undoing", a.undoing, {"rooms": ["a", "b"]}, final="failed"),
        Task("cancelled", a.cancelled, {"rooms": ["a", "b"]}, final="cancelled"),
        Task("improvising", a.improvising, {"text": "hello"}, check_result=False),
        Task("forgiving", a.forgiving, {"name": "sam"}, result=["PermissionError", "send"]),
    )


class People:
    """Those who approve, answer, cancel, and decide about calls in doubt by asking the ledger."""

    def __init__(self, hf: Holdfast, ledger: Ledger) -> None:
        self._hf = hf
        self._ledger = ledger
        self.earlier: dict[str, list[list[bytes]]] = {}
        """Logs as they were read at some time: what is read later must begin with them."""
        self.did: Counter[str] = Counter()

    def round(self) -> None:
        """Serve every run that waits for someone."""
        for status in ("waiting", "quarantined"):
            for row in self._hf.runs(status=status, limit=1000):
                with contextlib.suppress(HoldfastError):  # someone was faster, or the store is away
                    self._serve(row)

    def remember(self, run_id: str) -> None:
        """Read a run's log, to be compared with what it is later."""
        read = [record.hash for record in self._hf.store.read(run_id)]
        self.earlier.setdefault(run_id, []).append(read)

    def _serve(self, row: RunRow) -> None:
        if row.status == "quarantined":
            control.reopen(self._hf.store, row.id, by="test", why="chance killed its workers")
            self.did["reopened"] += 1
        elif self._decide_doubts(row.id) or self._answer(row):
            self.remember(row.id)

    def _decide_doubts(self, run_id: str) -> int:
        doubts = self._hf.get(run_id).in_doubt
        for call in doubts:
            effects = self._ledger.effects(run_id)
            found = [x for x in effects if is_of(x, call.name, call.key, call.args)]
            if found:
                self._hf.resolve(run_id, call.step, done=found[0]["result"], by="test")
            else:
                self._hf.resolve(run_id, call.step, retry=True, by="test")
            self.did["resolved as done" if found else "resolved to retry"] += 1
        return len(doubts)

    def _answer(self, row: RunRow) -> int:
        waits = [wait for wait in self._hf.get(row.id).waits if not wait.decided]
        for wait in waits:
            if wait.wait == "approval":
                self._hf.approve(row.id, wait.id, by="test")
                self.did["approved"] += 1
            elif wait.wait == "signal" and row.agent == "sleeper":
                self._hf.signal(row.id, "go", {"n": 3}, signal_id="go")
                self.did["signalled"] += 1
            elif wait.wait == "signal":
                self._hf.cancel(row.id, by="test", why="changed my mind")
                self.did["cancelled"] += 1
        return len(waits)


# ── chaos ────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Plan:
    """How much harm, to how many, for how long."""

    seed: int
    runs: int
    workers: int
    lease_seconds: float
    start_seconds: float
    """The runs are started over this time, so that there is always something under way."""
    harm_seconds: float
    """Harm is done for so long; after that workers have peace, and must leave nothing behind."""
    limit_seconds: float
    kill_every_seconds: float
    freeze_every_seconds: float
    restart_every_seconds: float = 0.0
    sleep_seconds: float = 5.5
    dawdle_seconds: float = 0.03


@dataclass
class Report:
    """What was done and what came of it."""

    kills: int = 0
    freezes: int = 0
    restarts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    people: Counter[str] = field(default_factory=Counter)
    claims: int = 0
    logs_checked: int = 0
    invariants_checked: int = 0
    evidence: int = 0
    twice: Counter[str] = field(default_factory=Counter)
    """Effects beyond the first, by tool, where nothing promises that there is only one."""


class Chaos:
    """Runs of every kind, brought to their end by workers to whom harm is done."""

    def __init__(
        self,
        plan: Plan,
        url: str,
        ledger: Ledger,
        folder: Path,
        *,
        restart: Callable[[str], None] | None = None,
    ) -> None:
        self._plan, self._url, self._ledger, self._folder = plan, url, ledger, folder
        self._restart = restart
        self._dice, self._other_dice = random.Random(plan.seed), random.Random(plan.seed)
        self._prefix = f"s{plan.seed}"
        self._tasks: dict[str, Task] = {}
        self._restarting: threading.Thread | None = None
        self.report = Report()

    def run(self) -> Report:
        """Everything; AssertionError (which names the seed) if a promise is broken."""
        began = time.monotonic()
        try:
            with (
                Holdfast(self._url) as hf,
                Fleet(
                    self._url,
                    self._ledger,
                    self._folder,
                    size=self._plan.workers,
                    lease_seconds=self._plan.lease_seconds,
                    dawdle_seconds=self._plan.dawdle_seconds,
                ) as fleet,
            ):
                people = People(hf, self._ledger)
                with self._harming(fleet, began):
                    self._live_through(hf, fleet, people, began)
                self.report.seconds = time.monotonic() - began
                codes = fleet.stop(self._plan.lease_seconds + 120)
                assert codes == [0] * len(codes), f"workers ended with {codes}:\n{fleet.log()}"
                assert not fleet.died, "workers died by themselves:\n" + "\n".join(fleet.died)
                self.report.people = people.did
                self._judge(hf.store, people)
        except AssertionError as broken:
            raise AssertionError(f"seed {self._plan.seed}: {broken}") from None
        return self.report

    def _live_through(self, hf: Holdfast, fleet: Fleet, people: People, began: float) -> None:
        kinds = tasks(self._plan.sleep_seconds)
        ended: set[str] = set()
        next_word = began

        def all_have_ended() -> bool:
            nonlocal next_word
            share = min(1.0, (time.monotonic() - began) / self._plan.start_seconds)
            with contextlib.suppress(HoldfastError):  # the store is away: next time
                self._start(hf, kinds, round(share * self._plan.runs))
                people.round()
                ended.update(self._newly_ended(hf))
                if self._tasks:
                    people.remember(self._other_dice.choice(list(self._tasks)))
            if time.monotonic() >= next_word:
                self._tell(time.monotonic() - began, len(ended))
                next_word += TELL_SECONDS
            return len(ended) == self._plan.runs

        eventually(
            all_have_ended,
            lambda: (
                f"{self._stranded(hf, ended)}{fleet.log()}\nwhat should be: the end of all runs"
            ),
            seconds=self._plan.limit_seconds,
            pause=PACE_SECONDS,
        )

    def _tell(self, elapsed: float, count: int) -> None:
        done, plan = self.report, self._plan
        sys.stdout.write(
            f"seed {plan.seed}, {elapsed:.0f} s: {count} of {len(self._tasks)} started runs ended "
            f"({plan.runs} in all); {done.kills} kills, {done.freezes} freezes, {done.restarts.total()} restarts\n"
        )
        sys.stdout.flush()

    def _start(self, hf: Holdfast, kinds: Sequence[Task], until: int) -> None:
        while len(self._tasks) < until:
            number = len(self._tasks)
            task = kinds[number % len(kinds)]
            run_id = f"{self._prefix}-{task.name}-{number}"
            hf.start(task.agent, id=run_id, **task.input)  # the same id again is the same run
            self._tasks[run_id] = task

    def _newly_ended(self, hf: Holdfast) -> set[str]:
        rows = [row for status in ENDED for row in hf.runs(status=status, limit=5000)]
        return {row.id for row in rows if row.id in self._tasks}

    # ── harm ─────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def _harming(self, fleet: Fleet, began: float) -> Iterator[None]:
        """Meanwhile harm is done, and undone, by a thread of its own: a worker that was frozen while it had
        SQLite's write lock holds up everyone who would write, and has to be woken anyway."""
        over = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            harm = pool.submit(self._do_harm, fleet, began, over)
            try:
                yield
            finally:
                over.set()
                harm.result()

    def _do_harm(self, fleet: Fleet, began: float, stop: threading.Event) -> None:
        at = dict.fromkeys(("kill", "freeze", "restart"), began + 1.0)
        while not stop.wait(0.05):
            fleet.look_after()
            if time.monotonic() - began < self._plan.harm_seconds:
                self._harm(fleet, at)
        if self._restarting is not None:
            self._restarting.join()

    def _harm(self, fleet: Fleet, at: dict[str, float]) -> None:
        plan, now = self._plan, time.monotonic()
        if now >= at["kill"]:
            fleet.kill(self._dice.randrange(plan.workers))
            self.report.kills += 1
            at["kill"] = now + self._soon(plan.kill_every_seconds)
        awake = [i for i, member in enumerate(fleet.members) if not member.frozen]
        if now >= at["freeze"] and len(awake) > plan.workers // 2:
            # Mostly past the lease: then someone else has the run when it wakes.
            fleet.freeze(
                self._dice.choice(awake), plan.lease_seconds * self._dice.uniform(0.5, 2.5)
            )
            self.report.freezes += 1
            at["freeze"] = now + self._soon(plan.freeze_every_seconds)
        if self._restart is not None and now >= at["restart"]:
            self._restart_store()
            at["restart"] = now + self._soon(plan.restart_every_seconds)

    def _soon(self, mean: float) -> float:
        return self._dice.uniform(0.3, 1.7) * mean

    def _restart_store(self) -> None:
        if self._restarting is not None and self._restarting.is_alive():
            return
        how = self._dice.choice(("fast", "immediate"))
        self._restarting = threading.Thread(target=self._restart, args=(how,))
        self._restarting.start()
        self.report.restarts[how] += 1

    # ── judgement ────────────────────────────────────────────────────────────────────────

    def _stranded(self, hf: Holdfast, finished: set[str]) -> str:
        left = [hf.store.get(run_id) for run_id in self._tasks if run_id not in finished]
        rows = "\n".join(f"  {row}" for row in left[:20])
        return (
            f"after {self._plan.limit_seconds} s {len(finished)} of {self._plan.runs} runs have ended; "
            f"{len(left)} have not, among them\n{rows}\n"
        )

    def _judge(self, store: Store, people: People) -> None:
        for run_id, task in self._tasks.items():
            self._judge_one(store, run_id, people)
            row = store.get(run_id)
            assert row is not None and row.status == task.final, f"{row} instead of {task.final}"
            if task.final == "completed" and task.check_result:
                found = Holdfast(store).result(run_id)
                assert found == task.result, f"{run_id} gives {found} instead of {task.result}"
        unended = [
            row
            for status in ("pending", "running", "waiting", "paused", "quarantined")
            for row in store.runs(Filter(status=status), limit=5000)
        ]
        assert not unended, f"nobody will end these: {unended}"

    def _judge_one(self, store: Store, run_id: str, people: People) -> None:
        children = [row.id for row in store.runs(Filter(parent=run_id))]
        for one in (run_id, *children):
            effects = [x for x in self._ledger.effects(run_id) if x["run"] == one]
            x = Evidence(store, one, effects, earlier_logs=people.earlier.get(one, []))
            self.report.invariants_checked += check_all(x)
            self.report.logs_checked += 1
            assert not x.state.in_doubt, f"{one} has ended with a call in doubt"
            self.report.claims += _count(x.events, RunClaimed)
            self.report.evidence += sum(event.kind == "call_evidence" for event in x.events)
            self._count_twice(x)

    def _count_twice(self, x: Evidence) -> None:
        for call in x.state.calls:
            happened = [f for f in x.own_effects if is_of(f, call.name, call.key, call.args)]
            if len(happened) > 1 and call.key and call.effect == "checked":
                self.report.twice[call.name] += len(happened) - 1


def _count(events: Sequence[Event], kind: type[Event]) -> int:
    return sum(isinstance(event, kind) for event in events)


__all__ = ["Chaos", "Fleet", "People", "Plan", "Report", "Task", "tasks"]
