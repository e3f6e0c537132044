"""The verbs that look: list, show, trace, events, diff, verify. They change nothing, and need none
of the agent's code.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
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
from holdfast.core.agent_state import AgentState, Phase
from holdfast.core.state import Call, RunState
from holdfast.store.base import TERMINAL_STATUSES, RunRow, Store
from holdfast.views import shown_status
from holdfast.words.advice import advice, command
from holdfast.words.outcomes import evidence, resolution

EVENTS_SHOWN = 1000
"""So many events are printed in one table."""
CALLS_SHOWN = 100
"""Of a long run so many calls are shown, the last ones, and earlier ones that did not simply succeed."""


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


# ── show ─────────────────────────────────────────────────────────────────────────────────────


@click.command()
@run_argument
@click.option("--step", type=int, help="The state at this step instead of the current one.")
@click.option("--before", is_flag=True, help="With --step: before the step; default: after it.")
@click.option("--short", is_flag=True, help="Only its position, and how to continue.")
@click.option(
    "--all",
    "every_call",
    is_flag=True,
    help=f"Every call. Default: the last {CALLS_SHOWN}, and earlier ones that did not simply succeed.",
)
@store_option
@json_option
def show(
    run_id: str,
    step: int | None,
    before: bool,
    short: bool,
    every_call: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Show the state of a run and how it got there."""
    with existing_store(url) as store:
        row = views.row_of(store, run_id)
        if step is None and every_call:
            state = views.get(store, run_id)
        elif step is None:
            state = views.brief(store, run_id, through=partial(counted, what="reading event"))
        else:
            state = views.at(store, run_id, step, "before" if before else "after")
        ways = views.next_steps(store, state) if step is None else []
        steps = [advice(one, url) for one in ways]
        waits = describe.waits_for(state, row, store.now()) if step is None else ""
        now = store.now()
    place = views.position(state)
    if as_json:
        data = views.to_plain(state)
        data["position"] = {
            "step": place.step,
            "of": place.of,
            "name": place.name,
            "committed": place.committed,
        }
        data["owner"] = row.owner
        data["continue"] = steps
        data["next_steps"] = ways
        click.echo(text.as_json(data))
        return
    if step is not None:
        when = f"{'before' if before else 'after'} step {step}"
        click.echo(
            f"state {when}, at {text.clock(state.updated_at)}; "
            f"it is {text.status(shown_status(row, now))} now"
        )
        now = state.updated_at
    _head(state, place, waits, steps, now)
    if short:
        return
    shown = state.calls if every_call else _worth_a_look(state.calls)
    _calls(shown, len(state.calls) + state.left_out - len(shown))
    _knowledge(state)
    _failure(state)
    _ending(state)


def _head(state: RunState, place: views.Position, waits: str, steps: list[str], now: int) -> None:
    took = text.span(
        (state.updated_at if state.status in TERMINAL_STATUSES else now) - state.created_at
    )
    lines = [
        ("run", f"{state.id}  {text.status(state.status)}"),
        (
            "agent",
            text.visible(state.agent)
            + (f" (version {text.visible(state.code_version)})" if state.code_version else ""),
        ),
        ("position", text.visible(str(place))),
        ("loop", _loop(state)),
        ("stage", _stages(state)),
        (
            "started",
            f"{text.clock(state.created_at)}, {took} ago"
            if state.status not in TERMINAL_STATUSES
            else f"{text.clock(state.created_at)}, ended after {took}",
        ),
        (
            "claimed",
            f"{len(state.workers)}×, last by {text.visible(state.workers[-1])}"
            if state.workers
            else "",
        ),
        ("parent", text.visible(state.parent)),
        ("forked", f"from {text.visible(state.forked_from)}" if state.forked_from else ""),
        ("inherits", "; ".join(map(text.visible, state.inherited_effects))),
        ("owner" if state.status == "running" else "waiting for", waits),
        ("recorded", text.visible(state.diverged.recorded) if state.diverged else ""),
        ("attempted", text.visible(state.diverged.attempted) if state.diverged else ""),
        ("input", text.compact(state.input, 200)),
    ]
    for name, said in lines:
        if said:
            click.echo(f"{click.style(f'{name:<11}', dim=True)}  {said}")
    for number, line in enumerate(steps):
        label = "continue" if not number else ""
        click.echo(
            f"{click.style(f'{label:<11}', dim=True)}  {click.style(text.visible(line), bold=True)}"
        )


def _loop(state: RunState) -> str:
    """How far a loop is, by the end of its last committed iteration."""
    own = state.agent_state
    if own is None:
        return ""
    said = own.error if own.phase is Phase.ERROR else own.goal
    return f"{own.phase}, iteration {own.iteration}: {text.compact(said, 120)}"


def _stages(state: RunState) -> str:
    if not state.stages:
        return ""
    return " → ".join(
        click.style(f"[{text.visible(s)}]", fg="cyan") if s == state.stage else text.visible(s)
        for s in state.stages
    )


def _worth_a_look(calls: Sequence[Call]) -> Sequence[Call]:
    """The last ones, and of those before them what is not simply done."""
    earlier = calls[:-CALLS_SHOWN]
    return [*(c for c in earlier if c.status != "done" or _story(c)), *calls[-CALLS_SHOWN:]]


