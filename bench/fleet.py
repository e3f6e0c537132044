"""What a fleet does: runs and steps a second with 1, 2 and 4 workers, how soon a killed worker's run
goes on elsewhere, and what an idle worker asks of the database. PostgreSQL, beside other queues.

Every engine has its own database on one server, and workers that execute ten runs at once. An engine's
own way to notice new work is left as it is shipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.harness import Report, Series, folder
from bench.neighbours import Failed, missing
from bench.queues import AS_SHIPPED, LEASE_SECONDS, MARKS, QUEUES, ROOT, STEP_SECONDS

WORKERS: Final = (1, 2, 4)
PATIENCE_SECONDS: Final = 300
RESUME_PATIENCE_SECONDS: Final = 30
IDLE_SECONDS: Final = 60


class Contender:
    """One engine on a database of its own."""

    def __init__(self, name: str, server: Any) -> None:
        self.name, self.server = name, server
        self.url = server.dsn(server.create_database())

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
            raise Failed(f"{self.name}: {done.stderr.strip().splitlines()[-1][:200]}")

    @contextmanager
    def workers(self, count: int, **environment: str) -> Iterator[list[subprocess.Popen[str]]]:
        """Workers that have said that they are ready, and wait for a line to begin."""
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.queues", self.name, "work", self.url], cwd=ROOT,
                env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True,
            )
            for _ in range(count)
        ]  # fmt: skip
        try:
            for process in started:
                assert process.stdout is not None
                if process.stdout.readline() != "ready\n":
                    raise Failed(f"{self.name}: a worker did not start")
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

    def ended(self) -> int:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as db:
            found = db.execute(QUEUES[self.name].ended).fetchone()  # type: ignore[call-overload]
            return int(found[0]) if found else 0

    def drain_seconds(self, workers: int, runs: int, n: int) -> float:
        """How long so many workers need for so many runs that wait for them."""
        self.enqueue(runs, n)
        wanted = self.ended() + runs
        with self.workers(workers) as started:
            began = time.perf_counter()
            self.begin(started)
            while self.ended() < wanted:
                if time.perf_counter() - began > PATIENCE_SECONDS:
                    raise Failed(f"{self.name}: not done within {PATIENCE_SECONDS} s")
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
                    raise Failed(f"{self.name}: the run did not begin")
                next(p for p in started if p.pid == first[0]).kill()
                killed_at = time.monotonic()
                other = _first_mark(marks, than=first[0], patience=RESUME_PATIENCE_SECONDS)
                return None if other is None else other[1] - killed_at

    def idle_statements_a_minute(self, seconds: float) -> float:
        """What one worker sends that has nothing to do, by the server's own log of statements."""
        with self.workers(1, **{AS_SHIPPED: "1"}) as started:
            self.begin(started)
            time.sleep(5)  # what it does when it starts is over
            before = _statements(self.server.log())
            time.sleep(seconds)
            return (_statements(self.server.log()) - before) * 60 / seconds


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


def _statements(log: str) -> int:
    return log.count("LOG:  statement:") + log.count("LOG:  execute ")


def main(*, rounds: int, quick: bool, databases: Sequence[str], results: Path) -> None:
    if "postgres" not in databases:
        return
    try:
        from support.postgres import PostgresServer
    except ImportError as absent:
        sys.stdout.write(f"PostgreSQL is missing here ({absent}); there is nothing to measure\n")
        return
    rounds = 1 if quick else min(rounds, 3)
    runs, n = (60, 3) if quick else (400, 5)
    report = Report("fleet", rounds, results)
    names = [name for name in QUEUES if name == "holdfast" or not _left_out(report, name)]
    with PostgresServer() as server:
        for workers in WORKERS:
            _throughput(
                report, [Contender(name, server) for name in names], workers, rounds, runs, n
            )
        for name in names:
            sys.stderr.write(f"  … {name}: from SIGKILL to resumed\n")
            found = Contender(name, server).resumed_seconds()
            said = f"not within {RESUME_PATIENCE_SECONDS} s" if found is None else f"{found:.2f} s"
            report.fact(f"{name}, SIGKILL to resumed (lease {LEASE_SECONDS} s)", said)
    with PostgresServer(settings={"log_statement": "all"}) as server:
        for name in names:
            sys.stderr.write(f"  … {name}: idle\n")
            contender = Contender(name, server)
            contender.enqueue(0, 0)
            count = contender.idle_statements_a_minute(IDLE_SECONDS / 3 if quick else IDLE_SECONDS)
            report.fact(f"{name}, one idle worker", f"{count:,.0f} statements a minute")
    report.show()


def _left_out(report: Report, name: str) -> bool:
    why = missing(name)
    if why:
        report.fact(name, f"missing: {why}")
    return bool(why)


def _throughput(
    report: Report, contenders: list[Contender], workers: int, rounds: int, runs: int, n: int
) -> None:
    figures = {c.name: Series(c.name, "steps/s") for c in contenders}
    for _ in range(rounds):
        for c in contenders:
            sys.stderr.write(f"  … {c.name}: {workers} workers, {runs} runs × {n} steps\n")
            seconds = c.drain_seconds(workers, runs, n)
            figures[c.name].values.append(runs * n / seconds)
    ours = figures["holdfast"]
    report.fact(
        f"holdfast, {workers} workers", f"{ours.median / n:,.0f} runs/s, {ours.median:,.0f} steps/s"
    )
    for c in contenders[1:]:
        theirs = figures[c.name]
        report.fact(
            f"{c.name}, {workers} workers",
            f"{theirs.median / n:,.0f} runs/s, {theirs.median:,.0f} steps/s",
        )
        report.add(f"{workers} workers, {runs} runs × {n} steps (steps/s)", ours, theirs)
