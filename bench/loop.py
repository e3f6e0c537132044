"""What an iteration of a loop costs, and whether that stays so: `@loop` to 100,000 iterations.

Each piece of work is done by a process of its own, so that its memory is its own: iterations with one step
each (time per iteration in windows along the way, memory at the end), a loop that was interrupted after so
many iterations and is resumed, and a dialogue that grows by a message of 1 KB per iteration, beside
LangGraph's SQLite saver on the same work.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from bench.harness import Report, bytes_on_disk, folder
from holdfast import AgentState, Checkpoint, Holdfast, Run, RunWaiting, loop, step

MESSAGE_BYTES: Final = 1000
FLAT: Final = 1.5
"""The last window of iterations, or a resume after the most of them, may take so much more than the first."""
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
    state = state.with_message("assistant", f"{state.iteration:0{MESSAGE_BYTES}d}")
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


def _child(work: str, url: str, n: int) -> dict[str, Any] | None:
    """What a process of its own measured; None if it could not."""
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
    return {**found, "bytes": bytes_on_disk(url)}


# ── the figures ──────────────────────────────────────────────────────────────────────────────


def main(*, rounds: int, quick: bool = False) -> None:
    """Print and keep the table."""
    report = Report("loop", rounds=1)
    _ = rounds  # a hundred thousand iterations are their own average
    sizes = (1000, 5000) if quick else (1000, 10_000, 100_000)
    with folder() as where:
        _flat(report, where, sizes)
        _growing(report, where, (100, 200) if quick else (500, 1000, 2000))
    report.show()


def _flat(report: Report, where: Path, sizes: tuple[int, ...]) -> None:
    walks, resumes = {}, {}
    for n in sizes:
        url = f"sqlite:///{where / f'walk-{n}.db'}"
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
            report.fact(f"{n:,} iterations: µs of {what} time each", said)
        report.fact(f"{n:,} iterations: memory", f"{walk['memory_mb']:.1f} MB")
        report.fact(f"{n:,} iterations: bytes per iteration", f"{walk['bytes'] / n:.0f}")
        report.fact(f"{n:,} iterations: resumed in", f"{resumed['seconds'] * 1000:.1f} ms")
        report.fact(f"{n:,} iterations: memory of the resume", f"{resumed['memory_mb']:.1f} MB")
    first, last = walks[small], walks[large]
    if first is None or last is None or resumes[small] is None or resumes[large] is None:
        return
    along = last["cpu_us"]
    slower = along[-1] / along[1]
    report.fact("cpu time of the last tenth beside the second", f"{slower:.2f}", slower <= FLAT)
    grown = last["memory_mb"] - first["memory_mb"]
    report.fact(f"memory from {small:,} to {large:,}", f"+{grown:.1f} MB", grown <= MEMORY_MB)
    share = resumes[large]["seconds"] / resumes[small]["seconds"]  # type: ignore[index]
    report.fact(f"resume after {large:,} beside after {small:,}", f"{share:.2f}", share <= 3)


def _growing(report: Report, where: Path, sizes: tuple[int, ...]) -> None:
    for name, work in (("@loop", "talk"), ("LangGraph", "talk-langgraph")):
        totals: list[float] = []
        for n in sizes:
            found = _child(work, f"sqlite:///{where / f'{work}-{n}.db'}", n)
            if found is None:
                break
            totals.append(found["bytes"])
            each = found["bytes"] / n
            report.fact(
                f"{name}: a dialogue of {n:,} messages",
                f"{found['bytes'] / 1e6:,.1f} MB, {each:,.0f} bytes a message, {found['seconds']:.1f} s",
            )
        if len(totals) == len(sizes):
            growth = totals[-1] / totals[-2]
            ok = growth < 2.3 if name == "@loop" else None
            report.fact(f"{name}: twice the messages take", f"{growth:.2f} times the bytes", ok)


if __name__ == "__main__":
    measured = WORK[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
    measured["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(json.dumps(measured))
