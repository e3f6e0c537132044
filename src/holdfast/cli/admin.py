"""The commands that maintain the store: doctor, gc, export, import."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import click

from holdfast import views
from holdfast.cli import bundle, describe, text
from holdfast.cli.common import (
    command,
    confirm,
    existing_store,
    json_option,
    run_argument,
    say,
    store_option,
)
from holdfast.cli.progress import counted, said
from holdfast.errors import HoldfastError, StoreDamaged
from holdfast.store.base import (
    MICROSECONDS,
    TERMINAL_STATUSES,
    Filter,
    Finding,
    RunRow,
    Store,
)
from holdfast.store.opening import open_store

PAGE = 200


def every_run(store: Store, status: str = "") -> Iterator[RunRow]:
    """All runs, newest first, page by page."""
    cursor: int | None = None
    while rows := store.runs(Filter(status=status), limit=PAGE, cursor=cursor):
        yield from rows
        cursor = rows[-1].cursor


# ── doctor ───────────────────────────────────────────────────────────────────────────────────


@click.command()
@store_option
@json_option
def doctor(url: str | None, as_json: bool) -> None:
    """Check the store for weak settings and damaged runs. Exit code 1 if there are any.

    Also lists runs that are due and claimed by no worker.
    """
    with existing_store(url) as store:
        with said("examining the store"):
            findings = store.examine()
        checked, damaged = 0, {}
        try:
            for row in counted(every_run(store), "checking run"):
                checked += 1
                problem = damage_of(store, row.id)
                if problem:
                    damaged[row.id] = problem
        except StoreDamaged as error:
            advice = "runs after this one were not checked; restore a backup"
            findings.append(Finding("list of runs", str(error), False, advice))
        now = store.now()
        overdue = [kind for kind in store.kinds() if now - kind.due_at > describe.OVERDUE_US]
    ok = not damaged and all(finding.ok for finding in findings)
    if as_json:
        listed = [
            {"name": f.name, "value": f.value, "ok": f.ok, "advice": "" if f.ok else f.advice}
            for f in findings
        ]
        hurt = [{"run": run_id, "problem": problem} for run_id, problem in damaged.items()]
        late = [kind._asdict() for kind in overdue]
        found = {"ok": ok, "findings": listed, "runs": checked, "damaged": hurt, "overdue": late}
        click.echo(text.as_json(found))
    else:
        text.table(
            ("what", "value", "status", "advice"),
            [
                (f.name, text.visible(f.value), "ok" if f.ok else "WEAK", "" if f.ok else f.advice)
                for f in findings
            ],
        )
        click.echo(f"{text.count(checked, 'run')} checked, {len(damaged)} damaged")
        for run_id, problem in damaged.items():
            click.echo(f"  {click.style(run_id, fg='red')}: {text.visible(problem)}")
        for kind in overdue:
            version = f" (version {text.visible(kind.code_version)})" if kind.code_version else ""
            click.echo(
                f"runs of {text.visible(kind.agent)}{version} have been due for {text.span(now - kind.due_at)}: "
                "no worker for this agent and version is free or running"
            )
    if not ok:
        raise click.exceptions.Exit(1)


def damage_of(store: Store, run_id: str) -> str:
    """What is wrong with a run: its chain, its bytes, or a log that does not add up to a state."""
    try:
        found = views.verify(store, run_id)
        if found.ok and found.events:
            views.get(store, run_id)
    except HoldfastError as error:
        return str(error)
    return found.problem or ("" if found.events else "its log is empty; restore it from a backup")


# ── gc ───────────────────────────────────────────────────────────────────────────────────────


@click.command()
@click.option(
    "--older-than",
    metavar="AGE",
    help="Delete runs that ended longer ago: 90, 30s, 15m, 12h, 30d, 4w.",
)
@click.option(
    "--keep",
    type=click.IntRange(0),
    metavar="N",
    help="Keep the newest N of them, whatever their age.",
)
@click.option(
    "--snapshots",
    type=click.IntRange(1),
    metavar="N",
    help="Keep the newest N snapshots of each run.",
)
@click.option(
    "--snapshot-age",
    metavar="AGE",
    help="Delete older snapshots of each run, except the newest.",
)
@click.option("--dry-run", is_flag=True, help="Only report what would be deleted.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@store_option
@json_option
def gc(
    older_than: str | None,
    keep: int | None,
    snapshots: int | None,
    snapshot_age: str | None,
    dry_run: bool,
    yes: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Delete old runs that have ended, with everything that belongs to them.

    Only runs that are completed, failed or cancelled, and no child of a run that has not ended. Their
    ids and their callers' idempotency keys are free again: using one of them again executes
    again. Snapshots are caches: deleting them costs only time.
    """
    of_runs, of_snapshots = older_than or keep is not None, snapshot_age or snapshots is not None
    if not of_runs and not of_snapshots:
        raise click.UsageError(
            "choose what to delete: runs (--older-than AGE, --keep N, or both) "
            "or snapshots (--snapshots N, --snapshot-age AGE)"
        )
    age = _age(older_than, "--older-than") or 0
    rotated = 0
    with existing_store(url) as store:
        if of_snapshots and not dry_run:
            oldest = _age(snapshot_age, "--snapshot-age")
            count = snapshots or sys.maxsize >> 1
            rotated = sum(
                store.rotate_snapshots(row.id, keep=count, max_age_us=oldest)
                for row in counted(every_run(store), "checking the snapshots of run")
            )
        doomed = _doomed(store, store.now() - age, keep or 0) if of_runs else []
        deleted: list[str] = []
        if doomed and not dry_run:
            oldest = min(row.updated_at for row in doomed)
            confirm(
                f"delete {text.count(len(doomed), 'run')} that ended, the oldest on {text.clock(oldest)}?",
                yes=yes,
            )
            going = counted(doomed, "deleting run")
            deleted = [row.id for row in going if store.delete(row.id)]
    ids = [row.id for row in doomed] if dry_run else deleted
    word = "would be deleted" if dry_run else "deleted"
    lines = [f"{text.count(len(ids), 'run')} {word}"] if of_runs else []
    if of_snapshots:
        left = "no snapshots deleted"
        lines.append(left if dry_run else f"{text.count(rotated, 'snapshot')} deleted")
    of_caches = {"snapshots": rotated} if of_snapshots else {}
    say(as_json, {"deleted": ids, "dry_run": dry_run, **of_caches}, *lines)


