"""How a run continues: what people can do about what it is waiting for, as data.

The commands and calls themselves are made by `words.advice`. Nothing here needs the agent's code.

`inbox` is the same over all runs: what people are asked for, page by page, newest run first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from holdfast.core.effect import Effect
from holdfast.core.log import root_of
from holdfast.core.policy import BudgetUse, budget_use
from holdfast.core.state import Call, RunState, Waiting
from holdfast.errors import LogDamaged
from holdfast.store.base import Filter, RunRow, Store
from holdfast.store.checks import check_whole
from holdfast.views.state import brief, pending
from holdfast.waiting import WaitingFor
from holdfast.words.advice import NextStep


class RequestOfRun(Struct, frozen=True):
    """One request to people, and the run that makes it (a child's is its parent's concern too)."""

    run_id: str
    wait: Waiting
    is_one_of_several: bool = False
    """Whether the run has other open requests of the same kind: then its id is needed to decide."""


def requests(store: Store, state: RunState) -> Iterator[RequestOfRun]:
    """The open requests of a run and of its child runs."""
    for member in family(store, state):
        yield from _requests_of(member)


def _requests_of(state: RunState) -> Iterator[RequestOfRun]:
    open_ones = [wait for wait in state.waits if not wait.decided]
    for wait in open_ones:
        same = [other for other in open_ones if other.wait == wait.wait]
        yield RequestOfRun(state.id, wait, len(same) > 1)


def family(store: Store, state: RunState) -> Iterator[RunState]:
    """A run, and the child runs below it that have not ended. A log from elsewhere may name its own run as a child."""
    seen, left = {state.id}, [state]
    while left:
        member = left.pop(0)
        yield member
        open_ones = [c for c in member.calls if c.child and c.status not in ("done", "failed")]
        new = [c.child for c in open_ones if c.child not in seen and store.get(c.child)]
        seen.update(new)
        left[:0] = [brief(store, child) for child in dict.fromkeys(new)]


def next_steps(store: Store, run: str | RunState) -> list[NextStep]:
    """What people can do so that a run continues; empty if it has ended or is being executed."""
    state = brief(store, run) if isinstance(run, str) else run
    if state.status in ("completed", "cancelled", "running") or state.is_recorded:
        return []
    if state.status != "waiting":
        return [*_doubts(state), *(_overrides(state.id, state.waiting) or [_resume(state)])]
    found: list[NextStep] = []
    for member in family(store, state):
        if member.diverged is not None and member.status == "waiting":
            found += _after_divergence(member.id, adds=member.diverged.adds)
            continue  # its code comes first: a decision would change nothing
        found += (step for request in _requests_of(member) for step in _ways(request))
        found += _doubts(member)
        if member.status in ("paused", "quarantined"):
            found += _overrides(member.id, member.waiting) or [NextStep("resume", member.id)]
    found = list(dict.fromkeys([*found, *_overrides(state.id, state.waiting)]))
    return found or [NextStep("resume", state.id), NextStep("worker", state.id)]


def _overrides(run_id: str, waits: Sequence[WaitingFor]) -> list[NextStep]:
    """Resumes that override the check which refused them, of the run and of child runs that it is waiting for."""
    refused = [NextStep("resume", run_id, override=x.name) for x in waits if x.kind == "override"]
    return refused + [step for x in waits for step in _overrides(x.run_id, x.child)]


def _resume(state: RunState) -> NextStep:
    """A run that failed by a limit is resumed with a higher one, which is that of the whole tree."""
    limits = _higher_limits(state)
    run_id = root_of(state.id, state.parent) if limits else state.id
    return NextStep("resume", run_id, limits=limits)


def _higher_limits(state: RunState) -> tuple[str, ...]:
    reason = state.failure.reason if state.status == "failed" and state.failure else ""
    if reason == "deadline":
        return ("--deadline", "60")
    if reason != "budget":
        return ()
    used = used_budget(state)
    over = [name for name in used.limits if not used.left[name]] or list(used.limits)
    return tuple(
        word for name in over for word in ("--budget", f"{name}={2 * used.limits[name] or 1:g}")
    )


def used_budget(state: RunState) -> BudgetUse:
    """What a run has used of its budget, its child runs included."""
    return budget_use(
        state.budget,
        steps=state.steps + state.child_steps,
        elapsed_us=state.updated_at - state.created_at,
        usage=state.usage,
    )


def _ways(request: RequestOfRun) -> list[NextStep]:
    run_id, wait = request.run_id, request.wait
    which = wait.id if request.is_one_of_several else ""
    match wait.wait:
        case "approval":
            return [NextStep("approve", run_id, which), NextStep("reject", run_id, which)]
        case "answer":
            return [
                NextStep("answer", run_id, which, value=wait.options[0] if wait.options else "")
            ]
        case "signal":
            return [NextStep("signal", run_id, name=name) for name in wait.of or (wait.name,)]
    return []


def _after_divergence(run_id: str, *, adds: bool) -> list[NextStep]:
    """Resume with the old code, accept what the new code added, or start over with the state kept."""
    accept = [NextStep("resume", run_id, accept_new_steps=True)] if adds else []
    return [NextStep("resume", run_id), *accept, NextStep("rerun", run_id)]


def _doubts(state: RunState) -> list[NextStep]:
    # A call that is safe to repeat is resolved by the resume itself; these are for people.
    open_ones = [c for c in state.in_doubt if c.effect == Effect.ONCE or state.status == "waiting"]
    ways: tuple[Literal["done", "failed", "retry"], ...] = ("done", "failed", "retry")
    lost = [
        NextStep("resolve", state.id, step=c.step, how="done") for c in state.calls if c.unavailable
    ]
    return lost + [
        NextStep("resolve", state.id, step=c.step, how=how) for c in open_ones for how in ways
    ]


# ── over all runs ────────────────────────────────────────────────────────────────────────────


class InboxItem(Struct, frozen=True):
    """One run that is waiting for people: its open requests, and its calls in doubt."""

    run_id: str
    agent: str
    waiting_for: str
    updated_at: int
    requests: tuple[Waiting, ...]
    in_doubt: tuple[Call, ...]


class InboxPage(Struct, frozen=True):
    """`next` is the cursor of the next page."""

    items: list[InboxItem]
    next: int | None


READ_MAX = 200
"""So many waiting runs are read for one page, so that a page is quick also if most are waiting for something else."""


def inbox(
    store: Store, *, agent: str = "", limit: int = 50, cursor: int | None = None
) -> InboxPage:
    """The runs that are waiting for people. A page may be short although there are more: `next` tells."""
    check_whole("limit", limit, least=1)
    found: list[InboxItem] = []
    for _ in range(max(1, READ_MAX // (limit + 1))):
        rows = store.runs(Filter(status="waiting", agent=agent), limit=limit + 1, cursor=cursor)
        for row in rows[:limit]:
            cursor = row.cursor
            item = _item(store, row)
            if item is not None:
                found.append(item)
            if len(found) == limit:
                return InboxPage(found, cursor)
        if len(rows) <= limit:
            return InboxPage(found, None)
    return InboxPage(found, cursor)


def _item(store: Store, row: RunRow) -> InboxItem | None:
    try:
        state = pending(store, row.id)
    except LogDamaged:
        return None  # `doctor` reports it; the others are shown
    asked = tuple(w for w in state.waits if w.wait in ("approval", "answer") and not w.decided)
    if not asked and not state.in_doubt:
        return None
    return InboxItem(row.id, row.agent, row.waiting_for, row.updated_at, asked, state.in_doubt)
