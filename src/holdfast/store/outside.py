"""The one way to write to a run's log from outside its session: decide on the run as it is now, and record the
decision if it still is. People do this (`control`), and so do runs that cancel their children or record evidence after they lost their lease.

How much of the log is read depends on the decision (`Reads`): mostly the last event, or as far back as anything is
open. So it does not cost more for a long log.

What is sent again under an idempotency key is recorded once. A key belongs to a run and to one kind of request. It is
claimed in the transaction that records the event.

Not here: the decisions (`control`), reading the log (`pages.py`).
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from msgspec import Struct

from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.core.events import Event
from holdfast.core.fold import fold
from holdfast.core.log import Blob
from holdfast.core.state import RunState
from holdfast.errors import Conflict, InvalidInput, LogDamaged, NoSuchRun, NotNow
from holdfast.store.base import (
    RESERVED,
    TERMINAL_STATUSES,
    Append,
    Creation,
    NewRun,
    RowChange,
    RunRow,
    Store,
)
from holdfast.store.pages import Reads, everything, the_end
from holdfast.store.process import is_held


class RunUpdate(Struct, frozen=True):
    """What to append to a run's log, and what changes with it. Without events, nothing is written."""

    events: Sequence[Event] = ()
    change: RowChange | None = None
    blobs: Sequence[Blob] = ()
    key: str = ""
    """A key that no other event may hold: KeyTaken if one does."""


Decide = Callable[[RunState, RunRow], RunUpdate]
"""Based on what is known of the run (as far as it was read) and its row."""

WAKE: Final = RowChange(wake=True)


def update_run(store: Store, run_id: str, decide: Decide, reads: Reads = the_end) -> None:
    """Decide on a run as it is now, and record the decision if it still is. NoSuchRun if there is none."""
    while True:
        records = reads(store, run_id)
        row = store.get(run_id)  # after the log: so it is not older than what was read there
        if row is None:
            raise NoSuchRun(run_id)
        if not records:
            raise LogDamaged(run_id, 0, "it is missing")
        update = decide(fold(RunState(id=run_id), records), row)
        if not update.events:
            return
        now, last = store.now(), records[-1]
        head = log.head_at(last)
        _, sealed = log.seal(head, update.events, epoch=last.epoch, time=now)
        refuse_unreadable(sealed)
        work = Append(
            run_id,
            head.seq,
            sealed,
            None,
            update.change,
            update.blobs,
            update.key,
            before=head.hash,
        )
        try:
            store.append(work)
        except Conflict:
            continue  # something happened in between: decide again, on what is true now
        return


def create(
    store: Store,
    run: NewRun,
    new: Sequence[Event],
    blobs: Sequence[Blob] = (),
    keys: Sequence[tuple[str, int]] = (),
    *,
    now: int,
) -> tuple[RunRow, bool]:
    """Create a run for any worker, with its first events; its row, and whether it was created now."""
    _, sealed = log.seal(log.origin(run.id), new, epoch=0, time=now)
    refuse_unreadable(sealed)
    return store.create(Creation(run, sealed, blobs, keys=keys)).wait().made


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


def refuse_held(store: Store, row: RunRow, then: str) -> None:
    """For what cannot be done while a worker executes the run; `then` says what can be done first."""
    if is_held(row, store.now()):
        raise NotNow(f"run {row.id!r} is being executed by {row.owner}; {then}")


def whole_state(store: Store, run_id: str) -> RunState:
    """The fold of everything: also for what to say of a call that was over long ago."""
    return fold(RunState(), everything(store, run_id))


# ── idempotency keys of what people and programs do to a run ─────────────────────────────────


T = TypeVar("T", bound=e.Event)


def store_key(kind: str, run_id: str, key: str) -> str:
    """The key as the store has it; "" without one."""
    known_as = values.digest(key.encode("utf-8", "surrogatepass"))
    return f"{RESERVED}{kind} {run_id} {known_as}" if key else ""


def recorded(store: Store, key: str, kind: type[T]) -> T | None:
    """The event that was recorded under a key of `store_key`; None if there is none."""
    found = store.find_key(key) if key else None
    if found is None:
        return None
    run_id, seq = found
    records = store.read(run_id, after=seq - 1, limit=1)
    event = log.read_event(run_id, records[0]) if records else None
    if not isinstance(event, kind):
        raise refusal(run_id)
    return event


def refusal(run_id: str) -> InvalidInput:
    """For a key that was used for something else."""
    return InvalidInput(
        f"run {run_id!r}: the idempotency key was used for another request; use a new key"
    )
