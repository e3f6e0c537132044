"""`holdfast demo`: a run survives a crash, in a few seconds, offline, with nothing staged.

Real processes do all of it: a calendar (`demo_calendar.py`), a first process that runs the agent
(`demo_agent.py`) and is killed at the worst moment, a second one that resumes. All output is that of
the commands shown. At the end the calendar's own ledger is counted, and the demo fails if it does not
hold exactly one invite.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from holdfast.cli import text
from holdfast.cli.common import json_option, users_code
from holdfast.errors import HoldfastError

HERE = Path(__file__).parent
RUN = "onboard-ada"
# How long a dead process keeps its run: short, so that the demo is quick, and long enough for a busy machine.
LEASE_SECONDS = "3"


class DemoFailed(HoldfastError):
    """The demo did not behave as it should."""


@dataclass(frozen=True, slots=True)
class DemoFolder:
    """The folder of the demo and how to run commands in it."""

    folder: Path
    calendar: str
    quiet: bool
    """The story goes to stderr, as stdout is for data."""

    @property
    def ledger(self) -> Path:
        return self.folder / "calendar.jsonl"

    def holdfast(self, *words: str, env: dict[str, str] | None = None) -> int:
        """Show and run one command; its exit code."""
        click.secho(f"$ holdfast {shlex.join(words)}", fg="cyan")
        sys.stdout.flush()
        return subprocess.run(  # noqa: S603  (our own interpreter and words)
            [sys.executable, "-m", "holdfast.cli", *words],
            cwd=self.folder,
            env=_environment(self.calendar, env or {}),
            check=False,
            stdout=sys.stderr if self.quiet else None,
        ).returncode

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.ledger.read_text(encoding="utf-8").splitlines()]


def _environment(calendar: str, extra: dict[str, str]) -> dict[str, str]:
    """This process's environment; the demo's store is always the one in its folder."""
    kept = {
        k: v
        for k, v in os.environ.items()
        if k != "HOLDFAST_URL" and not k.startswith("HOLDFAST_DEMO_")
    }
    path = [str(HERE.parent.parent), *filter(None, [kept.get("PYTHONPATH")])]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(path),
        "HOLDFAST_DEMO_CALENDAR": calendar,
        **extra,
    }


@contextlib.contextmanager
def _calendar(folder: Path, quiet: bool) -> Iterator[DemoFolder]:
    """The calendar, in its own process, as long as the demo lasts."""
    ledger = folder / "calendar.jsonl"
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, str(HERE / "demo_calendar.py"), str(ledger)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise DemoFailed("the calendar's process did not start")
        yield DemoFolder(folder, address, quiet)
    finally:
        process.kill()
        process.communicate()


@click.command()
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Default: a new temporary one.",
)
@json_option
def demo(folder: Path | None, as_json: bool) -> None:
    """See a run survive a crash, offline, in a few seconds."""
    folder = _folder(folder)
    with users_code(as_json):
        invites = _play(folder, as_json)
    if as_json:
        click.echo(text.as_json({"folder": str(folder), "run": RUN, "invites": invites}))


def _play(folder: Path, quiet: bool) -> dict[str, int]:
    shutil.copy(HERE / "demo_agent.py", folder / "agent.py")
    click.echo(
        f"Everything happens in {folder}: agent.py, .holdfast/holdfast.db, calendar.jsonl.\n"
    )
    with _calendar(folder, quiet) as stage:
        _crash(stage)
        _resume(stage)
        _look(stage)
        invites = _count(stage)
    _try_next(folder)
    return invites


def _folder(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    if (folder / ".holdfast").exists() or (folder / "calendar.jsonl").exists():
        raise DemoFailed(
            f"{folder} contains an earlier demo; choose another folder, or delete it first"
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def _say(sentence: str) -> None:
    click.echo()
    click.secho(sentence, bold=True)


def _crash(stage: DemoFolder) -> None:
    _say("1. An agent onboards Ada: nine steps, four tools, a calendar that sometimes fails.")
    words = (
        "run",
        "agent.py",
        "--id",
        RUN,
        "--param",
        "name=Ada Lovelace",
        "--lease",
        LEASE_SECONDS,
    )
    code = stage.holdfast(*words, env={"HOLDFAST_DEMO_KILL": "1"})
    if code != -signal.SIGKILL:
        raise DemoFailed(
            f"the first process should have been killed, but ended with exit code {code}"
        )
    click.echo("Killed. The calendar has the invite; the process died before it recorded that.")


def _resume(stage: DemoFolder) -> None:
    _say(
        "2. The log is still there. It shows the position of the run, and that step 6 has no receipt."
    )
    stage.holdfast("show", RUN, "--short")
    _say(
        "3. Another process resumes it: steps 1–5 are not executed again, step 6 is, with the same key."
    )
    code = stage.holdfast("resume", "agent.py", RUN)
    if code:
        raise DemoFailed(f"the second process ended with exit code {code}")


def _look(stage: DemoFolder) -> None:
    _say("4. Inspect the run.")
    for verb in ("show", "trace", "verify"):
        if stage.holdfast(verb, RUN):
            raise DemoFailed(f"`holdfast {verb}` found a problem")
        click.echo()


def _count(stage: DemoFolder) -> dict[str, int]:
    _say("5. What the calendar recorded.")
    entries = [entry for entry in stage.entries() if entry["page"] == "/invites"]
    for entry in entries:
        click.echo(f"    {entry['did']:<15}  {entry['id']}  key {entry['key']}")
    made = sum(entry["did"] == "made" for entry in entries)
    again = len(entries) - made
    if made != 1 or again != 1:
        raise DemoFailed(f"expected one invite, requested twice; found {made}, and {again} repeats")
    click.secho(
        "The invite was requested twice, with one key: one invite was sent.", fg="green", bold=True
    )
    return {"asked_for": made + again, "made": made}


def _name() -> str:
    """How this command is called here."""
    script = Path(sys.executable).parent / "holdfast"
    if shutil.which("holdfast"):
        return "holdfast"
    if script.exists():
        return shlex.quote(str(script))
    return f"{shlex.quote(sys.executable)} -m holdfast.cli"


def _try_next(folder: Path) -> None:
    name = _name()
    _say("See the run in a browser:")
    if find_spec("starlette") is None or find_spec("jinja2") is None:
        click.echo("    pip install 'holdfast[web]'   (once)")
    click.echo(
        f"    {name} serve --open --db {shlex.quote(str(folder / '.holdfast' / 'holdfast.db'))}"
    )
    _say("Try next:")
    click.echo(f"    cd {shlex.quote(str(folder))}")
    for words in (
        f"show {RUN} --step 6 --before",
        f"diff {RUN} 5 7",
        f"replay agent.py {RUN}",
        f"events {RUN}",
        f"export {RUN} -o ada.jsonl",
        "doctor",
    ):
        click.echo(f"    {name} {words}")
