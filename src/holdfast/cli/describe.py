"""A run in words: its position, what it waits for, and the commands with which it goes on.

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
from holdfast.core.events import Value
from holdfast.core.state import Call, RunState, Waiting
from holdfast.doctor import OVERDUE_US
from holdfast.store.artifacts import read_value
from holdfast.store.base import RunRow, Store

# ── values, also the big ones ────────────────────────────────────────────────────────────────


def content(store: Store, run_id: str, value: Value | None) -> Any:
    """What a Value holds, fetched if it is kept beside the log."""
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
    """The commands with which a run goes on."""
    go_on = command(url, "resume", file, state.id)
    match state.status:
        case "completed" | "cancelled" | "running":
            return []
        case "failed" | "paused" | "quarantined" | "interrupted" | "pending":
            return [*_doubts(state, url), go_on]
    found = [line for asked in requests(store, state) for line in _ways(asked, url)]
    for member in _family(store, state):
        found += _doubts(member, url)
        if member.status in ("paused", "quarantined"):
            found.append(command(url, "resume", file, member.id))
    worker = command(url, "worker", file)
    return found or [f"{go_on}   (or, by itself when it is time: {worker})"]


def _ways(asked: Asked, url: str | None) -> list[str]:
    wait, run_id = asked.wait, asked.run_id
    which = ["--request", wait.id] if wait.branch else []
    match wait.wait:
        case "approval":
            return [command(url, verb, run_id, *which) for verb in ("approve", "reject")]
        case "answer":
            return [
                command(url, "answer", run_id, wait.options[0] if wait.options else "…", *which)
            ]
        case "signal":
            return [command(url, "signal", run_id, name, "…") for name in (wait.of or (wait.name,))]
    return []


def _doubts(state: RunState, url: str | None) -> list[str]:
    # A call that is safe to repeat settles itself on resume; these are for people.
    open_ones = [c for c in state.in_doubt if c.effect == "once" or state.status == "waiting"]
    return [
        command(url, "resolve", state.id, call.step, "--done", "…")
        + "   (or --failed … or --retry)"
        for call in open_ones
    ]


def waits_for(state: RunState, row: RunRow, now: int) -> str:
    """What the run waits for, in words; empty if it does not wait."""
    if state.status == "interrupted":
        return f"anybody to take it up: {visible(row.owner)} has not renewed its lease{_overdue(row, now)}"
    if state.status == "running":
        left = "" if row.due_at is None else f", lease for {span(row.due_at - now)} more"
        return f"{visible(row.owner)}{left}"
    if state.status == "pending":
        return a_worker(row, now)
    if state.status == "waiting" and state.waits and all(wait.decided for wait in state.waits):
        return f"a worker: what it waited for is decided{_overdue(row, now)}"
    said = state.waiting_for or row.waiting_for
    if state.wake_at is not None and state.status == "waiting":
        said += f" (in {span(max(0, state.wake_at - now))})"
    return visible(said)


def a_worker(row: RunRow, now: int) -> str:
    """Whom a run waits for that is due or soon will be; and since when in vain, if that is long."""
    return f"a worker{_overdue(row, now)}"


def _overdue(row: RunRow, now: int) -> str:
    if row.due_at is None or now - row.due_at <= OVERDUE_US:
        return ""
    kind = (
        f"{visible(row.agent)}{f' (version {visible(row.code_version)})' * bool(row.code_version)}"
    )
    return f"; due for {span(now - row.due_at)}: none that may run {kind} is free, or none is there"


def doubt_of(call: Call) -> str:
    """What becomes of a call in doubt."""
    match call.effect:
        case "keyed":
            return "on resume it is called again with the same key"
        case "checked":
            return "on resume its check is asked"
    return "it is not repeated: a person settles it"
