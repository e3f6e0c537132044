"""What an iteration of a loop costs, and whether that stays so: `@loop` to 100,000 iterations.

Each piece of work is done by a process of its own, so that its memory is its own: iterations with one step
each (time per iteration in windows along the way, memory at the end), a loop that was interrupted after so
many iterations and is resumed, and a dialogue that grows by a message of 1 KB per iteration, beside
LangGraph's savers on the same work. All of it on SQLite and on PostgreSQL.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.harness import Report, bytes_on_disk, folder, postgres_databases
from bench.neighbours import body, missing, peak_mb
from holdfast import AgentState, Checkpoint, Holdfast, Run, RunWaiting, loop, step

FLAT: Final = 1.5
"""The last window of iterations, or a resume after the most of them, may take so much more than the first."""
LINEAR: Final = 2.3
"""Twice the messages may take so many times the bytes."""
MEMORY_MB: Final = 40.0
"""What memory may grow by from the shortest loop to the longest."""


@step
def observe(number: int) -> str:
    return f"{number:0100d}"


@loop(max_iterations=10**9, checkpoint="every_iteration")
def walker(run: Run, state: AgentState, until: int, windows: int) -> AgentState:
    if state.iteration % (until // windows) == 0 or state.iteration == until:
        TIMES.append((time.perf_counter(), time.process_time()))
    if state.iteration == until:
        run.wait_for("go")
        return state.to_done(state.iteration)
    return state.with_note("seen", observe(state.iteration))


@loop(max_iterations=10**9, checkpoint=Checkpoint("every_iteration"))
def talker(_: Run, state: AgentState, until: int) -> AgentState:
    state = state.with_message("assistant", body(state.iteration))
    return state.to_done() if state.iteration == until else state


TIMES: Final[list[tuple[float, float]]] = []
"""On the wall, where the disk and its other users count, and of this process alone."""


# ── what a process of its own does ───────────────────────────────────────────────────────────


def _walk(url: str, n: int) -> dict[str, Any]:
    windows = 10
    began = (time.perf_counter(), time.process_time())
    with Holdfast(url) as hf:
        try:
            hf.run(walker, "walk", id="w", until=n, windows=windows)
        except RunWaiting:
            pass
    each = n / windows / 1e6
    spans = list(zip([began, *TIMES], TIMES, strict=False))[:windows]
    return {
        "wall_us": [round((b[0] - a[0]) / each, 1) for a, b in spans],
        "cpu_us": [round((b[1] - a[1]) / each, 1) for a, b in spans],
    }


def _resume(url: str, n: int) -> dict[str, Any]:
    began = time.perf_counter()
    with Holdfast(url, agents=[walker]) as hf:
        try:
            hf.resume("w")
        except RunWaiting:
            pass
        return {"seconds": time.perf_counter() - began, "iterations": n}


def _talk(url: str, n: int) -> dict[str, Any]:
    began = time.perf_counter()
    with Holdfast(url) as hf:
        hf.run(talker, "talk", until=n)
    return {"seconds": time.perf_counter() - began}


def _talk_langgraph(url: str, n: int) -> dict[str, Any]:
    from bench.neighbours.langgraph import LangGraph

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


def _child(work: str, url: str, n: int) -> dict[str, Any] | None:
    """What a process of its own measured, and by how much the database grew; None if it could not."""
    before = bytes_on_disk(url)
    done = subprocess.run(
        [sys.executable, "-m", "bench.loop", work, url, str(n)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.stdout.write(f"{work} {n}: {done.stderr.strip().splitlines()[-1]}\n")
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
    report.keep()
    _growing(report, place, (40, 80) if quick else (500, 1000, 2000))
    report.keep()


def _flat(report: Report, place: Place, sizes: tuple[int, ...]) -> None:
    walks, resumes, on = {}, {}, place.name
    for n in sizes:
        url = place.fresh()
        walks[n] = _child("walk", url, n)
        resumes[n] = _child("resume", url, n)
    small, large = sizes[0], sizes[-1]
    for n in sizes:
        walk, resumed = walks[n], resumes[n]
        if walk is None or resumed is None:
            continue
        for what in ("wall", "cpu"):
            along = walk[f"{what}_us"]
            said = f"{along[0]:g} in the first tenth, {along[-1]:g} in the last"
            report.fact(f"{on}, {n:,} iterations: µs of {what} time each", said)
        report.fact(f"{on}, {n:,} iterations: memory", f"{walk['memory_mb']:.1f} MB")
        report.fact(f"{on}, {n:,} iterations: bytes per iteration", f"{walk['bytes'] / n:.0f}")
        report.fact(f"{on}, {n:,} iterations: resumed in", f"{resumed['seconds'] * 1000:.1f} ms")
        report.fact(
            f"{on}, {n:,} iterations: memory of the resume", f"{resumed['memory_mb']:.1f} MB"
        )
    first, last = walks[small], walks[large]
    if first is None or last is None or resumes[small] is None or resumes[large] is None:
        return
    along = last["cpu_us"]
    slower = along[-1] / along[1]
    said = f"{on}: cpu time of the last tenth beside the second"
    report.fact(said, f"{slower:.2f}", slower <= FLAT)
    grown = last["memory_mb"] - first["memory_mb"]
    said = f"{on}: memory from {small:,} to {large:,}"
    report.fact(said, f"{grown:+.1f} MB", grown <= MEMORY_MB)
    share = resumes[large]["seconds"] / resumes[small]["seconds"]  # type: ignore[index]
    said = f"{on}: resume after {large:,} beside after {small:,}"
    report.fact(said, f"{share:.2f}", share <= 3)


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
            each = found["bytes"] / n
            report.fact(
                f"{name}: a dialogue of {n:,} messages",
                f"{found['bytes'] / 1e6:,.1f} MB, {each:,.0f} bytes a message, {found['seconds']:.1f} s",
            )
        if len(totals) == len(sizes):
            growth = totals[-1] / totals[-2]
            ok = growth < LINEAR if who == "@loop" else None
            report.fact(f"{name}: twice the messages take", f"{growth:.2f} times the bytes", ok)


if __name__ == "__main__":
    measured = WORK[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
    measured["memory_mb"] = peak_mb()
    sys.stdout.write(json.dumps(measured))
