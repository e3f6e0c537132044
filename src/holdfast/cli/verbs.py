"""The verbs: `holdfast run`, `show`, `approve` and the rest, each loaded when it is used.

This module knows their names and nothing of what they do, so that `holdfast --version` and
`--help` start at once. A verb is in the module that VERBS names; what one refuses comes out as
one message on stderr (with --json as one line of JSON) and an exit code, never as a traceback.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from typing import Any, Final

import click

from holdfast import __version__
from holdfast.errors import HoldfastError

# verb: (module below this one, the command in it, what it does in a few words)
VERBS: Final = {
    "demo": ("demo", "demo", "See a run survive a crash, offline, in a few seconds."),
    "run": ("run", "run", "Run an agent from a file; the same id resumes its run."),
    "resume": ("run", "resume", "Resume a run that is waiting, interrupted or failed."),
    "start": ("start", "start", "Start a run of a registered agent by name, for workers."),
    "agents": ("start", "agents", "List the registered agents."),
    "worker": ("worker", "worker", "Execute runs that are due, until stopped."),
    "schedule": ("worker", "schedule", "Let workers start runs on a schedule."),
    "schedules": ("worker", "schedules", "List all schedules and their next due times."),
    "unschedule": ("worker", "unschedule", "Delete a schedule."),
    "list": ("inspect", "list_runs", "List runs, newest first."),
    "show": ("show", "show", "Show the state of a run and how it got there."),
    "trace": ("inspect", "trace", "Print a run's timeline as sentences."),
    "events": ("inspect", "events", "Print a run's log, event by event."),
    "diff": ("inspect", "diff", "Show what changed in a run between two steps."),
    "verify": ("inspect", "verify", "Check a run's log against its hash chain."),
    "replay": ("run", "replay", "Replay the log against the code; nothing is executed."),
    "rerun": ("run", "rerun", "Run the code from its first line again; state is kept."),
    "test": ("test", "test", "Run the specs of an agent; optionally crash it everywhere."),
    "validate": ("validate", "validate", "Check a .tac file without running it."),
    "check": ("check", "check", "Check unfinished runs against new code; nothing is executed."),
    "approve": ("decisions", "approve", "Approve a request of a run."),
    "reject": ("decisions", "reject", "Reject a request of a run."),
    "answer": ("decisions", "answer", "Answer a question of a run."),
    "signal": ("decisions", "signal", "Send a signal to a run."),
    "patch": ("decisions", "patch", "Change a run's state from outside."),
    "resolve": (
        "decisions",
        "resolve",
        "Resolve a call in doubt: it may or may not have happened.",
    ),
    "pause": ("decisions", "pause", "Pause a run at its next call, until it is resumed."),
    "cancel": ("decisions", "cancel", "Cancel a run at its next call."),
    "bulk": ("bulk", "bulk", "Cancel or resume all runs that match a search."),
    "undo": ("decisions", "undo", "Undo what a run did, newest first."),
    "fork": ("decisions", "fork", "Create a new run from the first steps of another one."),
    "serve": ("serve", "serve", "Serve the pages and the HTTP API."),
    "token": ("token", "token", "Create, list and revoke credentials of the server."),
    "mcp": ("mcp", "mcp", "Serve tasks to MCP clients; `mcp config` connects one."),
    "doctor": ("admin", "doctor", "Check the store for weak settings and damaged runs."),
    "gc": ("admin", "gc", "Delete old runs that have ended."),
    "export": ("admin", "export", "Export a run to a file."),
    "import": ("admin", "import_run", "Import a run from a file; it is validated first."),
}


INTERRUPTED: Final = 130  # what shells say of a program that Ctrl-C ended


class CommandError(click.ClickException):
    """What Holdfast refuses or cannot do, as one message."""

    def __init__(self, message: str, kind: str, *, as_json: bool, exit_code: int = 1) -> None:
        super().__init__(message)
        self.kind, self.as_json = kind, as_json
        self.exit_code = exit_code  # type: ignore[misc] # click's own errors do so too

    def show(self, file: Any = None) -> None:
        from holdfast.cli import text

        out = file if file is not None else sys.stderr
        if self.as_json:
            line = text.as_json_line({"error": self.kind, "message": self.message})
            click.echo(line, file=out)
            return
        said = text.indented(self.message)
        click.echo(f"{click.style('error:', fg='red')} {said}", file=out, color=_colour())


def _colour() -> bool | None:
    """False if people asked for no colour; None leaves it to whether there is a terminal."""
    return False if os.environ.get("NO_COLOR") else None


def _wants_json(words: list[str]) -> bool:
    """Whether --json stands among the words, also if they are wrong in another place."""
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def _refuse_broken_text(words: list[str]) -> None:
    """Python passes bytes that are not UTF-8 on as lone surrogates, which no store can keep."""
    for number, word in enumerate(words, 1):
        try:
            word.encode()
        except UnicodeEncodeError:
            raise click.UsageError(f"argument {number}, {word!r}, is not valid UTF-8") from None


class Verbs(click.Group):
    """The verbs of VERBS, imported when one is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's signature)
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        module, attribute, _ = VERBS[cmd_name]
        found: click.Command = getattr(import_module(f"holdfast.cli.{module}"), attribute)
        if not gc.isenabled():  # see `holdfast.cli.main`
            gc.freeze()
            gc.enable()
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            close = difflib.get_close_matches(args[0], VERBS, 1)
            if not close:
                raise
            said = f"{error.message} Did you mean {close[0]!r}?"
            raise click.UsageError(said, error.ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(verb, short) for verb, (_, _, short) in VERBS.items()])

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        as_json = _wants_json(args)
        try:
            _refuse_broken_text(args)
            ctx = super().make_context(info_name, args, parent, color=_colour(), **extra)
        except click.UsageError as error:
            raise _as_asked(error, as_json) from None
        ctx.obj = as_json
        return ctx

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            raise CommandError(str(error), type(error).__name__, as_json=ctx.obj) from error
        except click.ClickException as error:
            raise _as_asked(error, ctx.obj) from error
        except KeyboardInterrupt as error:
            refusal = CommandError(
                "interrupted", "Interrupted", as_json=ctx.obj, exit_code=INTERRUPTED
            )
            raise refusal from error


