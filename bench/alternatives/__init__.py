"""Other durable engines, and Holdfast itself, doing the same work behind one small protocol.

Each engine is one module that is also a command, because engines keep global state and threads:

    python -m bench.alternatives.dbos alone URL 20 100      # after 20 steps to warm up

A command does one piece of work in its own process and prints its figures as one JSON object.
The work is always `work(i)`, which returns 1 KB and notes when it was reached; what an engine costs
is what lies between one such moment and the next.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, Protocol

BODY_CHARS: Final = 1000
TIMEOUT_SECONDS: Final = 900
ROOT: Final = Path(__file__).parent.parent.parent


# ── in the child ─────────────────────────────────────────────────────────────────────────────


@dataclass
class Marks:
    """When each call's body was reached. `time.perf_counter` is one clock for all processes."""

    times: list[float] = field(default_factory=list)
    die_at: int = -1
    warm_up: int = 0
    """How many steps an engine makes before its figures are taken."""


MARKS: Final = Marks()
# Other text at each step, and none that a database could compress away.
_TEXT: Final = base64.b64encode(random.Random(7).randbytes(800_000)).decode()


def body(i: int) -> str:
    """What step `i` returns: 1 KB of text."""
    at = i * BODY_CHARS % (len(_TEXT) - BODY_CHARS)
    return _TEXT[at : at + BODY_CHARS]


def work(i: int) -> str:
    """The body of every step, of every engine."""
    if i == MARKS.die_at:
        os._exit(0)  # an interrupted run: what is durable now is all there is
    MARKS.times.append(time.perf_counter())
    return body(i)


class Engine(Protocol):
    """What is asked of each engine. One that cannot do a piece of work says NotImplementedError."""

    def setup(self, url: str) -> str:
        """Open the database; how durable a commit is, as far as it can be seen."""
        ...

    def alone(self, n: int) -> None:
        """One run of `n` steps."""
        ...

    def concurrent(self, runs: int, n: int) -> dict[str, Any]:
        """That many runs at once, of `n` steps each. It opens what it needs and warms up by itself; the
        `seconds` that it returns are those of the runs."""
        ...

    def interrupted(self, n: int) -> None:
        """One run of `n + 1` steps, with an id that `resume` knows; the process dies in the last."""
        ...

    def resume(self, n: int) -> None:
        """Resume that run, until its first new step is reached."""
        ...

    def conversation(self, n: int) -> None:
        """A run of `n` steps, each of which adds its 1 KB to a growing list of messages."""
        ...

    def teardown(self) -> None: ...


def serve(make: Callable[[], Engine]) -> None:
    """The command line of an engine: `<what> <url> <warm up> <number> [<number>]`."""
    what, url, warm_up, *rest = sys.argv[1:]
    MARKS.warm_up = int(warm_up)
    numbers = [int(text) for text in rest]
    began = time.perf_counter()
    engine = make()
    durability = engine.setup(url)
    opened = time.perf_counter()
    if what not in ("first", "resume", "interrupted", "memory"):
        engine.alone(MARKS.warm_up)
    MARKS.times.clear()
    if what == "interrupted":
        MARKS.die_at = numbers[0]
    figures: dict[str, Any] = {"durability": durability}
    started = time.perf_counter()
    method = "alone" if what in ("first", "memory") else what
    extra = getattr(engine, method)(*numbers)
    figures["seconds"] = time.perf_counter() - started
    figures |= _from_marks(what, began, opened)
    figures["peak_mb"] = peak_mb()
    if isinstance(extra, dict):
        figures |= extra
    engine.teardown()
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()
    os._exit(0)  # threads of an engine must not keep the benchmark waiting


def peak_mb() -> float:
    """The most memory that this process has had; `ru_maxrss` also counts its parent's, at the fork."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(x for x in status.read_text("ascii").splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _from_marks(what: str, began: float, opened: float) -> dict[str, Any]:
    times = MARKS.times
    gaps = [b - a for a, b in pairwise(times)]
    if what == "resume":
        return {"resume": times[0] - opened, "restart": times[0] - began}
    if what == "first":
        return {"durable_at": times[1]}  # when the second step is reached, the first is durable
    if what in ("alone", "tools"):
        ordered = sorted(gaps)
        return {"p50": ordered[len(gaps) // 2], "p99": ordered[len(gaps) * 99 // 100]}
    if what.startswith(("conversation", "reading")):
        window = max(1, min(100, len(gaps) // 4))
        return {"first": median(gaps[:window]), "last": median(gaps[-window:])}
    return {}


# ── in the parent ────────────────────────────────────────────────────────────────────────────


class Failed(Exception):
    """An engine's process ended without figures."""


def missing(name: str) -> str:
    """Why this engine cannot be measured here; empty if it can."""
    needs = {
        "langgraph": ("langgraph", "langgraph.checkpoint.sqlite", "langgraph.checkpoint.postgres"),
        "absurd": ("absurd_sdk", "absurdctl"),
    }.get(name, (name,))
    absent = []
    for module in needs:
        try:
            found = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            found = False
        if not found:
            absent.append(module)
    return f"{', '.join(absent)} not installed" if absent else ""


def measure(name: str, what: str, url: str, *numbers: int, warm_up: int) -> dict[str, Any]:
    """One piece of work by one engine, in its own process."""
    asked = (what, url, *map(str, (warm_up, *numbers)))
    command = [sys.executable, "-m", f"bench.alternatives.{name}", *asked]
    began = time.perf_counter()
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{name} {what}: no answer within {TIMEOUT_SECONDS} s") from None
    if what == "interrupted" and done.returncode == 0:
        return {}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise Failed(f"{name} {what}: {said[:200]}")
    figures: dict[str, Any] = json.loads(lines[-1])
    if "durable_at" in figures:
        figures["start"] = figures["durable_at"] - began
    return figures
