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


def _data(step: DryStep) -> dict[str, Any]:
    error = step.error
    return {
        "run": step.run_id,
        "step": step.step,
        "name": step.name,
        "status": step.status,
        "args": step.args,
        "result": step.result,
        "error": None if error is None else views.to_plain(error),
        "attempts": len(step.call.attempts),
        "recorded": step.recorded.status,
        "changes": [{"path": c.path, "before": c.before, "after": c.after} for c in step.changes],
    }


def _print(step: DryStep) -> None:
    click.echo(
        f"step {step.step}, {text.visible(step.name)}: {step.status} (recorded: {step.recorded.status})"
    )
    click.echo(f"  arguments  {text.compact(step.args, 200)}")
    if step.error is None:
        click.echo(f"  result     {text.compact(step.result, 200)}")
    else:
        click.echo(f"  error      {text.visible(f'{step.error.type}: {step.error.message}')}")
    if step.changes:
        text.table(
            ("what", "before", "after"),
            [
                (text.visible(c.path), text.compact(c.before, 60), text.compact(c.after, 60))
                for c in step.changes
            ],
            indent=2,
        )
    click.echo(f"executed in isolation; run {text.visible(step.run_id)} is unchanged")
