"""The place of a live run in its tree: its policy, the parents and children that execute in this process, and the
children that it is waiting for.

A child run that executes inside its parent's call counts against the parent's budget at once, and ends when the
parent has to (`gate.py` asks every run above it). What executes elsewhere is bounded by the limits that are
recorded in its first event.

Not here: what a policy is (`core/policy.py`), and how a run is cancelled (`store/cancel.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.core import events as e
from holdfast.core.entry import Place
from holdfast.core.events import ChildUsage, Usage, add_usage
from holdfast.core.journal import Journal
from holdfast.core.policy import NO_LIMITS, BudgetUse, Limits, Policy, budget_use
from holdfast.core.waits import OpenWait
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.store.base import TERMINAL_STATUSES, UNCLAIMABLE_STATUSES, RunRow, Store


class UseOfRun(Protocol):
    """What a run has used up, by its log: `AgentView` says so."""

    @property
    def child_steps(self) -> int: ...
    @property
    def usage(self) -> Usage: ...


class LiveRun(Protocol):
    """What is asked of a run that executes here: `Session` is one."""

    run_id: str
    store: Store
    journal: Journal
    stop_signal: BaseException | None
    secrets: set[str]
    lineage: Lineage

    @property
    def steps(self) -> int: ...
    @property
    def view(self) -> UseOfRun: ...
    @property
    def read_to(self) -> int: ...
    def stop(self, signal: BaseException) -> BaseException: ...


class Lineage(Struct, eq=False):
    """Of one live run."""

    agent: str = ""
    policy: Policy = field(default_factory=Policy)
    """What holds for its calls: what its agent declares, narrowed by what its parents require."""
    inherited: Policy = field(default_factory=Policy)
    parent: LiveRun | None = None
    """The run in whose call this one executes here."""
    children: list[LiveRun] = field(default_factory=list)
    """The child runs that execute here now."""
    spent: dict[str, ChildUsage] = field(default_factory=dict)
    """What children have used up that executed here and have no receipt yet, by their ids."""
    seat_lent_to: str = ""
    """The child run that executes here in the seat of this one (`max_running`)."""

    def ancestors(self) -> Iterator[LiveRun]:
        """The runs above this one that execute here, the nearest first."""
        return upwards(self.parent)

    def passed_on(self) -> Policy:
        """What its children get of its policy."""
        return self.policy.passed_on(self.inherited)


def upwards(run: LiveRun | None) -> Iterator[LiveRun]:
    """A run that executes here, and those above it."""
    while run is not None:
        yield run
        run = run.lineage.parent


def govern(run: LiveRun, spec: AgentSpec, parent: LiveRun | None = None) -> None:
    """Set the policy of a run whose first event is known, to be executed inside `parent` if given.

    What is recorded always holds. Present code, of its agent and of the parent that executes it, can only
    narrow it.
    """
    created = run.journal.life.created
    assert created is not None
    inherited = Policy.recorded(created.policy)
    if parent is not None:
        inherited = _requires(parent.lineage.passed_on().narrow(inherited))
    policy = inherited.narrow(spec.policy)
    policy = replace(policy, deadline_at=created.deadline_at, budget=created.budget)
    run.lineage = Lineage(spec.name, policy, inherited, parent)
    if parent is not None:
        run.secrets = parent.secrets  # what one of them must not tell, the other must not either
        parent.lineage.spent.pop(run.run_id, None)  # it was here before: it counts itself now
        parent.lineage.children.append(run)


def leave(run: LiveRun) -> None:
    """The run executes here no longer. What it used up counts against its parent until a receipt says so."""
    parent = run.lineage.parent
    if parent is not None and run in parent.lineage.children:
        parent.lineage.spent[run.run_id] = spent_by(run)
        parent.lineage.children.remove(run)


def declared(spec: AgentSpec, now: int, limits: Limits = NO_LIMITS) -> Policy:
    """What an agent's own code declares for a run that is created now; what is given for this run overrides it."""
    deadline = limits.deadline_at(now)
    if deadline is None and spec.deadline is not None:
        deadline = Limits(spec.deadline).deadline_at(now)
    return replace(spec.policy, deadline_at=deadline, budget=spec.policy.budget | limits.changes)


def at_creation(
    spec: AgentSpec, now: int, parent: LiveRun | None, limits: Limits = NO_LIMITS
) -> tuple[Policy, e.InheritedPolicy | None]:
    """The limits of a run that is created, and what its parents require of it."""
    policy = declared(spec, now, limits)
    if parent is None:
        return policy, None
    handed = parent.lineage.passed_on()
    return handed.narrow(policy, use_of(parent).used), handed.inherited()


def use_of(run: LiveRun, limits: dict[str, float] | None = None) -> BudgetUse:
    """How a run and its children stand against its limits, or against these."""
    created = run.journal.life.created
    if limits is None:
        limits = created.budget if created is not None else {}
    total = spent_by(run)
    elapsed = run.store.now() - run.journal.life.created_at
    return budget_use(limits, steps=total.steps, elapsed_us=elapsed, usage=total.usage)


def spent_by(run: LiveRun) -> ChildUsage:
    """What a run has used up, its children included."""
    lineage = run.lineage
    steps, usage = run.steps + run.view.child_steps, run.view.usage
    for part in (*map(spent_by, list(lineage.children)), *list(lineage.spent.values())):
        steps, usage = steps + part.steps, add_usage(usage, part.usage)
    return ChildUsage(steps, usage)


def _requires(policy: Policy) -> Policy:
    """Only what is recorded of a parent's policy; limits are recorded in the child's own first event."""
    return replace(policy, deadline_at=None, budget={})


# ── the children that it is waiting for ──────────────────────────────────────────────────────


RETRY_US: Final = 5_000_000
"""How long a child that could not be claimed is left to workers."""


class AwaitedChildren:
    """The children among what a run is waiting for."""

    def __init__(
        self,
        store: Store,
        row: RunRow,
        waits: Mapping[Place, OpenWait],
        agents: Collection[str],
    ) -> None:
        self._store, self._run_id, self._waits, self._agents = store, row.id, waits, agents
        self._woken = row.woken
        self._next_try: dict[str, int] = {}

    def look(self) -> tuple[set[str], int]:
        """Before the run is suspended: those that have ended, and how often the run had been woken before they were
        looked at. So an end that is not seen here has raised that count by the time the run is suspended. (Both are
        returned together: what another thread sees a moment later must not count for this look.)"""
        if not self._ids():
            return set(), self._woken
        woken = self.count_wake_ups()
        return self.ended(), woken

    def ended(self) -> set[str]:
        """Those that have ended. From any thread."""
        rows = [self._store.get(child) for child in self._ids()]
        return {x.id for x in rows if x is not None and x.status in TERMINAL_STATUSES}

    def count_wake_ups(self) -> int:
        """Read how often the run has been woken."""
        row = self._store.get(self._run_id)
        self._woken = self._woken if row is None else row.woken
        return self._woken

    def unclaimed(self, since: int) -> set[str]:
        """Those that have been due since this time: no worker is there, or none that knows their agents. Each is
        named once in a while."""
        now, found = self._store.now(), set()
        for child in self._ids():
            row = self._store.get(child)
            if row is None or row.due_at is None or row.status in UNCLAIMABLE_STATUSES:
                continue
            is_known = row.due_at <= since and row.agent in self._agents
            if is_known and now >= self._next_try.get(child, 0):
                self._next_try[child] = now + RETRY_US
                found.add(child)
        return found

    def _ids(self) -> list[str]:
        return [wait.child for wait in list(self._waits.values()) if wait.child]
