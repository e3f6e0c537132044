"""A call that the agent's own code stopped waiting for: `asyncio.timeout`, a failed alternative, a lost race.
(For waits see `waits.py`.)

It is recorded, so that a replay cancels the call at the same place (`lines.py`). Whether the tool may have acted by
then is decided earlier, in `flow.py`.
"""

from __future__ import annotations

from holdfast.core import events as e
from holdfast.core.effect import Effect
from holdfast.core.events import ErrorInfo
from holdfast.runtime.call.commit import commit, commit_outcome
from holdfast.runtime.call.operations import CallRequest, Flow, Invoke, Never, TaskCancelled
from holdfast.runtime.call.results import failed_receipt
from holdfast.runtime.log.branches import Inside
from holdfast.runtime.log.session import Session
from holdfast.store.base import Store
from holdfast.store.cancel import cancel_tree


def record_cancelled(
    request: CallRequest, cut: TaskCancelled, number: int, step: int, started: int | None = None
) -> Never:
    """Record it, and raise the cancellation. A child run that is no longer awaited is cancelled too."""
    spec, session = request.spec, request.session
    error = ErrorInfo("Cancelled", str(cut), effect="" if cut.began and spec.has_intent else "none")
    receipt = failed_receipt(
        request,
        error,
        step or session.next_step(),
        has_intent=spec.has_intent and step > 0,
        attempt=number,
        cut=True,
        forks_above=forks_above(session),
        duration_us=0 if started is None else session.store.now() - started,
    )
    if spec.effect == Effect.CHILD:
        cancel = cancel_child(request, receipt.step)
        yield from commit_outcome(request, receipt, urgent=True, first=cancel)
    else:
        urgent = spec.has_intent
        yield from commit(session, [receipt], urgent=urgent, evidence=request, is_outcome=True)
    raise cut.cancelled


def forks_above(session: Session) -> tuple[int, ...]:
    """How many branches those above the current one had started when its code stopped waiting."""
    line = None if session.lines is None else session.lines.current
    return () if line is None else line.forks_above


def cancel_child(request: CallRequest, step: int) -> Flow[BaseException | None]:
    """Cancel the child run of this call, unless it has ended; repeating it does no harm. Returns the cancellation of
    the caller that came meanwhile, if any: the child is cancelled in spite of it."""
    session, spec = request.session, request.spec
    child = {"store": session.store, "run_id": f"{session.run_id}~{step}"}
    inside = Inside(spec.name, spec.effect, session.run_id)
    given_up: BaseException | None = None
    while True:
        try:
            yield Invoke(session, ask_to_cancel, child, inside, False)
        except TaskCancelled as cut:
            given_up = cut.cancelled
        else:
            return given_up


def ask_to_cancel(store: Store, run_id: str) -> None:
    """Let a child run, and what is below it, end at its next call, in any process."""
    cancel_tree(store, run_id, e.CancelRequested(why="its parent stopped waiting for it"))
