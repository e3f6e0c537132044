"""Examine a store: weak settings, damaged runs, and runs that are due and claimed by no worker.

`hf.doctor` and `holdfast doctor` are this. Reads only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast import views
from holdfast.errors import HoldfastError, StoreDamaged
from holdfast.store.base import MICROSECONDS, Finding, Kind, Store

OVERDUE_US: Final = 60 * MICROSECONDS
"""A run that has been due for longer is reported: no worker claims it."""


@dataclass(frozen=True, slots=True)
class DamagedRun:
    """A run whose log does not verify, or does not add up to a state."""

    run_id: str
    problem: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found in a store."""

    findings: tuple[Finding, ...]
    runs: int
    """How many runs were checked."""
    damaged: tuple[DamagedRun, ...]
    overdue: tuple[Kind, ...]
    """Agents and versions with runs that have been due for a while."""
    now: int

    @property
    def ok(self) -> bool:
        return not self.damaged and all(finding.ok for finding in self.findings)


def examine(store: Store, *, watch: views.ProgressHook = views.unwatched) -> Diagnosis:
    """Examine the store and every run in it."""
    findings = list(store.examine())
    checked, damaged = 0, []
    try:
        for row in watch(views.every_run(store), "checking run"):
            checked += 1
            problem = damage_of(store, row.id)
            if problem:
                damaged.append(DamagedRun(row.id, problem))
    except StoreDamaged as error:
        advice = "runs after this one were not checked; restore a backup"
        findings.append(Finding("list of runs", str(error), False, advice))
    now = store.now()
    overdue = [kind for kind in store.kinds() if now - kind.due_at > OVERDUE_US]
    return Diagnosis(tuple(findings), checked, tuple(damaged), tuple(overdue), now)


def damage_of(store: Store, run_id: str) -> str:
    """What is wrong with a run: its chain, its bytes, or a log that does not add up to a state."""
    try:
        found = views.verify(store, run_id)
        if found.ok and found.events:
            views.get(store, run_id)
    except HoldfastError as error:
        return str(error)
    return found.problem or ("" if found.events else "its log is empty; restore it from a backup")
