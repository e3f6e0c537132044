"""Parts of a state as plain values, and the differences between two of them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from holdfast.core import values
from holdfast.core.events import Value
from holdfast.store.artifacts import read_value
from holdfast.store.base import Store


class Change(Struct, frozen=True):
    """One difference between two states: a path, and what stood there before and after."""

    path: str
    before: Any
    after: Any


def compare(before: Any, after: Any, path: str = "") -> list[Change]:
    """The differences between two plain values."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [*before, *(k for k in after if k not in before)]
        return [
            c
            for k in keys
            for c in compare(before.get(k), after.get(k), f"{path}.{k}" if path else k)
        ]
    if isinstance(before, list) and isinstance(after, list):
        same = min(len(before), len(after))
        found = [c for i in range(same) for c in compare(before[i], after[i], f"{path}[{i}]")]
        found += [Change(f"{path}[{i}]", None, after[i]) for i in range(same, len(after))]
        return found + [Change(f"{path}[{i}]", before[i], None) for i in range(same, len(before))]
    return [] if before == after else [Change(path, before, after)]


def value(store: Store, run_id: str, found: Any) -> Any:
    """Something found in a state, whole: what was too big for its event is fetched."""
    if isinstance(found, Value):
        return values.decode(read_value(store, run_id, found))
    if isinstance(found, dict):
        return {k: value(store, run_id, v) for k, v in found.items()}
    if isinstance(found, list | tuple):
        return [value(store, run_id, v) for v in found]
    return found
