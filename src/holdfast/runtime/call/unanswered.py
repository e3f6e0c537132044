"""A call that was started and whose outcome is unknown, while its run is executing: it timed out, its response
was lost, or the code stopped waiting.

What the tool declares decides, as after a crash (`recover.py`): its check is called, its key allows another attempt,
or the run is suspended until a person decides. Which errors leave the outcome unknown is `core/lost_response.py`.
"""

from __future__ import annotations

from holdfast.core import events as e
from holdfast.core.effect import Effect
from holdfast.core.entry import Entry
from holdfast.core.lost_response import may_have_happened, was_not_sent
from holdfast.errors import StoreError
from holdfast.runtime.call.operations import CallRequest, Flow
from holdfast.runtime.call.recover import ask_check, ask_policy, doubt
from holdfast.runtime.call.results import error_info, secrets_of


def given_up(
    request: CallRequest, intent: e.CallStarted | None, number: int, because: str
) -> Flow[Entry | None]:
    """The code stopped waiting for it. Returns how it is settled; None: as a failure."""
    spec = request.spec
    if intent is None or spec.effect not in (Effect.ONCE, Effect.CHECKED):
        return None
    if spec.effect == Effect.CHECKED:
        settled = yield from ask_check(request, intent)
        if settled is not None or spec.is_async:
            return settled
        because += ", and may still be under way"  # a thread cannot be stopped
    yield from doubt(request, intent.step, number, because)
    return None


def is_unknown(request: CallRequest, error: Exception) -> bool:
    """Whether a call that raised this may have happened. A call that can be repeated freely is never asked."""
    spec = request.spec
    if not spec.effect.may_be_in_doubt or isinstance(error, StoreError):
        return False
    return _is_timeout(request, error) or may_have_happened(error, spec.unsure_on)


def _is_timeout(request: CallRequest, error: Exception) -> bool:
    return isinstance(error, TimeoutError) and request.spec.timeout is not None


def lost_response(
    request: CallRequest, intent: e.CallStarted | None, error: Exception, number: int, tries: int
) -> Flow[Entry | None]:
    """An attempt raised an error. If its outcome, or that of an earlier one, is unknown: how it is settled. None:
    as a failure, after which `retry=` decides."""
    spec = request.spec
    unknown = is_unknown(request, error)
    if intent is None or not spec.effect.may_be_in_doubt:
        return None
    if not (
        unknown
        or (spec.effect == Effect.KEYED and was_not_sent(error) and _was_unknown(request, number))
    ):
        return None  # an answer of the receiver to this key holds for earlier attempts, too
    info = error_info(error, secrets_of(request))
    if _is_timeout(request, error):
        because = f"it did not answer within {spec.timeout:g} s"
    elif not unknown:
        because = f"the outcome of an earlier attempt is unknown, and the last one failed: {info.type}: {info.message}"
    else:
        because = f"its outcome is unknown: {info.type}: {info.message}"
    if spec.effect == Effect.CHECKED:
        settled = yield from ask_check(request, intent)
        if settled is not None or spec.is_async or not _is_timeout(request, error):
            return settled
        yield from doubt(
            request, intent.step, number, f"{because}, and may still be under way", info
        )
    if spec.effect == Effect.KEYED:
        if spec.retry.wants(error, tries):
            return None  # called again with its key
        because += "; resuming the run calls it again with its key"
    return (yield from ask_policy(request, intent, because, info))


def _was_unknown(request: CallRequest, number: int) -> bool:
    """Whether the outcome of an earlier attempt is unknown: its process died, or its response was lost."""
    entry = request.session.log.entry(*request.place)
    if entry is None:
        return False
    known = {failed.attempt for failed in entry.failures if failed.error.effect != "unknown"}
    return any(n not in known for n in range(entry.settled_attempts + 1, number))
