"""Values made to fit: what is too long is replaced by its size, its beginning and the URI of the rest.

Sizes are bytes of JSON. The size allowed for a value is shared by its parts, small ones first, so that one large part
does not push out the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from holdfast.core import jsonpatch
from holdfast.core.events import Value
from holdfast.views import to_plain

DOCUMENT_BYTES_MAX: Final = 64 * 1024
"""A resource or a tool's result takes at most about this much."""
MARKER_BYTES: Final = 400
_BEGINNING: Final = 160

Tokens = tuple[str, ...]
UriOf = Callable[[str], str]
"""The URI of the whole value at a JSON Pointer."""


def size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace"))


def fit(value: Any, uri_of: UriOf, limit: int = DOCUMENT_BYTES_MAX) -> Any:
    """The value as plain JSON that takes about `limit` bytes at most."""
    return _fit(value, (), uri_of, limit)


def _fit(value: Any, at: Tokens, uri_of: UriOf, limit: int) -> Any:
    if isinstance(value, Value) and value.blob:  # stored outside the log
        return _marker(value.bytes, at, uri_of)
    if isinstance(value, Value):
        value = to_plain(value)
    if isinstance(value, dict):
        return _fit_dict(value, at, uri_of, limit)
    if isinstance(value, list | tuple):
        return _fit_list(value, at, uri_of, limit)
    if isinstance(value, str) and size(value) > max(limit, MARKER_BYTES):
        return _marker(size(value), at, uri_of, beginning=value[:_BEGINNING])
    return value


def _fit_dict(value: dict[str, Any], at: Tokens, uri_of: UriOf, limit: int) -> Any:
    sizes = {key: _estimated(item) + len(key) + 6 for key, item in value.items()}
    if sum(sizes.values()) <= limit:
        return {key: _fit(item, (*at, key), uri_of, limit) for key, item in value.items()}
    if at and len(value) * MARKER_BYTES > limit and len(value) > 8:
        return _marker(sum(sizes.values()), at, uri_of, keys=len(value))
    made: dict[str, Any] = dict.fromkeys(value)  # keeps their order
    left = limit
    for number, key in enumerate(sorted(sizes, key=sizes.__getitem__)):
        share = max(MARKER_BYTES, left // (len(sizes) - number))
        made[key] = _fit(value[key], (*at, key), uri_of, share)
        left -= min(sizes[key], share)
    return made


def _fit_list(value: Sequence[Any], at: Tokens, uri_of: UriOf, limit: int) -> Any:
    sizes = [_estimated(item) + 2 for item in value]
    if sum(sizes) <= limit:
        return [_fit(item, (*at, str(i)), uri_of, limit) for i, item in enumerate(value)]
    # The newest are at the end: from there, as many as fit; one that is large alone is cut itself.
    shown: list[Any] = []
    left = limit - MARKER_BYTES
    share = max(MARKER_BYTES, limit // 4)
    for i in range(len(value) - 1, -1, -1):
        cost = min(sizes[i], share)
        if cost > left and shown:
            break
        shown.append(_fit(value[i], (*at, str(i)), uri_of, share))
        left -= cost
    older = len(value) - len(shown)
    marker = [_marker(sum(sizes), at, uri_of, items=len(value), shown=len(shown))] if older else []
    return [*marker, *reversed(shown)]


def _estimated(value: Any) -> int:
    if isinstance(value, Value):
        return MARKER_BYTES if value.blob else len(bytes(value.json))
    if isinstance(value, dict):
        return 2 + sum(len(key) + 6 + _estimated(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return 2 + sum(2 + _estimated(item) for item in value)
    return size(value)


def _marker(size: int, at: Tokens, uri_of: UriOf, **fields: Any) -> dict[str, Any]:
    return {"cut": True, "bytes": size, **fields, "rest": uri_of(jsonpatch.pointer(at))}
