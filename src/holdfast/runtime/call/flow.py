"""The call flow, written once: a generator of effects.

    enter → request → match → gate → approval → intent → attempt → receipt → commit

It yields what must be done (`Write`, `Invoke`, `Park`, …) and a driver does it, for a caller that blocks
or for one that awaits (`driver.py`, `async_driver.py`). So there are no sync and async twins, the protocol can be tested
without I/O, and every yield is a point where the process may die.

Reading order: the stages are modules of these names; `_make` here is what connects them from the gate on. A call whose process
died is settled by `recover.py`; a new plain step needs no flow (`step.py`). Agents run through `execute.py`, which is the same
idea one layer up.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.entry import Entry
from holdfast.runtime.call.approval import ask_approval, check_args
from holdfast.runtime.call.attempt import make_attempts
from holdfast.runtime.call.gate import gate, gate_again
from holdfast.runtime.call.match import check_all_replayed, find, replay
from holdfast.runtime.call.operations import Begin, Flow, LookAgain, Never, TaskCancelled
from holdfast.runtime.call.recover import given_up, record_cancelled, settle_doubt
from holdfast.runtime.call.request import CallRequest, request_call
from holdfast.runtime.declare.call_spec import CallSpec
from holdfast.runtime.log.branches import Branch


def call(branch: Branch, spec: CallSpec, bound: dict[str, Any], *, undoes: int = 0) -> Flow[Any]:
    """One use of a step or tool inside a run."""
    request = request_call(branch, spec, bound, undoes)
    return (yield from proceed(request, find(request).entry))


def proceed(request: CallRequest, entry: Entry | None) -> Flow[Any]:
    """Answer the call. What was parked looks again at what is recorded of it."""
    while True:
        try:
            return (yield from answer(request, entry))
        except LookAgain:
            entry = request.session.log.entry(*request.place)


def answer(request: CallRequest, entry: Entry | None) -> Flow[Any]:
    """Answer the call: from the log if it has an outcome there, else by making it.

    All of the flow for a caller that blocks: it unwinds instead of being parked, and never looks again.
    """
    if entry is not None and entry.final:
        return replay(request, entry)
    return _make(request, entry)


def _make(request: CallRequest, entry: Entry | None) -> Flow[Any]:
    """Make the call, or the rest of it. If the code stops waiting before an attempt, that is recorded."""
    try:
        session = request.branch.session
        if not request.undoes:
            if session.journal.entries:
                check_all_replayed(request.branch, request)
            lines = session.lines  # what is inserted comes before what is recorded
            if (
                lines is not None
                and (lines.is_leaving or not lines.is_in_order)
                and not request.branch.is_insertion
            ):
                yield from _begin(request, entry)
            gate(session)
        if entry is not None and entry.open_attempt:
            settled = yield from settle_doubt(request, entry)
            if settled is not None:
                return (yield from replay(request, settled))
            entry = find(request).entry
            gate_again(request)
        if request.spec.params.constrained and not request.undoes:
            yield from check_args(request, entry)
        approved, approval = request, None
        gated = request.spec.risk in session.lineage.policy.approve
        if gated or (entry is not None and entry.wait is not None):
            approved, approval = yield from ask_approval(request, entry, gated)
            gate_again(request)
        return (yield from make_attempts(approved, entry, approval))
    except TaskCancelled as cut:
        # While it waited: for a person, between two attempts, for its turn.
        held = request.session.log.entry(*request.place)
        cut.began = held is not None and bool(held.attempts)
        yield from _give_up(request, cut, held)


def _begin(request: CallRequest, entry: Entry | None) -> Flow[None]:
    """Wait until the call may start. If the code gives it up before, that is recorded as for any other call."""
    try:
        yield Begin(request.session, request)
    except TaskCancelled as cut:
        # An earlier attempt may have happened.
        cut.began = entry is not None and bool(entry.attempts)
        if entry is not None and entry.open_attempt:  # in another process
            settled = yield from given_up(request, entry.intent, entry.attempts, str(cut))
            if settled is not None:
                raise LookAgain from None
        yield from _give_up(request, cut, entry)


def _give_up(request: CallRequest, cut: TaskCancelled, entry: Entry | None) -> Never:
    """Record that the code stopped waiting before an attempt: it ends the one that has no outcome, if any."""
    if entry is None:
        yield from record_cancelled(request, cut, 1, 0)
        raise AssertionError("unreachable")
    has_outcome = any(failed.attempt == entry.attempts for failed in entry.failures)
    number = entry.attempts + 1 if has_outcome else max(1, entry.attempts)
    yield from record_cancelled(request, cut, number, entry.step)
    raise AssertionError("unreachable")
