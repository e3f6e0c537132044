"""Items: what an integration keeps in a run, under keys of its own; and finding them, one by its key, or all, newest first.

An item is one event. Its key may get another value later, which is the next version of it; deleting is a version
without a value. Each version holds a key of the store (`keys`), so that it is recorded once, and found without reading
the log.

Writing them is `control/items.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec import Struct

from holdfast.core import log, values
from holdfast.core.events import ItemPut, RunCreated
from holdfast.core.log import Record
from holdfast.errors import InvalidInput, LogDamaged
from holdfast.store.artifacts import read_artifact, read_value
from holdfast.store.base import RESERVED, RunRow, Store
from holdfast.store.pages import checked, newest_first

# ── names and versions ───────────────────────────────────────────────────────────────────────


KEY_MAX: Final = 1000
_COLLECTION: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"


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
    if isinstance(name, str) and re.fullmatch(_COLLECTION, name):
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


# ── finding them ─────────────────────────────────────────────────────────────────────────────


def find(store: Store, run_id: str, collection: str, key: str) -> tuple[Record, ItemPut] | None:
    """The newest version of an item, which may be that it was deleted; None if there is none."""

    def place(version: int) -> int | None:
        found = store.find_key(RESERVED + version_key(run_id, collection, key, version))
        return None if found is None or found[0] != run_id else found[1]

    version = newest_version(lambda n: place(n) is not None)
    seq = place(version) if version else None
    return None if seq is None else _at(store, run_id, seq, (collection, key, version))


def _at(store: Store, run_id: str, seq: int, item: tuple[str, str, int]) -> tuple[Record, ItemPut]:
    """The event with which an item was put. The index is not part of the hash chain: it is checked against the event."""
    record = next(checked(store, run_id, seq - 1, limit=1), None)
    if record is None:
        raise LogDamaged(run_id, seq, "it is missing")
    event = log.read_event(run_id, record)
    if isinstance(event, ItemPut) and (event.collection, event.key, event.number) == item:
        return record, event
    raise LogDamaged(run_id, seq, f"it should be item {item[1]!r} of {item[0]}")


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
