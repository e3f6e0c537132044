"""Receipt: how a call ended, for the log, for the code and for people; and how long it took.

Results are what a replay would decode, the first time as well. Errors become data without secrets and
come back as `CallFailed`; no exception is ever rebuilt by its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Final

from msgspec import Raw
from msgspec.structs import replace

from holdfast.core import events as e
from holdfast.core import values
from holdfast.core.events import ChildUsage, ErrorInfo, Usage, Value
from holdfast.core.log import Blob, wrap
from holdfast.core.values import REDACTED
from holdfast.errors import (
    CallFailed,
    CallTimeout,
    NotStorable,
    Rejected,
)
from holdfast.runtime.call.commit import commit, is_due
from holdfast.runtime.call.operations import Flow, HandOver
from holdfast.runtime.call.request import CallRequest
from holdfast.runtime.declare.secrets import secrets_in

ARGS_KEPT_BYTES: Final = 4 * 1024
"""A step's arguments are kept with its receipt up to this size; beyond, their digest is enough."""
MESSAGE_CHARS: Final = 4_000
SECRET_CHARS: Final = 8
"""A secret of this length is looked for in the texts of a result. A shorter one could be part of something
else, and the agent would continue with a wrong value."""
_KEPT_OUT: Final = f'"{REDACTED}"'.encode()


def encoded(request: CallRequest, raw: Any) -> tuple[Any, Value, Sequence[Blob], str]:
    """The result as code sees it (now and on replay), as the log keeps it, and why it cannot."""
    spec = request.spec
    try:
        if spec.redact or _KEPT_OUT in request.args:
            plain = values.lower(raw, typed=spec.result.typed)
            raw = _redacted(plain, spec.redact, _long_secrets(request))
        data, result = spec.result.round_trip(raw)
    except NotStorable as error:
        return None, e.NULL, (), f"{error.reason} (at {error.path})"
    value, blobs = wrap(data)
    return result, value, blobs, ""