def _calls(calls: Sequence[Call], left_out: int) -> None:
    if not calls:
        return
    text.heading("calls")
    if left_out:
        click.echo(f"  {text.count(left_out, 'earlier call')} not shown; --all shows every call")
    text.table(
        ("step", "call", "status", "tries", "took", "arguments", "result"),
        [
            (
                str(c.step),
                text.visible(c.name),
                _standing(c),
                str(len(c.attempts)),
                text.span(c.duration_us) if c.ended_at else "–",
                _arguments(c),
                _outcome(c),
            )
            for c in calls
        ],
        indent=2,
    )
    for call in calls:
        for line in _story(call):
            click.echo(f"  step {call.step}: {line}")


def _standing(call: Call) -> str:
    return "undone" if call.undone else call.status.replace("_", " ")


def _arguments(call: Call) -> str:
    args = views.to_plain(call.args)
    return text.one_line(args, 60) if isinstance(args, dict) else "–"


def _outcome(call: Call) -> str:
    if call.error is not None and call.status == "failed":
        return text.cut(text.visible(f"{call.error.type}: {call.error.message}"), 60)
    return text.compact(call.result, 60) if call.result is not None else "–"


def _story(call: Call) -> list[str]:
    """What does not fit in the table: failed attempts, doubt, and how it was resolved."""
    lines = []
    for attempt in call.attempts:
        if attempt.error is None and attempt.ended_at is None and attempt is not call.attempts[-1]:
            lines.append(
                f"attempt {attempt.number} started and left no receipt: its process died or lost the run"
            )
        if attempt.error is not None:
            said = text.visible(f"{attempt.error.type}: {attempt.error.message}")
            again = ""
            if attempt.retry_at is not None and attempt.ended_at is not None:
                again = f"; next attempt after {text.span(attempt.retry_at - attempt.ended_at)}"
            lines.append(f"attempt {attempt.number} failed: {text.cut(said, 120)}{again}")
    if call.status == "in_doubt":
        lines.append(
            click.style(
                f"in doubt: it may or may not have happened. {describe.doubt_of(call)} (key {text.visible(call.key)})",
                fg="magenta",
            )
        )
    lines += [f"evidence: {text.visible(evidence(found))}" for found in call.evidence]
    if call.resolution is not None:
        lines.append(f"doubt resolved: {text.visible(resolution(call.resolution))}")
    return lines


def _knowledge(state: RunState) -> None:
    """What the agent knows and decided, and what people said; of a loop, also what its own state holds."""
    own = state.agent_state or AgentState()
    memory = own.memory
    _section(
        "plan",
        [
            f"{'✓' if p.status == 'done' else '▸' if p.status == 'doing' else '·'} {text.visible(p.name)}"
            for p in (*state.plan, *memory.plan)
        ],
    )
    _section(
        "decisions",
        [
            f"{text.visible(d.name)}: {text.compact(d.choice)}"
            + (f", because {text.visible(d.why)}" if d.why else "")
            for d in state.decisions
        ],
    )
    _section("state", [f"{text.visible(k)} = {text.compact(v)}" for k, v in state.state.items()])
    _section(
        "facts",
        [
            f"{text.visible(f.key)} = {text.compact(f.value)}"
            + (f"  (from {text.visible(f.source)})" if f.source else "")
            for f in (*state.facts, *memory.facts)
        ],
    )
    _section("open questions", [text.visible(q) for q in (*state.questions, *memory.questions)])
    _section("flags", [text.visible(flag) for flag in dict.fromkeys((*state.flags, *memory.flags))])
    notes = (*state.notes.items(), *memory.notes.items())
    _section("notes", [f"{text.visible(k)} = {text.compact(v)}" for k, v in notes])
    _section(
        "artifacts",
        [
            f"{text.visible(a.name)}  {text.visible(a.type)}, {a.bytes:,} bytes  {text.visible(a.summary)}".rstrip()
            for a in (*state.artifacts, *memory.artifacts)
        ],
    )
    _section("items", [f"{text.visible(name)}: {count:,}" for name, count in state.items.items()])
    _section(
        "last shown to a model", [] if state.context is None else [text.compact(state.context)]
    )
    _section(
        "messages", [f"{text.visible(m.role)}: {text.compact(m.content)}" for m in state.messages]
    )
    _section(
        "log",
        [
            f"{text.clock(line.time)}  {text.visible(line.level)}: {text.visible(line.text)}"
            for line in state.lines
        ],
    )


def _section(title: str, lines: list[str]) -> None:
    if lines:
        text.heading(title)
        for line in lines:
            click.echo(f"  {line}")


def _failure(state: RunState) -> None:
    failure = state.failure
    if failure is None:
        return
    text.heading("failure")
    where = (
        f" at step {failure.step}" + (f", {text.visible(failure.tool)}" if failure.tool else "")
        if failure.step
        else ""
    )
    click.echo(f"  {text.clock(failure.time)}  {failure.reason}{where}")
    click.secho(f"  {text.visible(f'{failure.error.type}: {failure.error.message}')}", fg="red")
    if failure.input is not None:
        click.echo(f"  input  {text.compact(failure.input, 300)}")
    click.echo(f"  state  {text.compact(failure.state, 300)}")
    if failure.error.traceback:
        for line in text.visible(failure.error.traceback.rstrip(), lines=True).splitlines():
            click.secho(f"  {line}", dim=True)


def _ending(state: RunState) -> None:
    used = state.usage
    if used.input_tokens or used.output_tokens or used.cost_usd:
        text.heading("used")
        click.echo(
            f"  {used.input_tokens:,} tokens in, {used.output_tokens:,} out, ${used.cost_usd:.4f}"
        )
    if state.result is not None:
        text.heading("result")
        click.echo(f"  {text.compact(state.result, 500)}")


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
