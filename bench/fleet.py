"""What a fleet does: runs and steps a second with 1, 2 and 4 workers, how soon a killed worker's run
continues elsewhere, and what an idle worker asks of the database. PostgreSQL, compared with other queues.

Every engine has its own database on one server, and workers that execute ten runs at once. An engine's
own way to notice new work is left as it is shipped. What is known is kept after each figure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from bench.alternatives import Failed, missing
from bench.harness import Progress, Report, Series, folder
from bench.queues import AS_SHIPPED, LEASE_SECONDS, MARKS, QUEUES, ROOT, STEP_SECONDS

WORKERS: Final = (1, 2, 4)
PATIENCE_SECONDS: Final = 300
RESUME_PATIENCE_SECONDS: Final = 30
SETTLE_SECONDS: Final = 5
IDLE_SECONDS: Final = 60
LOG_SETTINGS: Final = {"log_statement": "all", "log_line_prefix": "%d "}
"""Every statement, with its database before it: so engines can idle side by side."""


class Contender:
    """One engine on its own database."""

    def __init__(self, name: str, server: Any) -> None:
        self.name, self.server = name, server
        self.database = server.create_database()
        self.url = server.dsn(self.database)

    def enqueue(self, runs: int, n: int) -> None:
        command = [
            sys.executable,
            "-m",
            "bench.queues",
            self.name,
            "enqueue",
            self.url,
            str(runs),
            str(n),
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed((done.stderr.strip().splitlines() or ["it failed"])[-1][:200])

    @contextmanager
    def workers(self, count: int, **environment: str) -> Iterator[list[subprocess.Popen[str]]]:
        """Workers that have said that they are ready, and wait for a line to start."""
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.queues", self.name, "work", self.url],
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for _ in range(count)
        ]
        try:
            for process in started:
                assert process.stdout is not None
                if process.stdout.readline() != "ready\n":
                    raise Failed("a worker did not start")
            yield started
        finally:
            for process in started:
                process.kill()
                process.communicate()

    def begin(self, workers: list[subprocess.Popen[str]]) -> None:
        for process in workers:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

    def drain_seconds(self, workers: int, runs: int, n: int) -> float:
        """How long so many workers need for so many runs that wait for them."""
        import psycopg

        self.enqueue(runs, n)
        with psycopg.connect(self.url, autocommit=True) as db, self.workers(workers) as started:

            def ended() -> int:
                found = db.execute(QUEUES[self.name].ended).fetchone()  # type: ignore[call-overload]
                return int(found[0]) if found else 0

            wanted = ended() + runs
            began = time.perf_counter()
            self.begin(started)
            while ended() < wanted:
                if time.perf_counter() - began > PATIENCE_SECONDS:
                    raise Failed(f"not done within {PATIENCE_SECONDS} s")
                time.sleep(0.02)
            return time.perf_counter() - began

    def resumed_seconds(self) -> float | None:
        """From the kill of a worker in the middle of a run until another reaches its next step."""
        with folder() as place:
            marks = place / "marks"
            marks.touch()
            self.enqueue(1, 2000)
            with self.workers(2, **{MARKS: str(marks), STEP_SECONDS: "0.05"}) as started:
                self.begin(started)
                first = _first_mark(marks, than=0, patience=RESUME_PATIENCE_SECONDS)
                if first is None:
                    raise Failed("the run did not begin")
                next(p for p in started if p.pid == first[0]).kill()
                killed_at = time.monotonic()
                other = _first_mark(marks, than=first[0], patience=RESUME_PATIENCE_SECONDS)
                return None if other is None else other[1] - killed_at

    def statements(self) -> int:
        """How many it has sent, by the server's own log."""
        log: str = self.server.log()
        return sum(
            log.count(f"\n{self.database} LOG:  {what}") for what in ("statement:", "execute ")
        )


