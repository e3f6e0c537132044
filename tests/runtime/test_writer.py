"""The writer of a log keeps the order of its batches, whatever the order in which the store answers."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from holdfast.core import log
from holdfast.core.events import NULL, Event, NoteTaken
from holdfast.core.journal import Journal
from holdfast.errors import Conflict, Woken
from holdfast.runtime.log.writer import Batch, BatchState, LogWriter
from holdfast.store.base import Append

BATCHES = 4


class Keeper:
    """A store that keeps what it is given, and has yet to answer."""

    def __init__(self, sent: list[Append]) -> None:
        self.sent = sent

    def now(self) -> int:
        return 0

    def submit(self, work: Append) -> None:
        self.sent.append(work)


class Known:
    """A log that is known to its end."""

    def __init__(self) -> None:
        self.head, self.knows_all = log.origin("r"), True

    def read_all(self) -> None: ...


class Reader:
    """A run whose log another process has made longer by one event."""

    def __init__(self, sent: list[Append]) -> None:
        self.run_id, self.epoch = "r", 1
        self.store: Any = Keeper(sent)
        self.journal = Journal()
        self.log = Known()
        self.stop_signal: BaseException | None = None
        self.written: list[Batch] = []

    def refresh(self) -> bool:
        if not self.written:
            self.log.head, _ = log.seal(self.log.head, [note("outside")], epoch=0, time=0)
        return True

    def recorded_own(self, batch: Batch) -> None:
        self.written.append(batch)

    def check_alive(self) -> None: ...
    def stop(self, signal: BaseException) -> BaseException:
        return signal


def note(key: str) -> Event:
    return NoteTaken(key=key, value=NULL)


def keys(batch: Batch) -> list[str]:
    return [event.key for event in batch.all_events if isinstance(event, NoteTaken)]


def sent_batches(sent: list[Append], **rest: Any) -> tuple[Reader, LogWriter, list[Batch]]:
    """Four batches on their way; before each a note was buffered."""
    reader = Reader(sent)
    writer = LogWriter(reader, log.origin(reader.run_id), threading.RLock())
    batches = []
    for n in range(BATCHES):
        writer.buffer(note(f"note {n}"))
        batch = Batch([note(f"event {n}")], **(rest if n == 1 else {}))
        batches.append(writer.commit(batch))
    return reader, writer, batches


def conflict() -> Conflict:
    return Conflict("r", -1, 0)


@pytest.mark.parametrize("order", list(itertools.permutations(range(BATCHES))))
def test_refused_batches_are_sent_again_in_the_order_in_which_they_were_built(order: Any) -> None:
    sent: list[Append] = []
    reader, writer, batches = sent_batches(sent)
    for n in order:
        assert BATCHES == len(sent), "sent again while others are on their way"
        writer.refused(batches[n], conflict())

    again = sent[BATCHES:]
    assert [batch.work for batch in batches] == again
    assert list(range(0, 2 * BATCHES, 2)) == [work.after for work in again]
    for n in order:
        writer.accepted(batches[n])
    assert batches == reader.written
    assert writer.is_idle


def test_a_batch_that_may_not_be_sent_again_leaves_its_notes_to_the_next() -> None:
    """As an intent after a cancellation: what the code had noted before it is still recorded, in its place."""
    sent: list[Append] = []

    def refuse(run: Reader) -> None:
        if run.log.head.seq >= 0:  # what came from outside is known
            raise Woken("r")

    _, writer, batches = sent_batches(sent, condition=refuse)
    for batch in batches:
        writer.refused(batch, conflict())

    assert BatchState.FAILED is batches[1].state and isinstance(batches[1].error, Woken)
    assert [0, 2, 3] == [
        batches.index(b) for work in sent[BATCHES:] for b in batches if b.work is work
    ]
    assert ["note 1", "note 2", "event 2"] == keys(batches[2])
