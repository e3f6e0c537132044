"""Items: what an integration keeps in a run, under keys of its own.

An item is one event. Its key may get another value later, which is the next version of it; deleting is a version
without a value. Each version holds a key of the store (`keys`), so that it is recorded once, and found without reading
the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from holdfast.core import values
from holdfast.errors import InvalidInput

KEY_MAX: Final = 1000
_COLLECTION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Item(Struct, frozen=True):
    """What an integration has kept under a key. `version` counts the values that the key has had."""

    collection: str
    key: str
    value: Any
    """As it was given: a JSON value, or bytes."""
    version: int
    seq: int
    time: int


def check_collection(name: object) -> str:
    """The name itself, or InvalidInput."""
    if isinstance(name, str) and _COLLECTION.fullmatch(name):
        return name
    raise InvalidInput(
        f"{name!r} is not the name of a collection: use 1 to 100 letters, digits and . _ -, for example "
        "'langgraph.checkpoints'"
    )


def check_key(key: object) -> str:
    """The key itself, or InvalidInput."""
    if not isinstance(key, str) or not 0 < len(key) <= KEY_MAX:
        raise InvalidInput(
            f"a key of an item is a text of 1 to {KEY_MAX:,} characters, not {key!r}"
        )
    if any(x == "\0" or "\ud800" <= x <= "\udfff" for x in key):
        raise InvalidInput(f"the key {key!r} has characters that a database cannot store")
    return key


def version_key(run_id: str, collection: str, key: str, version: int) -> str:
    """How the store names one version of an item, without the prefix of reserved keys."""
    return f"item {run_id} {collection} {version} {values.digest(key.encode())}"


def newest_version(exists: Callable[[int], bool]) -> int:
    """The number of the newest version, 0 if there is none. Versions have no gaps, so few questions are enough."""
    if not exists(1):
        return 0
    high = 2
    while exists(high):
        high *= 2
    low = high // 2  # it exists, and `high` does not
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if exists(middle) else (low, middle)
    return low
