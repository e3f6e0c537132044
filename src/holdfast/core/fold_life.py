"""How the events of a run's own life change its state: created, claimed, suspended, ended, paused, restarted, limited."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from holdfast.core import events as e
from holdfast.core.draft import Document, DraftState, Handlers
from holdfast.core.state import Failure
from holdfast.core.values import FrozenDict
from holdfast.waiting import WaitingFor


def _created(draft: DraftState, x: e.RunCreated) -> None:
    draft.id, draft.agent, draft.input = x.run_id, x.agent, x.input
    draft.code_version, draft.deadline_at, draft.budget = x.code_version, x.deadline_at, x.budget
    draft.stages, draft.parent, draft.forked_from = x.stages, x.parent, x.forked_from
    draft.inherited_effects, draft.is_loop = x.inherited_effects, x.loop
    draft.is_recorded = x.recorded
    draft.created_at, draft.status = draft.updated_at, "pending"


def _claimed(draft: DraftState, x: e.RunClaimed) -> None:
    _set_status(draft, "running")
    draft.workers.append(x.worker)
    del draft.workers[:-10]


def _suspended(draft: DraftState, x: e.RunSuspended) -> None:
    waits = x.waits or (WaitingFor("other", x.waiting_for),)
    _set_status(
        draft, "waiting", x.waiting_for, tuple(map(partial(_since, draft), waits)), x.wake_at
    )
    draft.diverged = x.diverged


def _set_status(
    draft: DraftState,
    status: str,
    waiting_for: str = "",
    waiting: tuple[WaitingFor, ...] = (),
    wake_at: int | None = None,
) -> None:
    draft.status, draft.waiting_for, draft.waiting = status, waiting_for, waiting
    draft.wake_at, draft.diverged = wake_at, None


def _since(draft: DraftState, wait: WaitingFor) -> WaitingFor:
    """The same with its start: of a request, when it was made."""
    request = wait.request_id
    made = (w.since for w in draft.open.waits.values() if request and w.id == request)
    return msgspec.structs.replace(wait, since=next(made, draft.updated_at))


def _completed(draft: DraftState, x: e.RunCompleted) -> None:
    draft.result = x.result
    _set_status(draft, "completed")
    draft.open.waits.clear()


def _failed(draft: DraftState, x: e.RunFailure) -> None:
    call = next((c for c in draft.open.calls.values() if c.step == x.step), None)
    _set_status(draft, "failed")
    draft.failure = Failure(
        time=draft.updated_at,
        error=x.error,
        reason=x.reason,
        step=x.step,
        tool=call.name if call else "",
        input=call.args if call else None,
        state=FrozenDict(draft.open.state),
        also=x.also,
    )


def _cancelled(draft: DraftState, x: e.RunCancellation) -> None:
    _set_status(draft, "cancelled")
    draft.add_line("cancel", x.by, x.why, "cancelled")


def _reopened(draft: DraftState, x: e.RunReopened) -> None:
    draft.status, draft.failure, draft.waiting_for, draft.waiting = "pending", None, "", ()
    draft.add_line("resume", x.by, x.why, "resumed")


def _accepted(draft: DraftState, x: e.StepsAccepted) -> None:
    draft.add_line("accept", x.by, x.why, "new steps of the code were accepted")


def _limits(draft: DraftState, x: e.LimitsChanged) -> None:
    if x.deadline_at is not None:
        draft.deadline_at = x.deadline_at
    draft.budget = {**draft.budget, **x.budget}
    draft.add_line("limits", x.by, x.why, "its limits were changed")


def _restarted(draft: DraftState, x: e.RunRestarted) -> None:
    """The code starts over: earlier calls are history (index −1), and the state stays."""
    parts = draft.open
    past = [msgspec.structs.replace(c, index=-1) for c in parts.calls.values()]
    parts.past_calls += past if draft.keep_calls else []
    parts.calls.clear()
    parts.waits.clear()
    draft.status, draft.failure, draft.result = "pending", None, None
    draft.waiting_for, draft.waiting = "", ()
    draft.cancel_requested, draft.diverged = False, None
    draft.restarts += 1
    draft.loop = Document(None)
    draft.iteration, draft.iteration_index = 0, -1
    draft.add_line("rerun", x.by, x.why, "restarted, with its state kept")


def _paused(draft: DraftState, x: e.RunPaused) -> None:
    draft.status, draft.waiting_for = "paused", "a person to resume it"
    draft.waiting = (WaitingFor("resume", since=draft.updated_at),)
    draft.add_line("pause", x.by, x.why, "paused")


def _quarantined(draft: DraftState, x: e.RunQuarantined) -> None:
    waits = x.waits or (WaitingFor("quarantine", reason=x.reason),)
    draft.status, draft.waiting_for = "quarantined", x.reason
    draft.waiting = tuple(map(partial(_since, draft), waits))


def _cancel_requested(draft: DraftState, x: e.CancelRequested) -> None:
    draft.cancel_requested = not x.reason
    draft.add_line("cancel", x.by, x.why, "cancellation requested")


def _undo_requested(draft: DraftState, x: e.UndoRequested) -> None:
    draft.status = "pending"
    draft.add_line("undo", x.by, x.why, "undo requested")


LIFE: Final[Handlers] = {
    e.RunCreated: _created,
    e.RunClaimed: _claimed,
    e.RunSuspended: _suspended,
    e.RunCompleted: _completed,
    e.RunFailure: _failed,
    e.RunCancellation: _cancelled,
    e.RunReopened: _reopened,
    e.RunRestarted: _restarted,
    e.RunPaused: _paused,
    e.RunQuarantined: _quarantined,
    e.CancelRequested: _cancel_requested,
    e.UndoRequested: _undo_requested,
    e.StepsAccepted: _accepted,
    e.LimitsChanged: _limits,
}
