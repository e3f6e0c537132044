"""A run's events as sentences, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.store.base import Store
from holdfast.views.log import events
from holdfast.words.timeline import sentence


class Moment(NamedTuple):
    """One event in words: `about` names what it is about, `text` says what happened. `tone` is a colour, or None."""

    seq: int
    time: int
    epoch: int
    kind: str
    about: str
    text: str
    tone: str | None


def timeline(
    store: Store,
    run_id: str,
    *,
    after: int = -1,
    limit: int | None = None,
    last: int | None = None,
) -> Iterator[Moment]:
    """The run's events after a seq, or its `last` events, in words; read page by page."""
    for record, event in events(store, run_id, after=after, limit=limit, last=last):
        said = sentence(event)
        yield Moment(
            record.seq, record.time, record.epoch, record.kind, said.what, said.text, said.colour
        )
