"""Before a call is made: its arguments are checked, and a person approves it if its risk demands that.

A call that is refused here was not made; the receipt says so. Not here: the rest of the gate (`gate.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.core.entry import Entry, request_id
from holdfast.core.events import ErrorInfo
from holdfast.core.policy import Policy, microseconds
from holdfast.core.waits import OpenWait
from holdfast.errors import (
    InvalidInput,
    NotStorable,
    Rejected,
)
from holdfast.runtime.call.commit import catch_up, commit, park
from holdfast.runtime.call.gate import gate
from holdfast.runtime.call.match import intent_of_this_run
from holdfast.runtime.call.operations import Flow
from holdfast.runtime.call.receipt import (
    failed_receipt,
    failure,
)
from holdfast.runtime.call.request import CallRequest
from holdfast.runtime.log.session import Session, recorded_text
from holdfast.waiting import WaitingFor
from holdfast.words.waiting import suspended


def ask_approval(
    request: CallRequest, entry: Entry | None, gated: bool
) -> Flow[tuple[CallRequest, int | None]]:
    """For a risk that needs a person: the call that may be made, and the seq of its approval.

    An approval counts once (the intent that names it is committed in the same transaction), for the very
    bytes that were shown, and not after it has expired. The call that may be made is the one that the code
    asked for, or, if the person edited its arguments, one with those.

    A request that is recorded counts even if the code no longer asks (it is not `gated`): a rejection is
    an outcome, an approval is used, and without a decision the call is not made.
    """
    spec, session = request.spec, request.session
    policy = session.lineage.policy
    if request.undoes:
        return request, None
    if entry is not None and intent_of_this_run(session, entry) is not None:
        try:
            return _as_approved(request, entry), None
        except InvalidInput as error:  # they did fit when the intent was recorded
            recorded = recorded_text(entry, session.unwrap)
            raise session.diverged(request.place, recorded, f"{request}: {error}") from None
    if entry is None or entry.wait is None or _asks_again(session, entry):
        if entry is not None and not gated:
            if _was_rejected(entry):
                raise _gate_removed(request, "rejected")
            return request, None
        until = None
        if policy.approval_ttl is not None:
            until = session.store.now() + microseconds(policy.approval_ttl, "approval_ttl")
        value, blobs = log.wrap(request.args)
        asks = e.WaitBegan(
            branch=request.branch.path,
            index=request.index,
            forks=request.forks,
            wait="approval",
            name=spec.name,
            digest=request.digest,
            until=until,
            show=value,
            tool=spec.name,
            tool_version=spec.version,
        )
        yield from commit(session, [asks], blobs=blobs, condition=gate)
        entry = session.log.entry(request.branch.path, request.index)
    assert entry is not None and entry.wait is not None
    if entry.approval is None:
        yield from catch_up(session)
    decided = entry.approval.digest if entry.approval is not None else request.digest
    shown = (entry.wait.digest, decided, entry.wait.tool_version)
    if shown != (request.digest, request.digest, spec.version):
        raise session.diverged(
            request.place,
            f"approval of {entry.name}, digest {entry.wait.digest}, version {entry.wait.tool_version!r}",
            f"{request}, digest {request.digest}, version {spec.version!r}",
        )
    decision, until = entry.approval, entry.wait.until
    if decision is not None and not decision.approved:
        who = decision.by or "a person"
        yield from _reject(
            request, f"rejected by {who}" + (f": {decision.why}" if decision.why else "")
        )
    if until is not None and session.store.now() >= until:
        yield from _reject(request, "the approval was not given and used in time")
    if decision is not None:
        try:
            return _as_approved(request, entry), entry.approval_seq
        except InvalidInput as error:
            yield from _refuse(request, ErrorInfo("InvalidInput", str(error), effect="none"))
    if not gated:
        raise _gate_removed(request, "not decided")
    name = request_id(request.place)
    waiting = WaitingFor("approval", spec.name, until=until, request_id=name, tool=spec.name)
    signal = suspended(session.run_id, waiting, wake_at=until)
    yield from park(session, OpenWait(request.place, "approval", until), signal)
    raise AssertionError("unreachable")


def _as_approved(request: CallRequest, entry: Entry) -> CallRequest:
    """The call with the arguments that the person who approved it gave; InvalidInput if they do not fit the tool.

    An argument that was not edited is passed on as it is: the log may have no more of it than that it is redacted.
    """
    decision, spec = entry.approval, request.spec
    if decision is None or decision.args is None:
        return request
    edited: dict[str, Any] = values.decode(request.session.unwrap(decision.args))
    requested: dict[str, Any] = values.decode(request.args)
    bound = dict(request.bound)
    who = decision.by or "a person"
    for name, value in edited.items():
        if name not in requested:
            raise InvalidInput(
                f"{spec.name} was not called: it has no parameter {name!r}, which {who} gave"
            )
        if values.canonical(value) == values.canonical(requested[name]):
            continue
        try:
            codec = values.codec_of(spec.params.types.get(name, Any))
            bound[name] = codec.decode(values.encode(value))
        except NotStorable as error:
            where = error.below(f".{name}").path
            raise InvalidInput(
                f"{spec.name} was not called: what {who} gave does not fit: at {where}, {error.reason}"
            ) from None
    wrong = spec.wrong_argument(bound)
    if wrong:
        raise InvalidInput(wrong)
    return replace(request, bound=bound, args=spec.encode_args(bound), _digest="")


def _gate_removed(request: CallRequest, status: str) -> BaseException:
    """The log has a request for approval of this call that gives no right to make it, and the code no
    longer asks."""
    recorded = f"a request for approval of {request}, which was {status}"
    return request.session.diverged(request.place, recorded, f"{request} without approval")


def _was_rejected(entry: Entry) -> bool:
    return bool(entry.failures) and entry.failures[-1].error.type == Rejected.__name__


def _asks_again(session: Session, entry: Entry) -> bool:
    """Whether the recorded request is over: the run failed since and was resumed, or the request is that of
    the run that this one was forked from."""
    if session.journal.life.lineage.is_inherited(entry.wait_seq):
        return True
    return entry.granted and entry.wait_seq < entry.granted_seq


def _reject(request: CallRequest, why: str) -> Flow[None]:
    yield from _refuse(request, ErrorInfo("Rejected", why, effect="none"))


def check_args(request: CallRequest, entry: Entry | None) -> Flow[None]:
    """Before approval and intent: arguments that the annotations forbid fail the call, which was not made."""
    if entry is None or entry.intent is None:
        wrong = request.spec.wrong_argument(request.bound)
        if wrong:
            yield from _refuse(request, ErrorInfo("InvalidInput", wrong, effect="none"))


def _refuse(request: CallRequest, error: ErrorInfo) -> Flow[None]:
    """Record that the call was not made and why, and raise it."""
    session = request.session
    step = session.next_step()
    yield from commit(session, [failed_receipt(request, error, step)], is_outcome=True)
    raise failure(request.spec.name, error, 1, step)


# ── which risks need a person ────────────────────────────────────────────────────────────────


def require_approvals(session: Session, declared: Policy, demanded: Iterable[str]) -> None:
    """From here on the gate asks for these risks too, besides those that the run's own policy requires.

    A state can demand more than the agent and its parents, never less.
    """
    approve = declared.approve.union(demanded)
    if approve != session.lineage.policy.approve:
        session.lineage.policy = replace(declared, approve=approve)
