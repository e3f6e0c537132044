"""Pause, resume, restart, cancel and undo a run."""

from __future__ import annotations

import contextlib
from typing import Final

from holdfast.core import events as e
from holdfast.core.log import root_of
from holdfast.core.policy import Limits, budget_use
from holdfast.core.state import UNSETTLED, RunState
from holdfast.errors import InvalidInput, KeyTaken, NoSuchRun, NotNow, NotResumable, Remedy
from holdfast.store.base import TERMINAL_STATUSES, RowChange, RunRow, Store
from holdfast.store.cancel import REASONS, cancel_children, children, request
from holdfast.store.outside import (
    WAKE,
    RunUpdate,
    recorded,
    refuse_ended,
    refuse_held,
    store_key,
    update_run,
    whole_state,
)
from holdfast.store.pages import end_of, everything, what_is_open
from holdfast.store.process import is_held


def pause(store: Store, run_id: str, *, by: str = "", why: str = "") -> None:
    """Stop the run at its next call, until it is resumed."""

    def decide(_: RunState, row: RunRow) -> RunUpdate:
        refuse_ended(row)
        if row.status == "paused":
            raise NotNow(f"run {run_id!r} is already paused")
        live = is_held(row, store.now())
        change = (
            None
            if live
            else RowChange("paused", None, "a person to resume it", waiting_kinds="resume")
        )
        return RunUpdate([e.RunPaused(by=by, why=why)], change)

    update_run(store, run_id, decide)


def reopen(store: Store, run_id: str, *, key: str = "", by: str = "", why: str = "") -> None:
    """Let a failed, paused or quarantined run continue; one that waits is looked at again. A `key` counts once."""
    claimed = store_key("reopen", run_id, key)
    if recorded(store, claimed, e.RunReopened) is not None:
        return

    def decide(_: RunState, row: RunRow) -> RunUpdate:
        check_reopen(store, row)
        if row.status in STOPPED:
            now = store.now()
            return RunUpdate(
                [e.RunReopened(by=by, why=why)], RowChange("pending", now), key=claimed
            )
        return RunUpdate()

    found = store.get(run_id)
    if found is not None and found.status in ("pending", "running", "waiting"):
        return  # it continues by itself: its log, which may be long, need not be read for that
    reopen_failed_children(store, run_id, by=by, why=why)
    with contextlib.suppress(KeyTaken):  # it has continued
        update_run(store, run_id, decide)


STOPPED: Final = ("failed", "paused", "quarantined")
"""The statuses of runs that continue only when a person resumes them."""


def check_reopen(store: Store, row: RunRow) -> None:
    """NotResumable for a run that cannot continue from where it stopped."""
    if row.status == "cancelled":
        raise NotResumable(row.id, "status", "it was cancelled", start_over(row.id))
    if row.status == "failed" and _is_undone(whole_state(store, row.id)):
        raise NotResumable(row.id, "status", "it was undone", start_over(row.id))
    if row.status == "quarantined":
        whole_state(store, row.id)  # it may have been quarantined because of its log


def start_over(run_id: str) -> Remedy:
    """For a run that cannot continue from where it stopped."""
    words = ("rerun", "FILE", run_id)
    return Remedy("to start over with its state kept", f"hf.rerun({run_id!r})", words)


def _is_undone(state: RunState) -> bool:
    undoable = [c for c in state.calls if c.undoable and c.status == "done" and c.index >= 0]
    return bool(undoable) and all(c.undone for c in undoable)


def accept_new_steps(store: Store, run_id: str, *, by: str = "", why: str = "") -> None:
    """Let the code add calls among what the run has done: those are made, and what is recorded stays.

    What is recorded must still be asked for, in its order and with its arguments.
    """

    def decide(_: RunState, row: RunRow) -> RunUpdate:
        refuse_held(store, row, "pause it first")
        if row.status in ("completed", "cancelled"):
            raise NotNow(f"run {run_id!r} is {row.status}, so nothing can be added")
        return RunUpdate(
            [e.StepsAccepted(by=by, why=why)], WAKE if row.status == "waiting" else None
        )

    update_run(store, run_id, decide)


def reopen_failed_children(store: Store, run_id: str, *, by: str, why: str) -> None:
    """They continue before the run that failed by them does."""
    for child in _failed_children(store, run_id):
        reopen(store, child, by=by, why=why)


def _failed_children(store: Store, run_id: str) -> list[str]:
    """The child runs whose failure a failed run has failed by: they continue before it does."""
    row = store.get(run_id)
    if row is None or row.status != "failed":
        return []
    state = whole_state(store, run_id)
    failed = {state.failure.step, *state.failure.also} if state.failure else set()
    children = [store.get(c.child) for c in state.calls if c.step in failed and c.child]
    return [child.id for child in children if child is not None and child.status == "failed"]


