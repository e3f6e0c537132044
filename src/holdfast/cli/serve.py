"""`holdfast serve`: the server with its pages and HTTP API, and if asked for a worker next to it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli import text
from holdfast.cli.common import json_option, python_files, say, store_option, who
from holdfast.cli.token import credentials_of, credentials_option
from holdfast.control.roles import ROLES
from holdfast.errors import AccessDenied, InvalidInput
from holdfast.store.opening import open_store
from holdfast.web.credentials import Credentials, check_name

if TYPE_CHECKING:
    from holdfast.web.context import Server, TrustedProxy
    from holdfast.web.mounted import RunningApp

PORT = 8350


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True)
@click.option(
    "--worker",
    "files",
    multiple=True,
    metavar="FILE",
    shell_complete=python_files,
    help="Also run a worker for the agents of this file; can be repeated.",
)
@click.option("--read-only", is_flag=True, help="Refuse every change.")
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A host name of the server; can be repeated.",
)
@click.option(
    "--trust-user-header",
    "header",
    metavar="HEADER",
    help="The header in which a reverse proxy sends the name of the signed-in user.",
)
@click.option(
    "--trust-proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="The address of that proxy; can be repeated.",
)
@click.option(
    "--proxy-role",
    type=click.Choice(ROLES),
    help="The role of the proxy's users without a credential; default: they are refused.",
)
@click.option(
    "--check", "only_checks", is_flag=True, help="Check the options and the store, and exit."
)
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@credentials_option
@store_option
@json_option
def serve(
    host: str,
    port: int,
    files: tuple[str, ...],
    read_only: bool,
    hosts: tuple[str, ...],
    header: str | None,
    proxies: tuple[str, ...],
    proxy_role: str | None,
    only_checks: bool,
    opens: bool,
    file: Path | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Serve the pages and the HTTP API, until stopped.

    On this machine, the printed link signs you in once. Other people need a credential: `holdfast token create`.
    """
    _check_installed()
    from holdfast.web.app import app_of
    from holdfast.web.context import LOOPBACK, Server
    from holdfast.web.server import bind, is_loopback
    from holdfast.web.server import serve as listen

    known = credentials_of(file, url)
    is_local = is_loopback(host)
    proxy = _proxy(header, proxies, proxy_role)
    if not is_local:
        _refuse_open_server(host, known, proxy, hosts)
    open_store(url).close()  # a wrong URL is reported now, and the file exists for the worker
    if only_checks:
        names = [one.name for one in known.all()]
        said = {"host": host, "port": port, "credentials": names, "read_only": read_only}
        say(
            as_json,
            said,
            f"ready to serve {host}:{port}; credentials: {', '.join(names) or 'none'}",
        )
        return
    listening = bind(host, port)
    allowed = tuple(name.lower() for name in (*LOOPBACK, *hosts))
    server = Server(url, known, read_only=read_only, hosts=allowed, proxy=proxy)
    has_mcp = find_spec("mcp") is not None
    app = app_of(server, _mcp if has_mcp else None)
    address = f"http://{_shown(host)}:{listening.getsockname()[1]}/"
    link = f"{address}login/{server.sessions.link(_local_name(), 'admin')}" if is_local else ""
    said = {
        "url": address,
        "link": link,
        "read_only": read_only,
        "mcp": f"{address}mcp" if has_mcp else "",
    }
    click.echo(text.as_json_line(said) if as_json else _greeting(address, link), err=True)
    with _until_stopped(), _worker(files, url):
        if opens and link:
            click.launch(link)
        listen(app, listening)


def _check_installed() -> None:
    missing = [name for name in ("starlette", "uvicorn", "jinja2") if find_spec(name) is None]
    if missing:
        raise InvalidInput("the server needs `pip install 'holdfast[web]'`")


def _refuse_open_server(
    host: str, credentials: Credentials, proxy: TrustedProxy | None, hosts: tuple[str, ...]
) -> None:
    """Other machines can reach this address: there must be credentials, and names to check the Host header with."""
    if not credentials.all() and proxy is None:
        create = credentials.command("create", "NAME", "--role", "admin")
        raise InvalidInput(
            f"other machines can reach {host}, so credentials are needed; create one with `{create}`"
        )
    if not hosts:
        raise InvalidInput(f"other machines can reach {host}: set its host names with --allow-host")


def _proxy(header: str | None, proxies: tuple[str, ...], role: str | None) -> TrustedProxy | None:
    from holdfast.web.context import TrustedProxy

    if header is None and not proxies:
        if role is not None:
            raise click.UsageError("--proxy-role needs --trust-user-header and --trust-proxy.")
        return None
    if header is None or not proxies:
        raise click.UsageError("--trust-user-header and --trust-proxy must be used together.")
    return TrustedProxy(header.lower(), frozenset(proxies), role or "")


def _greeting(address: str, link: str) -> str:
    lines = [f"Holdfast at {address}"]
    if link:
        lines.append(f"  signs you in once: {link}")
    return "\n".join(lines)


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _local_name() -> str:
    """Who starts the server, as it is recorded."""
    try:
        return check_name(who())
    except InvalidInput:
        return "local"


def _mcp(server: Server) -> RunningApp:
    """MCP with the server's credentials. A client acts as an agent of its credential's name, and reaches the agents that
    were allowed for the credential."""
    from holdfast.mcp.http import Caller, McpApp
    from holdfast.mcp.reach import Identity

    async def authenticate(token: str) -> Caller | None:
        found = server.credentials.find(token)
        if found is None:
            return None
        if not found.agents:
            raise AccessDenied(
                f"credential {found.name!r} is not allowed to use MCP; the operator of this server can create one "
                "that is: holdfast token create NAME --role operator --allow-agent AGENT"
            )
        return Caller(found.digest, Identity(found.name, found.agents))

    return McpApp(server.store(), authenticate, hosts=server.hosts)


@contextmanager
def _worker(files: tuple[str, ...], url: str | None) -> Iterator[None]:
    """A worker in a process of its own: viewers and agents do not slow each other down."""
    if not files:
        yield
        return
    where = ["--db", url] if url else []
    command = [sys.executable, "-m", "holdfast.cli", "worker", *files, *where]
    with subprocess.Popen(command) as process:  # noqa: S603  (our own program)
        is_stopping = threading.Event()
        threading.Thread(target=_report_end, args=(process, is_stopping), daemon=True).start()
        try:
            yield
        finally:
            is_stopping.set()
            process.terminate()


def _report_end(process: subprocess.Popen[bytes], is_stopping: threading.Event) -> None:
    """A worker that ends by itself is reported; the server continues."""
    code = process.wait()
    if not is_stopping.is_set():
        click.echo(f"the worker ended with exit code {code}; the server continues", err=True)


@contextmanager
def _until_stopped() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the server, and what was started with it. (uvicorn raises both again when it has ended.)"""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