def _age(given: str | None, option: str) -> int | None:
    """An age as the user wrote it, in microseconds."""
    try:
        return None if given is None else int(text.seconds_of(given) * MICROSECONDS)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def _doomed(store: Store, before: int, keep: int) -> list[RunRow]:
    found = (row for status in TERMINAL_STATUSES for row in every_run(store, status))
    ended = list(counted(found, "checking run"))
    ended.sort(key=lambda row: row.updated_at, reverse=True)
    return [row for row in ended[keep:] if row.updated_at < before and not _is_needed(store, row)]


def _is_needed(store: Store, row: RunRow) -> bool:
    """A child's result may still be asked for, as long as its parent continues."""
    parent = store.get(row.parent) if row.parent else None
    return parent is not None and parent.status not in TERMINAL_STATUSES


# ── export and import ────────────────────────────────────────────────────────────────────────


@click.command()
@run_argument
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Default: stdout."
)
@store_option
@json_option
def export(run_id: str, output: Path | None, url: str | None, as_json: bool) -> None:
    """Export a run to one file of JSON lines: its log with its hash chain, and its artifacts."""
    with existing_store(url) as store:
        lines = bundle.pack(store, run_id)
    if output is None:
        click.echo("\n".join(lines))
        return
    try:
        # Readable by its owner only, like the store that it comes from.
        fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    except OSError as error:
        raise click.FileError(str(output), error.strerror or "") from None
    if as_json:
        click.echo(text.as_json({"run": run_id, "file": str(output), "lines": len(lines)}))
    else:
        click.echo(
            f"{run_id}: {text.count(len(lines), 'line')} written to {text.visible(str(output))}",
            err=True,
        )


@click.command("import")
@click.argument("file", type=click.File("r", encoding="utf-8"))
@store_option
@json_option
def import_run(file: IO[str], url: str | None, as_json: bool) -> None:
    """Import a run from a file that `export` wrote. It is validated and not trusted: a run that had
    not ended is paused, and nothing is executed until a person resumes it."""
    try:
        packed = bundle.unpack(bundle.lines_of(file))
    except UnicodeDecodeError:
        raise bundle.NotABundle("it is not UTF-8 text") from None
    store = open_store(url)
    try:
        with said(f"writing {text.count(len(packed.records), 'event')}"):
            status = bundle.take_in(store, packed)
    finally:
        store.close()
    data = {"run": packed.run.id, "status": status, "events": len(packed.records)}
    say(as_json, data, f"{packed.run.id}: {text.count(len(packed.records), 'event')}, {status}",
        f"  to see it: {command(url, 'show', packed.run.id)}")  # fmt: skip
