"""Agents for worker processes. What their tools do stands in a file, one line a deed: $DEEDS."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from holdfast import AsyncRun, Run, agent, step, tool


def deed(text: str) -> None:
    with Path(os.environ["DEEDS"]).open("a", encoding="utf-8") as file:
        file.write(f"{text} {os.getpid()}\n")


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
def work(name: str, seconds: float, idempotency_key: str = "") -> str:
    deed(f"begin {name}")
    time.sleep(seconds)
    deed(f"end {name}")
    return name


@agent
def three_calls(run: Run, seconds: float) -> list[str]:
    return [work(name, seconds) for name in ("a", "b", "c")]


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


@agent(version="2")
def versioned(run: Run) -> str:
    return "2"
