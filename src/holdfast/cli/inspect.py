"""The verbs that read: list, trace, events, diff, verify. They change nothing, and need none of the agent's code.

Not here: show, which has a module of its own.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import click

from holdfast import views
from holdfast.cli import describe, text
from holdfast.cli.common import (
    existing_store,
    json_option,
    run_argument,
    say,
    store_option,
    stream_json,
)
from holdfast.cli.progress import counted
from holdfast.store.base import RunRow, Store
from holdfast.words.advice import command

EVENTS_SHOWN = 1000
"""So many events are printed in one table."""


# ── list ─────────────────────────────────────────────────────────────────────────────────────


@click.command("list")
@click.argument("search", default="")
@click.option("--status", type=click.Choice(views.SHOWN_STATUSES), help="Only runs of this status.")
@click.option("--agent", default="", help="Only runs of this agent.")
@click.option("--parent", default="", help="Only child runs of this one.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option(
    "--cursor", type=int, help="The cursor of the next page (`next` of the previous page)."
)
@store_option
@json_option
def list_runs(
    search: str,
    status: str | None,
    agent: str,
    parent: str,
    limit: int,
    cursor: int | None,
    url: str | None,
    as_json: bool,
) -> None:
    """List runs, newest first; with SEARCH, those that match.

    A search is one argument: 'status:failed,waiting agent:recap error:timeout input.customer.id:42 since:24h'. A bare
    word is the beginning of a run's id, or an agent; a "quoted text" is searched in inputs, results, errors and state.
    """
    if search and (status or agent or parent):
        raise click.UsageError(
            "put status:, agent: and parent: into the search, or leave the search out"
        )
    with existing_store(url) as store:
        if search:
            from holdfast.cli import acts  # here, because it loads what decides

            hits = acts.search(store, search, limit=limit, cursor=cursor)
            found, after, is_cut = hits.runs, hits.next, hits.stopped
        else:
            page = views.runs(
                store, status=status or "", agent=agent, parent=parent, limit=limit, cursor=cursor
            )
            found, after, is_cut = page.runs, page.next, False
        now = store.now()
    if as_json:
        data = [{**_fields(row), "waiting_for": _waits_for(row, now)} for row in found]
        click.echo(text.as_json({"runs": data, "next": after}))
        return
    if found:
        _print_runs(found, now)
    else:
        is_narrowed = search or status or agent or parent or cursor
        click.echo("no runs" + (" that match" if is_narrowed else " yet"))
    if after is not None:
        same = [("--status", status), ("--agent", agent), ("--parent", parent), ("--limit", limit)]
        given = [word for name, value in same if value for word in (name, value)]
        first = [search] if search else []
        label = "older runs were not searched yet" if is_cut else "more"
        click.echo(f"{label}: {command(url, 'list', *first, *given, '--cursor', after)}")


def _print_runs(rows: list[RunRow], now: int) -> None:
    text.table(
        ("id", "agent", "status", "changed", "waiting for"),
        [
            (
                row.id,
                text.visible(row.agent),
                row.status,
                f"{text.span(now - row.updated_at)} ago",
                _waits_for(row, now) or "–",
            )
            for row in rows
        ],
    )


def _waits_for(row: RunRow, now: int) -> str:
    """What the run is waiting for, according to its row: after the decision, only a worker."""
    if row.status in ("pending", "interrupted"):
        return describe.a_worker(row, now)
    return text.visible(row.waiting_for)


def _fields(row: RunRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in RunRow.__struct_fields__}


# ── trace, events, diff ──────────────────────────────────────────────────────────────────────


def _which_events(command: Callable[..., None]) -> Callable[..., None]:
    """The options that select a part of a log."""
    options = (
        click.option("--after", type=int, default=-1, help="Only events after this number."),
        click.option("--limit", type=click.IntRange(0), help="Print at most this many events."),
        click.option("--last", type=click.IntRange(0), help="Print only the last N events."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@run_argument
@_which_events
@store_option
@json_option
def trace(
    run_id: str, after: int, limit: int | None, last: int | None, url: str | None, as_json: bool
) -> None:
    """Print a run's timeline as sentences."""
    with existing_store(url) as store:
        _check_readable(store, run_id, after, limit, last)
        moments = views.timeline(store, run_id, after=after, limit=limit, last=last)
        if as_json:
            _trace_json(run_id, moments)
        else:
            _trace(run_id, moments)


