"""What it costs to decide about a run and to look at it, and whether that grows with the run's age.

A run has done 1,000 or 100,000 steps and then waits: for a person's yes, for an answer, for a signal, for
someone to resolve a call in doubt. Each verb is timed alone, from outside, as a person or a program uses it;
between two of them the run is really resumed, so its log ends as logs do. Those that need only the end of the
log may take no longer after 100,000 steps than three times what they take after 1,000; those that read all
of it are shown next to them without a goal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from bench.alternatives import body
from bench.harness import Report, Series, folder, postgres_databases
from holdfast import Holdfast, Run, RunBusy, RunCancelled, RunWaiting, agent, control, step, tool

FLAT: Final = 3.0
ENDS: Final = (
    "signal",
    "signal with an id",
    "approve",
    "answer",
    "resolve",
    "rerun",
    "cancel",
    "result",
    "result of a waiting run",
    "get, brief",
    "holdfast list",
    "holdfast show",
)
"""What only needs the end of the log, or none of it."""
WHOLE: Final = ("JSON Patch", "get")


@step
def one(i: int) -> str:
    return body(i)


@tool
def ring(number: int) -> int:  # noqa: ARG001
    """The process dies while it rings: from then on no one knows whether it rang."""
    raise KeyboardInterrupt


@agent
def asks(run: Run, n: int, rounds: int) -> int:
    for i in range(n):
        one(i)
    for number in range(rounds):
        run.approve("Continue?")
        run.ask("Which one?")
        run.wait_for("more")
        ring(number)
    return n


def main(*, rounds: int, quick: bool, databases: Sequence[str], results: Path) -> None:
    """Print and keep the table."""
    report = Report("decide", rounds, results)
    sizes = (20, 500) if quick else (1000, 100_000)
    if "sqlite" in databases:
        with folder() as here:
            names = iter(range(1000))
            fresh = lambda: f"sqlite:///{here}/{next(names)}.db"  # noqa: E731
            _all(report, "SQLite", fresh, sizes, rounds)
    if "postgres" in databases:
        with postgres_databases() as fresh_one:
            if fresh_one is not None:
                _all(report, "PostgreSQL", fresh_one, sizes, rounds)
    report.show()


def _all(
    report: Report, on: str, fresh: Callable[[], str], sizes: tuple[int, int], rounds: int
) -> None:
    young, old = (OutsideWork(fresh(), n, rounds).figures() for n in sizes)
    for name in (*ENDS, *WHOLE):
        few, many = young[name].median, old[name].median
        said = f"{few:,.1f} ms after {sizes[0]:,} steps, {many:,.1f} ms after {sizes[1]:,}"
        report.fact(f"{on}: {name}", said, many <= FLAT * few if name in ENDS else None)
    report.keep()


class OutsideWork:
    """A run with this many steps, and the operations on it from outside."""

    def __init__(self, url: str, n: int, rounds: int) -> None:
        self.url, self.n, self.rounds = url, n, rounds
        self.taken = {name: Series(name, "ms") for name in (*ENDS, *WHOLE)}

    def figures(self) -> dict[str, Series]:
        from support.long_runs import write_steps  # the harness has put the tests on the path

        sys.stderr.write(f"  {self.n:,} steps, {self.url.partition(':')[0]}\n")
        with Holdfast(self.url, agents=[asks]) as hf:
            write_steps(hf.store, asks, "r", self.n, one, n=self.n, rounds=self.rounds)
            for number in range(self.rounds):
                self._round(hf, number)
            hf.resume("r")
            self._look(hf)
            for _ in range(self.rounds):  # it is cancelled before it has done anything again
                self._time("rerun", lambda: control.rerun(hf.store, "r"))  # as `hf.rerun` starts
                self._time("cancel", lambda: hf.cancel("r"))
                try:
                    hf.resume("r")
                except RunCancelled:
                    pass
        return self.taken

    def _round(self, hf: Holdfast, number: int) -> None:
        _until_it_waits(hf)
        self._time("result of a waiting run", lambda: _no_result(hf))
        self._time("signal", lambda: hf.signal("r", "aside"))
        self._time("signal with an id", lambda: hf.signal("r", "more", signal_id=f"id-{number}"))
        self._time("approve", lambda: hf.approve("r"))
        _until_it_waits(hf)
        self._time("answer", lambda: hf.answer("r", "this one"))
        _until_it_waits(hf)  # it takes the signal that came before, and dies in `ring`
        _until_it_waits(hf)
        self._time("resolve", lambda: hf.resolve("r", done=1))
        operations = [{"op": "add", "path": "/state/k", "value": number}]
        self._time("JSON Patch", lambda: hf.patch("r", operations))

    def _look(self, hf: Holdfast) -> None:
        for _ in range(self.rounds):
            self._time("result", lambda: hf.result("r"))
            self._time("get", lambda: hf.get("r"))
            self._time("get, brief", lambda: hf.get("r", brief=True))
        command = str(Path(sys.executable).parent / "holdfast")
        for _ in range(self.rounds):
            for name in ("list", "show"):
                words = [command, name, *(["r"] if name == "show" else [])]
                self._time(f"holdfast {name}", lambda words=words: self._process(words))

    def _process(self, words: list[str]) -> None:
        environment = {**os.environ, "HOLDFAST_URL": self.url}
        subprocess.run(words, env=environment, stdout=subprocess.DEVNULL, check=True)

    def _time(self, name: str, act: Callable[[], Any]) -> None:
        began = time.perf_counter()
        act()
        self.taken[name].values.append((time.perf_counter() - began) * 1000)


def _no_result(hf: Holdfast) -> None:
    """What `hf.result` does each time it looks whether a run has ended."""
    try:
        hf.result("r", timeout=0)
    except RunBusy:
        pass


def _until_it_waits(hf: Holdfast) -> None:
    try:
        hf.resume("r")
    except (RunWaiting, KeyboardInterrupt):
        return
    raise AssertionError("the run did not wait")
