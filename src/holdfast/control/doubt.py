"""Resolve a call in doubt: a person reports whether it happened."""

from __future__ import annotations

from typing import Any

from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.core.events import ErrorInfo
from holdfast.core.state import UNSETTLED, Call, RunState
from holdfast.errors import InvalidInput, NotFound, NotNow
from holdfast.store.base import TERMINAL_STATUSES, RunRow, Store
from holdfast.store.outside import WAKE, RunUpdate, refuse_held, update_run, whole_state
from holdfast.store.pages import open_until, tells_of_call, what_is_open


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
        refuse_held(store, row, "its calls are not in doubt")
        target = _doubtful(state, call) or _doubtful(whole_state(store, run_id), call)
        if target is None:
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


def _doubtful(state: RunState, call: int | str | None) -> Call | None:
    """The call that may or may not have happened (an intent without a receipt counts), if there is one."""
    current = [c for c in state.calls if c.index >= 0]
    if call is not None:
        current = [c for c in current if call in (c.step, c.name, c.id)]
    unsure = [c for c in current if c.status in UNSETTLED]
    unsure = unsure or [c for c in current if c.unavailable]  # done, but its result was not kept
    if not unsure:
        known = next((c for c in state.calls if call in (c.step, c.name, c.id)), None)
        if known is not None:
            raise NotNow(f"step {known.step}, {known.name}, is {known.status}, not in doubt")
        return None
    if len(unsure) > 1:
        names = ", ".join(f"{c.step} ({c.name})" for c in unsure)
        raise InvalidInput(f"run {state.id!r} has several calls in doubt; choose a step: {names}")
    return unsure[0]
