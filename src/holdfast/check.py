"""Would the unfinished runs of a store agree with this code? Each is replayed against it.

`hf.check` and `holdfast check` are this. No step or tool is executed and nothing is written; the agent's plain code
runs, as it does on every resume.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from holdfast import views
from holdfast.errors import Diverged, HoldfastError, LogDamaged
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.exec.dry_run import replay
from holdfast.store.base import RunRow, Store

UNFINISHED: Final = ("pending", "running", "waiting", "paused", "quarantined")
Agreement = Literal["agrees", "diverges", "fails", "damaged", "unknown"]
BAD: Final[tuple[Agreement, ...]] = ("diverges", "fails", "damaged")
"""What would keep a run from being resumed."""


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """What the code would make of one run."""

    row: RunRow
    verdict: Agreement
    """`unknown`: the run's agent is not among those given."""
    steps: int = 0
    step: int | None = None
    """The recorded step at which the code diverges, if there is one."""
    where: str = ""
    recorded: str = ""
    attempted: str = ""
    problem: str = ""
    adds: bool = False
    """Whether the code may only have added something: then its new steps can be accepted."""

    @property
    def ok(self) -> bool:
        return self.verdict not in BAD


def check(
    store: Store,
    agents: Mapping[str, AgentSpec],
    *,
    agent: str = "",
    failed: bool = False,
    watch: views.ProgressHook = views.unwatched,
) -> list[CheckedRun]:
    """Replay every unfinished run (and those that failed, if `failed`) against these agents; the oldest first."""
    statuses: Sequence[str] = (*UNFINISHED, "failed") if failed else UNFINISHED
    rows = (row for status in statuses for row in views.every_run(store, status, agent))
    found = [_checked(store, agents, row) for row in watch(rows, "checking run")]
    return sorted(found, key=lambda one: one.row.created_at)


def _checked(store: Store, agents: Mapping[str, AgentSpec], row: RunRow) -> CheckedRun:
    spec = agents.get(row.agent)
    if spec is None:
        return CheckedRun(row, "unknown", problem=f"agent {row.agent!r} was not given")
    try:
        replayed = replay(store, row, spec)
    except LogDamaged as damage:
        return CheckedRun(row, "damaged", problem=str(damage))
    except HoldfastError as error:
        return CheckedRun(row, "fails", problem=str(error))
    cause = replayed.diverged
    if cause is not None:
        return CheckedRun(
            row,
            "diverges",
            replayed.steps,
            _step(store, row.id, cause),
            cause.where,
            cause.recorded,
            cause.attempted,
            adds=cause.adds,
        )
    if replayed.failed:
        return CheckedRun(
            row, "fails", replayed.steps, problem=f"its code fails: {replayed.failed}"
        )
    return CheckedRun(row, "agrees", replayed.steps)


def _step(store: Store, run_id: str, cause: Diverged) -> int | None:
    """The number of the recorded step at which the code diverges from the log."""
    calls = views.folded(store, run_id).calls if cause.place is not None else ()
    return next((call.step for call in calls if (call.branch, call.index) == cause.place), None)
