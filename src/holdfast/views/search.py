"""A search string for runs: `status:failed,waiting agent:recap since:24h -agent:demo recap-sam`.

Terms are joined with AND, a comma means OR, and `-` excludes. A bare word is the beginning of a run's id, or an agent.
Rows only: no log is read, so a search costs the same whatever the runs contain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from msgspec.structs import replace

from holdfast.errors import InvalidInput
from holdfast.store.base import MICROSECONDS, Filter, RunRow, Store
from holdfast.views.listing import SHOWN_STATUSES, standing

READ_MAX: Final = 20_000
"""So many runs are looked at for one page."""
PAGE: Final = 500
PEOPLE: Final = ("approval", "an answer", "a decision", "a person")
"""How what people are asked for starts, in `RunRow.waiting_for`."""
_AGE: Final = re.compile(r"(\d+)(m|h|d|w)")
_SECONDS: Final = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
KEYS: Final = ("status", "agent", "parent", "id", "worker", "waiting", "since", "before", "version")


class Term(NamedTuple):
    """One condition: any of these words. `key` is empty for a bare word."""

    key: str
    words: tuple[str, ...]
    excludes: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """Runs, newest first, with the status that is shown. `next` is the cursor of the next page.

    `stopped`: the search looked at as many runs as it may and did not fill the page; `next` continues it.
    """

    runs: list[RunRow]
    next: int | None
    stopped: bool = False


def parse(text: str) -> list[Term]:
    """The terms of a search string. InvalidInput names the place of what is wrong, and the known keys."""
    found: list[Term] = []
    for match in re.finditer(r'(-?)(?:([a-z_]+):)?("[^"]*"|\S+)', text):
        minus, key, value = match.groups()
        if key and key not in KEYS:
            raise InvalidInput(
                f"unknown key {key!r} at position {match.start() + 1} of the search; use one of {', '.join(KEYS)}"
            )
        words = (value[1:-1],) if value.startswith('"') else tuple(filter(None, value.split(",")))
        if key == "status":
            _check_statuses(words, match.start())
        if key in ("since", "before"):
            _age_us(words, match.start())
        found.append(Term(key or "", words, bool(minus)))
    return found


def _check_statuses(words: tuple[str, ...], place: int) -> None:
    for word in words:
        if word not in SHOWN_STATUSES:
            raise InvalidInput(
                f"unknown status {word!r} at position {place + 1} of the search; use one of "
                + ", ".join(SHOWN_STATUSES)
            )


def _age_us(words: tuple[str, ...], place: int) -> int:
    match = _AGE.fullmatch(words[0]) if len(words) == 1 else None
    if match is None:
        raise InvalidInput(
            f"position {place + 1} of the search takes an age such as 30m, 24h or 7d, not {','.join(words)!r}"
        )
    return int(match[1]) * _SECONDS[match[2]] * MICROSECONDS


def search(store: Store, text: str, *, limit: int = 50, cursor: int | None = None) -> Found:
    """Up to `limit` runs that match, newest first."""
    terms, now = parse(text), store.now()
    which, rest = _filter(terms, now)
    found: list[RunRow] = []
    for looked, row in enumerate(_rows(store, which, cursor, limit if not rest else PAGE)):
        if len(found) == limit:
            return Found(found, cursor)
        if looked >= READ_MAX:
            return Found(found, cursor, stopped=True)
        shown = standing(row, now)
        seen = row if shown == row.status else replace(row, status=shown)
        if all(_matches(seen, term) != term.excludes for term in rest):
            found.append(seen)
        cursor = row.cursor
    return Found(found, None)


def _rows(store: Store, which: Filter, cursor: int | None, page: int) -> Iterator[RunRow]:
    while rows := store.runs(which, limit=page + 1, cursor=cursor):
        yield from rows
        cursor = rows[-1].cursor
        if len(rows) <= page:
            return


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
        return row.waiting_for.startswith(PEOPLE)
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
