"""What an agent knows, and how recorded changes of it apply: of its state key by key, of all of it by a
JSON Patch from outside.

Pure, and total where a log is read: a foreign one may contain anything.

Not here: JSON Patch itself (`jsonpatch.py`), patches as values (`patch.py`).
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import msgspec

from holdfast.core import patch, values
from holdfast.core.events import Value, plain
from holdfast.core.parts import Artifact, Fact, Part, PlanStep, pack, unpack
from holdfast.core.values import FrozenList

_KNOWN: Final = ("state", "plan", "facts", "questions", "notes", "artifacts", "flags")


class RunKnowledge(patch.Knowledge, Protocol):
    """What an agent knows, with its state: a run's state, or the draft of one."""

    @property
    def state(self) -> dict[str, Any]: ...


# ── of its state, key by key ─────────────────────────────────────────────────────────────────


def operations(changes: Value) -> list[dict[str, Any]]:
    """The well-formed changes of a patch; a foreign log may contain anything."""
    found = plain(changes)
    return [
        op
        for op in (found if isinstance(found, list) else ())
        if isinstance(op, dict) and isinstance(op.get("op"), str) and isinstance(op.get("key"), str)
    ]


def change_state(state: dict[str, Any], op: str, key: str, value: Any) -> None:
    """Apply one change of state. Total: what does not fit (adding to text) starts over."""
    if op == "set":
        state[key] = value
    elif op == "delete":
        state.pop(key, None)
    elif op == "increment":
        state[key] = _number(state.get(key)) + _number(value)
    elif op == "append":
        before = state.get(key)
        state[key] = FrozenList([*(before if isinstance(before, list) else ()), value])


def _number(value: Any) -> int | float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0


# ── of all of it ─────────────────────────────────────────────────────────────────────────────


def document(knowledge: RunKnowledge) -> dict[str, Any]:
    """What a JSON Patch from outside applies to: what the agent knows, by the names of `RunState`."""
    return {name: _as_json(getattr(knowledge, name)) for name in _KNOWN}


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple | list) and value and isinstance(value[0], Part):
        return [{f: pack(getattr(x, f)) for f in x.__struct_fields__} for x in value]
    return pack(list(value) if isinstance(value, tuple) else value)


def apply_operations(knowledge: RunKnowledge, ops: Any) -> dict[str, Any]:
    """What an agent knows after a JSON Patch; InvalidPatch if it does not apply, ValueError if the
    result is not what an agent can know."""
    from holdfast.core import jsonpatch  # here, as few runs are patched

    if isinstance(ops, list | tuple):  # a value that looks like a reference is not one
        ops = [_safe(op) for op in ops]
    return _knowledge(jsonpatch.apply(document(knowledge), ops))


def _safe(op: Any) -> Any:
    return {**op, "value": pack(op["value"])} if isinstance(op, dict) and "value" in op else op


class _Knowledge(msgspec.Struct, forbid_unknown_fields=True):
    state: dict[str, Any]
    plan: tuple[PlanStep, ...]
    facts: tuple[Fact, ...]
    questions: tuple[str, ...]
    notes: dict[str, Any]
    artifacts: tuple[Artifact, ...]
    flags: tuple[str, ...]


def _knowledge(patched: Any) -> dict[str, Any]:
    """The fields of a patched document, or ValueError if it is no longer what an agent knows."""
    read = msgspec.convert(patched, _Knowledge)
    found = {name: getattr(read, name) for name in read.__struct_fields__}
    found["state"] = values.freeze(unpack(read.state))
    found["notes"] = values.freeze(unpack(read.notes))
    found["facts"] = tuple(
        msgspec.structs.replace(x, value=values.freeze(unpack(x.value))) for x in read.facts
    )
    return found
