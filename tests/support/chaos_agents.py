"""What the workers of a test fleet execute: `holdfast worker tests/support/chaos_agents.py`.

The agents are those that are killed everywhere, and some whose timing matters to a fleet. Their tools
talk to the ledger that HOLDFAST_TEST_LEDGER names.
"""

from __future__ import annotations

import ctypes
import datetime
import fcntl
import os
import time
from pathlib import Path
from typing import Any

from holdfast import Run, agent, step, tool
from support import scenarios
from support.ledger import Ledger
from support.scenarios import (
    book,
    cancelled,
    careful,
    forgiving,
    gated,
    improvising,
    inner,
    outer,
    pay,
    read_notes,
    retrying,
    send,
    tasks,
    threads,
    undoing,
)
from support.waiting import go_through

LEDGER = "HOLDFAST_TEST_LEDGER"
DAWDLE = "HOLDFAST_TEST_DAWDLE_SECONDS"
SKEW = "HOLDFAST_TEST_SKEW_SECONDS"


def wrong_clock(seconds: int) -> None:
    """Let this process's wall clock be wrong by so much; time that passes is not affected."""
    ns, right = seconds * 1_000_000_000, time.time_ns
    time.time_ns = lambda: right() + ns
    time.time = lambda: (right() + ns) / 1e9
    clock = time.clock_gettime_ns
    time.clock_gettime_ns = lambda which: clock(which) + (ns if which == time.CLOCK_REALTIME else 0)
    time.clock_gettime = lambda which: time.clock_gettime_ns(which) / 1e9

    class Moved(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
            return datetime.datetime.fromtimestamp(time.time(), tz)

    datetime.datetime = Moved  # type: ignore[misc]


if LEDGER in os.environ:
    scenarios.use(Ledger(os.environ[LEDGER], dawdle_seconds=float(os.environ.get(DAWDLE, "0"))))


if SKEW in os.environ:
    wrong_clock(int(os.environ[SKEW]))


@agent(stages=("reading", "sending", "over"))
def chained(run: Run, name: str) -> dict[str, Any]:
    run.stage = "reading"
    run.state.notes = read_notes(name)
    run.state.increment("tries")
    run.stage = "sending"
    first = send(to=name)
    booked = book(room="blue")
    run.decide("where", booked["tool"], why="it was free")
    second = send(to=name)  # the same words again are another action
    run.stage = "over"
    return {"sent": [first["tool"], second["tool"]], "tries": run.state.tries}


@agent
def sleeper(run: Run, name: str, seconds: float) -> Any:
    """Waits for a person's word, then for time."""
    word = run.wait_for("go")
    run.sleep(seconds)
    return [word, send(to=name)["tool"]]


@tool
def witnessed(run_id: str, label: str, door: str) -> str:
    """Leaves a trace before and after a door at which it blocks its thread."""
    ledger = Ledger(os.environ[LEDGER])
    ledger.do(run_id, f"begins {label}", "", {"pid": os.getpid(), "at": time.monotonic()})
    go_through(door)
    ledger.do(run_id, f"ends {label}", "", {"pid": os.getpid(), "at": time.monotonic()})
    return label


@step
def busy(seconds: float) -> int:
    """Calls into C that last half a second each; hashlib lets other threads run meanwhile."""
    import hashlib

    calls, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        hashlib.pbkdf2_hmac("sha256", b"holdfast", b"salt", 500_000)
        calls += 1
    return calls


@tool
def hogging(run_id: str, door: str) -> str:
    """A call into C that keeps Python's interpreter lock: no other thread of the process runs before the door
    is open."""
    ledger = Ledger(os.environ[LEDGER])
    ledger.do(run_id, "begins", "", {"pid": os.getpid()})
    with Path(door).open(encoding="utf-8") as file:
        assert 0 == ctypes.PyDLL(None).flock(file.fileno(), fcntl.LOCK_SH)
    ledger.do(run_id, "ends", "", {"pid": os.getpid()})
    return "done"


@agent
def hogged(run: Run, door: str) -> str:
    return hogging(run.id, door)


@agent
def blocking(run: Run, door: str) -> str:
    return witnessed(run.id, "it", door)


@agent
def crunching(run: Run, seconds: float) -> int:
    return busy(seconds)


@step
def mark(run_id: str, label: str) -> str:
    """A step that tells the ledger who executes it and when."""
    ledger = Ledger(os.environ[LEDGER])
    ledger.do(run_id, label, "", {"pid": os.getpid(), "at": time.monotonic()})
    return label


@step
def what_time_is_it() -> float:
    return time.time()


@agent
def asking(run: Run) -> list[float]:
    """What this worker's clock says, and what the run is told."""
    return [what_time_is_it(), run.now().timestamp()]


@agent
def spending(run: Run, times: int) -> int:
    """Payments that no one may repeat, one after the other."""
    for amount in range(times):
        pay(run.id, amount)
    return times


@step
def wait_at(door: str) -> None:
    go_through(door)


@agent
def marked(run: Run, steps: int, door: str) -> int:
    """Many short steps, half of them behind a door: a process killed there is seen to be succeeded."""
    for i in range(steps):
        if i == steps // 2:
            wait_at(door)
        mark(run.id, f"step {i}")
    return steps


__all__ = [
    "asking",
    "blocking",
    "cancelled",
    "careful",
    "chained",
    "crunching",
    "forgiving",
    "gated",
    "hogged",
    "improvising",
    "inner",
    "marked",
    "outer",
    "retrying",
    "sleeper",
    "spending",
    "tasks",
    "threads",
    "undoing",
]
