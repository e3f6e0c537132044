"""What a run contains, for a search: its input, its result, its errors and its state.

Values that are stored outside the log, because they are large, are not searched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from msgspec import Struct

from holdfast.core.fold import fold
from holdfast.core.state import RunState, to_plain
from holdfast.errors import LogDamaged
from holdfast.store.base import Store
from holdfast.store.brief import read_brief

FIELDS: Final = ("text", "input", "result", "error", "state")
"""What can be searched; `text` is all of the others."""
SHORT: Final = 200
"""A log of up to so many events is compared with the words before it is folded."""
_UNESCAPED: Final = r"[\w .@+-]*"
"""Words that JSON writes as they are."""


class Content(Struct, frozen=True):
    """The parts of a run that are searched, as plain JSON values."""

    input: Any
    result: Any
    error: tuple[str, ...]
    state: Any

    def contains(self, field: str, word: str) -> bool:
        """Whether a part contains a word, in any case; with a path (`input.customer.id`), whether the value there is it."""
        name, _, path = field.partition(".")
        parts = (
            [getattr(self, one) for one in FIELDS[1:]] if name == "text" else [getattr(self, name)]
        )
        if path:
            return any(_written(found) == word for found in _at(parts[0], path.split(".")))
        wanted = word.casefold()
        return any(wanted in text.casefold() for part in parts for text in _texts(part))


def read_content(store: Store, run_id: str, words: Iterable[str]) -> Content | None:
    """What a run contains; None if its log contains none of these words, or is damaged."""
    records = store.read(run_id, limit=SHORT + 1)
    try:
        if len(records) > SHORT:
            return _content(read_brief(store, run_id))
        log = b"\n".join(record.data for record in records).decode("utf-8", "replace").casefold()
        if not any(_may_contain(log, word) for word in words):
            return None
        return _content(fold(RunState(), records))
    except LogDamaged:
        return None  # `holdfast doctor` reports it; the others are found


def _may_contain(log: str, word: str) -> bool:
    return re.fullmatch(_UNESCAPED, word) is None or word.casefold() in log


def _content(state: RunState) -> Content:
    failure = state.failure
    errors = [call.error for call in state.calls]
    errors += [attempt.error for call in state.calls for attempt in call.attempts]
    errors += [] if failure is None else [failure.error]
    said = tuple(dict.fromkeys(f"{error.type}: {error.message}" for error in errors if error))
    return Content(to_plain(state.input), to_plain(state.result), said, to_plain(state.state))


def _texts(part: Any) -> Iterator[str]:
    """Every key and every value in a part."""
    if isinstance(part, dict):
        for key, value in part.items():
            yield key
            yield from _texts(value)
    elif isinstance(part, list | tuple):
        for value in part:
            yield from _texts(value)
    elif part is not None:
        yield _written(part)


def _at(value: Any, path: list[str]) -> Iterator[Any]:
    """The values at a path; a list stands for each of its items, and a number for one of them."""
    if not path:
        yield value
    elif isinstance(value, dict):
        if path[0] in value:
            yield from _at(value[path[0]], path[1:])
    elif isinstance(value, list):
        if path[0].isascii() and path[0].isdecimal():
            yield from _at(value[int(path[0])], path[1:]) if int(path[0]) < len(value) else ()
        else:
            for one in value:
                yield from _at(one, path)


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
