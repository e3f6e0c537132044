"""How long the command line takes to start, next to a click program that does nothing.

Every figure is a whole process, from its start to its end. Each round starts them in turn, so that a
slow moment of the machine falls on all.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.harness import Report, Series, folder

STARTS = 20
GOAL = 2.5
"""`holdfast --version` takes at most as many times as long as the bare program's."""

BARE = """#!{python}
import click

@click.group()
@click.version_option("1", prog_name="bare")
def cli(): pass

cli()
"""
AGENT = """
from holdfast import agent, step

@step
def work(n: int) -> int:
    return n

@agent
def worker(run) -> int:
    return sum(work(n) for n in range(5))
"""


def main(*, rounds: int, quick: bool, databases: Sequence[str], results: Path) -> None:
    _ = databases  # its runs are in their own file
    with folder() as here:
        _prepare(here)
        holdfast = str(Path(sys.executable).parent / "holdfast")
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "bare click --version": [str(here / "bare"), "--version"],
            "holdfast --version": [holdfast, "--version"],
            "holdfast --help": [holdfast, "--help"],
            "holdfast list": [holdfast, "list"],
            "holdfast show": [holdfast, "show", "r9"],
        }
        series = {name: Series(name, "ms") for name in commands}
        for command in commands.values():
            _milliseconds(here, command)  # once, so that all is compiled and in memory
        for _ in range(rounds * (2 if quick else STARTS)):
            for name, command in commands.items():
                series[name].values.append(_milliseconds(here, command))
    bare = series["bare click --version"]
    report = Report("cli", len(bare.values), results)
    for name, figure in series.items():
        if figure is not bare:
            goal = GOAL if name == "holdfast --version" else None
            report.add(f"{name}, ms", figure, bare, at_most=goal)
    report.show()


def _prepare(folder: Path) -> None:
    bare = folder / "bare"
    bare.write_text(BARE.format(python=sys.executable))
    bare.chmod(0o755)
    (folder / "agents.py").write_text(AGENT)
    code = (
        "import agents, holdfast\n"
        "with holdfast.Holdfast() as hf:\n"
        "    for n in range(50): hf.run(agents.worker, id=f'r{n}')\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, env=_environment(), check=True)


def _environment() -> dict[str, str]:
    """Bytecode is kept from one start to the next, as where Holdfast is installed."""
    ours = ("HOLDFAST_URL", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if name not in ours}


def _milliseconds(folder: Path, command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, env=_environment(), check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000
