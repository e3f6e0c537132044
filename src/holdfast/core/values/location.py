"""Where in a value the problem is, and what it is: for the messages of `NotStorable`."""

from __future__ import annotations

import re
from typing import Any

from holdfast.errors import NotStorable


def key_step(key: str) -> str:
    """One step of a path: from a dict to the value of a key."""
    return f".{key}" if key.isidentifier() else f"[{key!r}]"


def find_surrogate(value: Any, path: tuple[str, ...] = ()) -> None:
    """Raise NotStorable at the text that is not valid Unicode (only called when one exists)."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise NotStorable(
                f"the text contains a lone surrogate at position {error.start}, which is not valid "
                "Unicode; decode the bytes it came from with errors='replace'",
                path=path,
            ) from None
    elif isinstance(value, dict):
        for key, item in value.items():
            find_surrogate(key, (*path, key_step(key)))
            find_surrogate(item, (*path, key_step(key)))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            find_surrogate(item, (*path, f"[{i}]"))


def message_of(error: BaseException) -> str:
    """What a validation error says, without the value, which may be a secret (pydantic shows it)."""
    if isinstance(error, ValueError) and hasattr(error, "errors"):
        return "; ".join(str(found["msg"]) for found in error.errors())
    return str(error)


def path_of(error: BaseException) -> tuple[str, ...]:
    """Where in the value a validation error is, by what msgspec or pydantic says of it."""
    if found := re.search(r"`\$([^`]+)`$", str(error)):
        return (found[1],)
    if isinstance(error, ValueError) and hasattr(error, "errors"):
        where = error.errors()[0]["loc"]
        return tuple(f"[{step}]" if isinstance(step, int) else key_step(step) for step in where)
    return ()
