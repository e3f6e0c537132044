"""Change the limits of a run, and with them those of its child runs: a run that failed by one can continue."""

from __future__ import annotations

from holdfast.control.lifecycle import reopen
from holdfast.core import events as e
from holdfast.core import log
from holdfast.core.policy import Limits, budget_use
from holdfast.core.state import RunState
from holdfast.errors import InvalidInput, NotNow
from holdfast.store.base import Filter, RunRow, Store
from holdfast.store.cancel import REASONS
from holdfast.store.outside import WAKE, Act, act
from holdfast.store.pages import everything, newest_first
from holdfast.store.process import is_held


def set_limits(store: Store, run_id: str, limits: Limits, *, by: str = "", why: str = "") -> None:
    """Change the limits of a run that has not completed, and of its child runs that have not.

    The deadline counts from now. Of the budget, what is given replaces what is recorded; what was used counts on.
    """
    row = store.get(run_id)
    if row is not None and row.parent:
        root = log.root_of(run_id, row.parent)
        raise InvalidInput(
            f"run {run_id!r} is a child run: the limits of {root!r} apply to it, so change those with "
            f"hf.resume({root!r}, …)"
        )
    _set_limits(store, run_id, limits.deadline_at(store.now()), limits.changes, by, why)


def _set_limits(
    store: Store, run_id: str, deadline_at: int | None, budget: dict[str, float], by: str, why: str
) -> None:
    left = budget

    def decide(state: RunState, row: RunRow) -> Act:
        nonlocal left
        if row.status in ("completed", "cancelled"):
            return Act()
        if is_held(row, store.now()):
            raise NotNow(f"run {run_id!r} is being executed by {row.owner}; pause it first")
        steps, elapsed = state.steps + state.child_steps, store.now() - state.created_at
        left = budget_use(budget, steps=steps, elapsed_us=elapsed, usage=state.usage).left
        changed = e.LimitsChanged(deadline_at=deadline_at, budget=budget, by=by, why=why)
        return Act([changed], WAKE if row.status == "waiting" else None)

    act(store, run_id, decide, everything)
    for child in _unfinished_children(store, run_id):
        _set_limits(store, child.id, deadline_at, left, by, why)
        if child.status == "failed":
            reopen(store, child.id, by=by, why=why)


def _unfinished_children(store: Store, run_id: str) -> list[RunRow]:
    """Child runs that have not ended, or that failed by a limit: they continue when the run does."""
    found: list[RunRow] = []
    cursor: int | None = None
    while page := store.runs(Filter(parent=run_id), cursor=cursor):
        found += [row for row in page if row.status not in ("completed", "cancelled")]
        cursor = page[-1].cursor
    return [row for row in found if row.status != "failed" or _failed_by_limit(store, row.id)]


def _failed_by_limit(store: Store, run_id: str) -> bool:
    last = log.read_event(run_id, next(iter(newest_first(store, run_id))))
    return isinstance(last, e.RunFailed) and last.reason in REASONS
