"""Reading a log page by page, forwards or from its end: a long log takes no more memory than a short one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from holdfast.core import log
from holdfast.core.log import Record
from holdfast.errors import LogDamaged
from holdfast.store.base import Store

PAGE: Final = 5000
"""So many events of a long log are read at once."""

FIRST_PAGE: Final = 16
LARGEST_PAGE: Final = 4096
"""From the end, pages grow as one reads on: most readers find what they need at the very end."""

Through = Callable[[Iterable[Record]], Iterable[Record]]
"""What the events of a long log pass on their way, one by one: where they may be counted."""


def in_pages(
    store: Store, run_id: str, after: int = -1, limit: int | None = None
) -> Iterator[Record]:
    """The run's log as it is stored, at most `limit` records of it. Checking the chain is the reader's part."""
    left = sys.maxsize if limit is None else limit
    while left > 0 and (page := store.read(run_id, after=after, limit=min(PAGE, left))):
        yield from page
        if len(page) < min(PAGE, left) or page[-1].seq <= after:
            return
        after, left = page[-1].seq, left - len(page)


def newest_first(store: Store, run_id: str, *, page: int = FIRST_PAGE) -> Iterator[Record]:
    """The run's records from the last one backwards; none if there is no such run.

    What is read is checked: each record against the one before it. Whether the log further back is intact is found
    out by those who read it.
    """
    origin = log.origin(run_id)  # or an error that says that this is not a run id
    end = store.head(run_id)
    while end >= 0:
        start = max(0, end - page + 1)
        after = max(-1, start - 2)  # with the one before, against which the first is checked
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
