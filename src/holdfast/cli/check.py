"""`holdfast check`: would the unfinished runs of a store agree with the code that is about to be deployed?

Each is replayed against that code. No step or tool is executed and nothing is written; the agent's
plain code runs, as it does on every resume.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import click

from holdfast import views
from holdfast.app import Holdfast
from holdfast.cli import text
from holdfast.cli.common import command, existing_store, json_option, store_option
from holdfast.cli.load import load
from holdfast.cli.progress import counted
from holdfast.errors import Diverged, HoldfastError, LogDamaged
from holdfast.store.base import Filter, RunRow, Store

UNFINISHED: Final = ("pending", "running", "waiting", "paused", "quarantined")
PAGE: Final = 200
BAD: Final = ("diverges", "fails", "damaged")


@dataclass(frozen=True, slots=True)
class Checked:
    """What the new code would make of one run."""

    row: RunRow
    verdict: str
    """agrees, diverges, fails, damaged or unknown."""
    steps: int = 0
    step: int | None = None
    where: str = ""
    recorded: str = ""
    attempted: str = ""
    problem: str = ""
    adds: bool = False
    """Whether the code may only have added something: then its new steps can be accepted."""

    def data(self) -> dict[str, Any]:
        return {"run": self.row.id, "agent": self.row.agent, "status": self.row.status, "verdict": self.verdict,
                "steps": self.steps, "step": self.step, "where": self.where, "recorded": self.recorded,
                "attempted": self.attempted, "problem": self.problem, "adds": self.adds}  # fmt: skip


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="NEWCODE…")
@click.option("--agent", default="", metavar="NAME", help="Only runs of this agent.")
@click.option("--failed", is_flag=True, help="Also runs that failed, which could be resumed.")
@store_option
@json_option
def check(
    targets: tuple[str, ...], agent: str, failed: bool, url: str | None, as_json: bool
) -> None:
    """Replay every unfinished run against the agents in these files. Exit code 1 if one cannot continue.

    No step or tool is executed and nothing is written to the store.
    """
    agents: dict[str, Callable[..., Any]] = {}
    for target in targets:
        loaded = load(target)
        agents |= {loaded.name: loaded.chosen()} if loaded.name else loaded.agents
    statuses = (*UNFINISHED, "failed") if failed else UNFINISHED
    with existing_store(url) as store, Holdfast(store, agents=agents.values()) as hf:
        rows = counted(_rows(store, agent, statuses), "checking run")
        found = [_checked(hf, agents, row) for row in rows]
    found.sort(key=lambda one: one.row.created_at)
    counts = Counter(one.verdict for one in found)
    if as_json:
        click.echo(text.as_json({
            "ok": not any(counts[bad] for bad in BAD), "checked": len(found),
            "counts": {v: counts[v] for v in ("agrees", *BAD, "unknown")}, "runs": [one.data() for one in found],
        }))  # fmt: skip
    else:
        _print(found, counts, url)
    if any(counts[bad] for bad in BAD):
        raise click.exceptions.Exit(1)


def _rows(store: Store, agent: str, statuses: tuple[str, ...]) -> Iterator[RunRow]:
    for status in statuses:
        cursor: int | None = None
        while True:
            page = store.runs(Filter(status=status, agent=agent), limit=PAGE, cursor=cursor)
            yield from page
            if len(page) < PAGE:
                break
            cursor = page[-1].cursor


def _checked(hf: Holdfast, agents: dict[str, Any], row: RunRow) -> Checked:
    if row.agent not in agents:
        return Checked(row, "unknown", problem=f"no agent {row.agent!r} in the given files")
    try:
        with contextlib.redirect_stdout(
            sys.stderr
        ):  # what the agent's plain code prints is not our data
            replayed = hf.replay(row.id)
    except LogDamaged as damage:
        return Checked(row, "damaged", problem=str(damage))
    except HoldfastError as error:
        return Checked(row, "fails", problem=str(error))
    cause = replayed.diverged
    if cause is not None:
        return Checked(
            row, "diverges", replayed.steps, _step(hf, row.id, cause), cause.where, cause.recorded, cause.attempted,
            adds=cause.adds,
        )  # fmt: skip
    if replayed.failed:
        return Checked(row, "fails", replayed.steps, problem=f"its code fails: {replayed.failed}")
    return Checked(row, "agrees", replayed.steps)


def _step(hf: Holdfast, run_id: str, cause: Diverged) -> int | None:
    """The number of the recorded step at which the code parts from the log."""
    found = re.fullmatch(r"call (\d+)(?: of branch (\S+))?", cause.where)
    if found is None:
        return None
    place = (found[2] or "", int(found[1]) - 1)
    calls = views.folded(hf.store, run_id).calls
    return next((call.step for call in calls if (call.branch, call.index) == place), None)


def _print(found: list[Checked], counts: Counter[str], url: str | None) -> None:
    for one in found:
        if one.verdict not in BAD:
            continue
        where = f"step {one.step}" if one.step else one.where
        head = f"{text.visible(one.row.id)} of {text.visible(one.row.agent)} ({one.row.status})"
        if one.verdict == "diverges":
            click.echo(f"{head} {click.style('diverges', fg='red')} at {text.visible(where)}")
            click.echo(f"  recorded:  {text.visible(one.recorded)}")
            click.echo(f"  attempted: {text.visible(one.attempted)}")
        else:
            click.echo(
                f"{head} {click.style(one.verdict, fg='red')}: {text.visible(one.problem, lines=True)}"
            )
    unknown = Counter(one.row.agent for one in found if one.verdict == "unknown")
    for name, count in sorted(unknown.items()):
        click.echo(f"unknown: {count} of agent {text.visible(name)}, which is not in these files")
    said = ", ".join(f"{counts[v]} {v}" for v in ("agrees", *BAD, "unknown") if counts[v])
    click.echo(
        f"{text.count(len(found), 'unfinished run')}: {said}; nothing was executed"
        if found
        else "no unfinished runs"
    )
    if counts["diverges"]:
        again = command(url, "rerun", "NEWCODE", "ID")
        click.echo(
            f"to keep the old behaviour for existing runs, use `if run.patched('name'):`; to restart a run: {again}"
        )
    if any(one.adds for one in found):
        accept = command(url, "resume", "NEWCODE", "ID", "--accept-new-steps")
        click.echo(f"if the code only adds steps, a run can execute them now: {accept}")
