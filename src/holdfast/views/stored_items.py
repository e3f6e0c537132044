"""What integrations keep in a run: an item by its key, or the newest of a collection."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from holdfast.core import log
from holdfast.core.events import ItemPut
from holdfast.core.log import Record
from holdfast.store.base import Store
from holdfast.store.checks import check_text, check_whole
from holdfast.store.items import Item, check_collection, check_key, find, newest_items, read_item
from holdfast.views.log import row_of


def item(store: Store, run_id: str, collection: str, key: str) -> Item | None:
    """The item under this key, or None. This reads no more of a long log than of a short one."""
    found = item_event(store, run_id, collection, key)
    return None if found is None else read_item(store, run_id, *found)


def item_event(
    store: Store, run_id: str, collection: str, key: str
) -> tuple[Record, ItemPut] | None:
    """The event with which the item under this key was put, or None."""
    found = find(store, log.check_run_id(run_id), check_collection(collection), check_key(key))
    if found is None or found[1].value is None:
        row_of(store, run_id)
        return None
    return found


def items(
    store: Store,
    run_id: str,
    collection: str = "",
    *,
    prefix: str = "",
    after: int = -1,
    limit: int | None = None,
) -> Iterator[Item]:
    """The items of a collection (or of all) whose keys start so, that were put after this seq; the last one first.

    The log is read from its end, only as far as is needed."""
    found = item_events(store, run_id, collection, prefix=prefix, after=after, limit=limit)
    return (read_item(store, run_id, *one) for one in found)


def item_events(
    store: Store,
    run_id: str,
    collection: str = "",
    *,
    prefix: str = "",
    after: int = -1,
    before: int | None = None,
    limit: int | None = None,
) -> Iterator[tuple[Record, ItemPut]]:
    """The events with which these items were put; `before` is the seq of the last one of the page before."""
    row_of(store, run_id)
    if collection:
        check_collection(collection)
    check_text("prefix", prefix)
    check_whole("after", after)
    if limit is not None:
        check_whole("limit", limit, least=0)
    found = newest_items(store, run_id, collection, prefix=prefix, after=after, before=before)
    return itertools.islice(found, limit)
