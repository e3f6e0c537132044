"""A search string for runs: `status:failed,waiting agent:recap since:24h -agent:demo recap-sam`.

Terms are joined with AND, a comma means OR, and `-` excludes. A bare word is the beginning of a run's id, or an agent.
A text in quotes, `text:`, `input:`, `result:`, `error:` and `state:` search what the runs contain, and
`input.customer.id:42` a value in it.

The cost of a search is limited, by the number of runs it reads and by time. One that stops early reports it,
and its cursor continues it.

What a run contains are its input, its result, its errors and its state. Values that are stored outside the log, because they are
large, are not searched.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from msgspec import Struct

from holdfast.core.fold import fold
from holdfast.core.state import RunState, to_plain
from holdfast.errors import InvalidInput, LogDamaged
from holdfast.store.base import MICROSECONDS, Filter, RunRow, Store
from holdfast.store.brief import read_brief
from holdfast.store.checks import check_whole
from holdfast.store.pages import all_runs
from holdfast.views.listing import SHOWN_STATUSES, shown
from holdfast.waiting import is_for_people, is_in_doubt

# ── what a run contains ──────────────────────────────────────────────────────────────────────


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


# ── the search ───────────────────────────────────────────────────────────────────────────────


READ_MAX: Final = 20_000
"""So many runs are looked at for one page."""
READ_MIN: Final = 100
"""So many runs are read in any case, so that a search of few runs never stops early on a slow machine."""
READ_SECONDS: Final = 0.12
"""So long runs are looked at for one page, if the store cannot select by all terms."""
PAGE: Final = 500
_AGE: Final = r"(\d+)(m|h|d|w)"
_SECONDS: Final = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
KEYS: Final = (
    "status",
    "agent",
    "parent",
    "id",
    "worker",
    "waiting",
    "since",
    "before",
    "version",
    *FIELDS,
)
PATHS: Final = ("input", "result", "state")
"""Keys that may be followed by a path: `state.tier:gold`."""


class Term(NamedTuple):
    """One condition: any of these words. `key` is empty for a bare word."""

    key: str
    words: tuple[str, ...]
    excludes: bool = False

    @property
    def reads_logs(self) -> bool:
        return self.key.partition(".")[0] in FIELDS


class SearchResult(Struct, frozen=True):
    """Runs, newest first, with the status that is shown. `next` is the cursor of the next page.

    `stopped`: the search looked at as many runs (`looked`) as it may and did not fill the page; `next` continues it.
    """

    runs: list[RunRow]
    next: int | None
    stopped: bool = False
    looked: int = 0


def parse(text: str) -> list[Term]:
    """The terms of a search string. InvalidInput names the place of what is wrong, and the known keys."""
    found: list[Term] = []
    for match in re.finditer(r'(-?)(?:([a-z_]+(?:\.[^\s:"]+)?):)?("[^"]*"|\S+)', text):
        minus, key, value = match.groups()
        if key:
            _check_key(key, match.start())
        elif value.startswith('"'):
            key = "text"
        words = (value[1:-1],) if value.startswith('"') else tuple(filter(None, value.split(",")))
        if key == "status":
            _check_statuses(words, match.start())
        if key in ("since", "before"):
            _age_us(words, match.start())
        found.append(Term(key or "", words, bool(minus)))
    return found


def _check_key(key: str, place: int) -> None:
    name, dot, _ = key.partition(".")
    if name not in KEYS:
        raise InvalidInput(
            f"unknown key {key!r} at position {place + 1} of the search; use one of {', '.join(KEYS)}"
        )
    if dot and name not in PATHS:
        raise InvalidInput(
            f"{name!r} at position {place + 1} of the search has no parts; a path follows one of {', '.join(PATHS)}"
        )


def _check_statuses(words: tuple[str, ...], place: int) -> None:
    for word in words:
        if word not in SHOWN_STATUSES:
            raise InvalidInput(
                f"unknown status {word!r} at position {place + 1} of the search; use one of "
                + ", ".join(SHOWN_STATUSES)
            )


def _age_us(words: tuple[str, ...], place: int) -> int:
    match = re.fullmatch(_AGE, words[0]) if len(words) == 1 else None
    if match is None:
        raise InvalidInput(
            f"position {place + 1} of the search takes an age such as 30m, 24h or 7d, not {','.join(words)!r}"
        )
    return int(match[1]) * _SECONDS[match[2]] * MICROSECONDS


def search(
    store: Store,
    text: str,
    *,
    limit: int = 50,
    cursor: int | None = None,
) -> SearchResult:
    """Up to `limit` runs that match, newest first."""
    terms, now = parse(text), store.now()
    check_whole("limit", limit, least=1)
    which, rest = _filter(terms, now)
    on_rows = [term for term in rest if not term.reads_logs]
    on_logs = [term for term in rest if term.reads_logs]
    end = time.monotonic() + READ_SECONDS
    found: list[RunRow] = []
    looked, is_first = 0, cursor is None
    page = 1 + (PAGE if rest else limit)
    for row in all_runs(store, which, page=page, cursor=cursor):
        if len(found) == limit:
            return SearchResult(found, cursor, looked=looked)
        if looked >= READ_MAX or (rest and looked >= READ_MIN and time.monotonic() >= end):
            named = [] if found or not is_first else _named(store, terms, now)
            return SearchResult(found + named, cursor, stopped=True, looked=looked)
        seen = shown(row, now)
        if all(_matches(seen, term) != term.excludes for term in on_rows) and (
            not on_logs or _contains(store, row.id, on_logs)
        ):
            found.append(seen)
        looked += 1
        cursor = row.cursor
    return SearchResult(found, None, looked=looked)


def _named(store: Store, terms: list[Term], now: int) -> list[RunRow]:
    """The run with this id, if the search consists only of an id: it is found regardless of its age."""
    if len(terms) != 1 or terms[0].key not in ("", "id") or terms[0].excludes:
        return []
    rows = [store.get(word) for word in terms[0].words]
    return [shown(row, now) for row in rows if row is not None]


def _contains(store: Store, run_id: str, terms: list[Term]) -> bool:
    """Whether what a run contains matches. Its log is read once, and folded only if that can change the answer."""
    content = read_content(store, run_id, [word for term in terms for word in term.words])
    return all(_has(content, term) != term.excludes for term in terms)


def _has(content: Content | None, term: Term) -> bool:
    return content is not None and any(content.contains(term.key, word) for word in term.words)


def _filter(terms: list[Term], now: int) -> tuple[Filter, list[Term]]:
    """What the store can select by, and the conditions that are left."""
    which, rest = Filter(), []
    for term in terms:
        word = term.words[0] if len(term.words) == 1 and not term.excludes else ""
        if (
            term.key == "status"
            and word
            and word not in ("interrupted", "running")
            and not which.status
        ):
            which = which._replace(status=word)
        elif term.key == "status" and word and not which.status:
            which = which._replace(status="running")
            rest.append(term)
        elif term.key == "agent" and word and not which.agent:
            which = which._replace(agent=word)
        elif term.key == "parent" and word and not which.parent:
            which = which._replace(parent=word)
        elif term.key == "since" and not term.excludes:
            which = which._replace(created_after=now - _age_us(term.words, 0))
        elif term.key == "before" and not term.excludes:
            which = which._replace(created_before=now - _age_us(term.words, 0))
        else:
            rest.append(term)
    return which, rest


def _matches(row: RunRow, term: Term) -> bool:
    return any(_TESTS[term.key](row, word) for word in term.words)


def _is_waiting(row: RunRow, word: str) -> bool:
    if word == "people":
        return is_for_people(row.waiting_kinds)
    if word == "doubt":
        return row.status == "waiting" and is_in_doubt(row.waiting_kinds)
    return row.status == "waiting" and word.lower() in row.waiting_for.lower()


def _is_any(_row: RunRow, _word: str) -> bool:
    """The store has selected by time already."""
    return True


_TESTS: Final[dict[str, Callable[[RunRow, str], bool]]] = {
    "": lambda row, word: row.id.startswith(word) or row.agent == word,
    "status": lambda row, word: row.status == word,
    "agent": lambda row, word: row.agent == word,
    "parent": lambda row, word: row.parent == word,
    "id": lambda row, word: row.id.startswith(word),
    "worker": lambda row, word: row.owner == word,
    "version": lambda row, word: row.code_version == word,
    "waiting": _is_waiting,
    "since": _is_any,
    "before": _is_any,
}
