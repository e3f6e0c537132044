"""Any part of a state as plain JSON values."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from holdfast.core import values
from holdfast.core.events import Value
from holdfast.core.state import Waiting


def to_plain(value: Any) -> Any:
    """Any part of a state as plain JSON values, for `--json` and for comparing."""
    if isinstance(value, Value):
        if value.blob:
            return {"artifact": value.blob, "bytes": value.bytes}
        return values.decode(value.json)
    if isinstance(value, msgspec.Struct):
        fields = {name: to_plain(getattr(value, name)) for name in value.__struct_fields__}
        return {"id": value.id, **fields} if isinstance(value, Waiting) else fields
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {k: to_plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(v) for v in value]
    return value
