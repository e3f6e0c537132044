"""The verbs that execute one run: run, resume, rerun, replay. They load the agent's file."""

from __future__ import annotations

import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import click

from holdfast import views
from holdfast.app import Holdfast
from holdfast.cli import INTERRUPTED, text
from holdfast.cli.common import (
    Decider,
    command,
    decision_options,
    existing_store,
    file_argument,
    json_option,
    run_argument,
    say,
    store_option,
    users_code,
    who,
)
from holdfast.cli.describe import content, next_steps
from holdfast.cli.load import Loaded, is_file, load, parameters
from holdfast.cli.progress import Progress
from holdfast.cli.prompts import ask_on_the_spot
from holdfast.core.state import RunState
from holdfast.errors import InvalidInput, NotFound, RunBusy, RunCancelled, RunFailed, RunWaiting
from holdfast.runtime.declare import agent_spec
from holdfast.runtime.engine import Options
from holdfast.runtime.resumable import CHECKS

lease_option = click.option(
    "--lease", type=click.FloatRange(0.1, 86_400), default=30.0, show_default=True, metavar="SECONDS",
    help="How long the run stays ours if this process dies.",
)  # fmt: skip
wait_option = click.option("--wait", is_flag=True, help="Block while the run waits for something.")


def _open(url: str | None, loaded: Loaded, lease: float) -> Holdfast:
    return Holdfast(url, agents=loaded.agents.values(), options=Options(lease_seconds=lease))


