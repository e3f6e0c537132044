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


def outside(stored: Mapping[str, Any], taken: Collection[str] = ()) -> dict[str, Any]:
    """The canonical form of a stored one. A name that is `taken` by a field of the user's stays the user's."""
    made = dict(stored)
    memory = dict(made.pop("memory", {}))
    for name, own in _MEMORY.items():
        if name not in taken and own in memory:
            made[name] = memory.pop(own)
    if "plan" not in taken and "plan" in made:
        statuses = [step.get("status", _PENDING) for step in made["plan"]]
        made["plan"] = [step["name"] for step in made["plan"]]
        if any(status != _PENDING for status in statuses):
            made[_STATUS] = statuses
    if "artifacts" not in taken and "artifacts" in made:
        made["artifacts"] = [_artifact_outside(x) for x in made["artifacts"]]
    if "budget" in made:
        made["budget"] = _budget_outside(made["budget"])
    if memory:
        made["memory"] = memory
    first = {name: made.pop(name) for name in _FIRST if name in made}
    return {**first, **made}


def _artifact_outside(stored: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(stored)
    if "id" in made:
        made["artifact_id"] = made.pop("id")
        if made["name"] == made["artifact_id"]:
            del made["name"]
    return {name: made.pop(name) for name in _ARTIFACT if name in made} | made


def _budget_outside(stored: Mapping[str, Any]) -> dict[str, Any]:
    made = {name: limit for name, limit in stored.items() if limit is not None}
    seconds = made.get(_SECONDS)
    if seconds is not None and seconds * 1000 / 1000 == seconds:
        ms = seconds * 1000
        milliseconds = {_MILLISECONDS: int(ms) if ms == int(ms) else ms}
        made = {k: v for k, v in made.items() if k != _SECONDS} | milliseconds
    order = ("max_steps", _MILLISECONDS)
    return {name: made.pop(name) for name in order if name in made} | made


def inside(given: Mapping[str, Any], taken: Collection[str] = ()) -> dict[str, Any]:
    """The stored form of a canonical one (or of a stored one); InvalidInput names what contradicts itself."""
    made = dict(given)
    memory = made.pop("memory", {})
    if not isinstance(memory, Mapping):
        raise InvalidInput(f"$.memory must be an object, not {memory!r}")
    memory = dict(memory)
    for name, own in _MEMORY.items():
        if name in taken or name not in made:
            continue
        if own in memory:
            raise InvalidInput(f"$.{name} and $.memory.{own} are the same; pass only one of them")
        memory[own] = made.pop(name)
    if _STATUS in made and _STATUS not in taken:
        memory["plan"] = _with_statuses(memory.get("plan"), made.pop(_STATUS))
    if isinstance(memory.get("plan"), list):
        memory["plan"] = [{"name": x} if isinstance(x, str) else x for x in memory["plan"]]
    if isinstance(memory.get("artifacts"), list):
        memory["artifacts"] = [_artifact_inside(x) for x in memory["artifacts"]]
    if isinstance(made.get("budget"), Mapping):
        made["budget"] = _budget_inside(made["budget"])
    return {**made, "memory": memory} if memory else made


def _with_statuses(plan: Any, statuses: Any) -> Any:
    if not (isinstance(plan, list) and isinstance(statuses, list) and len(plan) == len(statuses)):
        raise InvalidInput("$.plan_status must have one status for each step of $.plan")
    return [
        {"name": step, "status": status} if isinstance(step, str) else step
        for step, status in zip(plan, statuses, strict=True)
    ]


def _artifact_inside(given: Any) -> Any:
    if not isinstance(given, Mapping) or "artifact_id" not in given:
        return given
    made = dict(given)
    made["id"] = made.pop("artifact_id")
    return {"name": made["id"], **made}


def _budget_inside(given: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(given)
    if _MILLISECONDS in made:
        ms = made.pop(_MILLISECONDS)
        if not isinstance(ms, int | float) or isinstance(ms, bool):
            raise InvalidInput(f"$.budget.{_MILLISECONDS} must be a number, not {ms!r}")
        made[_SECONDS] = ms / 1000
    return made


# ── what is unknown, and where ───────────────────────────────────────────────────────────────


def check_known(stored: Any, kind: type, given: Mapping[str, Any]) -> None:
    """InvalidInput for a field that no part of the state has, with its path in what was given."""
    for path in _unknown(stored, kind, "$"):
        raise InvalidInput(f"{path_given(path, given)} is not a field of {kind.__name__}")


def _unknown(value: Any, declared: Any, path: str) -> Iterator[str]:
    fields = _fields(declared)
    if fields is not None and isinstance(value, Mapping):
        for name, item in value.items():
            here = f"{path}.{name}"
            if name in fields:
                yield from _unknown(item, fields[name], here)
            else:
                yield here
    elif typing.get_origin(declared) in (tuple, list) and isinstance(value, list):
        for i, item in enumerate(value):
            yield from _unknown(item, typing.get_args(declared)[0], f"{path}[{i}]")


def _fields(declared: Any) -> dict[str, Any] | None:
    if not isinstance(declared, type):
        return None
    if issubclass(declared, msgspec.Struct):
        return {f.encode_name: f.type for f in msgspec.structs.fields(declared)}
    return typing.get_type_hints(declared) if dataclasses.is_dataclass(declared) else None


def path_given(text: str, given: Mapping[str, Any]) -> str:
    """A text with the paths of the stored form as they are in what was given."""
    for name, own in _MEMORY.items():
        if name in given:
            text = re.sub(rf"\$\.memory\.{own}\b", f"$.{name}", text)
    return text
