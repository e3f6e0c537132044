"""A plain step, made without a flow: gate, body, receipt and commit, one after the other.

Most calls of most agents are a step: its body and a receipt. What the flow can do besides (intents, approvals, retries, limits,
waits) would cost such a step a fifth of its time in Python. It passes through the same stages, with the same boundaries. What
does not go that way (the body raises, the receipt is refused) is left to the flows of `attempt.py` and `commit.py`, from that
point on.

`tests/runtime/test_old_logs.py` compares the logs of all its scenarios with and without this. `step_async.py` does the same for
a step that is awaited.
"""

from __future__ import annotations

from typing import Any

from holdfast.core import events as e
from holdfast.core.entry import Entry
from holdfast.runtime.call.attempt import BegunAttempt, did_not_return
from holdfast.runtime.call.commit import refuse
from holdfast.runtime.call.driver import drive, invoke, persist
from holdfast.runtime.call.gate import gate
from holdfast.runtime.call.operations import BatchRefused, Invoke, Write
from holdfast.runtime.call.receipt import note_duration, receipt_of
from holdfast.runtime.call.request import CallRequest
from holdfast.runtime.log.branches import Inside
from holdfast.runtime.log.writer import Batch


def is_plain_step(request: CallRequest, entry: Entry | None) -> bool:
    """Whether a call of a plain function is its body and a receipt here too, and nothing is recorded that the code has yet
    to ask for: then no stage between the gate and the attempt has anything to do or to wait for."""
    session, spec = request.branch.session, request.spec
    lines = session.lines
    return (
        entry is None
        and not session.journal.entries
        and spec.risk not in session.lineage.policy.approve
        and session.config.commits_receipts
        and (lines is None or not lines.is_leaving)
    )


def make_step(request: CallRequest) -> Any:
    """Make the call, blocking."""
    spec, session = request.spec, request.branch.session
    gate(session)
    started_at = session.store.now()
    session.check_lease()
    try:
        raw = invoke(body_of(request))
    except Exception as error:  # noqa: BLE001 - the step's own failure, whatever it is
        return drive(did_not_return(request, BegunAttempt(1, 0, started_at, 1), error))

    result, receipt, batch = receipt_batch(request, raw, started_at)
    del raw  # it may be large
    try:
        persist(Write(session, batch, receipt.kind))
    except BatchRefused as refused:
        return drive(refuse(session, refused.error, [receipt], request))
    session.view.show(batch.seq)
    note_duration(spec.name, receipt.duration_us)
    return result


def body_of(request: CallRequest) -> Invoke:
    """The call of the step's own function."""
    spec, session = request.spec, request.branch.session
    inside = Inside(spec.name, spec.effect, session.run_id)
    return Invoke(session, spec.body, request.bound, inside, spec.is_async)


def receipt_batch(
    request: CallRequest, raw: object, started_at: int
) -> tuple[Any, e.CallSucceeded, Batch]:
    """The result as the code sees it, its receipt, and the batch that records this."""
    result, receipt, blobs = receipt_of(request, raw, 1, 0, started_at)
    ended_at = started_at + receipt.duration_us
    batch = Batch((receipt,), None, blobs, is_receipt=True, is_outcome=True, at=ended_at)
    return result, receipt, batch
