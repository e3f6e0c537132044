"""`holdfast check`: would the unfinished runs of a store agree with the code that is about to be deployed?

Each is replayed against that code. No step or tool is executed and nothing is written; the agent's
plain code runs, as it does on every resume.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import click

from holdfast.check import BAD, CheckedRun
from holdfast.check import check as check_runs
from holdfast.cli import text
from holdfast.cli.common import existing_store, json_option, store_option
from holdfast.cli.load import load
from holdfast.cli.progress import counted
from holdfast.runtime.declare.specs import agent_spec
from holdfast.words.advice import command


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
    specs = {name: agent_spec(fn) for name, fn in agents.items()}
    # What the agents' plain code prints is not our data.
    with existing_store(url) as store, contextlib.redirect_stdout(sys.stderr):
        found = check_runs(store, specs, agent=agent, failed=failed, watch=counted)
    counts = Counter(one.verdict for one in found)
    if as_json:
        click.echo(
            text.as_json(
                {
                    "ok": not any(counts[bad] for bad in BAD),
                    "checked": len(found),
                    "counts": {v: counts[v] for v in ("agrees", *BAD, "unknown")},
                    "runs": [_data(one) for one in found],
                }
            )
        )
    else:
        _print(found, counts, url)
    if any(counts[bad] for bad in BAD):
        raise click.exceptions.Exit(1)


def _data(one: CheckedRun) -> dict[str, Any]:
    return {
        "run": one.row.id,
        "agent": one.row.agent,
        "status": one.row.status,
        "verdict": one.verdict,
        "steps": one.steps,
        "step": one.step,
        "where": one.where,
        "recorded": one.recorded,
        "attempted": one.attempted,
        "problem": one.problem,
        "adds": one.adds,
    }


def _print(checked: list[CheckedRun], counts: Counter[Any], url: str | None) -> None:
    for one in checked:
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
    unknown = Counter(one.row.agent for one in checked if one.verdict == "unknown")
    for name, count in sorted(unknown.items()):
        click.echo(f"unknown: {count} of agent {text.visible(name)}, which is not in these files")
    said = ", ".join(f"{counts[v]} {v}" for v in ("agrees", *BAD, "unknown") if counts[v])
    click.echo(
        f"{text.count(len(checked), 'unfinished run')}: {said}; nothing was executed"
        if checked
        else "no unfinished runs"
    )
    if counts["diverges"]:
        again = command(url, "rerun", "NEWCODE", "ID")
        click.echo(
            f"to keep the old behaviour for existing runs, use `if run.patched('name'):`; to restart a run: {again}"
        )
    if any(one.adds for one in checked):
        accept = command(url, "resume", "NEWCODE", "ID", "--accept-new-steps")
        click.echo(f"if the code only adds steps, a run can execute them now: {accept}")
