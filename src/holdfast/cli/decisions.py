"""The verbs that decide: approve, reject, answer, signal, patch, resolve, pause, cancel, undo, fork.

Each shows exactly what it is about before it asks, and binds the decision to what was shown: if the
run has moved on meanwhile, the decision is refused.
"""

from __future__ import annotations

import sys
import uuid
from typing import Any

import click

from holdfast import views
from holdfast.cli import acts, describe, text
from holdfast.cli.common import (
    Decider,
    decision_options,
    existing_store,
    json_or_text,
    pair,
    python_files,
    run_argument,
    say,
)
from holdfast.cli.prompts import option_or_value, show_request
from holdfast.control.requests import check_answer, check_edit
from holdfast.core import values
from holdfast.core.state import Call, Waiting
from holdfast.errors import InvalidInput, NotStorable
from holdfast.store.base import TERMINAL_STATUSES, Store
from holdfast.store.process import is_held
from holdfast.words.advice import command
from holdfast.words.outcomes import evidence

request_option = click.option(
    "--request", default="", metavar="REQUEST", help="Which request, if several are open."
)


def _open_request(
    store: Store, run_id: str, kind: str, request: str, url: str | None, *words: str
) -> Waiting | None:
    """The request that a decision would be about; None leaves it to `control` to say why not."""
    waits = [w for w in views.pending(store, run_id).waits if w.wait == kind and not w.decided]
    named = [w for w in waits if request in ("", w.id)]
    if len(named) <= 1:
        return named[0] if named else None
    lines = [f"run {run_id!r} is waiting for {len(named)} {kind}s; name one:"]
    for wait in named:
        what = text.compact(describe.content(store, run_id, wait.show)) if wait.tool else wait.name
        lines.append(f"  {command(url, *words, '--request', wait.id)}  # {what}")
    raise InvalidInput("\n".join(lines))


def _report(store: Store, run_id: str, did: str, decider: Decider) -> None:
    """What was done, and how the run continues."""
    status = views.shown_status(views.row_of(store, run_id), store.now())
    data = {"run": run_id, "did": did, "status": status}
    lines = [f"{run_id}: {did}"]
    if status in ("waiting", "pending", "interrupted"):
        lines.append(
            f"  a worker will resume it; to resume it here: {command(decider.url, 'resume', 'FILE', run_id)}"
        )
    say(decider.as_json, data, *lines)


# ── people in the loop ───────────────────────────────────────────────────────────────────────


@click.command()
@run_argument
@request_option
@click.option(
    "--set",
    "edits",
    multiple=True,
    metavar="NAME=VALUE",
    help="Call the tool with this argument instead of the one shown.",
)
@decision_options
def approve(run_id: str, request: str, edits: tuple[str, ...], decider: Decider) -> None:
    """Approve a request of a run."""
    _decide(run_id, request, True, edits, decider)


@click.command()
@run_argument
@request_option
@decision_options
def reject(run_id: str, request: str, decider: Decider) -> None:
    """Reject a request of a run."""
    _decide(run_id, request, False, (), decider)


def _decide(
    run_id: str, request: str, approved: bool, edits: tuple[str, ...], decider: Decider
) -> None:
    word = "approve" if approved else "reject"
    did = "approved" if approved else "rejected"
    with existing_store(decider.url) as store:
        wait = _open_request(store, run_id, "approval", request, decider.url, word, run_id)
        args: dict[str, Any] | None = dict(map(pair, edits)) or None
        if wait is not None:
            show_request(store, run_id, wait)
            if args is not None:
                args = _edited(store, run_id, wait, args)
            decider.confirm(f"{word} this?")
            request = wait.id
        given = {"by": decider.by, "why": decider.why, "digest": wait.digest if wait else ""}
        if approved:
            acts.approve(store, run_id, request, args=args, **given)
        else:
            acts.reject(store, run_id, request, **given)
        _report(store, run_id, did + (" with edited arguments" if args else ""), decider)


def _edited(store: Store, run_id: str, wait: Waiting, edits: dict[str, str]) -> dict[str, Any]:
    """The arguments that were shown, with these edits; what changes is shown too."""
    shown = describe.content(store, run_id, wait.show)
    if not wait.tool or not isinstance(shown, dict):
        raise InvalidInput(
            "--set edits the arguments of a tool call; this request is not about a tool call"
        )
    args = dict(shown)
    for name, edit in edits.items():
        if name not in shown:
            raise InvalidInput(
                f"{wait.tool} has no argument {name!r}; its arguments are {', '.join(shown)}"
            )
        # A text stays a text, whatever it looks like.
        args[name] = edit if isinstance(shown[name], str) else json_or_text(edit)
    check_edit(wait.tool, shown, args)
    for name in edits:
        before, after = text.compact(shown[name]), text.compact(args[name])
        click.echo(f"  {text.visible(name)}: {before} becomes {after}", err=True)
    return args


