"""`holdfast show`: the state of a run, and how it got there. It changes nothing, and needs none of the agent's code."""

from __future__ import annotations

from functools import partial

import click

from holdfast import views
from holdfast.cli import describe, text
from holdfast.cli.call_table import CALLS_SHOWN, show_calls, worth_a_look
from holdfast.cli.common import (
    existing_store,
    json_option,
    run_argument,
    store_option,
)
from holdfast.cli.progress import counted
from holdfast.core.agent_state import AgentState, Phase
from holdfast.core.state import RunState
from holdfast.store.base import TERMINAL_STATUSES
from holdfast.views import shown_status
from holdfast.words.advice import advice


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
    shown = state.calls if every_call else worth_a_look(state.calls)
    show_calls(shown, len(state.calls) + state.left_out - len(shown))
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
