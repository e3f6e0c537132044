"""Secrets in arguments: kept out of what is recorded, and found so that texts can be redacted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.core import values
from holdfast.core.values import REDACTED
from holdfast.errors import NotStorable


def lower_without_secrets(arguments: dict[str, Any]) -> Any:
    """Arguments as plain JSON. A secret inside one of them is found because it has no JSON form."""
    try:
        return values.lower(arguments, typed=True)
    except NotStorable:
        return values.lower(
            {k: without_secrets(v, deep=True) for k, v in arguments.items()}, typed=True
        )


def without_secrets(value: Any, *, deep: bool = False) -> Any:
    """Secret types (anything with `get_secret_value`, such as pydantic's SecretStr) never reach the log."""
    if hasattr(value, "get_secret_value"):
        return REDACTED
    if not deep:
        return value
    if isinstance(value, Mapping):
        return {k: without_secrets(v, deep=True) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(v, deep=True) for v in value]
    record = values.dataclass_fields(value)
    if record is None:
        return value
    return {k: without_secrets(v, deep=True) for k, v in record.items()}


def secrets_in(value: Any, *, declared: bool = False, depth: int = values.DEPTH_MAX) -> set[str]:
    """The texts of the secrets in a value: of secret types, or all of it if it was declared secret."""
    if hasattr(value, "get_secret_value"):
        return secrets_in(value.get_secret_value(), declared=True)
    if isinstance(value, str | bytes | int | float):
        text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        return {text} if declared and text else set()
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    elif values.is_dataclass(type(value)) or values.is_pydantic_model(type(value)):
        parts = getattr(value, "__dict__", {}).values()
    if depth == 0:
        return set()
    return {
        found for part in parts for found in secrets_in(part, declared=declared, depth=depth - 1)
    }
