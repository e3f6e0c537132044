"""`holdfast token`: the credentials of the server. They are kept in a file; tokens only as digests."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.cli import text
from holdfast.cli.common import json_option, say, store_option
from holdfast.control.roles import ROLES
from holdfast.web.credentials import Credentials, default_file

F = TypeVar("F", bound=Callable[..., Any])


def credentials_option(command: F) -> F:
    """`--credentials FILE`."""
    said = "The file; default: HOLDFAST_CREDENTIALS, or credentials.json next to the store."
    file = click.Path(path_type=Path, dir_okay=False)
    return click.option("--credentials", "file", metavar="FILE", type=file, help=said)(command)


def credentials_of(file: Path | None, url: str | None) -> Credentials:
    """The credentials in a file, or in the one that belongs to a store."""
    return Credentials(file if file is not None else default_file(url))


@click.group(invoke_without_command=True)
@credentials_option
@store_option
@json_option
@click.pass_context
def token(ctx: click.Context, file: Path | None, url: str | None, as_json: bool) -> None:
    """Create, list and revoke credentials of `holdfast serve`. Without a command: list them.

    \b
    viewer    reads
    approver  reads, approves, rejects, answers, resolves
    operator  reads, starts, signals, pauses, resumes, cancels, forks, patches, undoes
    admin     everything
    """
    if ctx.invoked_subcommand is None:
        _list(file, url, as_json)


@token.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), required=True, help="What the credential may do.")
@click.option(
    "--allow-agent",
    "agents",
    metavar="AGENT",
    multiple=True,
    help="An agent whose tasks the credential can reach through MCP; '*' for all. Can be repeated. Without this option, the credential cannot use MCP.",
)
@credentials_option
@store_option
@json_option
def create(
    name: str,
    role: str,
    agents: tuple[str, ...],
    file: Path | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Create a credential. Its token is printed once and cannot be shown again."""
    known = credentials_of(file, url)
    made = known.create(name, role, agents)
    if not as_json:
        click.echo(f"{name} ({role}); keep this token, it is not stored:", err=True)
    data = {
        "name": name,
        "role": role,
        "agents": agents,
        "token": made,
        "file": str(known.file),
    }
    say(as_json, data, made)


@token.command("list")
@credentials_option
@store_option
@json_option
def list_tokens(file: Path | None, url: str | None, as_json: bool) -> None:
    """List the credentials, without their tokens."""
    _list(file, url, as_json)


def _list(file: Path | None, url: str | None, as_json: bool) -> None:
    known = credentials_of(file, url)
    found = known.all()
    if as_json:
        plain = [
            {"name": c.name, "role": c.role, "agents": c.agents, "created_at": c.created_at}
            for c in found
        ]
        click.echo(text.as_json({"credentials": plain}))
        return
    if not found:
        create = known.command("create", "NAME", "--role", "admin")
        click.echo(f"no credentials; `{create}` creates one")
        return
    rows = [
        (c.name, c.role, time.strftime("%Y-%m-%d", time.gmtime(c.created_at)), ", ".join(c.agents))
        for c in found
    ]
    text.table(("name", "role", "created", "agents through MCP"), rows)


@token.command()
@click.argument("name")
@credentials_option
@store_option
@json_option
def revoke(name: str, file: Path | None, url: str | None, as_json: bool) -> None:
    """Revoke a credential.

    Its token and its sessions stop working at once.
    """
    credentials_of(file, url).revoke(name)
    say(as_json, {"name": name, "revoked": True}, f"{name}: revoked")
