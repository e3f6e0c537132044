"""How a loop's state is stored in its log: in full once, then as what each iteration changed.

`delta` compares two states and gives a JSON Patch; what was appended (a message, a fact, a tool call) is all
that is written, so a log grows with what happens and not with how much has happened before. `apply_queued` applies
patches from outside. `Document` is the state as the fold of the log rebuilds it. Pure.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.core import jsonpatch, values
from holdfast.core.agent_state import AgentState
from holdfast.core.events import Value, plain
from holdfast.core.patch import StatePatch
from holdfast.core.state import QueuedPatch
from holdfast.errors import InvalidInput

Ops = list[dict[str, Any]]


def delta(before: AgentState, after: AgentState) -> Ops:
    """The operations that make the stored form of `after` from that of `before`."""
    ops: Ops = []
    _compare(before, after, (), ops)
    return ops


def _compare(
    before: msgspec.Struct, after: msgspec.Struct, path: tuple[str, ...], ops: Ops
) -> None:
    for field in _fields(type(after)):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if _is_same(new, old):
            continue
        field_path = (*path, field.encode_name)
        # A field that has its default is not written, so it is not there to be changed.
        if _is_same(new, field.default):
            ops.append({"op": "remove", "path": jsonpatch.pointer(field_path)})
        elif _is_same(old, field.default):
            ops.append({"op": "add", "path": jsonpatch.pointer(field_path), "value": new})
        else:
            _change(old, new, field_path, ops)


@functools.lru_cache(maxsize=64)
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Remembered, because msgspec evaluates all annotations of the class again each time."""
    return msgspec.structs.fields(kind)


def _change(old: Any, new: Any, path: tuple[str, ...], ops: Ops) -> None:
    if type(new) is not type(old):
        ops.append({"op": "replace", "path": jsonpatch.pointer(path), "value": new})
    elif isinstance(new, msgspec.Struct):
        _compare(old, new, path, ops)
    elif isinstance(new, tuple | list) and len(new) > len(old) and _begins_with(new, old):
        end = jsonpatch.pointer((*path, "-"))
        ops += [{"op": "add", "path": end, "value": item} for item in new[len(old) :]]
    elif isinstance(new, dict):
        gone = [key for key in old if key not in new]
        ops += [{"op": "remove", "path": jsonpatch.pointer((*path, key))} for key in gone]
        for key, value in new.items():
            if key not in old:
                ops.append({"op": "add", "path": jsonpatch.pointer((*path, key)), "value": value})
            elif not _is_same(old[key], value):
                _change(old[key], value, (*path, key), ops)
    else:
        ops.append({"op": "replace", "path": jsonpatch.pointer(path), "value": new})


def _is_same(a: Any, b: Any) -> bool:
    """Whether both are stored alike: unlike `==`, which takes True for 1."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, msgspec.Struct):
        return all(_is_same(getattr(a, name), getattr(b, name)) for name in a.__struct_fields__)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_is_same(value, b[key]) for key, value in a.items())
    if isinstance(a, list | tuple):
        # A history shares its items with the one before: one pass in C tells.
        same = len(a) == len(b)
        return same and (all(map(operator.is_, a, b)) or all(map(_is_same, a, b)))
    return bool(a == b)


def _begins_with(new: Any, old: Any) -> bool:
    return all(map(operator.is_, old, new)) or all(map(_is_same, old, new))


def encode(ops: Ops) -> bytes:
    """A delta as it is stored."""
    return values.encode_struct(ops)


def check_operations(document: Any, queued: Iterable[QueuedPatch], ops: Any) -> None:
    """InvalidInput if a JSON Patch cannot be applied to a loop's stored form, after the patches that are
    queued for it.

    The fields that a subclass has added are unknown here: the loop validates them when it applies the patch.
    """
    state = msgspec.convert(document, AgentState)
    added = {k: v for k, v in document.items() if k not in AgentState.__struct_fields__}
    for one in queued:
        state, added = _apply_if_possible(state, one, added)
    _apply_operations(state, ops, added)


def _apply_if_possible(
    state: AgentState, queued: QueuedPatch, added: dict[str, Any]
) -> tuple[AgentState, dict[str, Any]]:
    try:
        if queued.patch is not None:
            return state.patched(_read(queued.patch)), added
        return _apply_operations(state, plain(queued.operations or Value()), added)
    except (InvalidInput, msgspec.ValidationError):
        return state, added  # the loop will not apply it either


def apply_queued(
    state: AgentState, queued: QueuedPatch, *, time: int = 0
) -> tuple[AgentState, str]:
    """The state with one patch from outside; or the same state, and why the patch could not be applied."""
    try:
        return _apply_one(state, queued, time), ""
    except (InvalidInput, msgspec.ValidationError) as error:
        by = f" (by {queued.by})" if queued.by else ""
        return state, f"{error}{by}"


def _apply_one(state: AgentState, queued: QueuedPatch, time: int) -> AgentState:
    if queued.patch is not None:
        return state.patched(_read(queued.patch), time=time)
    new, strange = _apply_operations(state, plain(queued.operations or Value()), {})
    if strange:
        raise InvalidInput(f"{type(state).__name__} has no field /{next(iter(strange))}")
    return new.stamped(time) if time else new


def _read(patch: Value) -> StatePatch:
    return msgspec.convert(plain(patch), StatePatch)


def _apply_operations(
    state: AgentState, ops: Any, added: Mapping[str, Any]
) -> tuple[AgentState, dict[str, Any]]:
    """The state after a JSON Patch, which sees all of it: also the fields that have their default, and what
    was `added` next to them; and what is next to them afterwards."""
    shown: dict[str, Any] = {name: getattr(state, name) for name in state.__struct_fields__}
    memory = state.memory
    shown["memory"] = {name: getattr(memory, name) for name in memory.__struct_fields__}
    known = values.decode(values.encode_struct(shown))
    kept = ("phase", "iteration", "session", "created_at", "updated_at")
    patched = jsonpatch.apply({**known, **added}, ops)
    new = msgspec.convert(patched, type(state))
    changed = [name for name in kept if getattr(new, name) != getattr(state, name)]
    if changed:
        raise InvalidInput(
            f"/{changed[0]} is managed by the loop and cannot be patched from outside"
        )
    lost = [k for k in patched.get("memory", ()) if k not in memory.__struct_fields__]
    if lost:
        raise InvalidInput(f"WorkingMemory has no field /memory/{lost[0]}")
    return new, {k: v for k, v in patched.items() if k not in shown}