def _redacted(value: Any, names: frozenset[str], secrets: Sequence[str]) -> Any:
    """A result without the fields that were declared secret, and without the call's secrets in its texts."""
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, REDACTED)
        return value
    if isinstance(value, dict):
        return {
            _redacted(k, names, secrets): REDACTED if k in names else _redacted(v, names, secrets)
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [_redacted(v, names, secrets) for v in value]
    return value


def _long_secrets(request: CallRequest) -> list[str]:
    """The secrets among the arguments of this call that cannot be part of a text by chance; longest first."""
    bound = request.bound
    found = secrets_in(list(bound.values()))
    found |= secrets_in([bound.get(name) for name in request.spec.redact], declared=True)
    return sorted((s for s in found if len(s) >= SECRET_CHARS), key=len, reverse=True)


def kept_args(request: CallRequest) -> tuple[Value | None, str]:
    """What a receipt says of the arguments: themselves, or their digest if they are long."""
    if len(request.args) <= ARGS_KEPT_BYTES:
        return Value(json=Raw(request.args)), ""
    return None, request.digest


def receipt_of(
    request: CallRequest, raw: Any, number: int, step: int, started_at: int
) -> tuple[Any, e.CallSucceeded, Sequence[Blob]]:
    """The result as code sees it, and the receipt with what is kept outside the log."""
    spec, session = request.spec, request.branch.session
    usage = getattr(raw, "usage", None)
    result, value, blobs, unavailable = encoded(request, raw)
    has_intent, is_child = spec.has_intent, spec.is_child
    if unavailable and not has_intent:
        raise NotStorable(unavailable, what=f"the result of {spec.name}")
    args, digest = (None, "") if has_intent else kept_args(request)
    receipt = e.CallSucceeded(
        branch=request.branch.path,
        index=request.index,
        forks=request.forks,
        step=step or session.next_step(),
        name=spec.name,
        result=value,
        digest=digest,
        args=args,
        attempt=number,
        duration_us=session.store.now() - started_at,
        usage=usage if usage is not None and isinstance(usage, Usage) and not is_child else None,
        unavailable=unavailable,
        spent=spent_by_child(request, step) if is_child else None,
    )
    return result, receipt, blobs


def failed_receipt(
    request: CallRequest,
    error: ErrorInfo,
    step: int,
    *,
    has_intent: bool = False,
    attempt: int = 1,
    retry_at: int | None = None,
    duration_us: int = 0,
    cut: bool = False,
    usage: Usage | None = None,
    forks_above: tuple[int, ...] = (),
) -> e.CallFailure:
    """The receipt of an attempt that failed; it holds the arguments where no intent does."""
    args, digest = (None, "") if has_intent else kept_args(request)
    return e.CallFailure(
        branch=request.branch.path,
        index=request.index,
        forks=request.forks,
        step=step,
        name=request.spec.name,
        error=error,
        digest=digest,
        args=args,
        attempt=attempt,
        retry_at=retry_at,
        duration_us=duration_us,
        cut=cut,
        spent=spent_by_child(request, step) if request.spec.is_child else None,
        usage=usage,
        forks_above=forks_above,
    )


def record_receipt(
    request: CallRequest, receipt: e.CallSucceeded, blobs: Sequence[Blob], ended_at: int
) -> Flow[object]:
    """Make a receipt durable, now or (by the checkpoint strategy) with the next commit."""
    session, has_intent = request.branch.session, request.spec.has_intent
    if has_intent or session.config.commits_receipts or is_due(session):
        return commit(
            session,
            [receipt],
            blobs=blobs,
            urgent=has_intent,
            evidence=request,
            is_outcome=True,
            at=ended_at,
        )
    return _hold_receipt(request, receipt, blobs)


def _hold_receipt(
    request: CallRequest, receipt: e.CallSucceeded, blobs: Sequence[Blob]
) -> Flow[None]:
    session = request.branch.session
    turn = session.buffer(replace(receipt, buffered=True), blobs)
    session.journal.forget(*request.place)
    if turn is not None:
        yield HandOver(session, None, turn)


def spent_by_child(request: CallRequest, step: int) -> ChildUsage | None:
    """What the child run of this call has used up; from here on its receipt says so."""
    return request.session.lineage.spent.pop(f"{request.session.run_id}~{step}", None)


def failure(name: str, error: ErrorInfo, attempts: int, step: int) -> CallFailed:
    """A recorded failure as the exception that code sees, the first time and on every replay."""
    kind = {"TimeoutError": CallTimeout, "Rejected": Rejected}.get(error.type, CallFailed)
    failed = kind(name, error.type, error.message, attempts=max(1, attempts), step=step)
    failed.may_have_happened = error.effect == "unknown"
    return failed


def result_lost(request: CallRequest, why: str, step: int) -> CallFailed:
    """The call was done, and is not made again; a person can say what its result was."""
    run_id = request.session.run_id
    return CallFailed(
        request.spec.name,
        "ResultUnavailable",
        f"it was done, but its result could not be stored: {why}. Report it with "
        f"hf.resolve({run_id!r}, {step}, done=…), then hf.resume({run_id!r})",
        step=step,
    )


def secrets_of(request: CallRequest) -> set[str]:
    """What must not be recorded or shown: declared names, and values of secret types wherever they are."""
    session = request.session
    session.secrets.update(secrets_in(list(request.bound.values())))
    return session.secrets


def error_info(error: BaseException, secrets: Iterable[str] = ()) -> ErrorInfo:
    """An exception as data, without secrets and of bounded size."""
    # Most runs have no errors.
    from holdfast.runtime.call.tracebacks import shortened, user_traceback

    kind = "TimeoutError" if isinstance(error, TimeoutError) else type(error).__qualname__
    return ErrorInfo(
        type=error.error_type if isinstance(error, CallFailed) else kind,
        message=_scrub(error.message if isinstance(error, CallFailed) else str(error), secrets)[
            :MESSAGE_CHARS
        ],
        traceback=shortened(_scrub(user_traceback(error), secrets)),
    )


def _scrub(text: str, secrets: Iterable[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return text.encode("utf-8", "backslashreplace").decode()


# ── how long it took ─────────────────────────────────────────────────────────────────────────


Durations = list[tuple[str, int]]
"""Names of calls and microseconds, in the order in which the code got their results."""
_MEASURED: Final[ContextVar[Durations | None]] = ContextVar("holdfast_durations", default=None)


@contextlib.contextmanager
def measured() -> Iterator[Durations]:
    """Within this block, and in the tasks that it starts, durations are collected in the list that it gives."""
    before, found = _MEASURED.get(), Durations()
    _MEASURED.set(found)
    try:
        yield found
    finally:
        _MEASURED.set(before)  # not by a token: a flow may be closed in another context


def note_duration(name: str, duration_us: int) -> None:
    """A call of this name has returned."""
    found = _MEASURED.get()
    if found is not None:
        found.append((name, duration_us))
