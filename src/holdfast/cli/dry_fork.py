"""`holdfast fork ID STEP --dry FILE`: execute one step of a run again, and print what it did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from holdfast import views
from holdfast.app import Holdfast
from holdfast.cli import text
from holdfast.cli.common import existing_store, users_code
from holdfast.cli.load import check_agent, load
from holdfast.dry_fork import DryStep
from holdfast.errors import InvalidInput, NotMocked
from holdfast.words.advice import command


def dry_fork(
    file: str,
    run_id: str,
    step: int,
    state: Mapping[str, Any],
    answers: Mapping[str, Any],
    url: str | None,
    *,
    as_json: bool,
) -> None:
    """Execute the step with the mocks of FILE and those that were given."""
    loaded = load(file)
    mocks = dict(vars(loaded.module).get("MOCKS", {}))
    mocks |= {name: {"returns": value} for name, value in answers.items()}
    with existing_store(url) as store:
        check_agent(loaded, views.row_of(store, run_id))
    with Holdfast(url, agents=loaded.agents.values()) as hf, users_code(as_json):
        try:
            done = hf.fork(run_id, step, state=state, mocks=mocks)
        except NotMocked as refused:
            again = command(
                url, "fork", run_id, step, "--dry", file, "--mock", f"{refused.name}=RESULT"
            )
            raise InvalidInput(
                f"{refused.name} has no mock, so nothing was executed. Add one: {again}"
            ) from None
    if as_json:
        click.echo(text.as_json(_data(done)))
    else:
        _print(done)


def _data(done: DryStep) -> dict[str, Any]:
    error = done.error
    return {
        "run": done.run_id,
        "step": done.step,
        "name": done.name,
        "status": done.status,
        "args": done.args,
        "result": done.result,
        "error": None if error is None else views.to_plain(error),
        "attempts": len(done.call.attempts),
        "recorded": done.recorded.status,
        "changes": [{"path": c.path, "before": c.before, "after": c.after} for c in done.changes],
    }


def _print(done: DryStep) -> None:
    click.echo(
        f"step {done.step}, {text.visible(done.name)}: {done.status} (recorded: {done.recorded.status})"
    )
    click.echo(f"  arguments  {text.compact(done.args, 200)}")
    if done.error is None:
        click.echo(f"  result     {text.compact(done.result, 200)}")
    else:
        click.echo(f"  error      {text.visible(f'{done.error.type}: {done.error.message}')}")
    if done.changes:
        text.table(
            ("what", "before", "after"),
            [
                (text.visible(c.path), text.compact(c.before, 60), text.compact(c.after, 60))
                for c in done.changes
            ],
            indent=2,
        )
    click.echo(f"executed in isolation; run {text.visible(done.run_id)} is unchanged")
