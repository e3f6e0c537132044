"""What a store's fleet is doing: which agents the store knows, how many runs there are of each status, how many started and ended
lately, and which workers there are.

Of runs only rows are read, in pages: no log, and no count of a whole table. Counts stop at a limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from msgspec import Struct, field

from holdfast.core.registration import Registration
from holdfast.store.base import MICROSECONDS, Filter, RunRow, Store
from holdfast.views.listing import shown_status
from holdfast.waiting import is_for_people, is_in_doubt

# ── counts ───────────────────────────────────────────────────────────────────────────────────


MOST: Final = 1000
"""Counts stop here."""
BINS: Final = 24
_UNFINISHED: Final = ("pending", "running", "waiting", "paused", "quarantined")


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts by name; one that is greater than `MOST` means "more than". The lists are of the last hours, oldest first."""

    counts: dict[str, int]
    hours: int
    started: list[int]
    completed: list[int]
    failed: list[int]


def tally(store: Store, hours: int = 24) -> Tally:
    """Counts of unfinished runs, of those that failed lately, and of starts and ends by time."""
    now = store.now()
    counts = dict.fromkeys((*_UNFINISHED, "interrupted", "people", "doubt"), 0)
    for status in _UNFINISHED:
        for row in store.runs(Filter(status=status), limit=MOST + 1):
            counts[shown_status(row, now)] += 1
            counts["people"] += status == "waiting" and is_for_people(row.waiting_kinds)
            counts["doubt"] += status == "waiting" and is_in_doubt(row.waiting_kinds)
    width = hours * 3600 * MICROSECONDS // BINS
    since = now - BINS * width
    lately = store.runs(Filter(created_after=since), limit=MOST * 5)
    failed = [row for row in lately if row.status == "failed"]
    completed = [row for row in lately if row.status == "completed"]
    counts["failed"] = min(len(failed), MOST + 1)
    counts["completed"] = min(len(completed), MOST + 1)
    return Tally(
        counts,
        hours,
        _binned([row.created_at for row in lately], since, width),
        _binned([row.updated_at for row in completed], since, width),
        _binned([row.updated_at for row in failed], since, width),
    )


def _binned(times: list[int], since: int, width: int) -> list[int]:
    found = [0] * BINS
    for time in times:
        if time >= since:
            found[min(BINS - 1, (time - since) // width)] += 1
    return found


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker, as the leases that it holds show it."""

    name: str
    runs: list[RunRow]


@dataclass(frozen=True, slots=True)
class AgentQueue:
    """Runs of one agent that a worker should claim now. `is_more`: not all runs were looked at, so there may be more."""

    agent: str
    due: int
    oldest_due: int
    overdue: int
    is_more: bool = False


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is being executed, and what is due."""

    now: int
    workers: list[WorkerInfo]
    queues: list[AgentQueue]
    interrupted: list[RunRow]


def fleet(store: Store) -> Fleet:
    """The workers that hold leases, and what is due; at most `MOST` runs of each are looked at."""
    now = store.now()
    held: dict[str, list[RunRow]] = {}
    lost: list[RunRow] = []
    for row in store.runs(Filter(status="running"), limit=MOST):
        if shown_status(row, now) == "running":
            held.setdefault(row.owner, []).append(row)
        else:
            lost.append(row)
    listed = [store.runs(Filter(status=status), limit=MOST) for status in ("pending", "waiting")]
    is_more = any(len(rows) == MOST for rows in listed)
    due = [row for rows in listed for row in rows if row.due_at is not None and row.due_at <= now]
    oldest: dict[str, int] = {}
    for kind in store.kinds():
        if kind.due_at <= now:
            oldest[kind.agent] = min(kind.due_at, oldest.get(kind.agent, now))
    queues = []
    for agent in sorted({row.agent for row in (*due, *lost)} | oldest.keys()):
        times = [row.due_at or now for row in (*due, *lost) if row.agent == agent]
        overdue = sum(now - time > 60 * MICROSECONDS for time in times)
        first = min([*times, oldest.get(agent, now)])
        queues.append(AgentQueue(agent, max(1, len(times)), first, overdue, is_more))
    return Fleet(now, [WorkerInfo(name, rows) for name, rows in sorted(held.items())], queues, lost)


# ── agents ───────────────────────────────────────────────────────────────────────────────────


class AgentInfo(Struct, frozen=True):
    """An agent of a store. One that no worker has registered is known by name only, and cannot be started by it."""

    name: str
    is_registered: bool = False
    version: str = ""
    """The version that was registered last."""
    versions: tuple[str, ...] = ()
    """All registered versions, the last registered first."""
    registered_at: int | None = None
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    """The JSON Schema of its input."""
    stages: tuple[str, ...] = ()


def agents(store: Store) -> list[AgentInfo]:
    """The agents that the store knows, by name."""
    found: dict[str, AgentInfo] = {}
    known = store.agents.all()
    for one in known:
        if one.name in found:
            continue
        versions = tuple(x.code_version for x in known if x.name == one.name)
        try:
            says = Registration.decode(one.data)
        except ValueError:  # a newer Holdfast wrote it, or something else did
            says = Registration(one.name, one.code_version)
        found[one.name] = AgentInfo(
            one.name,
            True,
            one.code_version,
            versions,
            one.registered_at,
            says.description,
            says.parameters,
            says.stages,
        )
    for name in store.agents.with_runs():
        found.setdefault(name, AgentInfo(name))
    return sorted(found.values(), key=lambda agent: agent.name)
