"""`holdfast mcp`: serve the store to MCP clients; `holdfast mcp config`: print how to connect one."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click
import msgspec

from holdfast.cli import text
from holdfast.cli.common import existing_store, json_option, store_option
from holdfast.errors import InvalidInput
from holdfast.mcp import clients
from holdfast.mcp.reach import Identity
from holdfast.store.opening import sqlite_file
from holdfast.store.passwords import MASK, without_password

TOKEN: Final = "HOLDFAST_MCP_TOKEN"  # noqa: S105  (the name of a variable)


F = TypeVar("F", bound=Callable[..., Any])


def identity_options(command: F) -> F:
    """`--as`, `--allow-agent` and `--allow-answers`."""
    said = "Let the client answer questions that tasks ask. It can never approve."
    made = click.option("--allow-answers", "may_answer", is_flag=True, help=said)(command)
    said = "An agent whose tasks the client can reach too; '*' for all. Can be repeated."
    made = click.option("--allow-agent", "allowed", metavar="AGENT", multiple=True, help=said)(made)
    said = "The agent that the client acts as. It can reach the tasks of this agent."
    return click.option("--as", "name", metavar="NAME", help=said)(made)


def http_options(command: F) -> F:
    """`--http` and what goes with it."""
    said = "A host name of the --http server other than localhost. Can be repeated."
    made = click.option("--allow-host", "hosts", metavar="HOST", multiple=True, help=said)(command)
    file = click.Path(path_type=Path, dir_okay=False)
    said = "A JSON file of mode 600 with several tokens for --http, each with its own identity."
    made = click.option("--credentials", type=file, help=said)(made)
    said = f"A file of mode 600 with the bearer token for --http; or set {TOKEN}."
    made = click.option("--token-file", type=file, help=said)(made)
    said = "Serve over HTTP instead of stdio, for example 127.0.0.1:8765."
    return click.option("--http", metavar="HOST:PORT", help=said)(made)


@click.group(invoke_without_command=True, no_args_is_help=False)
@identity_options
@http_options
@store_option
@json_option
@click.pass_context
def mcp(
    ctx: click.Context,
    name: str | None,
    allowed: tuple[str, ...],
    may_answer: bool,
    http: str | None,
    token_file: Path | None,
    credentials: Path | None,
    hosts: tuple[str, ...],
    url: str | None,
    as_json: bool,
) -> None:
    """Serve tasks to MCP clients, on stdin and stdout or over HTTP.

    The client acts as one agent. It can read, patch, signal and hand over that agent's tasks, and those of
    agents that you allow. It can never approve, resolve, or change limits.
    """
    if ctx.invoked_subcommand is not None:
        return
    _check_installed()
    if http is None:
        if token_file is not None or credentials is not None or hosts:
            raise click.UsageError("--token-file, --credentials and --allow-host need --http.")
        _serve_stdio(url, _identity(name, allowed, may_answer))
        return
    if credentials is None:
        who = _identity(name, allowed, may_answer)
        known = [Token(_token(_place(http)[0], token_file), who)]
    elif name or allowed or may_answer or token_file:
        raise click.UsageError(
            "--credentials identifies the clients; do not use --as or --token-file with it."
        )
    else:
        known = _read_credentials(credentials)
    _serve_http(url, http, known, hosts, as_json=as_json)


class Token(NamedTuple):
    """A bearer token and the identity that it stands for."""

    token: str
    who: Identity


class CredentialEntry(msgspec.Struct, forbid_unknown_fields=True, rename={"name": "as"}):
    """An entry of the --credentials file."""

    name: str
    token: str
    allow_agents: tuple[str, ...] = ()
    allow_answers: bool = False


def _identity(name: str | None, allowed: tuple[str, ...], may_answer: bool) -> Identity:
    if not name:
        raise click.UsageError("Missing option '--as': the agent that the client acts as.")
    return Identity(name, allowed, may_answer)


def _check_installed() -> None:
    if find_spec("mcp") is None:
        raise InvalidInput("the MCP server needs `pip install 'holdfast[mcp]'`")


def _serve_stdio(url: str | None, who: Identity) -> None:
    import anyio

    from holdfast.mcp.stdio import serve

    with existing_store(url) as store:
        anyio.run(serve, store, who)


def _serve_http(
    url: str | None, where: str, tokens: Sequence[Token], hosts: Sequence[str], *, as_json: bool
) -> None:
    from holdfast.mcp.http import (
        LOOPBACK,
        PATH,
        BearerToken,
        McpApp,
        accept_tokens,
        is_loopback,
        serve,
    )

    host, port = _place(where)
    if not is_loopback(host) and not hosts:
        raise InvalidInput(f"other machines can reach {host}: set its host names with --allow-host")
    accepted = accept_tokens([BearerToken.of(x.token, x.who) for x in tokens])
    with existing_store(url) as store:
        app = McpApp(store, accepted, hosts=(*LOOPBACK, *hosts))
        names, address = [x.who.name for x in tokens], f"http://{host}:{port}{PATH}"
        said = text.as_json_line({"url": address, "agents": names})
        click.echo(said if as_json else f"MCP for {', '.join(names)} at {address}", err=True)
        serve(app, host, port)


def _read_credentials(path: Path) -> list[Token]:
    from holdfast.mcp.http import read_secret

    try:
        found = msgspec.json.decode(read_secret(path), type=list[CredentialEntry])
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f'{path} must be a list such as [{{"as": "writer", "token": "…"}}]: {error}'
        ) from None
    if not found:
        raise InvalidInput(f"{path} has no credentials")
    return [Token(x.token, Identity(x.name, x.allow_agents, x.allow_answers)) for x in found]


def _place(where: str) -> tuple[str, int]:
    host, colon, port = where.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise click.UsageError(f"--http takes HOST:PORT, for example 127.0.0.1:8765, not {where!r}")
    return host, int(port)


def _token(host: str, token_file: Path | None) -> str:
    """The token that was given; on this machine alone, a new one that is printed once."""
    from holdfast.mcp.http import is_loopback, new_token, read_secret

    given = os.environ.get(TOKEN, "")
    if token_file is not None and given:
        raise InvalidInput(f"--token-file and {TOKEN} are both set; use one of them")
    if token_file is not None:
        return read_secret(token_file).strip()
    if given:
        return given
    if not is_loopback(host):
        raise InvalidInput(
            f"a server that other machines reach needs a token: --token-file FILE or {TOKEN}"
        )
    made = new_token()
    click.echo(f"bearer token (new at each start; set {TOKEN} to keep one): {made}", err=True)
    return made


def known_clients(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """For a shell's completion."""
    return [client.name for client in clients.CLIENTS if client.name.startswith(incomplete)]


