"""What the verbs share: the options, opening the store, printing for programs, asking people."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import (
    AbstractContextManager,
    closing,
    contextmanager,
    nullcontext,
    redirect_stdout,
)
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource
from msgspec import Struct

from holdfast.cli import text
from holdfast.errors import HoldfastError, InvalidInput, NoSuchRun, NotFound, NotNow
from holdfast.store.base import Filter, Store
from holdfast.store.opening import (
    exists,
    open_store,
    sqlite_file,
)
from holdfast.store.passwords import has_masked_password, with_password

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])

COMPLETED_MAX = 1000


def store_option(command: F) -> F:
    """`--url`, also called `--db`."""
    return click.option(
        "--url",
        "--db",
        "url",
        envvar="HOLDFAST_URL",
        metavar="URL",
        callback=_with_password,
        help="A path, postgresql://…, or https://… of a server; default: HOLDFAST_URL, or .holdfast/holdfast.db in this folder.",
    )(command)


def _with_password(ctx: click.Context, _: click.Parameter, url: str | None) -> str | None:
    """The URL of a printed command has no password: it is asked for, if the environment has none.

    Without a terminal it stays empty. For PostgreSQL, libpq then looks into ~/.pgpass.
    """
    if url is None or ctx.resilient_parsing or not has_masked_password(url):
        return url
    password = os.environ.get("PGPASSWORD", "")
    if not password and sys.stdin.isatty():
        password = click.prompt(
            f"Password of the store {url}",
            hide_input=True,
            default="",
            show_default=False,
            err=True,
        )
    return with_password(url, password)


def json_option(command: F) -> F:
    """`--json`, for programs."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print JSON; times are microseconds since 1970."
    )(command)


def run_argument(command: F) -> F:
    """The run's ID."""
    return click.argument("run_id", metavar="ID", shell_complete=known_runs)(command)


def file_argument(command: F) -> F:
    """The agent's FILE, or FILE:AGENT."""
    return click.argument("target", metavar="FILE[:AGENT]", shell_complete=python_files)(command)


def python_files(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For a shell's completion: its own, of files."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def known_runs(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For a shell's completion: the newest runs whose id starts with this text. Completion never prints errors."""
    from click.shell_completion import CompletionItem

    url = ctx.params.get("url") or os.environ.get("HOLDFAST_URL")
    try:
        with existing_store(url) as store:
            rows = store.runs(Filter(), limit=COMPLETED_MAX)
    except HoldfastError:
        return []
    return [
        CompletionItem(row.id, help=row.status) for row in rows if row.id.startswith(incomplete)
    ]


# ── the store ────────────────────────────────────────────────────────────────────────────────


@contextmanager
def existing_store(url: str | None) -> Iterator[Store]:
    """The store, for verbs that look or decide: they never make a new one. Of a server, what can be read of it."""
    with advice_as_commands(url):
        if is_server(url):
            with remote_store(url) as remote:
                yield remote
            return
        file = sqlite_file(url)
        if file is not None and not exists(file):
            raise NotFound(
                f"no store at {file}; choose one with --db PATH or HOLDFAST_URL. "
                "`holdfast run` creates one"
            )
        with closing(open_store(url, retry=False)) as store:
            yield store


@contextmanager
def advice_as_commands(url: str | None, file: str = "FILE") -> Iterator[None]:
    """Errors advise Python calls; here they advise commands for this store."""
    from holdfast.words.advice import command, refusal

    try:
        yield
    except NoSuchRun as error:
        error.for_command_line(command(url, "list"))
        raise
    except NotNow as error:
        error.args = (refusal(error, url, file),)
        raise


def is_server(url: str | None) -> bool:
    """Whether this is the URL of a `holdfast serve`, and not of a database."""
    found = url if url is not None else os.environ.get("HOLDFAST_URL", "")
    return found.startswith(("http://", "https://"))


@contextmanager
def remote_store(url: str | None) -> Iterator[Store]:
    """The store of a server, read through its HTTP API. Decisions go through `acts`."""
    from importlib.util import find_spec

    if find_spec("httpx2") is None:
        raise InvalidInput(
            "to use a server, the command line needs `pip install 'holdfast[client]'`"
        )
    from holdfast.client import Client
    from holdfast.client.store import RemoteStore

    with Client(url) as client:
        yield cast("Store", RemoteStore(client))


# ── values that people type ──────────────────────────────────────────────────────────────────


def json_or_text(value: str) -> Any:
    """JSON if it reads as JSON, else the text itself."""
    try:
        return json.loads(value, parse_constant=_not_json)
    except (ValueError, RecursionError):
        return value


def _not_json(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def pair(text_: str) -> tuple[str, str]:
    """`key=value`, split."""
    key, equals, value = text_.partition("=")
    if not equals or not key.strip():
        raise click.UsageError(f"{text_!r} is not of the form key=value")
    return key.strip(), value


# ── people ───────────────────────────────────────────────────────────────────────────────────


def who() -> str:
    """The name under which a decision is recorded, if none is given."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container without users
        return ""


class Decider(Struct, frozen=True):
    """Who decides and why, whether to ask before, in which store, and for whom to print."""

    by: str
    why: str
    yes: bool
    url: str | None
    as_json: bool

    def confirm(self, question: str | Callable[[], str]) -> None:
        """Continue only if a person confirms, or has passed --yes. A question that has to be computed
        first is not computed with --yes."""
        if not self.yes:
            confirm(question if isinstance(question, str) else question(), yes=False)


def decision_options(verb: Callable[..., None]) -> Callable[..., None]:
    """What all decisions take: `--by`, `--why`, `--yes`, `--url`, `--json`; the verb gets them as a `Decider`."""

    @wraps(verb)
    def deciding(
        *, by: str, why: str, yes: bool, url: str | None, as_json: bool, **options: Any
    ) -> None:
        given = click.get_current_context().get_parameter_source("by")
        if is_server(url) and given is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                "--by cannot be used with a server: it records whose token it is"
            )
        verb(decider=Decider(by, why, yes, url, as_json), **options)

    made = store_option(json_option(deciding))
    made = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")(made)
    made = click.option("--why", default="", help="The reason; it is recorded.")(made)
    return click.option("--by", default=who, help="Who decides; default: your user name.")(made)


def confirm(question: str, *, yes: bool) -> None:
    """Continue only if a person confirms."""
    if yes:
        return
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        raise NotNow("no confirmation, nothing was done; use --yes to skip the question") from None
    if not agreed:
        raise NotNow("nothing was done")


def users_code(as_json: bool) -> AbstractContextManager[object]:
    """While the user's code runs: where stdout is for data, what the code prints goes to stderr."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def say(as_json: bool, data: Any, *lines: str) -> None:
    """What a verb did: data for programs, sentences for people."""
    if as_json:
        click.echo(text.as_json(data))
        return
    for line in lines:
        click.echo(text.visible(line))


def stream_json(head: dict[str, Any], name: str, items: Iterable[Any]) -> None:
    """An object whose last field is a list, printed item by item: it may be longer than memory."""
    opened = text.as_json(head).removesuffix("\n}")
    click.echo(f'{opened},\n  "{name}": [', nl=False)
    separator = ""
    for item in items:
        body = text.as_json(item).replace("\n", "\n    ")
        click.echo(f"{separator}\n    {body}", nl=False)
        separator = ","
    click.echo("\n  ]\n}" if separator else "]\n}")
