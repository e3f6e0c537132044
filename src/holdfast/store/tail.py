"""Reading a run's log from its end, for readers that do not need all of it.

What is read is checked: each record against the one before it, which is read with it. Whether what
stands further back is intact is found out by those who read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast.core import log
from holdfast.core.log import Record
from holdfast.errors import LogDamaged
from holdfast.store.base import Store

FIRST_PAGE: Final = 16
LARGEST_PAGE: Final = 4096
"""Pages grow as one reads on: most find what they want at the very end, and others soon have larger ones."""


def newest_first(store: Store, run_id: str, *, page: int = FIRST_PAGE) -> Iterator[Record]:
    """The run's records from the last one on; none if there is no such run."""
    origin = log.origin(run_id)  # or an error that says that this is not a run id
    end = store.head(run_id)
    while end >= 0:
        start = max(0, end - page + 1)
        after = max(
            -1, start - 2
        )  # the one before is read, too: what follows is checked against it
        found = store.read(run_id, after=after, limit=end - after)
        if not found and store.get(run_id) is None:
            return  # it was deleted in the meantime
        head = origin
        if start:
            if not found or found[0].seq != start - 1:
                raise LogDamaged(run_id, start - 1, "it is missing")
            head, found = log.head_at(found[0]), found[1:]
        checked = list(log.verify(run_id, head, found))
        if len(checked) != end - start + 1:
            raise LogDamaged(run_id, start + len(checked), "it is missing")
        yield from reversed(checked)
        end, page = start - 1, min(4 * page, LARGEST_PAGE)
