"""Reading a log from any place to its end, page by page: a long log takes no more memory than a short one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from holdfast.core.log import Record
from holdfast.store.base import Store

PAGE: Final = 5000
"""So many events of a long log are read at once."""

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
