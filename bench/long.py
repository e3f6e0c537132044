"""What it costs to look at a run of a million steps: time and memory of the commands, as processes.

The log is written in big appends, as its agent would have written it step by step. The first look at a log of which no
process has left a snapshot reads all of it; that is shown without a goal. Every other look reads the end. (A process that
executes a long run leaves snapshots, so only a log that was written as here has none.)
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench.alternatives import body
from bench.harness import Report, folder, postgres_databases
from holdfast import Holdfast, Run, agent, step

SECONDS: Final = 1.0
MEGABYTES: Final = 100.0
FIRST: Final = "holdfast show, the first time"
LOOKS: Final = {
    FIRST: ("show", "r"),
    "holdfast show": ("show", "r"),
    "holdfast show --json": ("show", "r", "--json"),
    "holdfast trace --last 100": ("trace", "r", "--last", "100"),
    "holdfast events --last 100": ("events", "r", "--last", "100"),
}


@step
def one(i: int) -> str:
    return body(i)


@agent
def long(run: Run, n: int) -> int:
    for i in range(n):
        one(i)
    run.approve("Continue?")
    return n


def main(*, rounds: int, quick: bool, databases: Sequence[str], results: Path) -> None:
    """Print and keep the table."""
    report = Report("long", rounds, results)
    n = 2000 if quick else 1_000_000
    if "sqlite" in databases:
        with folder() as here:
            _all(report, "SQLite", lambda: f"sqlite:///{here}/long.db", n, rounds)
    if "postgres" in databases:
        with postgres_databases() as fresh_one:
            if fresh_one is not None:
                _all(report, "PostgreSQL", fresh_one, n, rounds)
    report.show()


def _all(report: Report, on: str, fresh: Callable[[], str], n: int, rounds: int) -> None:
    from support.long_runs import write_steps  # the harness has put the tests on the path

    url = fresh()
    sys.stderr.write(f"  {n:,} steps, {on}\n")
    with Holdfast(url, agents=[long]) as hf:
        write_steps(hf.store, long, "r", n, one, n=n)
    for name, words in LOOKS.items():
        taken = sorted(_look(url, words) for _ in range(1 if name == FIRST else rounds))
        seconds, cpu, megabytes = taken[len(taken) // 2]
        is_met = seconds <= SECONDS and megabytes <= MEGABYTES
        said = f"{seconds:,.2f} s ({cpu:,.2f} s of CPU time), {megabytes:,.0f} MB"
        report.fact(f"{on}, {n:,} steps: {name}", said, None if name == FIRST else is_met)
        report.keep()


def _look(url: str, words: Sequence[str]) -> tuple[float, float, float]:
    """The seconds, the seconds of CPU time and the megabytes that the command takes."""
    command = [str(Path(sys.executable).parent / "holdfast"), *words]
    environment = {**os.environ, "HOLDFAST_URL": url}
    began = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} failed")
    cpu = used.ru_utime + used.ru_stime
    return seconds, cpu, used.ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)
