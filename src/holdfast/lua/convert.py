"""Values between Lua and Python: plain data only, copied, with limits on depth and size.

Lua gets texts as bytes, and tables made here; Python gets dicts, lists, texts, numbers, booleans and None. A function,
a coroutine or anything else is refused with the path to it. An empty table is a list, unless a schema says otherwise.
A number without a fraction is an integer in both directions, so that 6/2 is stored and printed as 3.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Final

from holdfast import InvalidInput
from holdfast.core import values

DEPTH_MAX: Final = 64
NODES_MAX: Final = 1_000_000
TEXT_MAX: Final = 64 * 1024 * 1024
"""Bytes of all texts of one value. Lua has a text once, however often a table refers to it; here each is a copy."""
_EXACT: Final = 2**53
_INT_MIN: Final = -(2**63)
_INT_MAX: Final = 2**63 - 1


class NotPlain(InvalidInput):
    """A value of Lua that is not plain data."""


def to_lua(runtime: Any, value: Any) -> Any:
    """A plain value of Python as one of Lua, copied."""
    kind = type(value)  # most values are none of a subclass
    if kind is str or isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if value is None or kind is bool:
        return value
    if kind is int or isinstance(value, int):
        return value if _INT_MIN <= value <= _INT_MAX else float(value)
    if kind is dict or isinstance(value, dict):
        return runtime.table_from({_key(k): to_lua(runtime, item) for k, item in value.items()})
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    if isinstance(value, (list, tuple)):
        return runtime.table_from([to_lua(runtime, item) for item in value])
    lowered = values.lower(value, typed=True)  # what a Python tool returned: a record, a date
    if type(lowered) is type(value):
        raise NotPlain(f"a {type(value).__name__} cannot be converted to Lua")
    return to_lua(runtime, lowered)


def _key(key: Any) -> Any:
    return key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key


def from_lua(value: Any, what: str = "the value") -> Any:
    """A value of Lua as one of Python, copied; NotPlain says where it is not plain data."""
    if value is None or isinstance(value, int):
        return value
    return _Reader(what).read(value, "", 0)


class _Reader:
    def __init__(self, what: str) -> None:
        self._what, self._left, self._text_left = what, NODES_MAX, TEXT_MAX

    def read(self, value: Any, path: str, depth: int) -> Any:
        plain = type(value)  # Lua has no subclasses of these
        if plain is int or plain is bool or value is None:
            return value
        if plain is bytes:
            return self._text(value, path)
        if plain is float:
            return self._number(value, path)
        if _lua_type()(value) != "table":
            raise NotPlain(f"{self._what}{path} is a {kind_of(value)}, which cannot be stored")
        if depth == DEPTH_MAX:
            raise NotPlain(
                f"{self._what} is nested more than {DEPTH_MAX} tables deep, or contains itself"
            )
        return self._table(value, path, depth + 1)

    def _text(self, value: bytes, path: str) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise NotPlain(
                f"{self._what}{path} is not UTF-8 text (byte {error.start + 1})"
            ) from None

    def _number(self, value: float, path: str) -> float | int:
        if not math.isfinite(value):
            raise NotPlain(f"{self._what}{path} is {value}, which cannot be stored")
        return int(value) if value.is_integer() and abs(value) < _EXACT else value

    def _table(self, table: Any, path: str, depth: int) -> Any:
        items: dict[bytes | int, Any] = {}
        left, text_left = self._left, self._text_left
        for key, item in table.items():
            left -= 2
            if type(item) is bytes:
                text_left -= len(item)
            if type(key) is bytes:
                text_left -= len(key)
            elif type(key) is not int:
                raise NotPlain(
                    f"{self._what}{path} has a key that is neither text nor a whole number"
                )
            if left < 0:
                raise NotPlain(f"{self._what} has more than {NODES_MAX:,} parts")
            if text_left < 0:
                raise NotPlain(f"{self._what} has more than {TEXT_MAX:,} bytes of text")
            items[key] = item
        self._left, self._text_left = left, text_left
        if not items or (1 in items and items.keys() == set(range(1, len(items) + 1))):
            return [self.read(items[n], f"{path}[{n}]", depth) for n in range(1, len(items) + 1)]
        found: dict[str, Any] = {}
        for key, item in items.items():
            name = self._text(key, path) if isinstance(key, bytes) else str(key)
            if name in found:
                raise NotPlain(f"{self._what}{path} has the key {name} twice, as text and number")
            found[name] = item if type(item) is int else self.read(item, f"{path}.{name}", depth)
        return found if len(found) == 1 else dict(sorted(found.items()))


def kind_of(value: Any) -> str:
    """What Lua calls the type of a value that is not plain."""
    named = "boolean" if isinstance(value, bool) else type(value).__name__
    return _lua_type()(value) or named


@functools.cache
def _lua_type() -> Callable[[Any], str | None]:
    from lupa import lua54  # here, because lupa is optional

    found: Callable[[Any], str | None] = lua54.lua_type
    return found


def word(value: Any, what: str) -> str:
    """An argument that must be a string; as in Lua, a number will do."""
    if isinstance(value, bytes):
        return text(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number_text(value)
    raise InvalidInput(f"{what} must be a string, not {'nil' if value is None else kind_of(value)}")


def number_text(value: float) -> str:
    """A number as a text: 3 for 3.0, as everywhere in a file."""
    return str(int(value)) if isinstance(value, int) or value.is_integer() else repr(value)


def text(value: Any) -> str:
    """A text of Lua, for messages."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
