"""A run in words: its position, what it is waiting for, and the commands with which it continues.

Only words; printing is up to the verbs. Nothing here needs the agent's code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast import views
from holdfast.cli.common import command
from holdfast.cli.text import span, visible
from holdfast.core import values
from holdfast.core.advice import ambiguous
from holdfast.core.events import Divergence, Value
from holdfast.core.log import root_of
from holdfast.core.policy import budget_use
from holdfast.core.state import Call, RunState, Waiting
from holdfast.store.artifacts import read_value
from holdfast.store.base import MICROSECONDS, RunRow, Store

OVERDUE_US = 60 * MICROSECONDS
"""When a run has been due for longer, it is said that no worker takes it."""

# ── values, also the big ones ────────────────────────────────────────────────────────────────


def content(store: Store, run_id: str, value: Value | None) -> Any:
    """What a Value holds, fetched if it is kept next to the log."""
    return None if value is None else values.decode(read_value(store, run_id, value))


# ── waiting ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Asked:
    """One request to people, and the run that asks (a child's is its parent's concern too)."""

    run_id: str
    wait: Waiting


def requests(store: Store, state: RunState) -> Iterator[Asked]:
    """What a run and its children wait for."""
    for member in _family(store, state):
        yield from (Asked(member.id, wait) for wait in member.waits if not wait.decided)


def _family(store: Store, state: RunState) -> Iterator[RunState]:
    """A run, and the child runs below it that have not ended."""
    yield state
    for call in state.calls:
        if call.child and call.status not in ("done", "failed") and store.get(call.child):
            yield from _family(store, views.get(store, call.child))


def next_steps(store: Store, state: RunState, url: str | None, file: str = "FILE") -> list[str]:
    """The commands with which a run continues."""
    go_on = resume_command(state, url, file)
    match state.status:
        case "completed" | "cancelled" | "running":
            return []
        case "failed" | "paused" | "quarantined" | "interrupted" | "pending":
            return [*_doubts(state, url), go_on]
    found: list[str] = []
    for member in _family(store, state):
        if member.diverged is not None and member.status == "waiting":
            found += _after_divergence(member, member.diverged, url, file)
            continue
        found += decisions(member, url)
        found += _doubts(member, url)
        if member.status in ("paused", "quarantined"):
            found.append(command(url, "resume", file, member.id))
    worker = command(url, "worker", file)
    return found or [f"{go_on}   (or let a worker resume it when it is due: {worker})"]


def resume_command(state: RunState, url: str | None, file: str) -> str:
    """How a run is resumed. One that failed by a limit needs a higher one, which is that of the whole tree."""
    limits = higher_limits(state)
    run_id = root_of(state.id, state.parent) if limits else state.id
    return command(url, "resume", file, run_id, *limits)


def higher_limits(state: RunState) -> list[str]:
    """What a run that failed by a limit must be resumed with."""
    reason = state.failure.reason if state.status == "failed" and state.failure else ""
    if reason == "deadline":
        return ["--deadline", "60"]
    if reason == "budget":
        used = budget_use(
            state.budget,
            steps=state.steps + state.child_steps,
            elapsed_us=state.updated_at - state.created_at,
            usage=state.usage,
        )
        over = [name for name in used.limits if not used.left[name]] or list(used.limits)
        return [x for name in over for x in ("--budget", f"{name}={2 * used.limits[name] or 1:g}")]
    return []


def decisions(state: RunState, url: str | None) -> list[str]:
    """The commands that decide what this run asks for; a request is named where several are open."""
    asked = [wait for wait in state.waits if not wait.decided]
    named = ambiguous(asked)
    found: list[str] = []
    for wait in asked:
        which = ["--request", wait.id] if wait.wait in named else []
        found += (command(url, *words, *which) for words in _verbs(state.id, wait))
    return found


def _verbs(run_id: str, wait: Waiting) -> list[tuple[str, ...]]:
    match wait.wait:
        case "approval":
            return [("approve", run_id), ("reject", run_id)]
        case "answer":
            return [("answer", run_id, wait.options[0] if wait.options else "…")]
        case "signal":
            return [("signal", run_id, name, "…") for name in (wait.of or (wait.name,))]
    return []


def _after_divergence(
    state: RunState, diverged: Divergence, url: str | None, file: str
) -> list[str]:
    """Ways to continue a run whose code does not match its log."""
    found = [f"{command(url, 'resume', file, state.id)}   (after you have put the old code back)"]
    if diverged.adds:
        accept = command(url, "resume", file, state.id, "--accept-new-steps")
        found.append(f"{accept}   (makes the calls that the code has added)")
    rerun = command(url, "rerun", file, state.id)
    return [*found, f"{rerun}   (starts over, with its state kept)"]


def _doubts(state: RunState, url: str | None) -> list[str]:
    # A call that is safe to repeat resolves itself on resume; these are for people.
    open_ones = [c for c in state.in_doubt if c.effect == "once" or state.status == "waiting"]
    lost = [
        command(url, "resolve", state.id, c.step, "--done", "…")
        for c in state.calls
        if c.unavailable
    ]
    return lost + [
        command(url, "resolve", state.id, call.step, "--done", "…")
        + "   (or --failed … or --retry)"
        for call in open_ones
    ]


def waits_for(state: RunState, row: RunRow, now: int) -> str:
    """What the run is waiting for, in words; empty if it does not wait."""
    if state.status == "interrupted":
        return f"a worker (lease of {visible(row.owner)} expired){_overdue(row, now)}"
    if state.status == "running":
        left = "" if row.due_at is None else f", lease for another {span(row.due_at - now)}"
        return f"{visible(row.owner)}{left}"
    if state.status == "pending":
        return a_worker(row, now)
    if state.status == "waiting" and state.waits and all(wait.decided for wait in state.waits):
        return f"a worker (its requests are decided){_overdue(row, now)}"
    said = state.waiting_for or row.waiting_for
    if state.wake_at is not None and state.status == "waiting":
        said += f" (in {span(max(0, state.wake_at - now))})"
    return visible(said)


def a_worker(row: RunRow, now: int) -> str:
    """Whom a run is waiting for that is due or soon will be; and since when without effect, if that is long."""
    return f"a worker{_overdue(row, now)}"


def _overdue(row: RunRow, now: int) -> str:
    if row.due_at is None or now - row.due_at <= OVERDUE_US:
        return ""
    kind = (
        f"{visible(row.agent)}{f' (version {visible(row.code_version)})' * bool(row.code_version)}"
    )
    return f"; due for {span(now - row.due_at)}: no worker for {kind} is free or running"


def doubt_of(call: Call) -> str:
    """What becomes of a call in doubt."""
    match call.effect:
        case "keyed":
            return "on resume it is called again with the same key"
        case "checked":
            return "on resume its check is called"
    return "it is not repeated: a person must resolve it"
