"""Idempotency keys of what people and programs do to a run: what is sent again under its key is recorded once.

A key belongs to a run and to one kind of request. It is claimed in the transaction that records the event.
"""

from __future__ import annotations

from typing import TypeVar

from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.errors import InvalidInput
from holdfast.store.base import RESERVED, Store

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