_HELP: Final[Any] = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""How click shows the help to who gives no verb; older ones print it themselves."""


def _as_asked(error: click.ClickException, as_json: bool) -> click.ClickException:
    """One of click's own errors, for people as click says it, for programs as JSON."""
    message = error.format_message()
    if isinstance(error, CommandError):
        return error
    if as_json or not isinstance(error, click.UsageError):
        kind = type(error).__name__
        return CommandError(message, kind, as_json=as_json, exit_code=error.exit_code)
    if message.isprintable() or isinstance(error, _HELP):
        return error
    from holdfast.cli.text import visible

    # It repeats what was typed, and scripts take that from anywhere.
    return click.UsageError(visible(message, lines=True), error.ctx)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast")
def cli() -> None:
    """Durable AI agents: a crash becomes a pause, and no side effect is silently repeated.

    Every command that works on a store takes --url (or --db): a path, or postgresql://…; by default
    HOLDFAST_URL, or .holdfast/holdfast.db in this folder.

    Every command takes --json: data on stdout, and an error as the last line of stderr,
    {"error": kind, "message": text}.

    \b
    Exit codes:
      0    done
      1    refused, damaged, or the run failed or is waiting; stderr explains what to do
      2    wrong usage; nothing has happened
      130  interrupted; the run can be resumed

    \b
    Completion of commands, files and run ids, for bash (zsh and fish likewise):
      eval "$(_HOLDFAST_COMPLETE=bash_source holdfast)"
    """
