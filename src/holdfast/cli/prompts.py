"""Show a person exactly what is asked, and take the decision: for `approve` and its like, and for
`run` on a terminal, which asks on the spot.
"""

from __future__ import annotations

from typing import Any

import click

from holdfast import control, views
from holdfast.cli import text
from holdfast.cli.common import json_or_text, who
from holdfast.cli.describe import content
from holdfast.core.state import Waiting
from holdfast.errors import HoldfastError
from holdfast.store.base import Store


def show_request(store: Store, run_id: str, wait: Waiting) -> None:
    """The request with its exact arguments, on stderr."""
    agent = views.row_of(store, run_id).agent
    click.echo(
        f"run {run_id} ({text.visible(agent)}) has been waiting since {text.clock(wait.since)}:",
        err=True,
    )
    if wait.tool:
        said = f"  approve this call of {click.style(text.visible(wait.tool), bold=True)}?"
    else:
        said = f"  {click.style(text.visible(wait.name), bold=True)}"
    click.echo(said, err=True)
    if wait.show is not None:
        shown = text.pretty(content(store, run_id, wait.show))
        click.echo("\n".join(f"    {line}" for line in shown.splitlines()), err=True)
    if wait.options:
        click.echo(f"  options: {', '.join(map(text.visible, wait.options))}", err=True)
    if wait.until is not None:
        click.echo(f"  until {text.clock(wait.until)}", err=True)
    if wait.digest:
        click.echo(f"  digest {wait.digest}", err=True)


def ask_on_the_spot(store: Store, run_id: str) -> bool:
    """Ask the person at the terminal for everything that the run is waiting for. Returns whether anything was decided."""
    decided = False
    for asked in views.requests(store, views.brief(store, run_id)):
        if asked.wait.wait in ("approval", "answer"):
            show_request(store, asked.run_id, asked.wait)
            try:
                decided = _decide(store, asked) or decided
            except HoldfastError as error:  # another person was faster, or an option is wrong
                click.secho(text.indented(str(error)), fg="yellow", err=True)
    return decided


def _decide(store: Store, request: views.RequestOfRun) -> bool:
    run_id, wait = request.run_id, request.wait
    if wait.wait == "approval":
        answer = click.prompt(
            "approve? yes, no, or later", type=click.Choice(["y", "n", "l"]), default="l", err=True
        )
        if answer == "l":
            return False
        act = control.approve if answer == "y" else control.reject
        why = click.prompt("why (may be empty)", default="", show_default=False, err=True)
        act(store, run_id, wait.id, by=who(), why=why, digest=wait.digest)
        return True
    said = click.prompt("answer (empty: later)", default="", show_default=False, err=True)
    if not said:
        return False
    control.answer(store, run_id, option_or_value(said, wait), wait.id, by=who())
    return True


def option_or_value(text: str, wait: Waiting | None) -> Any:
    """What a person typed: one of the options unchanged, otherwise JSON if it is valid JSON."""
    if wait is not None and wait.options:
        return text
    return json_or_text(text)
