"""What an agent may do to a task through MCP. Every function is given who asks, and checks reach first.

Nothing here approves, rejects or resolves anything, or changes an agent's constraints, budget or
deadline: an agent can add to what is known, not to what it is allowed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast import control, views
from holdfast.core import log
from holdfast.core.events import RunCreated
from holdfast.core.fold import fold
from holdfast.core.parts import Fact
from holdfast.core.patch import StatePatch
from holdfast.core.state import RunState
from holdfast.errors import Conflict, InvalidInput, NotFound, NotNow
from holdfast.mcp import documents
from holdfast.mcp.reach import Identity, check_name, reachable
from holdfast.store.base import TERMINAL_STATUSES, Filter, RunRow, Store

NOTE_CHARACTERS_MAX: Final = 8000


@dataclass(frozen=True, slots=True)
class Changes:
    """What to change in what a task knows."""

    state: Mapping[str, Any]
    delete: Sequence[str]
    knowledge: StatePatch

    @property
    def is_empty(self) -> bool:
        return not self.state and not self.delete and self.knowledge == StatePatch()


class VersionConflict(Exception):
    """The task has changed since the version that the caller gave; nothing was written."""

    def __init__(self, expected: int, state: RunState, since: Sequence[views.Change]) -> None:
        self.expected, self.state, self.since = expected, state, since
        super().__init__(
            f"task {state.id!r} is at version {state.seq}, not {expected}; nothing was written. "
            "Read `theirs`, decide again, and patch with the current version"
        )


def start(
    store: Store, who: Identity, agent: str, values: Mapping[str, Any], *, task_id: str, key: str
) -> tuple[RunRow, bool]:
    """Start a task. The same key (or the same task id) with the same input is the same task."""
    if not who.reaches(agent):
        raise NotFound(
            f"{who.name!r} cannot reach an agent {agent!r}; the operator allows it with --allow-agent {agent}"
        )
    made = task_id or _id_for(agent, who, key)
    before = store.get(made) if made else None
    if before is not None and not who.reaches(before.agent):
        # Not InputConflict, which would name the agent of a task that cannot be reached.
        raise InvalidInput(f"the task id {made!r} cannot be used; choose another one")
    try:
        row = control.start(store, agent, values, id=made or None, by=who.by)
    except NotFound:  # its message names agents that cannot be reached
        raise NotFound(
            f"agent {agent!r} is not registered: a worker must have been started for it (holdfast worker FILE)"
        ) from None
    return row, before is None


def _id_for(agent: str, who: Identity, key: str) -> str:
    """The id that an idempotency key stands for. A key belongs to the identity that uses it."""
    if not key:
        return ""
    digest = hashlib.sha256(f"{who.name}\0{agent}\0{key}".encode("utf-8", "surrogatepass"))
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", agent).strip("-._")[:100]
    return f"{readable or 'task'}-{digest.hexdigest()[:24]}"


def get(store: Store, who: Identity, task_id: str, agent: str | None = None) -> RunState:
    """The task's state now."""
    reachable(store, who, task_id, agent)
    return views.get(store, task_id)


def patch(
    store: Store,
    who: Identity,
    task_id: str,
    changes: Changes,
    *,
    expected: int | None = None,
    key: str = "",
    why: str = "",
) -> bool:
    """Change what a task knows; whether the patch is new. Costs no more the longer the task's log is."""
    reachable(store, who, task_id)
    if changes.is_empty:
        raise InvalidInput("the patch is empty; set at least one field")
    if (changes.state or changes.delete) and _is_loop(store, task_id):
        raise InvalidInput(
            f"task {task_id!r} is a loop: it has facts, questions, notes and a plan, but no state keys"
        )
    try:
        return control.patch(
            store,
            task_id,
            changes.state,
            delete=changes.delete,
            knowledge=None if changes.knowledge == StatePatch() else changes.knowledge,
            expected=expected,
            key=_scoped(who, key),
            by=who.by,
            why=why,
        )
    except Conflict as conflict:
        raise _conflict(store, task_id, conflict.expected) from None


def _is_loop(store: Store, task_id: str) -> bool:
    first = store.read(task_id, limit=1)
    created = log.read_event(task_id, first[0]) if first else None
    return isinstance(created, RunCreated) and created.loop


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """Where a task is, without reading its log."""

    task_id: str
    agent: str
    status: str
    version: int


def task_status(store: Store, task_id: str) -> TaskStatus:
    """The task's status and version now."""
    row = views.row_of(store, task_id)
    version = store.head(task_id)
    return TaskStatus(row.id, row.agent, views.shown_status(row, store.now()), version)


def _conflict(store: Store, task_id: str, expected: int) -> VersionConflict:
    """Both sides: what was there at the caller's version, compared with what is there now."""
    now = views.get(store, task_id)
    records = views.records(store, task_id)
    if not 0 <= expected < len(records):
        return VersionConflict(expected, now, ())
    then = fold(RunState(), records[: expected + 1])
    sides = (views.to_plain(_comparable(state)) for state in (then, now))
    return VersionConflict(expected, now, views.compare(*sides))


