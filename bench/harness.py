"""What benchmarks share: databases to work on, rounds, tables, results.

Each round takes every figure once, one after the other, so that a slow moment of the machine falls on
all of them. What is shown is the median of the rounds, and the median of the rounds' ratios.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # for the tests' PostgreSQL


@dataclass
class Series:
    """One figure, taken once a round."""

    name: str
    unit: str
    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """The middle half of the values, as a share of the median."""
        if len(self.values) < 4:
            return (max(self.values) - min(self.values)) / self.median / 2
        low, _, high = statistics.quantiles(self.values, n=4)
        return (high - low) / self.median / 2


def ratio(ours: Series, theirs: Series) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(ours.values, theirs.values, strict=True))


@dataclass
class Row:
    what: str
    ours: Series
    theirs: Series
    goal: float | None = None
    """What the ratio is to reach: of a rate at least; of a duration (`at_most`) no more than."""
    at_most: bool = False

    @property
    def is_met(self) -> bool | None:
        """Whether the goal was reached; None if there is none."""
        if self.goal is None:
            return None
        share = ratio(self.ours, self.theirs)
        return share <= self.goal if self.at_most else share >= self.goal

    def verdict(self) -> str:
        if self.is_met is None:
            return ""
        return f"  goal {'≤' if self.at_most else '≥'} {self.goal:g}  {_verdict(self.is_met)}"


class Report:
    """A table of figures and goals, printed and kept."""

    def __init__(self, name: str, rounds: int, results: Path = RESULTS) -> None:
        self.name, self.rounds = name, rounds
        self.file = results / f"{name}.json"
        self.rows: list[Row] = []
        self.facts: list[tuple[str, str, bool | None]] = []

    def add(
        self,
        what: str,
        ours: Series,
        theirs: Series,
        goal: float | None = None,
        *,
        at_most: float | None = None,
    ) -> None:
        wanted = goal if at_most is None else at_most
        self.rows.append(Row(what, ours, theirs, wanted, at_most is not None))

    def fact(self, what: str, value: str, ok: bool | None = None) -> None:
        self.facts.append((what, value, ok))

    def show(self) -> None:
        out = sys.stdout.write
        out(f"\n{self.name}  ({self.rounds} rounds, medians; ± is half the interquartile range)\n")
        for row in self.rows:
            share = ratio(row.ours, row.theirs)
            out(
                f"  {row.what:44} {row.ours.median:>10,.0f} ±{row.ours.spread:4.0%}"
                f"   {row.theirs.name:22} {row.theirs.median:>10,.0f} ±{row.theirs.spread:4.0%}"
                f"   ratio {share:5.2f}{row.verdict()}\n"
            )
        for what, value, ok in self.facts:
            out(f"  {what:44} {value}{'' if ok is None else '  ' + _verdict(ok)}\n")
        out(f"  {self._goals()}\n")
        self.keep()

    def _goals(self) -> str:
        """How many goals were met, and which were not."""
        met = {
            f"{row.what}, {row.theirs.name}": row.is_met
            for row in self.rows
            if row.is_met is not None
        }
        met |= {what: ok for what, _, ok in self.facts if ok is not None}
        missed = [what for what, ok in met.items() if not ok]
        return f"goals: {len(met) - len(missed)} of {len(met)} met" + (
            f"; missed: {'; '.join(missed)}" if missed else ""
        )

    def keep(self) -> None:
        """Write what is known so far: a long benchmark that is interrupted has not been without effect."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        data = {
            "benchmark": self.name,
            "rounds": self.rounds,
            "python": _interpreter(),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            "taken": time.strftime("%Y-%m-%d", time.gmtime()),
            "rows": [
                {
                    "what": r.what,
                    "ours": r.ours.values,
                    "compared_with": r.theirs.name,
                    "theirs": r.theirs.values,
                    "ratio": ratio(r.ours, r.theirs),
                    "goal": r.goal,
                    "at_most": r.at_most,
                }
                for r in self.rows
            ],
            "facts": [{"what": what, "value": value, "ok": ok} for what, value, ok in self.facts],
        }
        self.file.write_text(json.dumps(data, indent=1), "utf-8")


@functools.cache
def _interpreter() -> str:
    """Which Python this is, and how quick: builds of one version differ by a third."""
    calls = 1_000_000
    seconds = min(timeit.repeat("f()", "def f(): pass", number=calls, repeat=5))
    return (
        f"{platform.python_version()} ({seconds / calls * 1e9:.0f} ns for an empty function call)"
    )


class Progress:
    """What is measured now, how far it is, and for how long it has continued, on stderr."""

    def __init__(self, pieces: int) -> None:
        self._pieces, self._done = pieces, 0
        self._began = time.monotonic()

    def say(self, what: str) -> None:
        """The next piece starts."""
        self._done += 1
        self._write(f"[{self._done}/{self._pieces}] {what}")

    def end(self) -> None:
        self._write("done")

    def _write(self, words: str) -> None:
        sys.stderr.write(f"  {time.monotonic() - self._began:4.0f} s  {words}\n")
        sys.stderr.flush()


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def rate(count: int, work: Callable[[], object]) -> float:
    """How many per second."""
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        yield Path(name)


@contextmanager
def postgres() -> Iterator[str | None]:
    """A PostgreSQL of our own, or None if its binaries are not installed."""
    try:
        from support.postgres import PostgresServer
    except ImportError as missing:
        sys.stdout.write(f"PostgreSQL is missing here ({missing}); its figures are left out\n")
        yield None
        return
    with PostgresServer() as server:
        yield server.dsn(server.create_database())


@contextmanager
def postgres_databases() -> Iterator[Callable[[], str] | None]:
    """A PostgreSQL of our own that makes one empty database after another; None as above."""
    try:
        from support.postgres import PostgresServer
    except ImportError as missing:
        sys.stdout.write(f"PostgreSQL is missing here ({missing}); its figures are left out\n")
        yield None
        return
    with PostgresServer() as server:
        yield lambda: server.dsn(server.create_database())


def bytes_on_disk(url: str) -> int:
    """The size of a database: the file with its write-ahead log, or the tables as the server counts."""
    if url.startswith("sqlite:///"):
        path = url.removeprefix("sqlite:///")
        return sum(
            file.stat().st_size for file in map(Path, (path, path + "-wal")) if file.exists()
        )
    import psycopg

    with psycopg.connect(url) as db:
        found = db.execute("SELECT pg_database_size(current_database())").fetchone()
        return int(found[0]) if found else 0