@click.command()
@run_argument
@click.argument("value")
@click.option("--text", "as_text", is_flag=True, help="VALUE is text, even if it is valid JSON.")
@request_option
@decision_options
def answer(run_id: str, value: str, as_text: bool, request: str, decider: Decider) -> None:
    """Answer a question of a run. VALUE is parsed as JSON if possible; otherwise it is text."""
    with existing_store(decider.url) as store:
        wait = _open_request(store, run_id, "answer", request, decider.url, "answer", run_id, value)
        said = value if as_text else option_or_value(value, wait)
        if wait is not None:
            check_answer(wait, said)
            show_request(store, run_id, wait)
            decider.confirm(f"answer {text.compact(said)}?")
            request = wait.id
        acts.answer(store, run_id, said, request, by=decider.by, why=decider.why)
        _report(store, run_id, f"answered {text.compact(said)}", decider)


@click.command()
@run_argument
@click.argument("name")
@click.argument("value", required=False)
@click.option("--text", "as_text", is_flag=True, help="VALUE is text, even if it is valid JSON.")
@click.option("--signal-id", default="", help="A signal with the same id counts once.")
@decision_options
def signal(
    run_id: str, name: str, value: str | None, as_text: bool, signal_id: str, decider: Decider
) -> None:
    """Send a signal to a run. It is kept until the run is waiting for it."""
    content = value if value is None or as_text else json_or_text(value)
    with existing_store(decider.url) as store:
        acts.signal(
            store, run_id, name, content, signal_id=signal_id, by=decider.by, why=decider.why
        )
        _report(store, run_id, f"signal {name} sent", decider)


# ── doubt ────────────────────────────────────────────────────────────────────────────────────


@click.command()
@run_argument
@click.argument("call", required=False, metavar="[STEP]")
@click.option("--done", metavar="RESULT", help="It happened, with this result (JSON or text).")
@click.option("--failed", metavar="WHY", help="It did not happen.")
@click.option("--retry", is_flag=True, help="Try it again.")
@decision_options
def resolve(
    run_id: str,
    call: str | None,
    done: str | None,
    failed: str | None,
    retry: bool,
    decider: Decider,
) -> None:
    """Resolve a call in doubt: it may or may not have happened."""
    if (done is not None) + (failed is not None) + retry != 1:
        raise click.UsageError("use exactly one of --done RESULT, --failed WHY and --retry")
    which: int | str | None = int(call) if call is not None and call.isdecimal() else call
    how: dict[str, Any] = {"failed": failed, "retry": retry}
    if done is not None:
        how["done"] = json_or_text(done)
    with existing_store(decider.url) as store:
        target = _doubtful(store, run_id, which)
        if target is not None:
            _show_call(store, run_id, target)
            decider.confirm(_question(done, failed))
            which = target.step
        acts.resolve(store, run_id, which, by=decider.by, why=decider.why, **how)
        _report(store, run_id, f"step {which} resolved", decider)


def _question(done: str | None, failed: str | None) -> str:
    if done is not None:
        return "record it as done?"
    return "record it as not done?" if failed is not None else "let it be called again?"


def _doubtful(store: Store, run_id: str, which: int | str | None) -> Call | None:
    """The call that a decision would be about; None leaves it to `control` to say why not."""
    state = views.pending(store, run_id)
    found = [c for c in state.in_doubt if which in (None, c.step, c.name, c.id)]
    return found[0] if len(found) == 1 else None


def _show_call(store: Store, run_id: str, call: Call) -> None:
    lines = [
        f"run {run_id}, step {call.step}: {text.visible(call.name)} may or may not have happened",
        f"  began {text.clock(call.started_at)}, attempt {len(call.attempts)}, key {text.visible(call.key)}",
        *(
            f"    {line}"
            for line in text.pretty(describe.content(store, run_id, call.args)).splitlines()
        ),
        *(f"  evidence: {text.visible(evidence(found))}" for found in call.evidence),
    ]
    for line in lines:
        click.echo(line, err=True)


# ── the run's course ─────────────────────────────────────────────────────────────────────────


def _summary(store: Store, run_id: str) -> str:
    state = views.brief(store, run_id)
    return f"{run_id} of {text.visible(state.agent)} ({state.status}, {text.visible(str(views.position(state)))})"


@click.command()
@run_argument
@decision_options
def pause(run_id: str, decider: Decider) -> None:
    """Pause a run at its next call, until it is resumed."""
    with existing_store(decider.url) as store:
        acts.pause(store, run_id, by=decider.by, why=decider.why)
        live = is_held(views.row_of(store, run_id), store.now())
        _report(store, run_id, "will pause at its next call" if live else "paused", decider)
        if not decider.as_json:
            click.echo(f"  to continue: {command(decider.url, 'resume', 'FILE', run_id)}")


