"""The verbs that need no code of an agent: start a run by its agent's name, list the agents that the store knows."""

from __future__ import annotations

import click

from holdfast import views
from holdfast.cli import acts, text
from holdfast.cli.common import (
    Decider,
    decision_options,
    existing_store,
    json_option,
    say,
    store_option,
)
from holdfast.cli.load import parameters
from holdfast.core.params import ParamSchema
from holdfast.words.advice import command


@click.command()
@click.argument("agent", metavar="NAME")
@click.option(
    "--param", "-p", "given", multiple=True, metavar="NAME=VALUE", help="A parameter of the agent."
)
@click.option(
    "--id", "run_id", metavar="ID", help="The same id resumes the same run; default: a new id."
)
@click.option(
    "--version", "version", metavar="VERSION", help="Default: the version that was registered last."
)
@click.option("--priority", type=click.IntRange(-10, 10), default=0, show_default=True)
@decision_options
def start(
    agent: str,
    given: tuple[str, ...],
    run_id: str | None,
    version: str | None,
    priority: int,
    decider: Decider,
) -> None:
    """Start a run of a registered agent, by name; a worker executes it.

    Its code is not needed here. Workers register their agents when they start; `holdfast agents` lists them.
    """
    with existing_store(decider.url) as store:
        schema = ParamSchema.from_json_schema(acts.parameters_of(store, agent, version))
        values = parameters(agent, schema, given)
        row = acts.start(
            store,
            agent,
            values,
            id=run_id,
            version=version,
            priority=priority,
            by=decider.by,
            why=decider.why,
        )
        status = views.shown_status(row, store.now())
    say(
        decider.as_json,
        {"run": row.id, "agent": row.agent, "version": row.code_version, "status": status},
        f"{row.id}: {status}",
        f"  {command(decider.url, 'show', row.id)}",
    )


@click.command()
@store_option
@json_option
def agents(url: str | None, as_json: bool) -> None:
    """The agents that the store knows: registered by workers, or with runs."""
    with existing_store(url) as store:
        found = acts.agents(store)
    if as_json:
        click.echo(text.as_json({"agents": [views.to_plain(one) for one in found]}))
        return
    if not found:
        click.echo("no agents")
        return
    text.table(
        ("name", "version", "registered", "parameters"),
        [
            (
                one.name,
                one.version or "–",
                "–" if one.registered_at is None else text.clock(one.registered_at),
                ", ".join(one.parameters.get("properties", {})) or "–",
            )
            for one in found
        ],
    )
