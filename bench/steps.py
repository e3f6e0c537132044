"""What a step costs: Holdfast compared with the raw database and with other engines, on both stores.

Every engine does each piece of work in its own process (`bench.alternatives`), one after the other
within a round, with results of 1 KB and every commit durable. What an engine cannot do, or cannot do
here, is reported; nothing is estimated.
"""

from __future__ import annotations

import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.alternatives import Failed, measure, missing
from bench.append import RawPostgres, RawSQLite
from bench.charts import chart
from bench.harness import Report, Series, bytes_on_disk, folder, postgres_databases, rate

ALTERNATIVE_ROUNDS: Final = 3
"""Alternatives are slow enough that a round costs minutes; beyond this their figures hardly change."""
CLAIM_ENDS_SECONDS: Final = 1.5
STEP_BYTES: Final = 1099
"""A step of this work as Holdfast stores it: the raw database writes rows of that size."""
MB: Final = 1_000_000


@dataclass(frozen=True)
class Size:
    """How much work each figure is."""

    warm_up: int = 600
    """Steps before the figures are taken, by every engine and by the raw database: so many that SQLite's
    write-ahead log has grown to its size. Until then a commit takes twice as long, because the file system
    has to note that the file is longer."""
    alone: int = 1000
    alternative_alone: int = 200
    concurrent: tuple[tuple[int, int, int], ...] = ((50, 100, 100), (500, 100, 10))
    """Runs, steps of each for the raw database, steps of each for alternatives."""
    raw: int = 20_000
    resume: tuple[int, int] = (1000, 100_000)
    memory: int = 100_000
    conversation: int = 3000
    conversation_bytes: int = 1000
    loops: tuple[int, ...] = (100, 1000, 3000)
    alternative_loop_max: int = 1000
    """Beyond this LangGraph's saver takes minutes, and its cost keeps growing."""


QUICK: Final = Size(5, 40, 20, ((50, 2, 2), (500, 1, 1)), 500, (50, 100), 50, 100, 40, (20, 40), 40)


@dataclass
class Goals:
    """The goals of one database: ratios to reach, and limits (per number of steps, in seconds)."""

    dbos_alone: float
    resume: dict[int, float]
    raw_alone: float = 0.60
    raw_tools: float = 0.30
    raw_together: float = 0.35
    dbos_together: float = 40
    flat: float = 1.2
    memory_mb: float = 150


@dataclass
class Place:
    """A database to measure on, and how to get a fresh one."""

    label: str
    fresh: Callable[[], str]
    raw: RawSQLite | RawPostgres
    goals: Goals
    engines: tuple[str, ...]


@dataclass
class Contender:
    """One engine on one database, and what of its work has failed."""

    label: str
    module: str
    url: str
    warm_up: int
    goals: bool = False
    failed: dict[str, str] = field(default_factory=dict)

    def figures(self, what: str, *numbers: int, url: str = "") -> dict[str, Any] | None:
        """One piece of work; None (and the reason kept) if it could not be done."""
        if what in self.failed:
            return None
        try:
            return measure(self.module, what, url or self.url, *numbers, warm_up=self.warm_up)
        except Failed as error:
            self.failed[what] = str(error)
            return None


