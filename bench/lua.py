"""Lua: a whole process that tests the recap with mocks, next to `tactus` if it is installed; and the cost of a durable
tool call in a Lua procedure, next to the same agent in Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.harness import Report, Series, folder
from holdfast import Holdfast, Run, agent, tool

CALLS = 200
COST_GOAL = 1.5
"""A durable tool call in Lua takes at most as many times as long as one in Python."""
START_GOAL = 20
"""tactus takes at least as many times as long."""
RECAP = Path(__file__).parent.parent / "examples" / "recap.tac"
LOOP = """
t = Tool { description = "x", input = {n = field.integer{required = true}, idempotency_key = field.string{}}, function(args) return args.n end }
Procedure { input = {count = field.integer{required = true}}, function(input)
  for n = 1, input.count do t({n = n}) end
  return input.count
end }
"""


@tool
def t(n: int, idempotency_key: str = "") -> int:
    """The same tool in Python."""
    return n if idempotency_key else -1


@agent
def looping(run: Run, count: int) -> int:  # noqa: ARG001 - an agent takes its run
    """The same procedure in Python."""
    for n in range(1, count + 1):
        t(n=n)
    return count


def main(*, rounds: int, quick: bool, databases: Sequence[str], results: Path) -> None:
    """Print the table."""
    _ = databases
    calls = 20 if quick else CALLS
    process, cost = Series("holdfast test recap.tac --mock", "ms"), Series("tool call, Lua", "us")
    python, other = Series("tool call, Python", "us"), Series("tactus test --mock", "ms")
    tactus = shutil.which("tactus")
    with folder() as here:
        file = here / "loop.tac"
        file.write_text(LOOP)
        from holdfast.lua import procedure

        lua = procedure(file)
        holdfast = str(Path(sys.executable).parent / "holdfast")
        for n in range(rounds * (1 if quick else 5)):
            process.values.append(_milliseconds([holdfast, "test", str(RECAP), "--mock"]))
            if tactus:
                other.values.append(_milliseconds([tactus, "test", str(RECAP), "--mock"]))
            with Holdfast(here / "h.db") as hf:
                cost.values.append(_per_call(hf, lua, f"l-{n}", calls))
                python.values.append(_per_call(hf, looping, f"p-{n}", calls))
    report = Report("lua", len(process.values), results)
    report.add("durable tool call in Lua and in Python, us", cost, python, at_most=COST_GOAL)
    if tactus:
        report.add("test --mock, whole process, and tactus, ms", other, process, goal=START_GOAL)
    else:
        report.fact(
            "test --mock, whole process", f"{process.median:.0f} ms; tactus is not installed"
        )
    report.show()


def _milliseconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return (time.perf_counter() - began) * 1000


def _per_call(hf: Holdfast, agent: Callable[..., Any], run_id: str, calls: int) -> float:
    began = time.perf_counter()
    hf.run(agent, id=run_id, count=calls)
    return (time.perf_counter() - began) / calls * 1e6