@mcp.command()
@click.argument("client", default="json", shell_complete=known_clients)
@identity_options
@store_option
@json_option
def config(
    client: str,
    name: str | None,
    allowed: tuple[str, ...],
    may_answer: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Print the configuration of a client: claude-desktop, claude-code, cursor, vscode or json."""
    who = _identity(name, allowed, may_answer)
    found = clients.find(client)
    words = [_program(), "mcp", "--as", who.name]
    for agent in who.allowed:
        words += ["--allow-agent", agent]
    words += ["--allow-answers"] if who.may_answer else []
    words += ["--db", _absolute(url)]
    if as_json:
        click.echo(text.as_json(clients.configuration(found, words)))
        return
    click.echo(clients.text(found, words))
    if MASK in words[-1]:
        click.echo(f"\nReplace {MASK} with the password of the database.", err=True)


def _program() -> str:
    """The installed command: clients start it in another folder, with another PATH."""
    here = Path(sys.executable).parent / "holdfast"
    return str(here) if here.exists() else shutil.which("holdfast") or "holdfast"


def _absolute(url: str | None) -> str:
    file = sqlite_file(url)
    if file is not None:
        return str(file.absolute())
    assert url is not None or "HOLDFAST_URL" in os.environ
    return without_password(url or os.environ["HOLDFAST_URL"])