class Bench:
    """All figures on one database."""

    def __init__(self, report: Report, place: Place, rounds: int, size: Size) -> None:
        place.raw.insert(size.warm_up, 1)
        self.report, self.place, self.rounds, self.size = report, place, rounds, size
        self.goals = place.goals
        self.ours = Contender("Holdfast", "holdfast", place.fresh(), size.warm_up)
        self.alternatives = [c for name in place.engines for c in self._contenders(name)]

    def _contenders(self, name: str) -> list[Contender]:
        why = missing(name)
        if why:
            self.report.fact(f"{self.place.label}: {name}", f"missing: {why}")
            return []
        warm_up = self.size.warm_up
        if name != "dbos" or self.place.label != "SQLite":
            return [Contender(name, name, self.place.fresh(), warm_up, goals=name == "dbos")]
        # As shipped it keeps a rollback journal, which costs more fsyncs; it gains from WAL.
        return [
            Contender("dbos, in WAL", name, _with_wal(self.place.fresh()), warm_up, goals=True),
            Contender("dbos, as shipped", name, self.place.fresh(), warm_up),
        ]

    def _must(self, what: str, *numbers: int, url: str = "") -> dict[str, Any]:
        figures = self.ours.figures(what, *numbers, url=url)
        if figures is None:
            raise Failed(self.ours.failed[what])
        return figures

    def _raw(self, rows: int, per_commit: int = 1) -> float:
        """Rows/s of the raw database, which is warm too: its connection is kept open."""
        return rate(rows, lambda: self.place.raw.insert(rows, per_commit))

    def _fact(self, what: str, value: str, ok: bool | None = None) -> None:
        self.report.fact(f"{self.place.label}: {what}", value, ok)

    def _row(self, what: str, ours: Series, theirs: Series, goal: float | None = None) -> None:
        """A row of the table, if the other side has a figure for each of ours."""
        if len(theirs.values) == len(ours.values):
            self.report.add(f"{self.place.label}: {what}", ours, theirs, goal)

    def all(self) -> None:
        for figure in (
            self.alone,
            self.together,
            self.tools,
            self.resume,
            self.restart,
            self.message_loop,
            self.conversation,
            self.conversation_bytes,
            self.memory,
        ):
            sys.stderr.write(f"  … {self.place.label}: {figure.__name__.replace('_', ' ')}\n")
            try:
                figure()
            except Failed as error:  # the others can still be had
                self._fact(figure.__name__.replace("_", " "), f"no figure: {error}", False)
            self.report.keep()
        for c in (self.ours, *self.alternatives):
            for what, why in c.failed.items():
                self._fact(f"{c.label}, {what}", f"no figure: {why}")

    # ── one run alone ────────────────────────────────────────────────────────────────────

    def alone(self) -> None:
        n, n_theirs = self.size.alone, self.size.alternative_alone
        ours, small = Series("Holdfast", "steps/s"), Series("Holdfast", "steps/s")
        raw = Series(self.place.raw.name, "commits/s")
        theirs = {c.label: Series(c.label, "steps/s") for c in self.alternatives}
        seen: dict[str, list[dict[str, Any]]] = {}
        empty: dict[str, int] = {}
        for c in (self.ours, *self.alternatives):
            c.figures("first", 2)  # makes the schema
            empty[c.label] = bytes_on_disk(c.url)
        for r in range(self.rounds):
            got = self._must("alone", n)
            ours.values.append(n / got["seconds"])
            seen.setdefault("Holdfast", []).append(got)
            raw.values.append(self._raw(n))
            if r >= ALTERNATIVE_ROUNDS:
                continue
            small.values.append(ours.values[-1])
            for c in self.alternatives:
                found = c.figures("alone", n_theirs)
                if found:
                    theirs[c.label].values.append(n_theirs / found["seconds"])
                    seen.setdefault(c.label, []).append(found)
        self._row("one run alone", ours, raw, self.goals.raw_alone)
        for c in self.alternatives:
            self._row(
                "one run alone", small, theirs[c.label], self.goals.dbos_alone if c.goals else None
            )
        for c in (self.ours, *self.alternatives):
            each = n if c is self.ours else n_theirs
            self._of_a_step(c, seen.get(c.label, []), empty[c.label], each)
        self._raw_latency()

    def _of_a_step(self, c: Contender, got: list[dict[str, Any]], empty: int, each: int) -> None:
        if not got:
            return
        p50, p99 = (statistics.median(g[p] for g in got) * 1000 for p in ("p50", "p99"))
        size = (bytes_on_disk(c.url) - empty) / (len(got) * (each + self.size.warm_up))
        self._fact(
            f"{c.label}, one step",
            f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, {size:,.0f} bytes on disk  ({got[0]['durability']})",
        )

    def _raw_latency(self) -> None:
        gaps = []
        for _ in range(self.size.alone):
            began = time.perf_counter()
            self.place.raw.insert(1, 1)
            gaps.append(time.perf_counter() - began)
        gaps.sort()
        p50, p99 = gaps[len(gaps) // 2] * 1000, gaps[len(gaps) * 99 // 100] * 1000
        self._fact(f"{self.place.raw.name}, one commit", f"p50 {p50:.2f} ms, p99 {p99:.2f} ms")

    def tools(self) -> None:
        n = self.size.alone
        ours, raw = Series("Holdfast", "tools/s"), Series(self.place.raw.name, "commits/s")
        for _ in range(self.rounds):
            ours.values.append(n / self._must("tools", n)["seconds"])
            raw.values.append(self._raw(n))
        self._row("tools, intent and receipt", ours, raw, self.goals.raw_tools)

    # ── many runs at once ────────────────────────────────────────────────────────────────

    def together(self) -> None:
        for runs, n, n_theirs in self.size.concurrent:
            ours, raw = Series("Holdfast", "steps/s"), Series(self.place.raw.name, "rows/s")
            sizes = []
            for _ in range(self.rounds):
                got = self._must("concurrent", runs, n)
                ours.values.append(runs * n / got["seconds"])
                per_commit = max(1, round(got["per_commit"]))
                sizes.append(per_commit)
                raw.values.append(self._raw(self.size.raw, per_commit))
            rows = round(statistics.median(sizes))
            goal = self.goals.raw_together if runs == 500 else None
            self._row(f"{runs} runs × {n} steps, {rows} a commit", ours, raw, goal)
            self._together_with_alternatives(runs, n_theirs)

    def _together_with_alternatives(self, runs: int, n: int) -> None:
        ours = Series("Holdfast", "steps/s")
        theirs = {c.label: Series(c.label, "steps/s") for c in self.alternatives}
        for _ in range(min(self.rounds, ALTERNATIVE_ROUNDS if runs < 500 else 1)):
            ours.values.append(runs * n / self._must("concurrent", runs, n)["seconds"])
            for c in self.alternatives:
                got = c.figures("concurrent", runs, n)
                if got:
                    theirs[c.label].values.append(runs * n / got["seconds"])
        for c in self.alternatives:
            goal = self.goals.dbos_together if c.goals and runs == 50 else None
            self._row(f"{runs} runs × {n} steps", ours, theirs[c.label], goal)

    # ── going on, and beginning ──────────────────────────────────────────────────────────

    def resume(self) -> None:
        url = self.place.fresh()
        for n in self.size.resume:
            self._must("interrupted", n, url=url)
            got = [self._must("resume", n, url=url) for _ in range(self.rounds)]
            took = Series("resume", "s", [g["resume"] for g in got])
            found = took.median
            limit = self.goals.resume.get(n)
            with_opening = statistics.median(g["restart"] for g in got)
            self._fact(
                f"resume after {n:,} steps",
                f"{found * 1000:,.1f} ms ±{took.spread:.0%} ({with_opening * 1000:,.1f} with opening the store)"
                + (f"  goal ≤ {limit * 1000:g} ms" if limit else ""),
                found <= limit if limit else None,
            )
        n = self.size.resume[0]
        for c in self.alternatives:
            again = _with_wal(self.place.fresh()) if "WAL" in c.label else self.place.fresh()
            if c.figures("interrupted", n, url=again) is None:
                continue
            time.sleep(CLAIM_ENDS_SECONDS)
            figures = c.figures("resume", n, url=again)
            if figures:
                self._fact(
                    f"{c.label}, resume after {n:,} steps", f"{figures['restart'] * 1000:,.1f} ms"
                )

    def restart(self) -> None:
        """From the start of a process to its first durable step, on a database that exists."""
        bare = []
        for _ in range(self.rounds):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", "pass"], check=True)
            bare.append(time.perf_counter() - began)
        said = [f"bare Python {statistics.median(bare) * 1000:,.0f} ms"]
        for c in (self.ours, *self.alternatives):
            got = [f for _ in range(self.rounds) if (f := c.figures("first", 2))]
            if got:
                said.append(
                    f"{c.label} {statistics.median(g['start'] for g in got) * 1000:,.0f} ms"
                )
        self._fact("process start to first durable step", ", ".join(said))

    def memory(self) -> None:
        n = self.size.memory
        peak = self._must("memory", n)["peak_mb"]
        begun = self._must("first", 2)["peak_mb"]
        self._fact(
            f"memory of a run of {n:,} steps",
            f"{peak:.0f} MB at most ({begun:.0f} MB after 2 steps)  goal ≤ {self.goals.memory_mb:g} MB",
            peak <= self.goals.memory_mb,
        )

    # ── a conversation that grows ────────────────────────────────────────────────────────

    def message_loop(self) -> None:
        """Steps/s of loops that add a message at each step, by their length."""
        speakers = [c for c in self.alternatives if c.module == "langgraph"]
        for n in self.size.loops:
            ours = Series("Holdfast", "steps/s")
            compared = speakers if n <= self.size.alternative_loop_max else ()
            theirs = {c.label: Series(c.label, "steps/s") for c in compared}
            for _ in range(min(self.rounds, ALTERNATIVE_ROUNDS)):
                ours.values.append(n / self._must("conversation", n)["seconds"])
                for c in compared:
                    if found := c.figures("conversation", n):
                        theirs[c.label].values.append(n / found["seconds"])
            self._fact(
                f"message loop of {n:,} steps", f"{ours.median:,.0f} steps/s ±{ours.spread:.0%}"
            )
            for c in compared:
                self._row(f"message loop of {n:,} steps", ours, theirs[c.label])

    def conversation(self) -> None:
        n = self.size.conversation
        cost = self._last_against_first("conversation", n)
        self._fact(
            f"conversation of {n:,} steps, adding",
            f"last 100 steps {cost:.2f}× the first 100  goal ≤ {self.goals.flat:g}",
            cost <= self.goals.flat,
        )
        # What is read grows with the conversation, so this cannot be flat: it is told, and has no goal.
        cost = self._last_against_first("reading", n)
        self._fact(
            f"conversation of {n:,} steps, adding and reading all",
            f"last 100 steps {cost:.2f}× the first 100",
        )

    def _last_against_first(self, work: str, n: int) -> float:
        got = [self._must(work, n) for _ in range(min(self.rounds, ALTERNATIVE_ROUNDS))]
        return statistics.median(g["last"] / g["first"] for g in got)

    def conversation_bytes(self) -> None:
        n = self.size.conversation_bytes
        ours = self._grown(self.ours, "conversation", n)
        assert ours is not None
        size, figures = ours
        self._fact(
            f"conversation of {n:,} steps, on disk",
            f"{size / MB:.2f} MB in {figures['seconds']:.1f} s",
        )
        for c in self.alternatives:
            if c.module != "langgraph":
                continue
            for what, share in (("conversation", 1 / 150), ("conversation_delta", 1 / 3)):
                theirs = self._grown(c, what, n)
                if theirs is None:
                    continue
                their_size, figures = theirs
                self._fact(
                    f"{c.label}, the same" + (", delta channel" if "delta" in what else ""),
                    f"{their_size / MB:.1f} MB in {figures['seconds']:.1f} s, last 100 steps "
                    f"{figures['last'] / figures['first']:.1f}× the first; ours is 1/{their_size / size:.1f}"
                    f"  goal ≤ 1/{1 / share:.0f}"
                    + (f" (at 1,000 steps, not {n})" if n < 1000 else ""),
                    size <= their_size * share if n >= 1000 else None,
                )

    def _grown(self, c: Contender, what: str, n: int) -> tuple[int, dict[str, Any]] | None:
        """By how many bytes a database grows; with the figures of the work."""
        url = self.place.fresh()
        if c.figures("first", 2, url=url) is None:
            return None
        empty = bytes_on_disk(url)
        c.figures("alone", 2, url=url)  # to know what warming up takes
        warm = bytes_on_disk(url)
        figures = c.figures(what, n, url=url)
        return None if figures is None else (bytes_on_disk(url) - warm - (warm - empty), figures)


def _with_wal(url: str) -> str:
    """The same file, with its journal mode set for every process that opens it."""
    db = sqlite3.connect(url.removeprefix("sqlite:///"))
    db.execute("PRAGMA journal_mode=WAL")
    db.close()
    return url


def _sqlite(folder: Path) -> Place:
    names = iter(range(1000))
    goals = Goals(dbos_alone=9, resume={1000: 0.030, 100_000: 1.5})
    raw = RawSQLite(folder / "raw.db", STEP_BYTES)
    return Place(
        "SQLite", lambda: f"sqlite:///{folder}/{next(names)}.db", raw, goals, ("dbos", "langgraph")
    )


def _postgres(fresh: Callable[[], str]) -> Place:
    goals = Goals(dbos_alone=7, resume={1000: 0.040, 100_000: 2.0})
    raw = RawPostgres(fresh(), STEP_BYTES)
    return Place("PostgreSQL", fresh, raw, goals, ("dbos", "langgraph", "absurd"))


def main(*, rounds: int, quick: bool, databases: Sequence[str], results: Path) -> None:
    size = QUICK if quick else Size()
    report = Report("steps", rounds, results)
    report.fact(
        "work", "a moment's: these figures compare nothing" if quick else "as in bench/README"
    )
    if "sqlite" in databases:
        with folder() as here:
            Bench(report, _sqlite(here), rounds, size).all()
    if "postgres" in databases:
        with postgres_databases() as fresh:
            if fresh is not None:
                Bench(report, _postgres(fresh), rounds, size).all()
    report.show()
    chart(report.file)
