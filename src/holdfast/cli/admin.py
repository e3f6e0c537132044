"""The commands that maintain the store: doctor, gc, export, import."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import click

from holdfast import bundle
from holdfast.cli import text
from holdfast.cli.common import (
    confirm,
    existing_store,
    json_option,
    run_argument,
    say,
    store_option,
)
from holdfast.cli.progress import busy, counted
from holdfast.doctor import examine
from holdfast.gc import delete, removable, rotate_snapshots
from holdfast.store.base import MICROSECONDS
from holdfast.store.opening import open_store
from holdfast.words.advice import command

# ── doctor ───────────────────────────────────────────────────────────────────────────────────


@click.command()
@store_option
@json_option
def doctor(url: str | None, as_json: bool) -> None:
    """Check the store for weak settings and damaged runs. Exit code 1 if there are any.

    Also lists runs that are due and claimed by no worker.
    """
    with existing_store(url) as store, busy("examining the store"):
        found = examine(store, watch=counted)
    now = found.now
    if as_json:
        listed = [
            {"name": f.name, "value": f.value, "ok": f.ok, "advice": "" if f.ok else f.advice}
            for f in found.findings
        ]
        hurt = [{"run": one.run_id, "problem": one.problem} for one in found.damaged]
        late = [kind._asdict() for kind in found.overdue]
        data = {
            "ok": found.ok,
            "findings": listed,
            "runs": found.runs,
            "damaged": hurt,
            "overdue": late,
        }
        click.echo(text.as_json(data))
    else:
        text.table(
            ("what", "value", "status", "advice"),
            [
                (f.name, text.visible(f.value), "ok" if f.ok else "WEAK", "" if f.ok else f.advice)
                for f in found.findings
            ],
        )
        click.echo(f"{text.count(found.runs, 'run')} checked, {len(found.damaged)} damaged")
        for one in found.damaged:
            click.echo(f"  {click.style(one.run_id, fg='red')}: {text.visible(one.problem)}")
        for kind in found.overdue:
            version = f" (version {text.visible(kind.code_version)})" if kind.code_version else ""
            click.echo(
                f"runs of {text.visible(kind.agent)}{version} have been due for {text.span(now - kind.due_at)}: "
                "no worker for this agent and version is free or running"
            )
    if not found.ok:
        raise click.exceptions.Exit(1)


# ── gc ───────────────────────────────────────────────────────────────────────────────────────


@click.command()
@click.option(
    "--older-than",
    metavar="AGE",
    help="Delete runs that ended longer ago than this: 90 (seconds), 30s, 15m, 12h, 30d, 4w.",
)
@click.option(
    "--keep",
    type=click.IntRange(0),
    metavar="N",
    help="Keep the newest N of them, regardless of their age.",
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

    It deletes only runs that are completed, failed or cancelled, and no child of a run that has not ended. Their
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
            rotated = rotate_snapshots(store, keep=snapshots, max_age_us=oldest, watch=counted)
        doomed = (
            removable(store, older_than_us=age, keep=keep or 0, watch=counted) if of_runs else []
        )
        deleted: list[str] = []
        if doomed and not dry_run:
            oldest = min(row.updated_at for row in doomed)
            confirm(
                f"delete {text.count(len(doomed), 'run')} that ended, the oldest on {text.clock(oldest)}?",
                yes=yes,
            )
            deleted = delete(store, doomed, watch=counted)
    ids = [row.id for row in doomed] if dry_run else deleted
    word = "would be deleted" if dry_run else "deleted"
    lines = [f"{text.count(len(ids), 'run')} {word}"] if of_runs else []
    if of_snapshots:
        left = "no snapshots deleted"
        lines.append(left if dry_run else f"{text.count(rotated, 'snapshot')} deleted")
    of_caches = {"snapshots": rotated} if of_snapshots else {}
    say(as_json, {"deleted": ids, "dry_run": dry_run, **of_caches}, *lines)


def _age(age: str | None, option: str) -> int | None:
    """An age as the user wrote it, in microseconds."""
    try:
        return None if age is None else int(text.seconds_of(age) * MICROSECONDS)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


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
        lines = bundle.export(store, run_id, watch=counted)
        if output is None:
            for line in lines:
                click.echo(line)
            return
        try:
            count = _write(output, lines)
        except OSError as error:
            raise click.FileError(str(output), error.strerror or "") from None
    if as_json:
        click.echo(text.as_json({"run": run_id, "file": str(output), "lines": count}))
    else:
        click.echo(
            f"{run_id}: {text.count(count, 'line')} written to {text.visible(str(output))}",
            err=True,
        )


def _write(output: Path, lines: Iterable[str]) -> int:
    """Write a file, or none: a part of a run must not pass for all of it. How many lines it has."""
    is_special = output.exists() and not output.is_file()  # a pipe, a terminal
    part = output if is_special else output.with_name(f"{output.name}.part")
    written = 0
    try:
        # Readable by its owner only, like the store that it comes from.
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            for line in lines:
                file.write(f"{line}\n")
                written += 1
        part.replace(output)
    except BaseException:  # also Ctrl-C: nothing half-written is left
        if not is_special:
            part.unlink(missing_ok=True)
        raise
    return written


@click.command("import")
@click.argument("file", type=click.File("r", encoding="utf-8"))
@store_option
@json_option
def import_run(file: IO[str], url: str | None, as_json: bool) -> None:
    """Import a run from a file that `export` wrote. It is validated and not trusted: a run that had
    not ended is paused, and nothing is executed until a person resumes it."""
    try:
        packed = bundle.read(bundle.lines_of(file), watch=counted)
    except UnicodeDecodeError:
        raise bundle.NotABundle("it is not UTF-8 text") from None
    store = open_store(url, retry=False)
    try:
        with busy(f"writing {text.count(len(packed.records), 'event')}"):
            done = bundle.import_run(store, packed)
    finally:
        store.close()
    data = {"run": done.run_id, "status": done.status, "events": done.events}
    say(
        as_json,
        data,
        f"{done.run_id}: {text.count(done.events, 'event')}, {done.status}",
        f"  to see it: {command(url, 'show', done.run_id)}",
    )
