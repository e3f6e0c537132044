"""Finding the items of a run: one by its key, or all, newest first; and whether another program executes the run.

Writing them is `control/items.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.core import log, values
from holdfast.core.events import ItemPut, RunCreated
from holdfast.core.items import Item, newest_version, version_key
from holdfast.core.log import Record
from holdfast.errors import LogDamaged
from holdfast.store.artifacts import read_artifact, read_value
from holdfast.store.base import RESERVED, RunRow, Store
from holdfast.store.pages import checked, newest_first


def find(store: Store, run_id: str, collection: str, key: str) -> tuple[Record, ItemPut] | None:
    """The newest version of an item, which may be that it was deleted; None if there is none."""

    def place(version: int) -> int | None:
        found = store.find_key(RESERVED + version_key(run_id, collection, key, version))
        return None if found is None or found[0] != run_id else found[1]

    version = newest_version(lambda n: place(n) is not None)
    seq = place(version) if version else None
    return None if seq is None else _at(store, run_id, seq, (collection, key, version))


def _at(
    store: Store, run_id: str, seq: int, wanted: tuple[str, str, int]
) -> tuple[Record, ItemPut]:
    """The event with which an item was put. The index is not part of the hash chain: it is checked against the event."""
    record = next(checked(store, run_id, seq - 1, limit=1), None)
    if record is None:
        raise LogDamaged(run_id, seq, "it is missing")
    event = log.read_event(run_id, record)
    if isinstance(event, ItemPut) and (event.collection, event.key, event.number) == wanted:
        return record, event
    raise LogDamaged(run_id, seq, f"it should be item {wanted[1]!r} of {wanted[0]}")


def newest_items(
    store: Store,
    run_id: str,
    collection: str,
    *,
    prefix: str = "",
    after: int = -1,
    before: int | None = None,
) -> Iterator[tuple[Record, ItemPut]]:
    """The items that were put after a seq (and before another one) and have a value now, the last one first."""
    seen: set[tuple[str, str]] = set()
    for record in newest_first(store, run_id):
        if record.seq <= after:
            return
        if record.kind != ItemPut.stored_as:
            continue
        event = log.read_event(run_id, record)
        assert isinstance(event, ItemPut)
        if collection not in ("", event.collection) or not event.key.startswith(prefix):
            continue
        if (event.collection, event.key) not in seen:
            seen.add((event.collection, event.key))
            if event.value is not None and (before is None or record.seq < before):
                yield record, event


def read_item(store: Store, run_id: str, record: Record, event: ItemPut) -> Item:
    """The item with its value, which may be stored outside its event."""
    return Item(
        event.collection,
        event.key,
        _value(store, run_id, record, event),
        event.number,
        record.seq,
        record.time,
    )


def _value(store: Store, run_id: str, record: Record, event: ItemPut) -> Any:
    assert event.value is not None
    if event.is_bytes:
        return read_artifact(store, run_id, event.value.blob, seq=record.seq)
    return values.decode(read_value(store, run_id, event.value, seq=record.seq))


def is_recorded(store: Store, row: RunRow) -> bool:
    """Whether another program executes the run. Then no worker has ever claimed it."""
    if row.epoch > 0:
        return False
    first = store.read(row.id, limit=1)
    event = log.read_event(row.id, first[0]) if first else None
    return isinstance(event, RunCreated) and event.recorded
