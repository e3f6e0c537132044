"""A run in words: its position, what it is waiting for, and the commands with which it continues.

Only words; printing is up to the verbs. Nothing here needs the agent's code.
"""

from __future__ import annotations

from typing import Any

from holdfast import views
from holdfast.core import values
from holdfast.core.effect import Effect
from holdfast.core.events import Value
from holdfast.core.state import Call, RunState
from holdfast.doctor import OVERDUE_US
from holdfast.store.artifacts import read_value
from holdfast.store.base import RunRow, Store
from holdfast.words.advice import advice
from holdfast.words.text import span, visible

# ── values, also the big ones ────────────────────────────────────────────────────────────────


def content(store: Store, run_id: str, value: Value | None) -> Any:
    """What a Value holds, fetched if it is kept next to the log."""
    return None if value is None else values.decode(read_value(store, run_id, value))


# ── waiting ──────────────────────────────────────────────────────────────────────────────────


def next_commands(store: Store, state: RunState, url: str | None, file: str = "FILE") -> list[str]:
    """The commands with which a run continues."""
    return [advice(step, url, file) for step in views.next_steps(store, state)]


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
        case Effect.KEYED:
            return "On resume it is called again with the same key"
        case Effect.CHECKED:
            return "On resume its check is called"
    return "It is not repeated; a person must resolve it"
