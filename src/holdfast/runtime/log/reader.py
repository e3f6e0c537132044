"""Read a run's log: page by page as its code asks for it, and what others have written since."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Final

from msgspec import Struct

from holdfast.core import events as e
from holdfast.core import log
from holdfast.core.entry import Entry
from holdfast.core.fold import Draft
from holdfast.core.journal import Journal
from holdfast.core.journal_feed import feed, feed_receipt
from holdfast.core.log import Head, Record
from holdfast.core.state import RunState
from holdfast.errors import LeaseLost, LogRegressed, NotFound, UnknownEvent
from holdfast.runtime.log.view import AgentView
from holdfast.runtime.log.writer import LogWriter
from holdfast.store.base import Store

PAGE: Final = 1000

_data: Final = itemgetter(4)
"""What a record holds."""


class ResumePoint(Struct, frozen=True):
    """Where a loop may continue without reading what is before: its state, and the end of that log."""

    state: RunState
    head: Head
    first: Record
    """The record of its creation, which says what the run may do."""
    bytes: int = 0


class LogReader:
    """What is known of the log of one live run."""

    __slots__ = (
        "_epoch",
        "_mutex",
        "_on_read",
        "_run_id",
        "_store",
        "_view",
        "_writer",
        "head",
        "journal",
        "knows_all",
        "saved_bytes",
        "steps",
        "unsaved_bytes",
    )

    def __init__(
        self,
        store: Store,
        run_id: str,
        epoch: int,
        head: Head,
        *,
        journal: Journal,
        view: AgentView,
        writer: LogWriter,
        mutex: threading.RLock,
        on_read: Callable[[], None],
    ) -> None:
        """`head` is the end of an empty log. `on_read` is called when events that were not written here have become known;
        it must not block."""
        self._on_read = on_read
        self._store, self._run_id, self._epoch, self._mutex = store, run_id, epoch, mutex
        self._view, self._writer = view, writer
        self.journal = journal
        self.head = head
        """The last event that is known here."""
        self.knows_all = False
        """Whether the log has been read to its end."""
        self.steps = 0
        """How many calls have entered the log."""
        self.unsaved_bytes = 0
        """What the log has grown by since the last snapshot that a loop can continue from."""
        self.saved_bytes = 0

    def begin(self, head: Head, records: Sequence[Record]) -> None:
        """A run that was created a moment ago: its log is known without reading it."""
        self._take_in(records)
        self._writer.head, self.knows_all = head, True
        self._view.show(head.seq)

    def load(self, saved: ResumePoint | None = None) -> None:
        """Read the first page; the rest follows as the code asks for it.

        Of a loop only what follows its last iteration is history: everything is read, from where a
        snapshot ends, and all of it but that is shown and forgotten.
        """
        if saved is not None:
            first = saved.first
            feed(self.journal, first.seq, first.time, log.read_event(self._run_id, first))
            self.journal.begin_at(saved.state)
            self._view.draft = Draft.of(saved.state, keep_calls=False)
            self.steps = saved.state.steps
            self.head = self._writer.head = saved.head
            self.saved_bytes = saved.bytes
        self._read_page()
        if self.journal.life.created is None:
            raise NotFound(f"no run {self._run_id!r}")
        if self.journal.forgets:
            while not self.knows_all:
                self._view.show(self.journal.restarted)
                self._read_page()
        self._read_to_restart()
        self._view.show(self.journal.restarted)  # what was known then is what the code starts with

    def _read_to_restart(self) -> None:
        """What is before the last restart is not a history of this execution: read beyond it."""
        if self.knows_all:
            return
        last = self._store.last_restart(self._run_id)
        while self.head.seq < last:
            self._read_page()

    def _read_page(self) -> None:
        with self._mutex:
            if self.knows_all:
                return
            page = self._store.read(self._run_id, after=self.head.seq, limit=PAGE)
            self._take_in(log.verify(self._run_id, self.head, page))
            self.unsaved_bytes += sum(map(len, map(_data, page)))
            if len(page) < PAGE:
                self.knows_all = True
                self._writer.head = self.head

    def _take_in(self, records: Iterable[Record]) -> None:
        """Know these records, which follow what is known, and were not written here."""
        unseen, read = self._view.unseen, e.from_json
        journal = self.journal
        seq, last = -1, None
        try:
            for record in records:
                seq, time, _, kind, data, _ = record
                event = read(kind, data)
                if type(event) is e.CallSucceeded:  # nearly all of a log that is read is such
                    feed_receipt(journal, seq, time, event)
                else:
                    feed(journal, seq, time, event)
                unseen.append((seq, time, event))
                last = record
        except e.Unreadable as error:
            raise UnknownEvent(self._run_id, seq, str(error)) from None
        finally:  # also what is before a record that cannot be read
            if last is not None:
                self.head = log.head_at(last)
                self.steps = max(self.steps, self.journal.steps)
                self._on_read()

    def read_all(self) -> None:
        """Know the log to its end."""
        while not self.knows_all:
            self._read_page()

    def entry(self, branch: str, index: int) -> Entry | None:
        """What the log contains at this place, with everything that may still change it."""
        found = self.journal.entries.get((branch, index))
        if found is not None and found.done is not None:
            return found
        while not self.knows_all and (found is None or not found.final or found.failed_finally):
            self._read_page()
            found = self.journal.entry(branch, index)
        return found

    def reaches(self, branch: str, index: int) -> bool:
        """Whether the log contains this place or a later one of the branch: the code is replaying."""
        while not self.knows_all and not self.journal.reaches(branch, index):
            self._read_page()
        return self.journal.reaches(branch, index)

    def expects(self, name: str) -> bool:
        """Whether the log contains something of this name that the code has not asked for yet."""
        self.read_all()
        return self.journal.expects(name)

    def refresh(self) -> bool:
        """Read what others have written since; whether there was anything. Nothing of ours is on its way.

        The last event that was known must still be there: a store that lost it has lost what it had acknowledged
        (LogRegressed). What another worker has recorded is not for the code of this one (LeaseLost).
        """
        known = self.head
        page = self._store.read(self._run_id, after=known.seq - 1)
        if known.seq >= 0 and (not page or page[0].hash != known.hash):
            first = known.seq if page else self._store.head(self._run_id) + 1
            raise LogRegressed(self._run_id, first, "the store lost what it had acknowledged")
        new = page if known.seq < 0 else page[1:]
        newest = max((record.epoch for record in new), default=0)
        if newest > self._epoch:
            raise LeaseLost(self._run_id, self._epoch, newest)
        self._take_in(log.verify(self._run_id, known, new))
        self._writer.head = self.head
        return bool(new)
