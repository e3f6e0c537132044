"""What integrations keep in a run: an item by its key, or the newest of a collection."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from holdfast.core import log
from holdfast.core.items import Item, check_collection, check_key
from holdfast.store.base import Store
from holdfast.store.checks import check_text, check_whole
from holdfast.store.items import find, newest_items, read_item
from holdfast.views.log import row_of


def item(store: Store, run_id: str, collection: str, key: str) -> Item | None:
    """The item under this key, or None. This reads no more of a long log than of a short one."""
    found = find(store, log.check_run_id(run_id), check_collection(collection), check_key(key))
    if found is None or found[1].value is None:
        row_of(store, run_id)
        return None
    return read_item(store, run_id, *found)


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
    row_of(store, run_id)
    if collection:
        check_collection(collection)
    check_text("prefix", prefix)
    check_whole("after", after)
    if limit is not None:
        check_whole("limit", limit, least=0)
    found = newest_items(store, run_id, collection, prefix=prefix, after=after)
    return (read_item(store, run_id, *one) for one in itertools.islice(found, limit))
