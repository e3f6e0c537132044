"""Enter, for declared functions that are awaited (see `enter.py`); a plain step passes without a flow.

Most calls of most agents are a step: its body and a receipt. What the flow can do besides (intents, approvals, retries, limits,
waits) costs such a step a quarter of its time, and many async runs share one thread. So `_make_step` passes through the same
stages directly, with the same boundaries. What does not go that way (the body raises or swallows a cancellation, the receipt
is refused, its outcome is not the next) is left to the flows of `attempt.py` and `commit.py`, from that point on.

`tests/runtime/test_old_logs.py` compares the logs of all its scenarios with and without this. A module of its own, because only
async agents need it and `asyncio`.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any

from holdfast.errors import CallFailed
from holdfast.runtime.call.async_driver import (
    Cancelled,
    deliver_later,
    drive_async,
    invoke_call,
    settled,
)
from holdfast.runtime.call.attempt import BegunAttempt, did_not_return, hand_over, returned
from holdfast.runtime.call.commit import refuse
from holdfast.runtime.call.flow import answer, is_only_its_body
from holdfast.runtime.call.gate import gate
from holdfast.runtime.call.match import find, recorded
from holdfast.runtime.call.operations import BatchRefused, Invoke, TaskCancelled
from holdfast.runtime.call.outside import call_outside
from holdfast.runtime.call.receipt import note_duration, receipt_of
from holdfast.runtime.call.request import CallRequest, child_call, request_call
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.declare.call_spec import CallSpec
from holdfast.runtime.log.branches import CURRENT, Branch, Inside
from holdfast.runtime.log.writer import Batch

if TYPE_CHECKING:
    from holdfast.runtime.lines.line import Line
    from holdfast.runtime.lines.lines import Lines


async def enter_async(
    spec: CallSpec | AgentSpec, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a declared function from wherever we are. Its place is taken when it is awaited."""
    current = CURRENT.get()
    if type(spec) is not AgentSpec and spec.is_method:
        spec, args = spec.of_instance(args)
    if type(current) is not Branch:
        return await call_outside(current, spec, args, kwargs)
    if type(spec) is AgentSpec:
        spec = child_call(spec, current)
    request = request_call(current, spec, spec.params.bind(args, kwargs))
    entry = find(request).entry
    lines, line = current.session.lines, None
    if (
        entry is not None
        and entry.done is not None
        and not entry.done.unavailable
        and (lines is None or lines.is_in_order)
    ):
        return recorded(request, entry)  # as the flow would: nothing has to be put in order
    if lines is not None and lines.thread == get_ident():
        line = lines.enter_call((request.branch.path, request.index))
    try:
        if (
            lines is not None
            and line is not None
            and is_only_its_body(request, entry)
            and current.session.config.checkpoint.at_step
        ):
            return await _make_step(request, lines, line)
        return await drive_async(answer(request, entry), request)
    except CallFailed:
        current.line.call_failed = True  # that of the code, wherever the call is recorded
        raise
    finally:
        if line is not None:
            line.leave_call()


async def _make_step(request: CallRequest, lines: Lines, line: Line) -> Any:
    """Make a call that is its body and a receipt, where nothing is recorded that the code has yet to ask for."""
    spec, session = request.spec, request.branch.session
    gate(session)
    started_at = session.store.now()
    session.check_lease()
    cancelled: Cancelled = []
    try:
        raw = await invoke_call(
            Invoke(  # in no variable: nothing needs it while the receipt is on its way
                session,
                spec.body,
                request.bound,
                Inside(spec.name, spec.effect, session.run_id),
                True,
            ),
            cancelled,
            line.cancellations,
        )
    except (Exception, TaskCancelled) as error:  # noqa: BLE001 - the step's own failure, whatever it is
        flow = did_not_return(request, BegunAttempt(1, 0, started_at, 1), error)
        return await drive_async(flow, request, cancelled, error)
    if cancelled:
        flow = returned(request, raw, 1, 0, started_at)
        return await drive_async(flow, request, cancelled)

    result, receipt, blobs = receipt_of(request, raw, 1, 0, started_at)
    del raw  # it may be large
    boundary, is_alone = session.boundary, not lines.needs_order
    if boundary is not None:
        boundary(f"before commit {receipt.kind}")
    batch = session.writer.commit(
        Batch((receipt,), None, blobs, is_receipt=True, is_outcome=True),
        None if is_alone else lines.turns.outcome,
    )
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
