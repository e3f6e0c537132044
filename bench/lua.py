"""Lua: a whole process that tests the recap with mocks, next to `tactus` if it is on the PATH; and the cost of a durable
tool call in a Lua procedure, next to the same agent in Python.

All figures are CPU time, so that other work on the machine changes them less. Both programs run from bytecode, each in an
environment of its own: what else is installed there costs time at every start (`--quick` takes this one)."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.harness import Report, Series, folder
from holdfast import Holdfast, Run, agent, tool

CALLS = 200
COST_GOAL = 1.5
"""A durable tool call in Lua takes at most as many times the CPU time of one in Python."""
START_GOAL = 20
"""tactus takes at least as many times the CPU time."""
ROOT = Path(__file__).parent.parent
RECAP = ROOT / "examples" / "recap.tac"
FOR_BOTH = {
    "recipient_name = field.string{required = true}": 'recipient_name = field.string{default = "Sam"}',
    "recipient_email = field.string{required = true}": 'recipient_email = field.string{default = "sam@example.com"}',
    "field.string{}": "field.string{required = false}",
    'Given the recipient_name parameter is "Sam"': "Given the procedure has started",
    'And the recipient_email parameter is "sam@example.com"\n': "\n",
}
"""tactus 0.30 does not take an empty field, and its `parameter is` does not give the parameter."""
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
        file, recap = here / "loop.tac", here / "recap.tac"
        file.write_text(LOOP)
        recap.write_text(_for_both(RECAP.read_text()))
        from holdfast.lua import procedure

        lua = procedure(file)
        holdfast = str(_bin(here, quick=quick) / "holdfast")
        bytecode = here / "bytecode"
        commands = [holdfast, *([tactus] if tactus else [])]
        for command in commands:
            _cpu_milliseconds([command, "test", str(recap), "--mock"], bytecode)
        for n in range(rounds * (1 if quick else 5)):
            for command, series in zip(commands, (process, other), strict=False):
                took = _cpu_milliseconds([command, "test", str(recap), "--mock"], bytecode)
                series.values.append(took)
            with Holdfast(here / "h.db") as hf:
                _per_call(hf, looping, f"first-{n}", calls)  # not measured: it pays for opening
                cost.values.append(_per_call(hf, lua, f"l-{n}", calls))
                python.values.append(_per_call(hf, looping, f"p-{n}", calls))
    report = Report("lua", len(process.values), results)
    report.add("durable tool call in Lua and in Python, us", cost, python, at_most=COST_GOAL)
    if tactus:
        report.add(
            "tactus test --mock and holdfast, whole process, ms", other, process, goal=START_GOAL
        )
    else:
        report.fact(
            "test --mock, whole process", f"{process.median:.0f} ms; tactus is not installed"
        )
    report.show()


def _bin(here: Path, *, quick: bool) -> Path:
    """Where the programs of an environment are that contains `holdfast[lua]` and nothing else."""
    if quick:
        return Path(sys.executable).parent
    venv.create(here / "environment", with_pip=True)
    pip = [str(here / "environment" / "bin" / "python"), "-m", "pip", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", "install", f"{ROOT}[lua]"], check=True)
    return here / "environment" / "bin"


def _for_both(source: str) -> str:
    for ours, both in FOR_BOTH.items():
        if ours not in source:
            raise ValueError(f"{RECAP.name} no longer has {ours!r}")
        source = source.replace(ours, both)
    return source


def _cpu_milliseconds(command: list[str], bytecode: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(
        command, check=True, capture_output=True, env={**env, "PYTHONPYCACHEPREFIX": str(bytecode)}
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def _per_call(hf: Holdfast, agent: Callable[..., Any], run_id: str, calls: int) -> float:
    began = time.process_time()
    hf.run(agent, id=run_id, count=calls)
    return (time.process_time() - began) / calls * 1e6