@contextmanager
def _terminate_like_ctrl_c() -> Iterator[None]:
    """A service manager's SIGTERM leaves the run as Ctrl-C does: given back at once."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# ── run and resume ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Job:
    """One run to be brought as far as it goes, here and now."""

    hf: Holdfast
    run_id: str
    file: str
    url: str | None
    as_json: bool
    wait: bool
    override: tuple[str, ...] = ()
    """The checks before a resume that need not hold."""

    @property
    def asks(self) -> bool:
        """Whether somebody sits at a terminal who can be asked on the spot."""
        return not self.as_json and not self.wait and sys.stdin.isatty() and sys.stderr.isatty()

    def carry(self, go: Callable[[], Any]) -> None:
        """Execute it; print its result, or what became of it."""
        try:
            with _terminate_like_ctrl_c():
                self._to_the_end(go)
        except (KeyboardInterrupt, click.Abort):
            self._interrupted()
        except RunWaiting as waiting:
            self._waits(waiting)
        except RunFailed as failed:
            self._failed(failed)
        state = views.get(self.hf.store, self.run_id)
        result = content(self.hf.store, self.run_id, state.result)
        if self.as_json:
            self._json(state.status, result=result)
            return
        click.echo(f"run {self.run_id} {text.status(state.status)}", err=True)
        click.echo(
            text.visible(result, lines=True) if isinstance(result, str) else text.pretty(result)
        )

    def _to_the_end(self, go: Callable[[], Any]) -> None:
        while True:
            try:
                watched = not self.as_json and sys.stderr.isatty()
                with (
                    users_code(self.as_json),
                    Progress(self.hf.store, self.run_id, on=watched),
                ):
                    go()
                return
            except RunBusy as busy:
                self._await_lease(busy)
            except RunWaiting:
                if not self.asks or not ask_on_the_spot(self.hf.store, self.run_id):
                    raise
            go = self.go_on

    def go_on(self, *, accept_new_steps: bool = False) -> Any:
        return self.hf.resume(
            self.run_id, wait=self.wait, by=who(), override=self.override, accept_new_steps=accept_new_steps
        )  # fmt: skip

    def _await_lease(self, busy: RunBusy) -> None:
        """A worker that died holds its runs until their lease ends: wait for that, once. One that
        lives renews its lease, and keeps the run."""
        store = self.hf.store
        first = store.get(busy.run_id)
        if first is None or not first.is_live(store.now()) or first.due_at is None:
            return
        left = text.span(first.due_at - store.now())
        click.echo(
            f"{text.visible(first.owner)} holds run {busy.run_id}; if it has died, its lease ends in {left} …",
            err=True,
        )
        while True:
            row = store.get(busy.run_id)
            if row is None or not row.is_live(store.now()):
                return
            if row.due_at != first.due_at or row.epoch != first.epoch:
                how = command(self.url, "resume", self.file, self.run_id, "--wait")
                raise RunBusy(busy.run_id, f"{row.owner}, which is executing it", how)
            time.sleep(0.05)

    # ── what became of it ────────────────────────────────────────────────────────────────

    def _interrupted(self) -> NoReturn:
        store = self.hf.store
        state = views.get(store, self.run_id) if store.get(self.run_id) is not None else None
        how = next_steps(store, state, self.url, self.file) if state is not None else []
        if self.as_json:
            self._json(state.status if state is not None else "not created", how=how)
        elif state is None:
            click.echo("\ninterrupted before the run was created", err=True)
        else:
            doubts = [
                f"step {call.step}, {text.visible(call.name)}, may or may not have happened"
                for call in state.in_doubt
            ]
            click.echo("\n".join([f"\ninterrupted; {'; '.join(doubts) or 'nothing is lost'}. To go on:",
                                  *(f"  {text.visible(line)}" for line in how)]), err=True)  # fmt: skip
        raise click.exceptions.Exit(INTERRUPTED)

    def _waits(self, waiting: RunWaiting) -> NoReturn:
        state = views.get(self.hf.store, self.run_id)
        how = next_steps(self.hf.store, state, self.url, self.file) or [waiting.how]
        if self.as_json:
            self._json(state.status, waiting_for=waiting.waiting_for, how=how)
        else:
            click.echo(f"run {self.run_id} waits for {text.visible(waiting.waiting_for)}", err=True)
            for line in how:
                click.echo(f"  {text.visible(line)}", err=True)
            if not any(line.startswith("holdfast resume") for line in how):
                click.echo(
                    f"  then: {command(self.url, 'resume', self.file, self.run_id)}", err=True
                )
        raise click.exceptions.Exit(1)

    def _failed(self, failed: RunFailed) -> NoReturn:
        state = views.get(self.hf.store, self.run_id)
        was_cancelled = isinstance(failed, RunCancelled)  # its message says so by itself
        error = failed.message if was_cancelled else f"{failed.error_type}: {failed.message}"
        if self.as_json:
            self._json(
                state.status, error=error, how=next_steps(self.hf.store, state, self.url, self.file)
            )
            raise click.exceptions.Exit(1)
        step = state.failure.step if state.failure else 0
        where = f" at step {step}" if step else ""
        became = "" if was_cancelled else f"{text.status(state.status)}{where}: "
        lines = [f"run {self.run_id} {became}{text.indented(error)}",
                 f"  see why:   {command(self.url, 'show', self.run_id)}"]  # fmt: skip
        if state.status == "failed":
            lines.append(f"  try again: {command(self.url, 'resume', self.file, self.run_id)}")
        click.echo("\n".join(lines), err=True)
        raise click.exceptions.Exit(1)

    def _json(self, status: str, *, result: Any = None, waiting_for: str = "", error: str = "",
              how: list[str] | None = None) -> None:  # fmt: skip
        data = {"run": self.run_id, "status": status, "result": result, "waiting_for": waiting_for,
                "error": error, "continue": how or []}  # fmt: skip
        click.echo(text.as_json(data))


@click.command()
@file_argument
@click.option(
    "--param", "-p", "given", multiple=True, metavar="NAME=VALUE", help="A parameter of the agent."
)
@click.option(
    "--id", "run_id", metavar="ID", help="The same id is the same run; default: a new one."
)
@lease_option
@wait_option
@store_option
@json_option
def run(target: str, given: tuple[str, ...], run_id: str | None, lease: float, wait: bool,
        url: str | None, as_json: bool) -> None:  # fmt: skip
    """Run an agent of a file, or resume the run of this id.

    Parameters are converted as the agent declares them. Ctrl-C leaves a run that can be resumed.
    """
    loaded = load(target)
    agent = loaded.chosen()
    spec = agent_spec(agent)
    values = parameters(spec.name, spec.params.schema, given)
    taken = sorted({"id", "wait"} & values.keys())
    if taken:
        raise InvalidInput(
            f"{spec.name} has a parameter {taken[0]!r}, which hf.run keeps for itself; rename it"
        )
    run_id = run_id if run_id is not None else f"{spec.name}-{uuid.uuid4().hex[:12]}"
    with _open(url, loaded, lease) as hf:
        job = Job(hf, run_id, target, url, as_json, wait)
        job.carry(lambda: hf.run(agent, id=run_id, wait=wait, **values))


@click.command()
@file_argument
@run_argument
@lease_option
@wait_option
@click.option(
    "--override",
    multiple=True,
    type=click.Choice(CHECKS),
    help="Go on although this check fails: the run is too old, or of another version of its agent.",
)
@click.option(
    "--accept-new-steps",
    is_flag=True,
    help="Make calls that the code has added among what the run has done; a renamed one counts as added.",
)
@store_option
@json_option
def resume(target: str, run_id: str, lease: float, wait: bool, override: tuple[str, ...], accept_new_steps: bool,
           url: str | None, as_json: bool) -> None:  # fmt: skip
    """Go on with a run that waits, was interrupted or failed. A failed one goes on from its failed step."""
    target, run_id = _in_order(target, run_id)
    loaded = load(target)
    with existing_store(url) as store:
        _check_agent(loaded, views.row_of(store, run_id))
    with _open(url, loaded, lease) as hf:
        job = Job(hf, run_id, target, url, as_json, wait, override)
        job.carry(partial(job.go_on, accept_new_steps=accept_new_steps))


@click.command()
@file_argument
@run_argument
@lease_option
@wait_option
@decision_options
def rerun(target: str, run_id: str, lease: float, wait: bool, decider: Decider) -> None:
    """Run a run's code from its first line again, with its state kept.

    Recorded results are not used again: every call that the code makes is made anew, so a guard by
    state (`if not run.state.message_id`) is what keeps an effect from happening twice.
    """
    target, run_id = _in_order(target, run_id)
    loaded = load(target)
    with existing_store(decider.url) as store:
        row = views.row_of(store, run_id)
        _check_agent(loaded, row)
        if not decider.as_json or not decider.yes:
            _show_what_may_repeat(views.get(store, run_id))
    decider.confirm(f"run {text.visible(run_id)} from its first line again?")
    with _open(decider.url, loaded, lease) as hf:
        job = Job(hf, run_id, target, decider.url, decider.as_json, wait)
        job.carry(lambda: hf.rerun(run_id, wait=wait, by=decider.by, why=decider.why))


def _show_what_may_repeat(state: RunState) -> None:
    did = [f"step {call.step}, {text.visible(call.name)}" for call in state.calls
           if call.status == "done" and call.effect not in ("", "repeatable")]  # fmt: skip
    if did:
        click.echo(f"run {state.id} has done, and does again unless its state keeps it from it: "
                   + "; ".join(did), err=True)  # fmt: skip


def _in_order(first: str, second: str) -> tuple[str, str]:
    """FILE and ID, whichever was typed first."""
    return (second, first) if is_file(second) and not is_file(first) else (first, second)


def _check_agent(loaded: Loaded, row: Any) -> None:
    if row.agent not in loaded.agents:
        known = ", ".join(loaded.agents)
        raise NotFound(
            f"run {row.id!r} is of agent {row.agent!r}, which {loaded.file} does not have; it has {known}"
        )


# ── replay ───────────────────────────────────────────────────────────────────────────────────


@click.command()
@file_argument
@run_argument
@store_option
@json_option
def replay(target: str, run_id: str, url: str | None, as_json: bool) -> None:
    """Run the code against the log; no tool executes. Exit code 1 if the code has diverged."""
    target, run_id = _in_order(target, run_id)
    loaded = load(target)
    with existing_store(url) as store:
        _check_agent(loaded, views.row_of(store, run_id))
    with _open(url, loaded, 30.0) as hf, users_code(as_json):
        found = hf.replay(run_id)
    cause = found.diverged
    data = {
        "run": run_id, "steps": found.steps, "reached_end": found.reached_end,
        "diverged": None if cause is None else
        {"where": cause.where, "recorded": cause.recorded, "attempted": cause.attempted},
    }  # fmt: skip
    if cause is not None:
        say(as_json, data, f"{run_id}: the code diverges from the log at {cause.where}",
            f"  recorded:  {cause.recorded}", f"  attempted: {cause.attempted}")  # fmt: skip
        raise click.exceptions.Exit(1)
    end = "to its end" if found.reached_end else "to the end of what is recorded"
    say(
        as_json,
        data,
        f"{run_id}: the code agrees with the log, {text.count(found.steps, 'step')}, {end}; nothing was executed",
    )
