"""An agent's state as the JSON that other systems exchange, made from its stored form and read back as it.

In the exchanged form, what an agent knows is next to its goal under plain names (`known_facts`, `open_questions`, `risk_flags`),
times are in milliseconds and an artifact has an `artifact_id`. Stored, it is the fields of `AgentState` and
`WorkingMemory`. What only Holdfast has (phase, messages, notes, …) has the same name in both. Pure: dicts in, dicts out.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import msgspec

from holdfast.errors import InvalidInput

_MEMORY: Final = {
    "plan": "plan",
    "known_facts": "facts",
    "open_questions": "questions",
    "artifacts": "artifacts",
    "risk_flags": "flags",
}
"""Names outside, and the fields of `WorkingMemory` that they stand for."""
_FIRST: Final = ("goal", "constraints", "budget", "plan", "plan_status", *_MEMORY)
_STATUS, _PENDING = "plan_status", "pending"
_MILLISECONDS, _SECONDS = "max_wall_time_ms", "max_wall_time"
_ARTIFACT: Final = ("artifact_id", "name", "type", "summary", "bytes")


def outside(stored: Mapping[str, Any], user_fields: Collection[str] = ()) -> dict[str, Any]:
    """The canonical form of a stored one. A name that is in `user_fields` stays the user's."""
    result = dict(stored)
    memory = dict(result.pop("memory", {}))
    for name, field in _MEMORY.items():
        if name not in user_fields and field in memory:
            result[name] = memory.pop(field)
    if "plan" not in user_fields and "plan" in result:
        statuses = [step.get("status", _PENDING) for step in result["plan"]]
        result["plan"] = [step["name"] for step in result["plan"]]
        if any(status != _PENDING for status in statuses):
            result[_STATUS] = statuses
    if "artifacts" not in user_fields and "artifacts" in result:
        result["artifacts"] = [_artifact_outside(x) for x in result["artifacts"]]
    if "budget" in result:
        result["budget"] = _budget_outside(result["budget"])
    if memory:
        result["memory"] = memory
    first = {name: result.pop(name) for name in _FIRST if name in result}
    return {**first, **result}


def _artifact_outside(stored: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(stored)
    if "id" in result:
        result["artifact_id"] = result.pop("id")
        if result["name"] == result["artifact_id"]:
            del result["name"]
    return {name: result.pop(name) for name in _ARTIFACT if name in result} | result


def _budget_outside(stored: Mapping[str, Any]) -> dict[str, Any]:
    result = {name: limit for name, limit in stored.items() if limit is not None}
    seconds = result.get(_SECONDS)
    if seconds is not None and seconds * 1000 / 1000 == seconds:
        ms = seconds * 1000
        milliseconds = {_MILLISECONDS: int(ms) if ms == int(ms) else ms}
        result = {k: v for k, v in result.items() if k != _SECONDS} | milliseconds
    order = ("max_steps", _MILLISECONDS)
    return {name: result.pop(name) for name in order if name in result} | result


def inside(document: Mapping[str, Any], user_fields: Collection[str] = ()) -> dict[str, Any]:
    """The stored form of a canonical one (or of a stored one); InvalidInput names what contradicts itself."""
    result = dict(document)
    memory = result.pop("memory", {})
    if not isinstance(memory, Mapping):
        raise InvalidInput(f"$.memory must be an object, not {memory!r}")
    memory = dict(memory)
    for name, field in _MEMORY.items():
        if name in user_fields or name not in result:
            continue
        if field in memory:
            raise InvalidInput(f"$.{name} and $.memory.{field} are the same; pass only one of them")
        memory[field] = result.pop(name)
    if _STATUS in result and _STATUS not in user_fields:
        memory["plan"] = _with_statuses(memory.get("plan"), result.pop(_STATUS))
    if isinstance(memory.get("plan"), list):
        memory["plan"] = [{"name": x} if isinstance(x, str) else x for x in memory["plan"]]
    if isinstance(memory.get("artifacts"), list):
        memory["artifacts"] = [_artifact_inside(x) for x in memory["artifacts"]]
    if isinstance(result.get("budget"), Mapping):
        result["budget"] = _budget_inside(result["budget"])
    return {**result, "memory": memory} if memory else result


def _with_statuses(plan: Any, statuses: Any) -> Any:
    if not (isinstance(plan, list) and isinstance(statuses, list) and len(plan) == len(statuses)):
        raise InvalidInput("$.plan_status must have one status for each step of $.plan")
    return [
        {"name": step, "status": status} if isinstance(step, str) else step
        for step, status in zip(plan, statuses, strict=True)
    ]


def _artifact_inside(artifact: Any) -> Any:
    if not isinstance(artifact, Mapping) or "artifact_id" not in artifact:
        return artifact
    result = dict(artifact)
    result["id"] = result.pop("artifact_id")
    return {"name": result["id"], **result}


def _budget_inside(budget: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(budget)
    if _MILLISECONDS in result:
        ms = result.pop(_MILLISECONDS)
        if not isinstance(ms, int | float) or isinstance(ms, bool):
            raise InvalidInput(f"$.budget.{_MILLISECONDS} must be a number, not {ms!r}")
        result[_SECONDS] = ms / 1000
    return result


# ── what is unknown, and where ───────────────────────────────────────────────────────────────


def check_known(stored: Any, kind: type, document: Mapping[str, Any]) -> None:
    """InvalidInput for a field that no part of the state has, with its path in what was given."""
    for path in _unknown(stored, kind, "$"):
        raise InvalidInput(f"{path_given(path, document)} is not a field of {kind.__name__}")


def _unknown(value: Any, declared: Any, path: str) -> Iterator[str]:
    fields = _fields(declared)
    if fields is not None and isinstance(value, Mapping):
        for name, item in value.items():
            field_path = f"{path}.{name}"
            if name in fields:
                yield from _unknown(item, fields[name], field_path)
            else:
                yield field_path
    elif typing.get_origin(declared) in (tuple, list) and isinstance(value, list):
        for i, item in enumerate(value):
            yield from _unknown(item, typing.get_args(declared)[0], f"{path}[{i}]")


def _fields(declared: Any) -> dict[str, Any] | None:
    if not isinstance(declared, type):
        return None
    if issubclass(declared, msgspec.Struct):
        return {f.encode_name: f.type for f in msgspec.structs.fields(declared)}
    return typing.get_type_hints(declared) if dataclasses.is_dataclass(declared) else None


def path_given(text: str, document: Mapping[str, Any]) -> str:
    """A text with the paths of the stored form as they are in what was given."""
    for name, field in _MEMORY.items():
        if name in document:
            text = re.sub(rf"\$\.memory\.{field}\b", f"$.{name}", text)
    return text
