"""Agents for worker processes. What their tools do is in a file, one line a deed: $DEEDS. If there is a
pipe, $DEEDS_NEWS, something comes out of it at each."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from pathlib import Path

from holdfast import AsyncRun, Rate, Run, agent, step, tool
from support.waiting import go_through


def deed(text: str) -> None:
    with Path(os.environ["DEEDS"]).open("a", encoding="utf-8") as file:
        file.write(f"{text} {os.getpid()}\n")
    if "DEEDS_NEWS" in os.environ:
        with contextlib.suppress(BlockingIOError):  # it is full: a reader will find something
            os.write(int(os.environ["DEEDS_NEWS"]), b".")


@step
def double(n: int) -> int:
    return 2 * n


@agent
def doubling(run: Run, n: int) -> int:
    return double(n)


@agent
async def doubling_async(run: AsyncRun, n: int) -> int:
    return double(n)


@tool
def work(name: str, door: str, idempotency_key: str = "") -> str:
    deed(f"begin {name}")
    go_through(door)
    deed(f"end {name}")
    return name


@agent
def three_calls(run: Run, door: str) -> list[str]:
    return [work(name, door) for name in ("a", "b", "c")]


@step
async def count_what_is_here() -> dict[str, int]:
    return {
        "threads": threading.active_count(),
        "tasks": len(asyncio.all_tasks()),
        "files and connections": open_files(),
    }


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@agent
async def census(run: AsyncRun) -> dict[str, int]:
    """What the process that executes it has open."""
    return await count_what_is_here()


@step
def woken(n: int) -> None:
    deed(f"woken {n}")


@agent
def dozing(run: Run, n: int) -> None:
    run.sleep(3600)
    woken(n)


@step(rate=Rate(5, per=1.0))
def ask_model(n: int) -> int:
    deed(f"{time.monotonic()}")
    return n


@agent
def asking(run: Run, n: int) -> int:
    return ask_model(n)


@step
def stamp() -> None:
    deed("stamp")


@agent
def scheduled(run: Run) -> str:
    stamp()
    return run.id


@tool
def die(idempotency_key: str = "") -> None:
    deed("die")
    os._exit(9)


@agent
def deadly(run: Run) -> None:
    die()


@agent
def leaving(run: Run) -> None:
    deed("leave")
    sys.exit("no more")


@step
def wait_at(door: str) -> str:
    deed("begin")
    go_through(door)
    return "told"


@agent
def until_told(run: Run, door: str) -> str:
    return wait_at(door)


@agent(version="2")
def versioned(run: Run) -> str:
    return "2"
