"""A run's log: read in pages, event by event or as sentences, and verified."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from holdfast.core import log
from holdfast.core.events import Event, artifacts
from holdfast.core.fold import Draft
from holdfast.core.log import Record
from holdfast.core.state import RunState
from holdfast.errors import InvalidInput, LogDamaged, NoSuchRun
from holdfast.store.artifacts import read_artifact
from holdfast.store.base import RunRow, Store
from holdfast.store.checks import check_whole
from holdfast.store.pages import Through, checked


class Verification(Struct, frozen=True):
    """What `verify` found."""

    run_id: str
    ok: bool
    events: int
    head: str
    problem: str = ""


def row_of(store: Store, run_id: str) -> RunRow:
    """The run's row, or NotFound."""
    row = store.get(run_id)
    if row is None:
        raise NoSuchRun(run_id)
    return row


def records(store: Store, run_id: str, through: Through = iter) -> list[Record]:
    """The run's log, checked, from the beginning."""
    found = list(checked(store, run_id, through=through))
    if not found:
        row_of(store, run_id)
    return found


def contradiction(row: RunRow, state: RunState | Draft) -> LogDamaged | None:
    """What is wrong if a run's row and its log do not agree.

    A row is not part of the hash chain, and a chain that has lost its end is still a chain. But how a run
    ended, or that it waits, is written to both in one transaction.
    """
    if not state.agent:
        return LogDamaged(row.id, 0, "it is missing")
    if row.agent != state.agent:
        what = (
            f"the run is stored with agent {row.agent!r}, but its log is of agent {state.agent!r}"
        )
        return LogDamaged(row.id, 0, what)
    if row.status not in (state.status, *_NOT_RECORDED):
        what = f"the run is stored as {row.status}, but its log ends as {state.status}"
        return LogDamaged(row.id, state.seq + 1, f"it may be missing: {what}")
    return None


_NOT_RECORDED: Final = ("pending", "running", "paused", "quarantined")
"""Statuses that a run can have without an event that says so: claims and releases are not recorded."""


def events(
    store: Store,
    run_id: str,
    *,
    after: int = -1,
    limit: int | None = None,
    last: int | None = None,
) -> Iterator[tuple[Record, Event]]:
    """The run's log after a seq, at most `limit` events, or its `last` events: each record with its event.

    They are read page by page, so that a long log costs no more memory than a short one. Each is checked against the
    one before it; what is not asked for is not read."""
    check_whole("after", after)
    if limit is not None:
        check_whole("limit", limit, least=0)
    if last is not None:
        after, limit = _last(store, run_id, check_whole("last", last, least=0), after, limit), last
    return _events(store, run_id, after, limit)


def _last(store: Store, run_id: str, last: int, after: int, limit: int | None) -> int:
    """The seq after which the last events begin."""
    if after != -1 or limit is not None:
        raise InvalidInput("give either last, or after and limit")
    head = store.heads([run_id]).get(run_id)
    if head is None:
        raise NoSuchRun(run_id)
    return max(-1, head - last)


def _events(
    store: Store, run_id: str, after: int, limit: int | None
) -> Iterator[tuple[Record, Event]]:
    is_empty = True
    for record in checked(store, run_id, after, limit):
        is_empty = False
        yield record, log.read_event(run_id, record)
    if is_empty:
        row_of(store, run_id)


def verify(store: Store, run_id: str, *, through: Through = iter) -> Verification:
    """Check the run's whole log against its hash chain, and every value stored outside it."""
    seen: list[Record] = []  # the last one that verified
    try:
        _check(store, run_id, through, seen)
    except LogDamaged as found:
        return _verification(run_id, seen, str(found))
    return _verification(run_id, seen)


def check(store: Store, run_id: str, *, through: Through = iter) -> int:
    """The same as `verify`, but damage is raised as LogDamaged; how many events there are."""
    seen: list[Record] = []
    _check(store, run_id, through, seen)
    return seen[-1].seq + 1 if seen else 0


def _check(store: Store, run_id: str, through: Through, last: list[Record]) -> None:
    while True:
        row = row_of(store, run_id)
        draft = Draft.of(keep_calls=False)
        for record, event in _verified(store, run_id, through, last):
            draft.apply(record.seq, record.time, event)
        damage = contradiction(row, draft)
        if damage is None:
            return
        if row == row_of(store, run_id):  # else it was written in between: read both again
            raise damage


def _verification(run_id: str, last: Sequence[Record], problem: str = "") -> Verification:
    events, head = (last[-1].seq + 1, last[-1].hash.hex()) if last else (0, "")
    return Verification(run_id, not problem, events, head, problem)


def _verified(
    store: Store, run_id: str, through: Through, last: list[Record]
) -> Iterator[tuple[Record, Event]]:
    """The run's events, each checked with all that it refers to; the last one is left in `last`."""
    known: set[str] = set()
    for record in checked(store, run_id, through=through):
        event = log.read_event(run_id, record)
        new = artifacts(event) - known
        for name in sorted(new):
            read_artifact(store, run_id, name, seq=record.seq)
        known |= new
        last[:] = [record]
        yield record, event


# ── as sentences ─────────────────────────────────────────────────────────────────────────────


class Moment(NamedTuple):
    """One event in words: `about` names what it is about, `text` says what happened. `tone` is a colour, or None."""

    seq: int
    time: int
    epoch: int
    kind: str
    about: str
    text: str
    tone: str | None


def timeline(
    store: Store,
    run_id: str,
    *,
    after: int = -1,
    limit: int | None = None,
    last: int | None = None,
) -> Iterator[Moment]:
    """The run's events after a seq, or its `last` events, in words; read page by page."""
    from holdfast.words.timeline import sentence  # here, as most views of a run are not in words

    for record, event in events(store, run_id, after=after, limit=limit, last=last):
        said = sentence(event)
        yield Moment(
            record.seq, record.time, record.epoch, record.kind, said.what, said.text, said.colour
        )