@click.command()
@run_argument
@click.option(
    "--state", "changes", multiple=True, metavar="KEY=VALUE", help="A new value in the run's state."
)
@click.option("--delete", multiple=True, metavar="KEY", help="Remove a key from the run's state.")
@click.option(
    "--json-patch",
    "operations",
    metavar="JSON",
    help="RFC 6902 operations on the output of `holdfast show --json` (for a loop, under `loop`); - reads "
    "them from stdin.",
)
@click.option(
    "--expected",
    type=click.IntRange(0),
    metavar="SEQ",
    help="Refuse if the run has changed since this event: `seq` in `holdfast show --json`.",
)
@click.option("--key", default="", help="Record the patch once, however often it is sent.")
@decision_options
def patch(
    run_id: str,
    changes: tuple[str, ...],
    delete: tuple[str, ...],
    operations: str | None,
    expected: int | None,
    key: str,
    decider: Decider,
) -> None:
    """Change a run's state. The agent sees it when its next call returns, a loop when its iteration ends."""
    if bool(changes or delete) == (operations is not None):
        raise click.UsageError("use --state KEY=VALUE and --delete KEY, or --json-patch")
    new: Any = {key: json_or_text(value) for key, value in map(pair, changes)}
    if operations is not None:
        given = sys.stdin.read() if operations == "-" else operations
        try:
            new = values.decode(given.encode())
        except NotStorable as error:
            raise click.BadParameter(str(error), param_hint="--json-patch") from None
    with existing_store(decider.url) as store:
        shown = text.compact(new, 200) if new else "nothing new"
        gone = f", and {', '.join(map(text.visible, delete))} removed" if delete else ""
        decider.confirm(lambda: f"patch {_summary(store, run_id)} with {shown}{gone}?")
        is_new = acts.patch(
            store,
            run_id,
            new,
            delete=delete,
            expected=expected,
            key=key,
            by=decider.by,
            why=decider.why,
        )
        _report(store, run_id, "patched" if is_new else "already patched with this key", decider)


@click.command()
@run_argument
@decision_options
def cancel(run_id: str, decider: Decider) -> None:
    """Cancel a run at its next call. A call in progress is not interrupted."""
    with existing_store(decider.url) as store:
        if views.row_of(store, run_id).status not in TERMINAL_STATUSES:
            # Else it is refused, with the reason.
            decider.confirm(lambda: f"cancel {_summary(store, run_id)}?")
        acts.cancel(store, run_id, by=decider.by, why=decider.why)
        _report(store, run_id, "will be cancelled at its next call", decider)


@click.command()
@run_argument
@decision_options
def undo(run_id: str, decider: Decider) -> None:
    """Undo what a run did, newest first. A worker with the agent's code executes it."""
    with existing_store(decider.url) as store:
        calls = views.get(store, run_id).to_undo
        for call in calls:
            shown = text.compact(describe.content(store, run_id, call.args), 200)
            first = "" if call.status == "done" else ", after its doubt is resolved"
            click.echo(
                f"  would undo step {call.step}, {text.visible(call.name)} {shown}{first}", err=True
            )
        if calls:  # else it is refused, with the reason
            decider.confirm(f"undo {text.count(len(calls), 'call')} of {_summary(store, run_id)}?")
        acts.undo(store, run_id, by=decider.by, why=decider.why)
        _report(store, run_id, f"{text.count(len(calls), 'call')} will be undone", decider)


@click.command()
@run_argument
@click.argument("step", type=int)
@click.option("--id", "new_id", metavar="ID", help="The new run's id; default: a generated one.")
@click.option(
    "--state",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change the state it starts with.",
)
@click.option(
    "--dry",
    "file",
    metavar="FILE[:AGENT]",
    shell_complete=python_files,
    help="Execute STEP again in isolation, with mocks; no run is created and no tool is executed.",
)
@click.option(
    "--mock",
    "mocks",
    multiple=True,
    metavar="NAME=RESULT",
    help="With --dry: what a tool or model returns (JSON, or text); MOCKS in FILE are used too.",
)
@decision_options
def fork(
    run_id: str,
    step: int,
    new_id: str | None,
    changes: tuple[str, ...],
    file: str | None,
    mocks: tuple[str, ...],
    decider: Decider,
) -> None:
    """Create a new run that starts with this run's log up to the end of STEP and continues independently.

    With --dry, STEP itself is executed again instead, on a copy in memory.
    """
    state = {key: json_or_text(value) for key, value in map(pair, changes)}
    if file is not None:
        if new_id is not None:
            raise click.UsageError("--id cannot be used with --dry, which creates no run")
        from holdfast.cli.dry_fork import dry_fork

        answers = {key: json_or_text(value) for key, value in map(pair, mocks)}
        dry_fork(file, run_id, step, state, answers, decider.url, as_json=decider.as_json)
        return
    if mocks:
        raise click.UsageError("--mock needs --dry FILE")
    with existing_store(decider.url) as store:
        made = new_id or f"{run_id}~fork-{uuid.uuid4().hex[:8]}"
        acts.fork(store, run_id, step, made, state, by=decider.by, why=decider.why)
        inherited = views.brief(store, made).inherited_effects
    data = {"run": made, "forked_from": run_id, "step": step, "inherited_effects": inherited}
    lines = [f"{made}: forked from {run_id} after step {step}"]
    if inherited:
        lines.append(f"  it inherits these effects: {'; '.join(inherited)}")
    go_on = command(decider.url, "resume", "FILE", made)
    say(decider.as_json, data, *lines, f"  to continue: {go_on}")
