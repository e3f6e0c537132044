"""One batch: some runs, processes that execute them and are killed, peace, and the verdict.

The process that runs batches forks all others, so it stays small: it opens no store and has no threads. Each choice
is drawn from the batch's seed; when a fault hits is up to the machine, as far as it is not at a boundary.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import mmap
import os
import select
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz import check, lives
from fuzz.check import Violation
from fuzz.lives import Plan, Stage
from fuzz.people import root_of, rows_of
from fuzz.programs import generate, shown

WORKERS = 5
PULSES = 256
PR_SET_PDEATHSIG = 1
SHOW_STACKS = signal.SIGUSR1
IDLE_SECONDS = 0.15
"""A worker that meets no boundary for so long has nothing to do, or hangs: it is replaced."""
PEACE_CONCURRENCY = 64
"""More than there are runs: one that hangs must not hold up the others."""
TICK_SECONDS = 0.03
LONG_PATIENCE_SECONDS, LONG_PATIENCE_SHARE = 60.0, 0.25
OVERALL_SECONDS = 400.0
REPLAY_SECONDS = 120.0


@dataclass
class Harm:
    """How much harm a batch does."""

    runs: int = 24
    kills: int = 60
    """Faults that end a process, before there is peace."""
    seconds: float = 6.0
    """After so long there is peace, however many kills there were."""
    patience: float | None = None
    """For so long a run stays in memory whose code awaits something of its own while it waits. None: in most batches
    it is short, in the others so long that such a run is never suspended."""


@dataclass
class Report:
    """What came of batches."""

    batches: int = 0
    runs: int = 0
    events: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[int, str, str, Violation]] = field(default_factory=list)
    """The seed of the batch, the store, the shape of the program, and what was wrong."""
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds."""

    @property
    def kills(self) -> int:
        return sum(count for what, count in self.faults.items() if what.startswith("SIGKILL"))

    def add(self, other: Report) -> None:
        self.batches += other.batches
        self.runs += other.runs
        self.events += other.events
        self.faults.update(other.faults)
        self.shapes.update(other.shapes)
        self.violations += other.violations
        for name, seconds in other.phases.items():
            self.phases[name] = self.phases.get(name, 0.0) + seconds


