"""The verbs that execute one run: run, resume, rerun, replay. They load the agent's file."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import click

from holdfast import control, views
from holdfast.app import Holdfast
from holdfast.cli import acts, text
from holdfast.cli.common import (
    Decider,
    advice_as_commands,
    decision_options,
    existing_store,
    file_argument,
    is_server,
    json_option,
    known_runs,
    python_files,
    run_argument,
    say,
    store_option,
    users_code,
    who,
)
from holdfast.cli.describe import content, next_commands
from holdfast.cli.load import AgentFile, check_agent, is_file, load, parameters
from holdfast.cli.progress import Progress
from holdfast.cli.prompts import ask_on_the_spot
from holdfast.cli.verbs import INTERRUPTED, CommandError
from holdfast.core.effect import Effect
from holdfast.core.policy import NO_LIMITS, Budget, Limits
from holdfast.core.state import RunState
from holdfast.errors import Diverged, InvalidInput, RunBusy, RunCancelled, RunFailed, RunWaiting
from holdfast.runtime.declare.agent_spec import BoundAgent
from holdfast.runtime.declare.specs import agent_spec
from holdfast.runtime.exec.engine import Options
from holdfast.runtime.exec.resumable import CHECKS
from holdfast.store.base import Store
from holdfast.store.opening import open_store
from holdfast.waiting import WaitingFor
from holdfast.words.advice import advice, command

lease_option = click.option(
    "--lease",
    type=click.FloatRange(0.1, 86_400),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the run stays reserved after this process dies.",
)
deadline_option = click.option(
    "--deadline", type=float, metavar="SECONDS", help="Seconds from now after which the run fails."
)
budget_option = click.option(
    "--budget",
    "budget",
    multiple=True,
    metavar="LIMIT=NUMBER",
    callback=lambda _ctx, _param, given: _budget(given),
    help="A limit of the run's budget, such as max_steps=20 or max_cost_usd=0.5.",
)
wait_option = click.option(
    "--wait", is_flag=True, help="Block while the run is waiting for something."
)


def _budget(pairs: tuple[str, ...]) -> Budget | None:
    """The limits that were typed."""
    known = set(Budget.__struct_fields__)
    found: dict[str, Any] = {}
    for text_ in pairs:
        name, _, number = text_.partition("=")
        try:
            found[name] = int(number) if number.isdecimal() else float(number)
        except ValueError:
            raise click.BadParameter(
                f"{text_!r} is not LIMIT=NUMBER, such as max_steps=20"
            ) from None
        if name not in known:
            raise click.BadParameter(
                f"unknown limit {name!r}; use one of {', '.join(sorted(known))}"
            )
    return Budget(**found) if found else None


def _open(url: str | None, loaded: AgentFile, lease: float) -> Holdfast:
    store = open_store(url, retry=False)
    return Holdfast(store, agents=loaded.agents.values(), options=Options(lease_seconds=lease))


@contextmanager
def _terminate_like_ctrl_c() -> Iterator[None]:
    """A service manager's SIGTERM leaves the run as Ctrl-C does: released at once."""

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
        """Whether a person at a terminal can be asked right away."""
        return not self.as_json and not self.wait and sys.stdin.isatty() and sys.stderr.isatty()

    def carry(self, go: Callable[[], Any]) -> None:
        """Execute it; print its result, or what became of it."""
        try:
            with _terminate_like_ctrl_c(), advice_as_commands(self.url, self.file):
                self._to_the_end(go)
        except (KeyboardInterrupt, click.Abort):
            self._interrupted()
        except RunWaiting as waiting:
            self._waits(waiting)
        except RunFailed as failed:
            self._failed(failed)
        except Diverged as diverged:
            self._diverged(diverged)
        _print_result(self.hf.store, self.run_id, self.as_json)

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

    def go_on(self, *, accept_new_steps: bool = False, limits: Limits = NO_LIMITS) -> Any:
        return self.hf.resume(
            self.run_id,
            wait=self.wait,
            by=who(),
            override=self.override,
            accept_new_steps=accept_new_steps,
            deadline=limits.deadline,
            budget=limits.budget,
        )

    def _await_lease(self, busy: RunBusy) -> None:
        """A worker that died holds its runs until their lease ends: wait for that, once. One that
        lives renews its lease, and keeps the run."""
        store = self.hf.store
        first = store.get(busy.run_id)
        if first is None or not first.is_live(store.now()) or first.due_at is None:
            return
        left = text.span(first.due_at - store.now())
        click.echo(
            f"{text.visible(first.owner)} owns run {busy.run_id}; if it has died, its lease expires in {left} …",
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
        state = views.brief(store, self.run_id) if store.get(self.run_id) is not None else None
        how = next_commands(store, state, self.url, self.file) if state is not None else []
        if self.as_json:
            self._json(state.status if state is not None else "not created", how=how)
        elif state is None:
            click.echo("\ninterrupted before the run was created", err=True)
        else:
            doubts = [
                f"step {call.step}, {text.visible(call.name)}, may or may not have happened"
                for call in state.in_doubt
            ]
            click.echo(
                "\n".join(
                    [
                        f"\ninterrupted; {'; '.join(doubts) or 'nothing is lost'}. To continue:",
                        *(f"  {text.visible(line)}" for line in how),
                    ]
                ),
                err=True,
            )
        raise click.exceptions.Exit(INTERRUPTED)

    def _waits(self, waiting: RunWaiting) -> NoReturn:
        state = views.brief(self.hf.store, self.run_id)
        steps = views.next_steps(self.hf.store, state)
        how = [advice(step, self.url, self.file) for step in steps] or [waiting.how]
        if self.as_json:
            self._json(
                state.status, waiting_for=waiting.waiting_for, waiting=waiting.waits, how=how
            )
        else:
            what = text.visible(waiting.waiting_for)
            click.echo(f"run {self.run_id} is waiting for {what}", err=True)
            for line in how:
                click.echo(f"  {text.visible(line)}", err=True)
            if not any(step.verb == "resume" for step in steps):
                then = command(self.url, "resume", self.file, self.run_id)
                click.echo(f"  then: {then}", err=True)
        raise click.exceptions.Exit(1)

    def _failed(self, failed: RunFailed) -> NoReturn:
        state = views.brief(self.hf.store, self.run_id)
        was_cancelled = isinstance(failed, RunCancelled)  # its message includes it
        error = failed.message if was_cancelled else f"{failed.error_type}: {failed.message}"
        if self.as_json:
            self._json(
                state.status,
                error=error,
                how=next_commands(self.hf.store, state, self.url, self.file),
            )
            raise click.exceptions.Exit(1)
        step = state.failure.step if state.failure else 0
        where = f" at step {step}" if step else ""
        became = "" if was_cancelled else f"{text.status(state.status)}{where}: "
        lines = [
            f"run {self.run_id} {became}{text.indented(error)}",
            f"  see why:   {command(self.url, 'show', self.run_id)}",
        ]
        if state.status == "failed":
            how = next_commands(self.hf.store, state, self.url, self.file)
            lines += [f"  {word:10} {line}" for word, line in zip(_words(how), how, strict=True)]
        click.echo("\n".join(lines), err=True)
        raise click.exceptions.Exit(1)

    def _diverged(self, diverged: Diverged) -> NoReturn:
        """The code does not match the log: both sides, and the commands that continue the run."""
        state = views.brief(self.hf.store, self.run_id)
        how = next_commands(self.hf.store, state, self.url, self.file)
        lines = [
            f"{diverged.what} To continue:",
            *(f"  - {way}" for way in (*how, *diverged.edits)),
        ]
        raise CommandError("\n".join(lines), "Diverged", as_json=self.as_json) from diverged

    def _json(
        self,
        status: str,
        *,
        waiting_for: str = "",
        waiting: Sequence[WaitingFor] = (),
        error: str = "",
        how: list[str] | None = None,
    ) -> None:
        click.echo(
            _as_json(
                self.run_id, status, waiting_for=waiting_for, waiting=waiting, error=error, how=how
            )
        )


def _as_json(
    run_id: str,
    status: str,
    *,
    result: Any = None,
    waiting_for: str = "",
    waiting: Sequence[WaitingFor] = (),
    error: str = "",
    how: list[str] | None = None,
) -> str:
    """What became of a run, for programs."""
    return text.as_json(
        {
            "run": run_id,
            "status": status,
            "result": result,
            "waiting_for": waiting_for,
            "waiting": waiting,
            "error": error,
            "continue": how or [],
        }
    )


def _print_result(store: Store, run_id: str, as_json: bool) -> None:
    """The result of a run that is completed; the agent's code is not needed for that."""
    state = views.brief(store, run_id)
    result = content(store, run_id, state.result)
    if as_json:
        click.echo(_as_json(run_id, state.status, result=result))
        return
    click.echo(f"run {run_id} {text.status(state.status)}", err=True)
    click.echo(text.visible(result, lines=True) if isinstance(result, str) else text.pretty(result))


@click.command()
@file_argument
@click.option(
    "--param", "-p", "given", multiple=True, metavar="NAME=VALUE", help="A parameter of the agent."
)
@click.option(
    "--id", "run_id", metavar="ID", help="The same id resumes the same run; default: a new id."
)
@deadline_option
@budget_option
@lease_option
@wait_option
@store_option
@json_option
def run(
    target: str,
    given: tuple[str, ...],
    run_id: str | None,
    deadline: float | None,
    budget: Budget | None,
    lease: float,
    wait: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Run an agent from a file, or resume the run with this id.

    Parameters are converted to the types that the agent declares. After Ctrl-C the run can be resumed.
    """
    if is_server(url):
        raise InvalidInput(
            "`holdfast run` executes an agent here, which needs the URL of a database; on a server, start it by name: "
            "holdfast start NAME"
        )
    loaded = load(target)
    agent = loaded.chosen()
    spec = agent_spec(agent)
    values = parameters(spec.name, spec.params.schema, given)
    taken = sorted({"id", "wait"} & values.keys())
    if taken:
        raise InvalidInput(
            f"{spec.name} has a parameter {taken[0]!r}, which hf.run uses itself; rename it"
        )
    run_id = run_id if run_id is not None else control.new_run_id(spec.name)
    with _open(url, loaded, lease) as hf:
        job = Job(hf, run_id, target, url, as_json, wait)
        request: BoundAgent[Any] = BoundAgent(agent, input=values)
        job.carry(lambda: hf.run(request, id=run_id, wait=wait, deadline=deadline, budget=budget))


@click.command()
@click.argument("target", metavar="[FILE[:AGENT]]", shell_complete=python_files)
@click.argument("run_id", metavar="ID", shell_complete=known_runs, required=False)
@lease_option
@wait_option
@click.option(
    "--override",
    multiple=True,
    type=click.Choice(CHECKS),
    help="Resume even if this check fails: the run is too old, or of another version of its agent.",
)
@click.option(
    "--accept-new-steps",
    is_flag=True,
    help="Execute calls that the code has added between recorded ones; a renamed call counts as added.",
)
@deadline_option
@budget_option
@store_option
@json_option
def resume(
    target: str,
    run_id: str | None,
    lease: float,
    wait: bool,
    override: tuple[str, ...],
    accept_new_steps: bool,
    deadline: float | None,
    budget: Budget | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Continue a run that is waiting, was interrupted or failed. A failed one continues from its failed step.

    The result of a completed run is printed, and FILE is not needed for that.
    """
    if run_id is None and is_file(target):
        raise click.UsageError("Missing argument 'ID'.")
    target, run_id = ("", target) if run_id is None else _in_order(target, run_id)
    with existing_store(url) as store:
        row = views.row_of(store, run_id)
        if row.status == "completed" and not accept_new_steps:
            _print_result(store, run_id, as_json)
            return
        if is_server(url):
            acts.resume(
                store, run_id, accept_new_steps=accept_new_steps, limits=Limits(deadline, budget)
            )
            say(
                as_json,
                {"run": run_id, "did": "resumed"},
                f"{run_id}: resumed; a worker will execute it",
            )
            return
        if not target:
            how = command(url, "resume", "FILE", run_id)
            raise click.UsageError(
                f"run {run_id} is {row.status}, so its agent's code is needed: {how}"
            )
    loaded = load(target)
    check_agent(loaded, row)
    with _open(url, loaded, lease) as hf:
        job = Job(hf, run_id, target, url, as_json, wait, override)
        limits = Limits(deadline, budget)
        job.carry(partial(job.go_on, accept_new_steps=accept_new_steps, limits=limits))


@click.command()
@file_argument
@run_argument
@lease_option
@wait_option
@decision_options
def rerun(target: str, run_id: str, lease: float, wait: bool, decider: Decider) -> None:
    """Run a run's code from its first line again, with its state kept.

    Recorded results are not used again: every call is executed again, so only a guard by
    state (`if not run.state.message_id`) prevents an effect from happening twice.
    """
    target, run_id = _in_order(target, run_id)
    loaded = load(target)
    with existing_store(decider.url) as store:
        row = views.row_of(store, run_id)
        check_agent(loaded, row)
        if not decider.as_json or not decider.yes:
            _show_what_may_repeat(views.get(store, run_id))
    decider.confirm(f"run {text.visible(run_id)} from its first line again?")
    with _open(decider.url, loaded, lease) as hf:
        job = Job(hf, run_id, target, decider.url, decider.as_json, wait)
        job.carry(lambda: hf.rerun(run_id, wait=wait, by=decider.by, why=decider.why))


def _words(how: list[str]) -> list[str]:
    return ["try again:", *(["then:"] * (len(how) - 1))]


def _show_what_may_repeat(state: RunState) -> None:
    did = [
        f"step {call.step}, {text.visible(call.name)}"
        for call in state.calls
        if call.status == "done" and call.effect not in ("", Effect.REPEATABLE)
    ]
    if did:
        click.echo(
            f"run {state.id} has made these calls, and will make them again unless its state prevents it: "
            + "; ".join(did),
            err=True,
        )


def _in_order(first: str, second: str) -> tuple[str, str]:
    """FILE and ID, whichever was typed first."""
    return (second, first) if is_file(second) and not is_file(first) else (first, second)


# ── replay ───────────────────────────────────────────────────────────────────────────────────


@click.command()
@file_argument
@run_argument
@store_option
@json_option
def replay(target: str, run_id: str, url: str | None, as_json: bool) -> None:
    """Replay the log against the code; nothing is executed. Exit code 1 if the code has diverged."""
    target, run_id = _in_order(target, run_id)
    loaded = load(target)
    with existing_store(url) as store:
        check_agent(loaded, views.row_of(store, run_id))
    with _open(url, loaded, 30.0) as hf, users_code(as_json):
        found = hf.replay(run_id)
    cause = found.diverged
    data = {
        "run": run_id,
        "steps": found.steps,
        "reached_end": found.reached_end,
        "diverged": None
        if cause is None
        else {"where": cause.where, "recorded": cause.recorded, "attempted": cause.attempted},
    }
    if cause is not None:
        say(
            as_json,
            data,
            f"{run_id}: the code diverges from the log at {cause.where}",
            f"  recorded:  {cause.recorded}",
            f"  attempted: {cause.attempted}",
        )
        raise click.exceptions.Exit(1)
    end = "to its end" if found.reached_end else "to the end of what is recorded"
    say(
        as_json,
        data,
        f"{run_id}: the code agrees with the log {end} ({text.count(found.steps, 'step')}); nothing was executed",
    )
