"""The verbs of a fleet: worker, and the schedules that workers keep."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from typing import Any

import click

from holdfast.app import Holdfast
from holdfast.cli import text
from holdfast.cli.common import existing_store, json_option, say, store_option, users_code
from holdfast.cli.load import load, parameters
from holdfast.cli.run import lease_option
from holdfast.cli.verbs import INTERRUPTED
from holdfast.errors import NotFound, StoreRefused, StoreUnavailable
from holdfast.runtime.declare.specs import agent_spec
from holdfast.runtime.exec.engine import Options
from holdfast.runtime.exec.worker import Report, Worker
from holdfast.store.base import Schedule
from holdfast.store.opening import open_store
from holdfast.words.advice import command

LOOK_SECONDS = 0.1
OPENING_SECONDS = 60.0
OPENING_PAUSE_SECONDS = 0.5
COLOURS = {
    "completed": "green",
    "failed": "red",
    "cancelled": "yellow",
    "left": "red",
    "unknown": "yellow",
}


# ── worker ───────────────────────────────────────────────────────────────────────────────────


class ReportPrinter:
    """Reports what a worker did: lines and a count on a terminal, lines in a log, or
    JSON lines for programs; all on stderr."""

    def __init__(self, *, as_json: bool, quiet: bool) -> None:
        self._as_json, self._quiet = as_json, quiet
        self._counts: Counter[str] = Counter()
        self._live = not as_json and not quiet and sys.stderr.isatty()
        self._shown = ""
        self._mutex = threading.Lock()

    def __call__(self, report: Report) -> None:
        self._counts[report.status] += report.status != "unknown"
        if self._quiet:
            return
        if self._as_json:
            line = text.as_json_line(
                {
                    "status": report.status,
                    "agent": report.agent,
                    "run": report.run_id,
                    "seconds": round(report.seconds, 6),
                    "detail": report.detail,
                }
            )
        else:
            line = self._sentence(report)
        with self._mutex:
            self._clear()
            click.echo(line, err=True)

    def _sentence(self, report: Report) -> str:
        detail = text.visible(report.detail)
        if report.status == "unknown":
            return click.style(
                f"not claimed: runs of {text.visible(report.agent)}; {detail}", fg="yellow"
            )
        status = click.style(report.status, fg=COLOURS.get(report.status, "cyan"))
        about = f": {detail}" if detail and report.status != "completed" else ""
        took = text.span(round(report.seconds * 1_000_000))
        return f"{time.strftime('%H:%M:%S')}  {report.run_id} ({text.visible(report.agent)}) {status} after {took}{about}"

    def show(self, under_way: int) -> None:
        """The count, in place, on a terminal."""
        if not self._live:
            return
        counts = ", ".join(f"{n} {status}" for status, n in sorted(self._counts.items()) if n)
        line = f"{under_way} running" + (f"; {counts}" if counts else "")
        with self._mutex:
            if line != self._shown:
                click.echo(f"\r\033[K{line}", nl=False, err=True)
                self._shown = line

    def _clear(self) -> None:
        if self._shown:
            click.echo("\r\033[K", nl=False, err=True)
            self._shown = ""

    def end(self) -> None:
        with self._mutex:
            self._clear()


class WorkerThread:
    """A worker in its own thread, and this one free for signals."""

    def __init__(self, worker: Worker, printer: ReportPrinter, *, once: bool) -> None:
        self._worker, self._printer = worker, printer
        self._signals = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._work, args=(once,), name="holdfast-claims", daemon=True
        )

    def _work(self, once: bool) -> None:
        try:
            self._worker.run(once=once)
        except BaseException as error:  # noqa: BLE001 - carried to the main thread
            self._error = error

    def _noted(self, *_: object) -> None:
        self._signals += (
            1  # and nothing else: another thread may hold any lock that a handler needs
        )

    def until_done(self) -> None:
        """Until the worker has ended, by itself or because a signal asked for it."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, self._noted) for number in numbers]
        seen = 0
        try:
            self._thread.start()
            while self._thread.is_alive():
                self._thread.join(LOOK_SECONDS)
                self._printer.show(self._worker.under_way)
                if self._signals > seen:
                    seen = self._signals
                    self._stop(seen)
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
            self._printer.end()
        if self._error is not None:
            raise self._error

    def _stop(self, signals: int) -> None:
        self._printer.end()
        under_way = self._worker.under_way
        if signals > 1:
            self._worker.grace = 0.0
        self._worker.stop()  # and then report it: a reader may rely on it
        if signals > 1:
            click.echo("releasing all runs now", err=True)
        elif under_way:
            click.echo(
                f"stopping: {text.count(under_way, 'run')} in progress, released when the current call has "
                f"ended, or in {self._worker.grace:g} s; signal again to release now",
                err=True,
            )


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="FILE|MODULE[:AGENT]…")
@click.option(
    "--concurrency",
    "-c",
    type=click.IntRange(1, 10_000),
    default=10,
    show_default=True,
    help="Runs executed at once: sync agents in threads, async agents as tasks.",
)
@lease_option
@click.option(
    "--grace",
    type=click.FloatRange(0, 86_400),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a call may still take after SIGTERM or Ctrl-C.",
)
@click.option("--once", is_flag=True, help="Exit when nothing is due.")
@click.option("--quiet", "-q", is_flag=True, help="Do not print a line for each run.")
@store_option
@json_option
def worker(
    targets: tuple[str, ...],
    concurrency: int,
    lease: float,
    grace: float,
    once: bool,
    quiet: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Execute due runs of the agents in these files or modules, until stopped.

    On Ctrl-C or SIGTERM the worker claims no more runs, and releases each run as soon as its current call
    has ended, so that another worker can resume it at once.
    """
    files = [load(target) for target in targets]
    agents = [
        agent
        for file in files
        for agent in ([file.chosen()] if file.name else file.agents.values())
    ]
    _log_to_stderr()
    printer = ReportPrinter(as_json=as_json, quiet=quiet)
    hf = _opened(url, agents, Options(lease_seconds=lease))
    worker = hf.worker(agents=agents, concurrency=concurrency, grace=grace, report=printer)
    with users_code(as_json):
        WorkerThread(worker, printer, once=once).until_done()
    say(
        as_json,
        {"executed": worker.claimed},
        f"executed {worker.claimed} {'run' if worker.claimed == 1 else 'runs'}",
    )
    if worker.under_way:  # a call that does not return: its thread would keep this process alive
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(INTERRUPTED)
    hf.close()


def _opened(url: str | None, agents: list[Any], options: Options) -> Holdfast:
    """The store, waited for if its server is restarting: a worker that gives up then would be missed."""
    end = time.monotonic() + OPENING_SECONDS
    reported = False
    while True:
        try:
            return Holdfast(open_store(url, retry=False), agents=agents, options=options)
        except StoreRefused:
            raise
        except StoreUnavailable as error:
            if time.monotonic() > end:
                raise
            if not reported:
                click.echo(f"waiting for the store: {text.visible(str(error))}", err=True)
            reported = True
            time.sleep(OPENING_PAUSE_SECONDS)


class _VisibleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return text.visible(super().format(record), lines=True)


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_VisibleFormatter("%(asctime)s %(message)s"))
    log = logging.getLogger("holdfast")
    log.handlers[:] = [handler]
    log.setLevel(logging.WARNING)


# ── schedules ────────────────────────────────────────────────────────────────────────────────


@click.command()
@click.argument("target", metavar="FILE|MODULE[:AGENT]")
@click.argument("cron")
@click.option("--tz", default="UTC", show_default=True, help="The time zone of CRON.")
@click.option(
    "--param", "-p", "given", multiple=True, metavar="NAME=VALUE", help="Input of each run."
)
@click.option("--id", "schedule_id", metavar="ID", help="Default: the agent's name.")
@click.option("--priority", type=click.IntRange(-10, 10), default=0, show_default=True)
@click.option(
    "--catch-up",
    type=click.Choice(("latest", "all", "none")),
    default="latest",
    show_default=True,
    help="For which missed times to start a run, after a period without workers.",
)
@store_option
@json_option
def schedule(
    target: str,
    cron: str,
    tz: str,
    given: tuple[str, ...],
    schedule_id: str | None,
    priority: int,
    catch_up: Any,
    url: str | None,
    as_json: bool,
) -> None:
    """Let workers start a run of an agent at each time that CRON matches ('30 6 * * mon-fri', '@daily').

    There is one run per time, whatever the number of workers. The same id replaces the schedule.
    """
    agent = load(target).chosen()
    values = _input(agent, given)
    with Holdfast(open_store(url, retry=False)) as hf:
        made = hf.schedule(
            agent,
            cron=cron,
            tz=tz,
            input=values,
            id=schedule_id,
            priority=priority,
            catch_up=catch_up,
        )
    say(
        as_json,
        _fields(made),
        f"{made.id}: {made.agent} at {made.cron} ({made.zone}), next {text.clock(made.next_at)}",
    )


@click.command()
@store_option
@json_option
def schedules(url: str | None, as_json: bool) -> None:
    """List all schedules and their next due times."""
    with existing_store(url) as store:
        found = store.schedules.all()
    if as_json:
        click.echo(text.as_json({"schedules": [_fields(one) for one in found]}))
        return
    if not found:
        click.echo("no schedules")
        return
    text.table(
        ("id", "agent", "cron", "time zone", "next", "last"),
        [
            (
                one.id,
                text.visible(one.agent),
                one.cron,
                one.zone,
                text.clock(one.next_at),
                text.clock(one.last_at) if one.last_at else "–",
            )
            for one in found
        ],
    )


@click.command()
@click.argument("schedule_id", metavar="ID")
@store_option
@json_option
def unschedule(schedule_id: str, url: str | None, as_json: bool) -> None:
    """Delete a schedule. Runs that it has started are not affected."""
    with existing_store(url) as store:
        if not store.schedules.delete(schedule_id):
            raise NotFound(f"no schedule {schedule_id!r}; `{command(url, 'schedules')}` lists them")
    say(as_json, {"id": schedule_id, "deleted": True}, f"schedule {schedule_id!r} deleted")


def _input(agent: Any, pairs: tuple[str, ...]) -> dict[str, Any]:
    spec = agent_spec(agent)
    return parameters(spec.name, spec.params.schema, pairs)


def _fields(one: Schedule) -> dict[str, Any]:
    return {**one._asdict(), "input": text.from_json(one.input)}