class Batch:
    """One batch, from its seed."""

    def __init__(
        self,
        seed: int,
        store: str,
        url: str,
        folder: Path,
        features: frozenset[str],
        harm: Harm,
        *,
        shape: str = "",
        restart: Callable[[str], None] | None = None,
    ) -> None:
        programs = {
            f"f{seed}-{number}": generate(f"{seed}:{number}", f"f{seed}p{number}", features, shape)
            for number in range(harm.runs)
        }
        since = time.time_ns() // 1000 - 1_000_000
        late = frozenset(x for n, x in enumerate(programs) if n % 3 == 2)
        self.stage = Stage(seed, store, url, folder, programs, features, since, late)
        assert self.stage.cast.all  # declared here, and so in all forked processes
        self.harm, self.restart = harm, restart
        self.patience = harm.patience
        if self.patience is None:
            is_long = self.stage.dice("patience").random() < LONG_PATIENCE_SHARE
            self.patience = LONG_PATIENCE_SECONDS if is_long else lives.PATIENCE_SECONDS
        self.dice = self.stage.dice("faults")
        self.report = Report(batches=1)
        self.alive: dict[int, BatchProcess] = {}
        self.lives = 0
        self.pulses = memoryview(mmap.mmap(-1, 8 * PULSES))
        self.all_ended = False

    def run(self) -> Report:
        began = time.monotonic()
        self.report.shapes.update(program["shape"] for program in self.stage.programs.values())
        phases: list[Callable[[], object]] = [
            self._prepare,
            self._do_harm,
            self._make_peace,
            self._judge,
        ]
        try:
            for phase in phases:
                at = time.monotonic()
                phase()
                self.report.phases[phase.__name__] = time.monotonic() - at
        finally:
            for pid in list(self.alive):
                self._end(pid)
        self.report.seconds = time.monotonic() - began
        return self.report

    def _prepare(self) -> None:
        if self._forked(lambda: lives.prepare(self.stage), 60.0):
            raise RuntimeError(
                f"the runs of batch {self.stage.seed} could not be started:\n{self._stderr()}"
            )

    # ── processes ────────────────────────────────────────────────────────────────────────

    def _fork(self, what: Callable[[], None]) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            gc.disable()
            die_with_parent()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            log = os.open(
                self.stage.folder / "stderr", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
            )
            os.dup2(log, 2)
            os.dup2(log, 1)
            faulthandler.enable()
            faulthandler.register(SHOW_STACKS)  # of all threads, into stderr
            what()
            code = 0
        except BaseException:  # a forked process must end here, and say why
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def _forked(self, what: Callable[[], None], seconds: float) -> int:
        """A process that is not harmed; its exit code, -1 if it takes too long."""
        pid = self._fork(what)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            self._sleep(0.005)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return -1

    def _sleep(self, seconds: float) -> None:
        """Until a child ends, or for so long."""
        signal.sigtimedwait({signal.SIGCHLD}, seconds)

    def _end(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.alive.pop(pid, None)

    # ── harm ─────────────────────────────────────────────────────────────────────────────

    def _do_harm(self) -> None:
        end = time.monotonic() + self.harm.seconds
        while time.monotonic() < end and self.report.kills < self.harm.kills and not self.all_ended:
            self._keep_staffed()
            self._sleep(0.01)
            self._reap()
            self._hit()
        for pid in list(self.alive):
            self._end(pid)
        self.report.faults.update(life["what"] for life in self.stage.world.lives())

    def _keep_staffed(self) -> None:
        roles = Counter(life.plan.role for life in self.alive.values())
        while roles["work"] + roles["call"] < WORKERS:
            is_call = "callers" in self.stage.features and self.dice.random() < 0.06
            role = "call" if is_call and not roles["call"] else "work"
            self._start(role)
            roles[role] += 1
        if not roles["people"]:
            self._start("people")
        if not roles["storm"] and any(
            x["people"].get("storm") for x in self.stage.programs.values()
        ):
            self._start("storm")
        if (
            self.stage.store == "postgres"
            and "backends" in self.stage.features
            and not roles["backends"]
        ):
            self._start("backends")

    def _start(self, role: str) -> None:
        self.lives += 1
        dice, has = self.stage.dice(f"life {self.lives}"), self.stage.features
        kill_at, fate, after = 0, "SIGKILL", dice.uniform(0.02, 0.35)
        if role == "people":
            after = dice.uniform(0.1, 0.8)
        elif role in ("call", "backends", "storm"):
            after = 6.0
        elif "kills" in has and dice.random() < 0.65:
            kill_at, after = int(dice.expovariate(1 / 14)) + 1, 3.0
        elif "freezes" in has and dice.random() < 0.12:
            fate = "SIGSTOP"
        elif "terms" in has and dice.random() < 0.2:
            fate = "SIGTERM"
        slot = self.lives % PULSES
        pulse = self.pulses[8 * slot : 8 * slot + 8]
        pulse[:] = bytes(8)
        interferes = role == "work" and "conflicts" in has and dice.random() < 0.5
        plan = Plan(
            self.lives,
            role,
            kill_at,
            interferes=interferes,
            kill_after_conflict=interferes and dice.random() < 0.4,
            concurrency=dice.choice((1, 2, 4, 6)),
            patience=self.patience,
            tick=dice.choice((0.0, TICK_SECONDS)),
            stalls="stalls" in has and dice.random() < 0.2,
            pulse=pulse,
        )
        pid = self._fork(lambda: lives.ROLES[role](self.stage, plan))
        self.alive[pid] = BatchProcess(plan, fate, after, dice)

    def _reap(self) -> None:
        while self.alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            life = self.alive.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            if code == -signal.SIGKILL:
                self._count(f"SIGKILL at a boundary of {life.plan.role}")
            elif life.plan.role == "people" and not code:
                self.all_ended = True
            elif code:
                self._count(f"{life.plan.role} ended with {code}")
                if code in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS):
                    text = f"{life.plan.role} ended with signal {-code}:\n{self._stderr()}"
                    self._violated(Violation("process crashed", f"process {pid}", text))

    def _hit(self) -> None:
        now = time.monotonic()
        for pid, life in list(self.alive.items()):
            if life.is_idle(now):
                self._end(pid)
                self._count("worker without work replaced")
                continue
            if not life.at or now < life.at:
                continue
            if life.fate == "SIGSTOP" and not life.frozen:
                os.kill(pid, signal.SIGSTOP)
                life.frozen, life.at = True, now + life.dice.uniform(1.1, 1.6) * lives.LEASE_SECONDS
                self._count("SIGSTOP")
            elif life.fate == "SIGSTOP":
                os.kill(pid, signal.SIGCONT)
                life.fate, life.at = "SIGKILL", now + life.dice.uniform(0.05, 0.3)
            elif life.fate == "SIGTERM":
                os.kill(pid, signal.SIGTERM)
                life.fate, life.at = "SIGKILL", now + 2.0
                self._count("SIGTERM")
            else:
                self._end(pid)
                self._count(f"SIGKILL of {life.plan.role}")
        if (
            self.restart is not None
            and "restarts" in self.stage.features
            and self.dice.random() < 0.002
        ):
            how = self.dice.choice(("fast", "immediate"))
            self.restart(how)
            self._count(f"server restart, {how}")

    def _count(self, what: str) -> None:
        self.report.faults[what] += 1

    # ── peace and verdict ────────────────────────────────────────────────────────────────

    def _make_peace(self) -> None:
        drive = "drive" in self.stage.features and self.dice.random() < 0.3
        role, self.lives = "drive" if drive else "work", self.lives + 1
        plan = Plan(
            self.lives,
            role,
            interferes="conflicts" in self.stage.features,
            concurrency=PEACE_CONCURRENCY,
            patience=self.patience,
            tick=self.dice.choice((0.0, TICK_SECONDS)),
            stalls="stalls" in self.stage.features and self.dice.random() < 0.3,
        )
        worker = self._fork(lambda: lives.ROLES[role](self.stage, plan))
        self.alive[worker] = BatchProcess(plan, "", 0.0, self.dice)
        shapes = [program["shape"] for program in self.stage.programs.values()]
        share = max(0.5, shapes.count("frozen_while_awaiting") / len(shapes))
        if role == "work" and "freezes" in self.stage.features and self.dice.random() < share:
            self._freeze(worker)
        code = self._forked(lambda: lives.settle(self.stage, plan), OVERALL_SECONDS)
        if code:
            self._violated(Violation("settling failed", "", self._stderr()))
        if any(found["kind"] == "stuck" for found in self.stage.world.findings()):
            self._show_stacks(worker)
        if role == "drive":
            self._count("batches driven by hf.run(wait=True)")
        self.alive.pop(worker)
        for pid in list(self.alive):
            self._end(pid)
        os.kill(worker, signal.SIGKILL)
        _, status = os.waitpid(worker, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            self._violated(Violation("worker ended by itself", "", self._stderr()))

    def _show_stacks(self, pid: int) -> None:
        """Let a process write into stderr what its threads are doing, while runs of it are stuck."""
        os.kill(pid, SHOW_STACKS)
        end = time.monotonic() + 5.0
        while time.monotonic() < end and "most recent call first" not in self._stderr():
            self._sleep(0.05)

    def _freeze(self, worker: int) -> None:
        """Let the worker of the peace lose its leases to another one, which is killed before it is done."""
        self.lives += 1
        kill_at = self.dice.choice((0, self.dice.randint(1, 12)))  # 0: when the worker goes on
        plan = Plan(self.lives, "work", kill_at=kill_at, concurrency=6)
        after = self.dice.uniform(0.5, 2.0) * lives.LEASE_SECONDS
        guest = self._fork(lambda: lives.take_over(after, self.stage, plan))
        world = self.stage.world
        world.record_freeze("planned")
        freezer = self._fork(lambda: lives.freeze(after, worker, guest, world))
        self.alive[guest] = self.alive[freezer] = BatchProcess(plan, "", 0.0, self.dice)
        self._count("SIGSTOP of the last worker")

    def _stderr(self) -> str:
        path = self.stage.folder / "stderr"
        return path.read_text("utf-8", "replace")[-3000:] if path.exists() else ""

    def _judge(self) -> None:
        self.stage.world.record_freeze("over")  # if the runs ended before: their replay needs it
        skip: list[str] = []
        for _ in range(5):
            hung = self._judged(skip)
            if not hung:
                return
            self._violated(Violation("replay hangs", hung, f"for {REPLAY_SECONDS:g} s"))
            skip.append(hung)
            skip += [x for x in self.stage.programs if x < hung]

    def _judged(self, skip: Sequence[str]) -> str:
        """Ask for the verdict; the run whose replay hangs, if one does."""
        read, write = os.pipe()
        pid = self._fork(lambda: check.judge(self.stage, skip, write))
        os.close(write)
        replaying, over = "", False
        with os.fdopen(read, "rb", buffering=0) as pipe:
            text = b""
            while True:
                ready, _, _ = select.select([pipe], [], [], REPLAY_SECONDS)
                if not ready:
                    break
                chunk = pipe.read(65536)
                if not chunk:
                    break
                *lines, text = (text + chunk).split(b"\n")
                for line in map(json.loads, lines):
                    replaying = line.get("replaying", replaying)
                    over = over or "over" in line
                    self.report.events += line.get("events", 0)
                    self.report.runs += line.get("runs", 0)
                    if "violation" in line:
                        self._violated(Violation(*line["violation"]))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if over:
            return ""
        if not replaying:
            self._violated(Violation("checking failed", "", self._stderr()))
        return replaying

    def _violated(self, violation: Violation) -> None:
        program = self.stage.programs.get(root_of(violation.run))
        shape = program["shape"] if program else ""
        self.report.violations.append((self.stage.seed, self.stage.store, shape, violation))

    # ── for people ───────────────────────────────────────────────────────────────────────

    def save(self, where: Path) -> None:
        """What is needed to understand the violations: programs, logs and ledgers."""
        where.mkdir(parents=True, exist_ok=True)
        self._forked(lambda: self._save(where), 60.0)

    def _save(self, where: Path) -> None:
        from holdfast.store.opening import open_store

        store = open_store(self.stage.url)
        lines = [f"{v.kind}: {v.run}: {v.text}" for *_, v in self.report.violations]
        (where / "violations.txt").write_text("\n".join(lines) + "\n", "utf-8")
        roots = {
            root_of(v.run)
            for *_, v in self.report.violations
            if root_of(v.run) in self.stage.programs
        }
        for root in roots:
            trees = [r.id for r in rows_of(store, self.stage.since, root) if root_of(r.id) == root]
            mine = [line for line in lines if f": {root}" in line]
            logs = [f"== {run_id}\n{check.log_of(store, run_id)}" for run_id in sorted(trees)]
            text = [
                f"seed {self.stage.seed} on {self.stage.store}",
                *mine,
                "",
                shown(self.stage.programs[root]),
                "",
                *logs,
            ]
            (where / f"{root}.txt").write_text("\n".join(text) + "\n", "utf-8")
        for name in ("effects", "acks", "findings", "lives", "freeze", "hangs", "stderr"):
            if (self.stage.folder / name).exists():
                shutil.copy(self.stage.folder / name, where / name)


@dataclass
class BatchProcess:
    """A process of the batch, and what is to become of it."""

    plan: Plan
    fate: str
    after: float
    dice: Any
    frozen: bool = False
    at: float = 0.0
    """When its fate meets it: so long `after` it has begun to work."""
    seen: int = 0
    seen_at: float = field(default_factory=time.monotonic)

    def is_idle(self, now: float) -> bool:
        """Look at its pulse. Whether a worker has nothing to do."""
        seen = int.from_bytes(self.plan.pulse or b"", "little")
        if not self.at and (seen or self.plan.role != "work"):
            self.at = now + self.after
        if seen != self.seen or self.frozen:
            self.seen, self.seen_at = seen, now
        patience = IDLE_SECONDS if seen else 10 * IDLE_SECONDS
        return self.plan.role == "work" and now - self.seen_at > patience


def die_with_parent() -> None:
    """Leave nothing behind, whatever ends the process that forks us. (Linux has it; others do without.)"""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def warm_up(stores: Sequence[str]) -> None:
    """Import what children need, so that they do not."""
    import apsw  # noqa: F401

    import holdfast.store.sqlite

    if "postgres" in stores:
        import psycopg  # noqa: F401

        import holdfast.store.postgres  # noqa: F401
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    gc.collect()
    gc.freeze()


def run_batch(
    seed: int,
    store: str,
    dsn: str,
    features: frozenset[str],
    harm: Harm,
    *,
    shape: str = "",
    restart: Callable[[str], None] | None = None,
    save: Path | None = None,
) -> Report:
    """One batch in a folder of its own, on SQLite or in the database of `dsn`."""
    with tempfile.TemporaryDirectory(prefix="hf-fuzz-") as name:
        folder = Path(name)
        url = str(folder / "h.db") if store == "sqlite" else dsn
        batch = Batch(seed, store, url, folder, features, harm, shape=shape, restart=restart)
        report = batch.run()
        if report.violations and save is not None:
            batch.save(save / f"{store}-{seed}")
        return report


__all__ = ["Batch", "Harm", "Report", "die_with_parent", "run_batch", "warm_up"]
