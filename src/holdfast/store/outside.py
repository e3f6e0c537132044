"""The one way to write to a run's log from outside its session: decide on the run as it is now, and record the
decision if it still is. People do this (`control`), and so do runs with their children and with what they lost.

What a decision has to know says how much of the log is read for it (`Reads`): mostly the last event, or as far
back as anything is open. So it costs no more the longer the run has lived.

Not here: what is decided.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from holdfast.core import events as e
from holdfast.core import log, still_open
from holdfast.core.events import Event
from holdfast.core.fold import fold
from holdfast.core.log import Blob, Record
from holdfast.core.state import RunState
from holdfast.errors import Conflict, InvalidInput, LogDamaged, NoSuchRun, NotNow
from holdfast.store.base import TERMINAL_STATUSES, Append, RowChange, RunRow, Store
from holdfast.store.pages import newest_first


class Act(NamedTuple):
    """What is to be recorded, with what changes next to it. Without events, nothing is."""

    events: Sequence[Event] = ()
    change: RowChange | None = None
    blobs: Sequence[Blob] = ()
    key: str = ""
    """A key that no other event may hold: KeyTaken if one does."""


Decide = Callable[[RunState, RunRow], Act]
"""Based on what is known of the run (as far as it was read) and its row."""

WAKE: Final = RowChange(wake=True)

# ── how much of the log a decision needs ─────────────────────────────────────────────────────

LATELY: Final = 100
Reads = Callable[[Store, str], list[Record]]
"""What is read of a run's log, in order and checked: its last event at least."""


def the_end(store: Store, run_id: str) -> list[Record]:
    """Only where the log ends: for what is decided on the run's row alone."""
    return list(itertools.islice(newest_first(store, run_id, page=1), 1))


def lately(store: Store, run_id: str) -> list[Record]:
    """The last events. A cancellation that is not carried out yet is among them: a process that knows of one starts
    nothing new. (If very much came from outside since, it is asked for twice, which does no harm.)"""
    return list(itertools.islice(newest_first(store, run_id, page=LATELY), LATELY))[::-1]


def what_is_open(store: Store, run_id: str) -> list[Record]:
    """As far back as anything is open: requests, and calls that may have happened."""
    return still_open.tail(run_id, newest_first(store, run_id))


def open_until(found: still_open.Found) -> Reads:
    """The same, but no further than to what is asked about."""
    return lambda store, run_id: still_open.tail(run_id, newest_first(store, run_id), found)


def everything(store: Store, run_id: str) -> list[Record]:
    """The whole log: for what depends on all that the run did or knows."""
    return list(log.verify(run_id, log.origin(run_id), store.read(run_id)))


def act(store: Store, run_id: str, decide: Decide, reads: Reads = the_end) -> None:
    """Decide on a run as it is now, and record the decision if it still is. NoSuchRun if there is none."""
    while True:
        records = reads(store, run_id)
        row = store.get(run_id)  # after the log: so it is not older than what was read there
        if row is None:
            raise NoSuchRun(run_id)
        if not records:
            raise LogDamaged(run_id, 0, "it is missing")
        new, change, blobs, key = decide(fold(RunState(id=run_id), records), row)
        if not new:
            return
        last = records[-1]
        head = log.head_at(last)
        _, sealed = log.seal(head, new, epoch=last.epoch, time=store.now())
        refuse_unreadable(sealed)
        work = Append(run_id, head.seq, sealed, None, change, blobs, key, before=head.hash)
        try:
            store.append(work)
        except Conflict:
            continue  # something happened in between: decide again, on what is true now
        return


def refuse_unreadable(records: Sequence[log.Record]) -> None:
    """What came from outside, such as a name that is not a text, must not make a log unreadable."""
    for record in records:
        try:
            e.from_json(record.kind, record.data)
        except e.Unreadable as error:
            raise InvalidInput(f"nothing was recorded: {error}") from None


def refuse_ended(row: RunRow) -> None:
    if row.status in TERMINAL_STATUSES:
        raise NotNow(f"run {row.id!r} is already {row.status}")


def whole_state(store: Store, run_id: str) -> RunState:
    """The fold of everything: also for what to say of a call that was over long ago."""
    return fold(RunState(), everything(store, run_id))
