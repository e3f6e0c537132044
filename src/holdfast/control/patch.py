"""Change what a run knows, from outside."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from holdfast.control.act import Act, act, everything, refuse_ended, the_end
from holdfast.core import events as e
from holdfast.core import jsonpatch, log, loop_state, values
from holdfast.core.knowledge import operated
from holdfast.core.patch import StatePatch
from holdfast.core.state import RunState
from holdfast.errors import InvalidInput, NotNow, NotStorable
from holdfast.store.base import RunRow, Store

Patch = Mapping[str, Any] | StatePatch | Sequence[Mapping[str, Any]]
"""New values of `run.state` by key; a StatePatch; or an RFC 6902 JSON Patch of what `hf.get` shows."""


def patch(store: Store, run_id: str, changes: Patch, *, delete: Sequence[str] = (),
          by: str = "", why: str = "") -> None:  # fmt: skip
    """Change what the run knows from outside. The agent sees it when its next call returns, a loop when
    its iteration ends. A JSON Patch is applied whole or not at all."""
    if isinstance(changes, StatePatch | list | tuple) and delete:
        raise InvalidInput("delete=… goes with new values of run.state, not with another patch")
    event = e.StatePatched(changes=e.Value(json=Raw(b"[]")), by=by, why=why, id=uuid.uuid4().hex)
    if isinstance(changes, StatePatch):
        event = replace(event, patch=_small(values.encode_struct(changes)))
    elif isinstance(changes, Mapping):
        event = replace(event, changes=state_operations(changes, delete))
    else:
        jsonpatch.operations(changes)
        event = replace(event, operations=_small(values.encode(changes)))

    def decide(state: RunState, row: RunRow) -> Act:
        refuse_ended(row, "a patch")
        if event.operations is not None:
            _try_out(state, changes)
        return Act([event])

    act(store, run_id, decide, the_end if event.operations is None else everything)


def _try_out(state: RunState, ops: Any) -> None:
    """InvalidInput, with nothing written, if a JSON Patch does not apply to what the run knows now."""
    if state.is_loop and state.loop is None:
        raise NotNow(f"run {state.id!r} has not begun: there is no state yet that could be patched")
    try:
        if state.is_loop:
            loop_state.try_out(state.loop, state.queued, ops)
        else:
            operated(state, ops)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"what the patch leaves cannot be read: {error}") from None


def _small(data: bytes) -> e.Value:
    """A patch is kept inside its event, so that a fold needs nothing else."""
    wrapped, blob = log.wrap(data)
    if blob is not None:
        raise InvalidInput(
            f"a patch may take up to {log.SPILL_BYTES:,} bytes; this one takes {len(blob.data):,}"
        )
    return wrapped


def state_operations(changes: Mapping[str, Any], delete: Sequence[str] = ()) -> e.Value:
    """Changes of state as a patch keeps them."""
    if isinstance(delete, str) or not isinstance(delete, Sequence):
        raise InvalidInput(f"delete takes a list of keys, as delete=['draft'], not {delete!r}")
    for key, value in changes.items():
        try:
            values.encode(value)
        except NotStorable as error:
            raise error.of(f"state.{key}") from None
    ops = [{"op": "set", "key": key, "value": value} for key, value in changes.items()]
    ops += [{"op": "delete", "key": key} for key in delete]
    return _small(values.encode(ops))
