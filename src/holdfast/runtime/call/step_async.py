"""A plain step that is awaited, made without a flow (see `step.py`).

What else does not go that way: a body that swallows a cancellation, an outcome that is not the next. A module of its own,
because only async agents need it and `asyncio`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.runtime.call.async_driver import (
    Cancelled,
    deliver_later,
    drive_async,
    invoke_call,
    settled,
)
from holdfast.runtime.call.attempt import BegunAttempt, did_not_return, hand_over, returned
from holdfast.runtime.call.commit import refuse
from holdfast.runtime.call.gate import gate
from holdfast.runtime.call.operations import BatchRefused, TaskCancelled
from holdfast.runtime.call.receipt import note_duration
from holdfast.runtime.call.request import CallRequest
from holdfast.runtime.call.step import body_of, receipt_batch

if TYPE_CHECKING:
    from holdfast.runtime.lines.line import Line
    from holdfast.runtime.lines.lines import Lines


async def make_step_async(request: CallRequest, lines: Lines, line: Line) -> Any:
    """Make the call in this line."""
    spec, session = request.spec, request.branch.session
    gate(session)
    started_at = session.store.now()
    session.check_lease()
    cancelled: Cancelled = []
    try:
        # The call of its body is kept in no variable: nothing needs it while the receipt is on its way.
        raw = await invoke_call(body_of(request), cancelled, line.cancellations)
    except (Exception, TaskCancelled) as error:  # noqa: BLE001 - the step's own failure, whatever it is
        flow = did_not_return(request, BegunAttempt(1, 0, started_at, 1), error)
        return await drive_async(flow, request, cancelled, error)
    if cancelled:
        flow = returned(request, raw, 1, 0, started_at)
        return await drive_async(flow, request, cancelled)

    result, receipt, batch = receipt_batch(request, raw, started_at)
    del raw  # it may be large
    boundary, is_alone = session.boundary, not lines.needs_order
    if boundary is not None:
        boundary(f"before commit {receipt.kind}")
    session.writer.commit(batch, None if is_alone else lines.turns.outcome)
    if is_alone:
        lines.is_lone_outcome_due = True
    try:
        await settled(session, batch, cancelled)
    except BatchRefused as refused:
        flow = refuse(session, refused.error, [receipt], request)
        return await drive_async(flow, request, cancelled)
    finally:
        if is_alone:
            lines.is_lone_outcome_due = False
    if boundary is not None:
        boundary(f"after commit {receipt.kind}")

    if lines.needs_order or not is_alone:
        if is_alone:  # not any more
            batch.turn = lines.turns.first_outcome(batch.seq)
        if not lines.turns.take_now(batch.turn):
            return await drive_async(hand_over(request, batch, receipt, result), request, cancelled)
    session.view.show(batch.seq)
    if cancelled:
        deliver_later(cancelled)
    note_duration(spec.name, receipt.duration_us)
    return result
