"""Change a run's state from outside."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from holdfast.control.lifecycle import STOPPED, check_reopen, reopen_failed_children
from holdfast.core import events as e
from holdfast.core import jsonpatch, log, loop_state, values
from holdfast.core.knowledge import apply_operations
from holdfast.core.patch import StatePatch
from holdfast.core.state import RunState
from holdfast.errors import Conflict, InvalidInput, KeyTaken, NotNow, NotStorable
from holdfast.store.base import RowChange, RunRow, Store
from holdfast.store.outside import RunUpdate, recorded, refusal, refuse_ended, store_key, update_run
from holdfast.store.pages import everything, the_end

Patch = Mapping[str, Any] | StatePatch | Sequence[Mapping[str, Any]]
"""New values of `run.state` by key; a StatePatch; or an RFC 6902 JSON Patch of what `hf.get` shows."""


def patch(
    store: Store,
    run_id: str,
    changes: Patch,
    *,
    delete: Sequence[str] = (),
    knowledge: StatePatch | None = None,
    expected: int | None = None,
    key: str = "",
    resume: bool = False,
    by: str = "",
    why: str = "",
) -> bool:
    """Change what the run knows from outside. The agent sees it when its next call returns, a loop when
    its iteration ends. A JSON Patch is applied whole or not at all.

    `knowledge` goes with new values of `run.state`: both are recorded in one event. With `expected`, the seq of
    the last event that the caller has seen, the patch is refused with Conflict if the log has grown since. A
    `key` counts once per run: False if a patch with this key was recorded before. With `resume`, a run that has failed,
    or was paused or quarantined, continues with the patch: both are recorded at once.
    """
    event = _patch_event(changes, delete, knowledge, by=by, why=why)
    claimed = store_key("patch", run_id, key)
    # Looked for before the version is compared: the first attempt has changed the version.
    if _is_recorded(store, run_id, claimed, event):
        return False

    def decide(state: RunState, row: RunRow) -> RunUpdate:
        reopens = resume and row.status in STOPPED
        if reopens:
            check_reopen(store, row)
        else:
            refuse_ended(row)
        if expected is not None and state.seq != expected:
            raise Conflict(run_id, expected, state.seq)
        if event.operations is not None:
            _try_out(state, changes)
        if reopens:
            reopened = e.RunReopened(by=by, why=why)
            return RunUpdate([reopened, event], RowChange("pending", store.now()), key=claimed)
        return RunUpdate([event], key=claimed)

    if resume:
        reopen_failed_children(store, run_id, by=by, why=why)

    try:
        update_run(store, run_id, decide, the_end if event.operations is None else everything)
    except KeyTaken:
        return not _is_recorded(store, run_id, claimed, event)
    return True


def _is_recorded(store: Store, run_id: str, key: str, event: e.StatePatched) -> bool:
    """Whether this patch was recorded under its key; InvalidInput if another one was."""
    known = recorded(store, key, e.StatePatched)
    if known is not None and _content(known) != _content(event):
        raise refusal(run_id)
    return known is not None


def _content(event: e.StatePatched) -> tuple[e.Value | None, ...]:
    return event.changes, event.patch, event.operations


def _patch_event(
    changes: Patch, delete: Sequence[str], knowledge: StatePatch | None, *, by: str, why: str
) -> e.StatePatched:
    is_values = not isinstance(changes, StatePatch | list | tuple)
    if delete and not is_values:
        raise InvalidInput(
            "delete=… needs new values of run.state; it cannot be combined with another kind of patch"
        )
    if knowledge is not None and not is_values:
        raise InvalidInput(
            "knowledge=… needs new values of run.state; it cannot be combined with another kind of patch"
        )
    event = e.StatePatched(changes=e.Value(json=Raw(b"[]")), by=by, why=why, id=uuid.uuid4().hex)
    if isinstance(changes, StatePatch):
        return replace(event, patch=_small(values.encode_struct(changes)))
    if isinstance(changes, Mapping):
        also = None if knowledge is None else _small(values.encode_struct(knowledge))
        return replace(event, changes=state_operations(changes, delete), patch=also)
    jsonpatch.operations(changes)
    return replace(event, operations=_small(values.encode(changes)))


def _try_out(state: RunState, ops: Any) -> None:
    """InvalidInput, with nothing written, if a JSON Patch does not apply to what the run knows now."""
    if state.is_loop and state.loop is None:
        raise NotNow(f"run {state.id!r} has not started, so it has no state to patch")
    try:
        if state.is_loop:
            loop_state.check_operations(state.loop, state.queued, ops)
        else:
            apply_operations(state, ops)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the patched state is invalid: {error}") from None


def _small(data: bytes) -> e.Value:
    """A patch is kept inside its event, so that a fold needs nothing else."""
    wrapped, blobs = log.wrap(data)
    if blobs:
        raise InvalidInput(
            f"a patch may have up to {log.SPILL_BYTES:,} bytes; this one has {len(data):,}"
        )
    return wrapped


def state_operations(changes: Mapping[str, Any], delete: Sequence[str] = ()) -> e.Value:
    """Changes of state as a patch keeps them."""
    if isinstance(delete, str) or not isinstance(delete, Sequence):
        raise InvalidInput(
            f"delete takes a list of keys, for example delete=['draft'], not {delete!r}"
        )
    for key, value in changes.items():
        try:
            values.encode(value)
        except NotStorable as error:
            raise error.of(f"state.{key}") from None
    ops = [{"op": "set", "key": key, "value": value} for key, value in changes.items()]
    ops += [{"op": "delete", "key": key} for key in delete]
    return _small(values.encode(ops))
