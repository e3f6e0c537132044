"""Answers to what a run asks people for: signals, approvals, answers, and whether a call in doubt happened."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.core.events import ErrorInfo, Event
from holdfast.core.state import Call, RunState, Waiting
from holdfast.errors import AlreadyDecided, InvalidInput, KeyTaken, NotFound, NotNow
from holdfast.store.artifacts import read_value
from holdfast.store.base import RESERVED, TERMINAL_STATUSES, RunRow, Store
from holdfast.store.items import version_key
from holdfast.store.outside import (
    WAKE,
    RunUpdate,
    recorded,
    refusal,
    refuse_ended,
    refuse_held,
    store_key,
    update_run,
    whole_state,
)
from holdfast.store.pages import Reads, begins_request, open_until, tells_of_call, what_is_open
from holdfast.store.process import is_held
from holdfast.words.waiting import decision_calls


def signal(
    store: Store,
    run_id: str,
    name: str,
    value: Any = None,
    *,
    signal_id: str = "",
    by: str = "",
    why: str = "",
) -> None:
    """Send a signal. It is kept if the run is not waiting for it yet; the same `signal_id` counts once."""
    if not isinstance(name, str) or not name.strip():  # type: ignore[redundant-expr]
        raise InvalidInput("a signal needs a non-empty name")
    key = store_key("signal", run_id, str(signal_id) if signal_id else "")
    wrapped, blobs = log.wrap(values.encode(value))

    def decide(_: RunState, row: RunRow) -> RunUpdate:
        refuse_ended(row)
        event = e.SignalReceived(
            id=signal_id or uuid.uuid4().hex, name=name, value=wrapped, by=by, why=why
        )
        return RunUpdate([event], WAKE, blobs, key)

    with contextlib.suppress(KeyTaken):  # it has been received before
        update_run(store, run_id, decide)


def received(run_id: str, events: Iterable[tuple[int, Event]]) -> list[tuple[str, int]]:
    """For a log that is written at once: the keys of the signals and items in it, with their places."""
    found: dict[str, int] = {}
    for seq, x in events:
        if isinstance(x, e.SignalReceived) and x.id:
            found[store_key("signal", run_id, x.id)] = seq
        elif isinstance(x, e.ItemPut):
            found[RESERVED + version_key(run_id, x.collection, x.key, x.number)] = seq
    return list(found.items())


def approve(
    store: Store,
    run_id: str,
    request: str = "",
    *,
    args: Mapping[str, Any] | None = None,
    by: str = "",
    why: str = "",
    digest: str = "",
) -> None:
    """Approve what the run asks for. `digest`, if given, must be that of what was shown.

    `args` are arguments to call the tool with instead of those that were shown: all of them, by name. They are
    compared with the tool's parameters when the call is made; here, that they have the same names and the same
    types of JSON values.
    """
    given = None if args is None else values.lower(dict(args), typed=True)
    _decide_approval(store, run_id, request, True, by, why, digest, given)


def reject(
    store: Store, run_id: str, request: str = "", *, by: str = "", why: str = "", digest: str = ""
) -> None:
    """Reject a request of the run."""
    _decide_approval(store, run_id, request, False, by, why, digest)


def _decide_approval(
    store: Store,
    run_id: str,
    request: str,
    approved: bool,
    by: str,
    why: str,
    digest: str,
    args: dict[str, Any] | None = None,
) -> None:
    def decide(state: RunState, row: RunRow) -> RunUpdate:
        refuse_ended(row)
        wait = _pending(state, "approval", request)
        if digest and wait.digest and digest != wait.digest:
            raise NotNow(
                f"run {run_id!r} now makes a different request than the one shown; show the run again"
            )
        _refuse_expired(store, run_id, wait)
        edited: e.Value | None = None
        blobs: tuple[log.Blob, ...] = ()
        if args is not None and _is_edited(store, run_id, wait, args):
            edited, blobs = log.wrap(values.encode(args))
        event = e.ApprovalDecided(
            branch=wait.branch,
            index=wait.index,
            approved=approved,
            digest=wait.digest,
            by=by,
            why=why,
            args=edited,
        )
        return RunUpdate([event], WAKE, blobs)

    update_run(store, run_id, decide, _requests(request))


def _is_edited(store: Store, run_id: str, wait: Waiting, args: dict[str, Any]) -> bool:
    """Whether these are other arguments than those that were shown; InvalidInput if they cannot be used instead."""
    if not wait.tool or wait.show is None:
        raise InvalidInput(
            f"run {run_id!r}: only the arguments of a tool call can be edited; approve or reject this request"
        )
    shown: dict[str, Any] = values.decode(read_value(store, run_id, wait.show))
    return check_edit(wait.tool, shown, args)


def check_edit(tool: str, shown: Mapping[str, Any], args: Mapping[str, Any]) -> bool:
    """Whether these arguments differ from those that were shown; InvalidInput if they cannot be used instead."""
    if args.keys() != shown.keys():
        raise InvalidInput(
            f"{tool} is called with {', '.join(shown) or 'no arguments'}: an edit must give exactly "
            f"these, not {', '.join(args) or 'none'}"
        )
    changed = [n for n in args if values.canonical(args[n]) != values.canonical(shown[n])]
    for name in changed:
        before, after = _json_type(shown[name]), _json_type(args[name])
        if before != after and "null" not in (before, after):
            raise InvalidInput(f"{tool}: {name!r} must be {_a(before)}, not {_a(after)}")
        if values.REDACTED in values.encode(shown[name]).decode():
            raise InvalidInput(
                f"{tool}: {name!r} is redacted; an argument that is not shown cannot be edited"
            )
    return bool(changed)


def _a(kind: str) -> str:
    return f"an {kind}" if kind == "object" else f"a {kind}"


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return {str: "string", list: "list", dict: "object", type(None): "null"}[type(value)]


def _requests(request: str) -> Reads:
    """The events of one request, or of all that are open."""
    return open_until(begins_request(request)) if request else what_is_open


def _refuse_expired(store: Store, run_id: str, wait: Waiting) -> None:
    if wait.until is not None and store.now() >= wait.until:
        raise NotNow(f"run {run_id!r}: the request has expired")


def check_answer(wait: Waiting, value: Any) -> None:
    """Raises InvalidInput if a question does not allow this answer."""
    if wait.options and value not in wait.options:
        raise InvalidInput(f"{value!r} is not one of the options: {', '.join(wait.options)}")


def answer(
    store: Store,
    run_id: str,
    value: Any,
    request: str = "",
    *,
    key: str = "",
    by: str = "",
    why: str = "",
) -> bool:
    """Answer a question of the run.

    A `key` counts once per run, so that an answer that is sent again does not answer the run's next question:
    False if an answer with this key was recorded before.
    """
    wrapped, blobs = log.wrap(values.encode(value))
    claimed = store_key("answer", run_id, key)
    if _is_given(store, run_id, claimed, wrapped):
        return False

    def decide(state: RunState, row: RunRow) -> RunUpdate:
        refuse_ended(row)
        wait = _pending(state, "answer", request)
        _refuse_expired(store, run_id, wait)
        check_answer(wait, value)
        event = e.AnswerGiven(branch=wait.branch, index=wait.index, value=wrapped, by=by, why=why)
        return RunUpdate([event], WAKE, blobs, claimed)

    try:
        update_run(store, run_id, decide, _requests(request))
    except KeyTaken:
        return not _is_given(store, run_id, claimed, wrapped)
    return True


def _is_given(store: Store, run_id: str, key: str, value: e.Value) -> bool:
    """Whether this answer was recorded under its key; InvalidInput if another one was."""
    known = recorded(store, key, e.AnswerGiven)
    if known is not None and known.value != value:
        raise refusal(run_id)
    return known is not None


def _pending(state: RunState, kind: str, request: str) -> Waiting:
    """The one request of this kind that is open (or the one that `request` names)."""
    requests = [w for w in state.waits if w.wait == kind and (not request or w.id == request)]
    open_ones = [w for w in requests if not w.decided]
    if requests and not open_ones:
        raise AlreadyDecided(f"run {state.id!r}: already decided" + _last_decision(state))
    if not open_ones:
        other = f"; it is waiting for {state.waiting_for}" if state.waiting_for else ""
        raise NotNow(
            f"run {state.id!r} is not waiting for an {kind}"
            + (f" {request}" if request else "")
            + other
        )
    if len(open_ones) > 1:
        calls = "".join(f"\n  {line}" for line in decision_calls(state.id, open_ones))
        raise InvalidInput(
            f"run {state.id!r} is waiting for {len(open_ones)} {kind}s; name one:{calls}"
        )
    return open_ones[0]


def _last_decision(state: RunState) -> str:
    decisions = [line.text for line in state.lines if line.level in ("approval", "answer")]
    return f": {decisions[-1]}" if decisions else ""


# ── calls in doubt ───────────────────────────────────────────────────────────────────────────


def resolve(
    store: Store,
    run_id: str,
    call: int | str | None = None,
    *,
    done: Any = ...,
    failed: str | None = None,
    retry: bool = False,
    by: str = "",
    why: str = "",
) -> None:
    """Settle a call in doubt: it happened (`done=result`), it did not (`failed=why`), or try again."""
    if (done is not ...) + (failed is not None) + bool(retry) != 1:
        raise InvalidInput("pass exactly one of done=result, failed='why' and retry=True")
    if call is not None and not isinstance(call, int | str):
        raise InvalidInput(f"a call is identified by its step number or its name, not by {call!r}")
    wrapped, blobs = log.wrap(values.encode(None if done is ... else done))

    def decide(state: RunState, row: RunRow) -> RunUpdate:
        is_executing = is_held(row, store.now())
        target = _doubtful(state, call, is_executing=is_executing)
        if target is None:
            target = _doubtful(whole_state(store, run_id), call, is_executing=is_executing)
        if target is None:
            refuse_held(store, row, "what it is doing is not in doubt")
            named = f" named {call!r}" if call else ""
            raise NotFound(f"run {run_id!r} has no call in doubt{named}")
        how = "done" if done is not ... else "retry" if retry else "failed"
        if target.unavailable and how != "done":
            raise NotNow(
                f"step {target.step}, {target.name}, was executed, but its result was not stored; provide it with "
                "done=…"
            )
        event = e.CallResolved(
            branch=target.branch,
            index=target.index,
            step=target.step,
            name=target.name,
            how=how,
            result=wrapped if how == "done" else None,
            error=ErrorInfo("NotDone", failed, effect="none") if failed is not None else None,
            by=by,
            why=why,
        )
        change = None if row.status in TERMINAL_STATUSES else WAKE
        return RunUpdate([event], change, blobs if how == "done" else ())

    # A tool may have several calls in doubt, and then the caller must name one: so its name ends no search.
    is_place = isinstance(call, int) or (call is not None and "#" in call)
    reads = open_until(tells_of_call(call)) if call and is_place else what_is_open
    update_run(store, run_id, decide, reads)


def _doubtful(state: RunState, call: int | str | None, *, is_executing: bool) -> Call | None:
    """The call that may or may not have happened, if there is one: an intent without a receipt counts, unless what it
    does is in another log, or it may be in progress (`is_executing`)."""
    current = [c for c in state.calls if c.index >= 0]
    if call is not None:
        current = [c for c in current if call in (c.step, c.name, c.id)]
    unsure = [c for c in current if c.status == "in_doubt"]
    if not is_executing:
        unsure += [c for c in current if c.status == "running" and c.may_be_in_doubt]
        # Or it was done, but its result was not kept.
        unsure = unsure or [c for c in current if c.unavailable]
    if not unsure:
        known = next((c for c in state.calls if call in (c.step, c.name, c.id)), None)
        if known is not None and not (is_executing and known.status == "running"):
            raise NotNow(f"step {known.step}, {known.name}, is {known.status}, not in doubt")
        return None
    if len(unsure) > 1:
        names = ", ".join(f"{c.step} ({c.name})" for c in sorted(unsure, key=lambda c: c.step))
        raise InvalidInput(f"run {state.id!r} has several calls in doubt; choose a step: {names}")
    return unsure[0]