def _comparable(state: RunState) -> dict[str, Any]:
    dropped = ("notice", "links", "updated_at", "version")
    return {k: v for k, v in documents.task(state).items() if k not in dropped}


def _scoped(who: Identity, key: str) -> str:
    return f"{who.name}\0{key}" if key else ""


def facts(who: Identity, items: Sequence[tuple[str, Any, str]]) -> tuple[Fact, ...]:
    """Facts as an agent may state them: the source always names the agent."""
    return tuple(
        Fact(name, value, f"{who.by} ({source})" if source else who.by)
        for name, value, source in items
    )


def hand_over(
    store: Store,
    who: Identity,
    task_id: str,
    to: str,
    note: str,
    *,
    expected: int | None = None,
    key: str = "",
) -> bool:
    """Record that another agent should continue the task. It gives that agent no access: the operator does."""
    check_name(to)
    if len(note) > NOTE_CHARACTERS_MAX:
        raise InvalidInput(f"a note may have up to {NOTE_CHARACTERS_MAX} characters")
    fact = Fact(documents.HANDED_OVER, {"to": to, "from": who.name, "note": note}, who.by)
    changes = Changes({}, (), StatePatch(facts=(fact,)))
    why = f"handed over to {to}"
    return patch(store, who, task_id, changes, expected=expected, key=key, why=why)


def signal(
    store: Store, who: Identity, task_id: str, name: str, value: Any, *, key: str = ""
) -> None:
    """Send a signal; the same key counts once."""
    reachable(store, who, task_id)
    control.signal(store, task_id, name, value, signal_id=_scoped(who, key), by=who.by)


def answer(
    store: Store, who: Identity, task_id: str, value: Any, request: str, *, key: str = ""
) -> None:
    """Answer a question that the task asks; the same key counts once. An approval is not a question."""
    if not who.may_answer:
        raise NotNow(
            "this connection may not answer questions; a person can, with "
            f"`holdfast answer {task_id} VALUE`"
        )
    reachable(store, who, task_id)
    control.answer(store, task_id, value, request, key=_scoped(who, key), by=who.by)


def resume(store: Store, who: Identity, task_id: str, *, key: str = "") -> None:
    """Let a failed task try again from its failed step; the same key counts once. What a person stopped stays so."""
    row = reachable(store, who, task_id)
    if row.status in ("paused", "quarantined"):
        raise NotNow(
            f"task {task_id!r} is {row.status}: only a person can resume it, with `holdfast resume FILE {task_id}`"
        )
    if row.status == "completed":
        raise NotNow(f"task {task_id!r} is already completed")
    control.reopen(store, task_id, key=_scoped(who, key), by=who.by, why="resumed through MCP")


# ── lists ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows of a list, and where the next page begins ("" at the end)."""

    rows: tuple[RunRow, ...]
    next: str


def rows(
    store: Store,
    who: Identity,
    *,
    agent: str = "",
    status: str = "",
    limit: int = 50,
    cursor: str = "",
) -> Page:
    """Tasks that can be reached, agent by agent, newest first."""
    if agent and not who.reaches(agent):
        return Page((), "")
    names = [agent] if agent else [""] if who.reaches_all else list(who.agents)
    number, begin = _read_cursor(cursor, len(names))
    found: list[RunRow] = []
    while number < len(names):
        which = Filter(status=status, agent=names[number])
        page = store.runs(which, limit=limit - len(found), cursor=begin)
        found += page
        if len(found) >= limit:
            return Page(tuple(found), f"{number}.{found[-1].cursor}")
        number, begin = number + 1, None
    return Page(tuple(found), "")


def _read_cursor(cursor: str, agents: int) -> tuple[int, int | None]:
    if not cursor:
        return 0, None
    first, _, second = cursor.partition(".")
    if not (first.isdecimal() and second.isdecimal() and len(cursor) < 40 and int(first) < agents):
        raise InvalidInput(f"{cursor[:40]!r} is not a cursor of this list; start without one")
    return int(first), int(second)


SCANNED_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class DuePage:
    """Tasks that need attention, with their states, and where the next page begins."""

    found: tuple[tuple[RunRow, RunState], ...]
    next: str


def due(
    store: Store, who: Identity, *, limit: int, cursor: str, predicate: Callable[[RunState], bool]
) -> DuePage:
    """Tasks that have not ended and that no worker is executing now."""
    found: list[tuple[RunRow, RunState]] = []
    now, scanned = store.now(), 0
    while True:
        page = rows(store, who, limit=limit, cursor=cursor)
        for row in page.rows:
            if row.status in TERMINAL_STATUSES or row.is_live(now):
                continue
            state = views.brief(store, row.id)
            if predicate(state):
                found.append((row, state))
        cursor, scanned = page.next, scanned + len(page.rows)
        if not cursor or found or scanned >= SCANNED_MAX:
            return DuePage(tuple(found), cursor)
