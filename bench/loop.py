"""What an iteration of a loop costs, and whether that stays so: `@loop` to 100,000 iterations.

Each piece of work is done by its own process, so that its memory is its own: iterations with one step
each (time per iteration along the way, memory at the end), a loop that was interrupted after so many
iterations and is resumed, and a dialogue that grows by a message of 1 KB per iteration, compared with LangGraph's
savers on the same work. All of it on SQLite and on PostgreSQL.

A disk has slow moments, and most of an iteration is waiting for it. So the raw database commits rows of the
same size all along the way, a hundred times a few: what slows both down is not the loop's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from bench.alternatives import body, missing, peak_mb
from bench.append import RawPostgres, RawSQLite
from bench.harness import Report, bytes_on_disk, folder, postgres_databases
from holdfast import AgentState, Checkpoint, Holdfast, Run, RunWaiting, loop, step

FLAT: Final = 1.5
"""The last tenth of the iterations, or a resume after the most of them, may take this many times as long as the first."""
LINEAR: Final = 2.3
"""Twice the messages may take so many times the bytes."""
MEMORY_MB: Final = 40.0
"""What memory may grow by from the shortest loop to the longest."""
ROW_BYTES: Final = 640
"""What an iteration of this work takes in its stored form: the raw database writes rows of that size."""
PROBES: Final = 100
TENTHS: Final = 10


@step
def observe(number: int) -> str:
    return f"{number:0100d}"


@loop(max_iterations=10**9, checkpoint="every_iteration")
def walker(run: Run, state: AgentState, until: int) -> AgentState:
    if PASSED:
        PASSED[0].at(state.iteration)
    if state.iteration == until:
        run.wait_for("go")
        return state.to_done(state.iteration)
    return state.with_note("seen", observe(state.iteration))


@loop(max_iterations=10**9, checkpoint=Checkpoint("every_iteration"))
def talker(_: Run, state: AgentState, until: int) -> AgentState:
    state = state.with_message("assistant", body(state.iteration))
    return state.to_done() if state.iteration == until else state


# ── what its own process does ───────────────────────────────────────────────────────────


class Progress:
    """When a walk came to each hundredth of its way, and how long the raw database took there."""

    def __init__(self, n: int, raw: RawSQLite | RawPostgres) -> None:
        self.every, self.commits = n // PROBES, max(1, n // PROBES // 10)
        self.raw = raw
        self.stops: list[tuple[_Clocks, _Clocks]] = []
        self.at(0)

    def at(self, iteration: int) -> None:
        if iteration % self.every:
            return
        came = _clocks()
        self.raw.insert(self.commits, 1)
        self.stops.append((came, _clocks()))
        if len(self.stops) % (PROBES // TENTHS) == 1 and iteration >= 10_000:
            wall = self.tenths(0)[-1]
            sys.stderr.write(f"    {iteration:>7,} iterations, {wall:,.0f} µs each\n")

    def tenths(self, clock: int) -> list[float]:
        """µs for each iteration, by tenths of the way: on the wall (0), or of this process alone (1)."""
        spans = [(came[clock] - left[clock]) for (_, left), (came, _) in pairwise(self.stops)]
        return _by_tenth(spans, self.every)

    def raw_tenths(self) -> list[float]:
        """µs for each commit of the raw database, on the wall, in the same tenths."""
        return _by_tenth([left[0] - came[0] for came, left in self.stops[1:]], self.commits)


_Clocks = tuple[float, float]
PASSED: Final[list[Progress]] = []
"""Where the walk of this process notes its times; empty when it is resumed."""


def _clocks() -> _Clocks:
    """On the wall, where the disk and its other users count, and of this process alone."""
    return time.perf_counter(), time.process_time()


def _by_tenth(seconds: list[float], each: int) -> list[float]:
    size = PROBES // TENTHS
    parts = [seconds[i : i + size] for i in range(0, len(seconds), size)]
    return [round(sum(part) / len(part) / each * 1e6, 1) for part in parts]


def _walk(url: str, n: int, raw_url: str) -> dict[str, Any]:
    is_file = raw_url.startswith("sqlite:///")
    raw = (
        RawSQLite(Path(raw_url.removeprefix("sqlite:///")), ROW_BYTES)
        if is_file
        else RawPostgres(raw_url, ROW_BYTES)
    )
    along = Progress(n, raw)
    PASSED.append(along)
    with Holdfast(url) as hf:
        try:
            hf.run(walker, "walk", id="w", until=n)
        except RunWaiting:
            pass
    return {
        "wall_us": along.tenths(0),
        "cpu_us": along.tenths(1),
        "raw_us": along.raw_tenths(),
    }


def _resume(url: str, n: int, _: str) -> dict[str, Any]:
    began = time.perf_counter()
    with Holdfast(url, agents=[walker]) as hf:
        try:
            hf.resume("w")
        except RunWaiting:
            pass
        return {"seconds": time.perf_counter() - began, "iterations": n}


def _talk(url: str, n: int, _: str) -> dict[str, Any]:
    began = time.perf_counter()
    with Holdfast(url) as hf:
        hf.run(talker, "talk", until=n)
    return {"seconds": time.perf_counter() - began}


def _talk_langgraph(url: str, n: int, _: str) -> dict[str, Any]:
    from bench.alternatives.langgraph import LangGraph

    graph = LangGraph()
    graph.setup(url)
    began = time.perf_counter()
    graph.conversation(n)
    seconds = time.perf_counter() - began
    graph.teardown()
    return {"seconds": seconds}


WORK: Final = {
    "walk": _walk,
    "resume": _resume,
    "talk": _talk,
    "talk-langgraph": _talk_langgraph,
}


@dataclass(frozen=True, slots=True)
class Place:
    """A kind of database, and how to get an empty one."""

    name: str
    fresh: Callable[[], str]


def _child(work: str, url: str, n: int, raw_url: str = "") -> dict[str, Any] | None:
    """What its own process measured, and by how much the database grew; None if it could not.

    Its progress and its errors are shown as they occur.
    """
    sys.stderr.write(f"  {work} {n:,}, {url.partition(':')[0]}\n")
    before = bytes_on_disk(url)
    done = subprocess.run(
        [sys.executable, "-m", "bench.loop", work, url, str(n), raw_url],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.stderr.write(f"  {work} {n:,} failed\n")
        return None
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "bytes": bytes_on_disk(url) - before}


# ── the figures ──────────────────────────────────────────────────────────────────────────────


def main(*, rounds: int, quick: bool, databases: Sequence[str], results: Path) -> None:
    """Print and keep the table."""
    _ = rounds  # a hundred thousand iterations are their own average
    report = Report("loop", 1, results)
    if "sqlite" in databases:
        with folder() as here:
            names = iter(range(1000))
            _all(report, Place("SQLite", lambda: f"sqlite:///{here}/{next(names)}.db"), quick=quick)
    if "postgres" in databases:
        with postgres_databases() as fresh:
            if fresh is not None:
                _all(report, Place("PostgreSQL", fresh), quick=quick)
    report.show()


def _all(report: Report, place: Place, *, quick: bool) -> None:
    _flat(report, place, (200, 1000) if quick else (1000, 10_000, 100_000))
    _growing(report, place, (40, 80) if quick else (250, 500, 1000))


def _flat(report: Report, place: Place, sizes: tuple[int, ...]) -> None:
    walks, resumes, on = {}, {}, place.name
    for n in sizes:
        url = place.fresh()
        walk = _child("walk", url, n, place.fresh())
        resumed = None if walk is None else _child("resume", url, n)
        if walk is None or resumed is None:
            report.fact(f"{on}, {n:,} iterations", "no figure")
            return
        walks[n], resumes[n] = walk, resumed
        _facts(report, f"{on}, {n:,} iterations", n, walk, resumed)
        report.keep()
    small, large = sizes[0], sizes[-1]
    _goals(report, f"{on}, {large:,} iterations", walks[large])
    grown = walks[large]["memory_mb"] - walks[small]["memory_mb"]
    said = f"{on}: memory from {small:,} to {large:,}"
    report.fact(said, f"{grown:+.1f} MB", grown <= MEMORY_MB)
    share = resumes[large]["seconds"] / resumes[small]["seconds"]
    said = f"{on}: resume after {large:,} / after {small:,}"
    report.fact(said, f"{share:.2f}", share <= 3)
    report.keep()


def _facts(
    report: Report, name: str, n: int, walk: dict[str, Any], resumed: dict[str, Any]
) -> None:
    for what, of in (
        ("wall", "each"),
        ("cpu", "each"),
        ("raw", "for a raw commit at the same time"),
    ):
        along = walk[f"{what}_us"]
        said = f"{along[1]:,.0f} in the second tenth, {along[-1]:,.0f} in the last"
        time_of = "wall" if what == "raw" else what
        report.fact(f"{name}: µs of {time_of} time {of}", said)
    report.fact(f"{name}: memory", f"{walk['memory_mb']:.1f} MB")
    report.fact(f"{name}: bytes per iteration", f"{walk['bytes'] / n:.0f}")
    report.fact(f"{name}: resumed in", f"{resumed['seconds'] * 1000:.1f} ms")
    report.fact(f"{name}: memory of the resume", f"{resumed['memory_mb']:.1f} MB")


def _goals(report: Report, name: str, walk: dict[str, Any]) -> None:
    """The last tenth compared with the second: the first one has to open the database and read the code."""
    in_raw = [ours / raw for ours, raw in zip(walk["wall_us"], walk["raw_us"], strict=True)]
    for what, along in (("cpu time", walk["cpu_us"]), ("wall time in raw commits", in_raw)):
        slower = along[-1] / along[1]
        said = f"{name}: {what} of the last tenth / the second"
        report.fact(said, f"{slower:.2f}", slower <= FLAT)


def _growing(report: Report, place: Place, sizes: tuple[int, ...]) -> None:
    for who, work in (("@loop", "talk"), ("LangGraph", "talk-langgraph")):
        name = f"{place.name}, {who}"
        if who == "LangGraph" and (absent := missing("langgraph")):
            report.fact(name, f"missing: {absent}")
            continue
        totals: list[float] = []
        for n in sizes:
            found = _child(work, place.fresh(), n)
            if found is None:
                report.fact(f"{name}: a dialogue of {n:,} messages", "no figure")
                break
            totals.append(found["bytes"])
            seconds = found["seconds"]
            each = found["bytes"] / n
            report.fact(
                f"{name}: a dialogue of {n:,} messages",
                f"{found['bytes'] / 1e6:,.1f} MB, {each:,.0f} bytes a message, {seconds:.1f} s",
            )
            report.keep()
        if len(totals) == len(sizes):
            growth = totals[-1] / totals[-2]
            ok = growth < LINEAR if who == "@loop" else None
            report.fact(f"{name}: twice the messages take", f"{growth:.2f} times the bytes", ok)
            report.keep()


if __name__ == "__main__":
    measured = WORK[sys.argv[1]](sys.argv[2], int(sys.argv[3]), sys.argv[4])
    measured["memory_mb"] = peak_mb()
    sys.stdout.write(json.dumps(measured))