def _first_mark(path: Path, *, than: int, patience: float) -> tuple[int, float] | None:
    """The first step that was reached by another process than this."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        for line in path.read_text("ascii").splitlines():
            pid, at = line.split()
            if int(pid) != than:
                return int(pid), float(at)
        time.sleep(0.005)
    return None


def main(*, rounds: int, quick: bool, databases: Sequence[str], results: Path) -> None:
    if "postgres" not in databases:
        return
    try:
        from support.postgres import PostgresServer
    except ImportError as absent:
        sys.stdout.write(f"PostgreSQL is missing here ({absent}); there is nothing to measure\n")
        return
    rounds = 1 if quick else min(rounds, 3)
    report = Report("fleet", rounds, results)
    names = [name for name in QUEUES if name == "holdfast" or not _left_out(report, name)]
    progress = Progress(len(names) * (len(WORKERS) * rounds + 1) + 1)
    with PostgresServer() as server:
        for workers in WORKERS:
            contenders = [Contender(name, server) for name in names]
            _throughput(report, progress, contenders, workers, rounds, quick)
        for name in names:
            progress.say(f"{name}: from SIGKILL to resumed")
            report.fact(
                f"{name}, SIGKILL to resumed (lease {LEASE_SECONDS} s)", _resumed(name, server)
            )
            report.keep()
    with PostgresServer(settings=LOG_SETTINGS) as server:
        seconds = IDLE_SECONDS / 10 if quick else IDLE_SECONDS
        progress.say(f"idle, all side by side, for {seconds:g} s")
        for name, said in _idle([Contender(name, server) for name in names], seconds).items():
            report.fact(f"{name}, one idle worker", said)
    progress.end()
    report.show()


def _left_out(report: Report, name: str) -> bool:
    why = missing(name)
    if why:
        report.fact(name, f"missing: {why}")
    return bool(why)


def _throughput(
    report: Report,
    progress: Progress,
    contenders: list[Contender],
    workers: int,
    rounds: int,
    quick: bool,
) -> None:
    """Runs and steps a second. Alternatives get fewer runs, so that it ends the same day."""
    n = 3 if quick else 5
    figures = {c.name: Series(c.name, "steps/s") for c in contenders}
    failed: dict[str, str] = {}
    for _ in range(rounds):
        for c in contenders:
            runs = 60 if quick else 400 if c.name == "holdfast" else 200
            progress.say(f"{c.name}: {_counted(workers)}, {runs} runs × {n} steps")
            try:
                seconds = c.drain_seconds(workers, runs, n)
            except Failed as error:
                failed[c.name] = str(error)
            else:
                figures[c.name].values.append(runs * n / seconds)
    for c in contenders:
        taken = figures[c.name]
        said = failed.get(c.name) or f"{taken.median / n:,.0f} runs/s, {taken.median:,.0f} steps/s"
        report.fact(f"{c.name}, {_counted(workers)}", said)
        if c.name != "holdfast" and not {c.name, "holdfast"} & failed.keys():
            report.add(f"{_counted(workers)}, steps/s", figures["holdfast"], taken)
    report.keep()


def _counted(workers: int) -> str:
    return f"{workers} worker{'s' * (workers > 1)}"


def _resumed(name: str, server: Any) -> str:
    try:
        seconds = Contender(name, server).resumed_seconds()
    except Failed as error:
        return str(error)
    return f"not within {RESUME_PATIENCE_SECONDS} s" if seconds is None else f"{seconds:.2f} s"


def _idle(contenders: list[Contender], seconds: float) -> dict[str, str]:
    """How many statements a worker of each sends that has nothing to do."""
    with ExitStack() as stack:
        for c in contenders:
            c.enqueue(0, 0)
            c.begin(stack.enter_context(c.workers(1, **{AS_SHIPPED: "1"})))
        time.sleep(SETTLE_SECONDS)  # what they do when they start is over
        before = {c.name: c.statements() for c in contenders}
        time.sleep(seconds)
        counts = {c.name: c.statements() - before[c.name] for c in contenders}
    return {name: f"{n * 60 / seconds:,.0f} statements a minute" for name, n in counts.items()}