def _check_readable(
    store: Store, run_id: str, after: int, limit: int | None, last: int | None
) -> None:
    """Read all that is to be printed, before any of it is: a damaged log is not shown in part."""
    for _ in views.events(store, run_id, after=after, limit=limit, last=last):
        pass


def _trace(run_id: str, moments: Iterable[views.Moment]) -> None:
    start, epoch = 0, None
    for one in moments:
        if epoch is None:
            start, epoch = one.time, one.epoch
            click.echo(f"{run_id}, {text.clock(start)}")
        if one.epoch != epoch:
            epoch = one.epoch
            click.secho(f"{'':>8}  ── another worker (epoch {epoch}) ──", dim=True)
        at = f"+{(one.time - start) / 1_000_000:.3f}"
        click.echo(
            f"{at:>8}  {click.style(f'{one.about:<20}', bold=True)}  {click.style(one.text, fg=one.tone)}"
        )


def _trace_json(run_id: str, moments: Iterable[views.Moment]) -> None:
    fields = (
        {"seq": x.seq, "time": x.time, "epoch": x.epoch, "what": x.about, "text": x.text}
        for x in moments
    )
    stream_json({"run": run_id}, "timeline", fields)


@click.command()
@run_argument
@_which_events
@store_option
@json_option
def events(
    run_id: str, after: int, limit: int | None, last: int | None, url: str | None, as_json: bool
) -> None:
    """A run's log, event by event, as it is kept."""
    with existing_store(url) as store:
        _check_readable(store, run_id, after, limit, last)
        found = views.events(store, run_id, after=after, limit=limit, last=last)
        if as_json:
            data = (
                {
                    "seq": r.seq,
                    "time": r.time,
                    "epoch": r.epoch,
                    "kind": r.kind,
                    "hash": r.hash.hex(),
                    "data": views.to_plain(event),
                }
                for r, event in found
            )
            stream_json({"run": run_id}, "events", data)
            return
        wide = 10_000 if not sys.stdout.isatty() else 160
        while page := list(itertools.islice(found, EVENTS_SHOWN)):
            text.table(
                ("seq", "time", "epoch", "kind", "data"),
                [
                    (
                        str(r.seq),
                        text.clock(r.time),
                        str(r.epoch),
                        r.kind,
                        text.cut(text.visible(r.data.decode()), wide),
                    )
                    for r, _ in page
                ],
            )


@click.command()
@run_argument
@click.argument("step_a", type=int, metavar="STEP_A")
@click.argument("step_b", type=int, metavar="STEP_B")
@store_option
@json_option
def diff(run_id: str, step_a: int, step_b: int, url: str | None, as_json: bool) -> None:
    """What changed in a run between the ends of two steps."""
    with existing_store(url) as store:
        changes = views.diff(store, run_id, step_a, step_b)
    if as_json:
        data = [{"path": c.path, "before": c.before, "after": c.after} for c in changes]
        click.echo(text.as_json({"run": run_id, "from": step_a, "to": step_b, "changes": data}))
        return
    if not changes:
        click.echo(f"nothing changed between step {step_a} and step {step_b}")
        return
    text.table(
        ("what", "before", "after"),
        [
            (text.visible(c.path), text.compact(c.before, 60), text.compact(c.after, 60))
            for c in changes
        ],
    )


# ── verify ───────────────────────────────────────────────────────────────────────────────────


@click.command()
@run_argument
@store_option
@json_option
def verify(run_id: str, url: str | None, as_json: bool) -> None:
    """Check a run's log against its hash chain. Exit code 1 if it does not hold."""
    with existing_store(url) as store:
        found = views.verify(store, run_id, through=partial(counted, what="checking event"))
    data = {
        "run": run_id,
        "ok": found.ok,
        "events": found.events,
        "head": found.head,
        "problem": found.problem,
    }
    if found.ok:
        say(
            as_json,
            data,
            f"ok: {run_id}, {text.count(found.events, 'event')}, chained to {found.head[:16]}…",
        )
        return
    say(as_json, data, f"DAMAGED: {found.problem}")
    raise click.exceptions.Exit(1)