def rerun(store: Store, run_id: str, *, by: str = "", why: str = "") -> None:
    """Start the run's code at its first line again, with its state kept: guards still hold."""

    def decide(state: RunState, row: RunRow) -> RunUpdate:
        refuse_held(store, row, "cancel or pause it first")
        doubt = [c for c in state.calls if c.status in UNSETTLED and c.may_be_in_doubt]
        if doubt:
            first = doubt[0]
            raise NotNow(
                f"run {run_id!r}: step {first.step}, {first.name}, may or may not have happened; find out "
                "and resolve it first",
                *(_resolve(run_id, first.step, *way) for way in _WAYS_TO_RESOLVE),
            )
        return RunUpdate([e.RunRestarted(by=by, why=why)], RowChange("pending", store.now()))

    update_run(store, run_id, decide, what_is_open)


_WAYS_TO_RESOLVE: Final = (
    ("it happened", "done=RESULT", ("--done", "RESULT")),
    ("it did not happen", "failed='WHY'", ("--failed", "WHY")),
    ("it may be repeated", "retry=True", ("--retry",)),
)


def _resolve(run_id: str, step: int, purpose: str, how: str, words: tuple[str, ...]) -> Remedy:
    call = f"hf.resolve({run_id!r}, {step}, {how})"
    return Remedy(f"if {purpose}", call, ("resolve", run_id, str(step), *words))


def cancel(store: Store, run_id: str, *, by: str = "", why: str = "") -> None:
    """End the run and its child runs, each at its next call. A call that is in progress is not interrupted."""
    cancellation = e.CancelRequested(by=by, why=why)
    if not request(store, run_id, cancellation):
        row = store.get(run_id)
        if row is None:
            raise NoSuchRun(run_id)
        refuse_ended(row)
    # After the run: a child that is created now looks at it.
    cancel_children(store, run_id, cancellation)


def undo(store: Store, run_id: str, *, by: str = "", why: str = "") -> None:
    """Undo what the run did, newest first. A worker with the agent's code executes it."""

    def decide(state: RunState, row: RunRow) -> RunUpdate:
        refuse_held(store, row, "cancel it first")
        if not state.to_undo:
            has_ended = row.status in TERMINAL_STATUSES
            end = Remedy("to end it", f"hf.cancel({run_id!r})", ("cancel", run_id))
            raise NotNow(
                f"run {run_id!r} has nothing to undo: none of its completed calls declares undo (@tool(undo=…)), "
                "or it is already undone",
                *([] if has_ended else [end]),
            )
        return RunUpdate([e.UndoRequested(by=by, why=why)], RowChange("pending", store.now()))

    update_run(store, run_id, decide, everything)


# ── limits ───────────────────────────────────────────────────────────────────────────────────


def set_limits(store: Store, run_id: str, limits: Limits, *, by: str = "", why: str = "") -> None:
    """Change the limits of a run that has not completed, and of its child runs that have not.

    A run that failed by a limit can continue then. The deadline counts from now. Of the budget, what is given replaces
    what is recorded; what was used still counts.
    """
    row = store.get(run_id)
    if row is not None and row.parent:
        root = root_of(run_id, row.parent)
        raise InvalidInput(
            f"run {run_id!r} is a child run: the limits of {root!r} apply to it, so change those with "
            f"hf.resume({root!r}, …)"
        )
    _set_limits(store, run_id, limits.deadline_at(store.now()), limits.changes, by, why)


def _set_limits(
    store: Store, run_id: str, deadline_at: int | None, budget: dict[str, float], by: str, why: str
) -> None:
    left = budget

    def decide(state: RunState, row: RunRow) -> RunUpdate:
        nonlocal left
        if row.status in ("completed", "cancelled"):
            return RunUpdate()
        refuse_held(store, row, "pause it first")
        steps, elapsed = state.steps + state.child_steps, store.now() - state.created_at
        left = budget_use(budget, steps=steps, elapsed_us=elapsed, usage=state.usage).left
        changed = e.LimitsChanged(deadline_at=deadline_at, budget=budget, by=by, why=why)
        return RunUpdate([changed], WAKE if row.status == "waiting" else None)

    update_run(store, run_id, decide, everything)
    for child in [row for row in children(store, run_id) if _is_unfinished(store, row)]:
        _set_limits(store, child.id, deadline_at, left, by, why)
        if child.status == "failed":
            reopen(store, child.id, by=by, why=why)


def _is_unfinished(store: Store, row: RunRow) -> bool:
    """Whether a child run has not ended, or has failed by a limit: it continues when its parent does."""
    if row.status != "failed":
        return row.status not in TERMINAL_STATUSES
    _, event = end_of(store, row)
    return isinstance(event, e.RunFailure) and event.reason in REASONS
